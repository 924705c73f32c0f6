"""Peak rates of GPUs by name: of links, per direction in GB/s (1e9 bytes), and of arithmetic.

An export names the GPU but neither its PCIe generation and width nor its NVLink bridges, so a peak
is what the board can reach; `Peaks` takes the user's own figures instead. Sources of the tables:
NVLink lanes, rates and generations: NVIDIA's data sheets, as collected in stas00/ml-engineering,
network/README.md; links of NVLink 3 on GA102 boards: NVIDIA's GA102 whitepaper (4 x 14.0625 GB/s);
PCIe after encoding: PCI-SIG (128b/130b: 15.75, 31.5, 63.0 for x16); SM counts: data sheets.
Arithmetic: data sheets, and of GeForce boards the whitepapers of TU102, GA102, AD102 and GB202;
without sparsity, FP16 with sums in FP32. By board, where a figure is not in such a sheet as it is:
B300, GB300: HGX B300 and GB300 NVL72, of 8 and of 72 GPUs, by GPU; FP4 is given dense and sparse.
RTX 50: NVIDIA's product pages give FP4 with sparsity ("AI TOPS": 3352, 1801, 1406, 988), twice that
without; the others: whitepaper of GB202. MI350X, MI355X: AMD at Hot Chips 2025 (2.2 and
2.4 GHz) and ISSCC 2026 (256 compute units, 8192 operations in FP8 a clock; FP16 half, FP4 twice).
Of GB10 NVIDIA gives one figure, 1 PFLOP/s of FP4 with sparsity, from which no other one follows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import NamedTuple

from traceprof.errors import UsageError
from traceprof.structs import Record

# GB/s of an x16 slot in one direction, after encoding.
PCIE_X16 = {3: 15.75, 4: 31.5, 5: 63.0, 6: 121.0}
LINKS = ("nvlink", "pcie", "network")


class Rates(NamedTuple):
    """Peak rates of multiplications and additions in TFLOP/s, dense; None if the GPU has none."""

    fp32: float  # of plain FP32, without tensor cores (of AMD, in matrix cores)
    tf32: float | None  # of FP32 numbers rounded to TF32
    fp16: float  # with sums in FP32
    bf16: float | None  # the same
    fp8: float | None  # the same, with block scales or without
    fp4: float | None = None  # of E2M1 with block scales


class Board(Record, frozen=True):
    """A GPU board."""

    pattern: str  # found in the name that Nsight gives the GPU, ignoring case
    # GB/s in one direction over all its links; None without NVLink, or with a bridge that a
    # machine may lack
    nvlink: float | None
    pcie_generation: int | None  # of its slot, x16; None if the host is reached over NVLink-C2C
    # streaming multiprocessors, or compute units; None if the name covers several
    num_sms: int | None
    # of its arithmetic; None if the name covers several, or no data sheet was found
    rates: Rates | None = None
    # GB/s of its memory, by data sheets; None if the name covers several
    memory: float | None = None


_H100_SXM = Rates(67, 494.7, 989.4, 989.4, 1979)
_H100_PCIE = Rates(51, 378, 756, 756, 1513)
_H100_NVL = Rates(60, 417.5, 835.5, 835.5, 1671)
_A100 = Rates(19.5, 156, 312, 312, None)
_MI300 = Rates(163.4, 653.7, 1307.4, 1307.4, 2614.9)

# The first matching pattern counts: special boards stand before the family.
BOARDS: tuple[Board, ...] = (
    # Laptops wire 4, 8 or 16 lanes; a MIG slice has no NVLink and shares the slot.
    Board(r"\bLaptop\b|\bMax-Q\b|\bMIG\b", None, None, None),
    Board(r"GB200", 900.0, None, None, Rates(80, 1250, 2500, 2500, 5000, 10000), 8000),
    Board(r"GB300", 900.0, None, None, Rates(80, 1250, 2500, 2500, 5000, 15000)),
    Board(r"B300", 900.0, None, None, Rates(75, 1125, 2250, 2250, 4500, 13125)),
    Board(r"B200", 900.0, 5, 148, Rates(75, 1125, 2250, 2250, 4500, 9000), 8000),
    Board(r"GB10\b", None, None, 48, None, 273),
    Board(r"GH200", 450.0, None, 132, _H100_SXM),
    Board(r"H100 PCIe", None, 5, 114, _H100_PCIE, 2000),
    Board(r"H100 NVL", None, 5, 132, _H100_NVL, 3938),
    Board(r"H200 NVL", None, 5, 132, _H100_NVL, 4800),
    Board(r"H800 NVL", None, 5, 132, None, 3938),
    Board(r"H800 PCIe", None, 5, None, _H100_PCIE, 2000),
    Board(r"H800", 200.0, 5, 132, _H100_SXM, 3350),
    Board(r"H200", 450.0, 5, 132, _H100_SXM, 4800),
    Board(r"H100 .*HBM3|H100 SXM", 450.0, 5, 132, _H100_SXM, 3350),
    Board(r"H20\b", 450.0, 5, 78, Rates(44, 74, 148, 148, 296), 4000),
    Board(r"A800-SXM4-80GB", 200.0, 4, 108, _A100, 2039),
    Board(r"A800-SXM4-40GB", 200.0, 4, 108, _A100, 1555),
    Board(r"A100-SXM4-80GB", 300.0, 4, 108, _A100, 2039),
    Board(r"A100-SXM4-40GB", 300.0, 4, 108, _A100, 1555),
    Board(r"A800-SXM4", 200.0, 4, 108, _A100),
    Board(r"A100-SXM4", 300.0, 4, 108, _A100),
    Board(r"A[18]00 80GB PCIe", None, 4, 108, _A100, 1935),
    Board(r"A[18]00\b.*40GB", None, 4, 108, _A100, 1555),
    Board(r"A[18]00\b", None, 4, 108, _A100),
    Board(r"GV100", None, 3, 80),
    Board(r"V100-SXM[23]", 150.0, 3, 80, Rates(15.7, None, 125, None, None), 900),
    Board(r"V100S", None, 3, 80, Rates(16.4, None, 130, None, None), 1134),
    Board(r"V100\b", None, 3, 80, Rates(14, None, 112, None, None), 900),
    Board(r"P100-SXM2", 80.0, 3, 56, None, 732),
    Board(r"P100\b.*16GB", None, 3, 56, None, 732),
    Board(r"P100\b", None, 3, 56),
    Board(r"A30\b", None, 4, 56, Rates(10.3, 82, 165, 165, None), 933),
    Board(r"A10\b", None, 4, 72, Rates(31.2, 62.5, 125, 125, None), 600),
    Board(r"A10G\b", None, 4, 80, None, 600),
    Board(r"A40\b", None, 4, 84, Rates(37.4, 74.8, 149.7, 149.7, None), 696),
    Board(r"RTX A6000", None, 4, 84, Rates(38.7, 77.4, 154.8, 154.8, None), 768),
    Board(r"RTX A[45][05]00", None, 4, None),
    Board(r"L40S\b", None, 4, 142, Rates(91.6, 183, 362, 362, 733), 864),
    Board(r"L40\b", None, 4, 142, Rates(90.5, 90.5, 181, 181, 362), 864),
    Board(r"RTX 6000 Ada", None, 4, 142, Rates(91.1, 182.1, 364.2, 364.2, 728.5), 960),
    Board(r"L4\b", None, 4, 58, Rates(30.3, 60, 121, 121, 242), 300),
    Board(r"RTX PRO 6000", None, 5, 188, Rates(125, 251, 503, 503, 1007, 2015)),
    Board(r"RTX 5090\b(?! D)", None, 5, 170, Rates(104.8, 104.8, 209.5, 209.5, 419, 1676), 1792),
    Board(r"RTX 5080", None, 5, 84, Rates(56.3, 56.3, 112.6, 112.6, 225.1, 900.4), 960),
    Board(r"RTX 5070 Ti", None, 5, 70, Rates(43.9, 43.9, 87.9, 87.9, 175.8, 703), 896),
    Board(r"RTX 5070", None, 5, 48, Rates(30.9, 30.9, 61.7, 61.7, 123.5, 494), 672),
    Board(r"RTX 4090\b(?! D)", None, 4, 128, Rates(82.6, 82.6, 165.2, 165.2, 330.3), 1008),
    Board(r"RTX 3090 Ti", None, 4, 84, Rates(40, 40, 80, 80, None), 1008),
    Board(r"RTX 3090", None, 4, 82, Rates(35.6, 35.6, 71, 71, None), 936),
    # The 3050, 4050, 4060, 5050 and 5060 have eight lanes: x16 would be a wrong guess.
    Board(r"RTX (?:30[678]0|40[789]0)", None, 4, None),
    Board(r"\bT4\b", None, 3, 40, Rates(8.1, None, 65, None, None), 320),
    Board(r"RTX 2080 Ti", None, 3, 68, Rates(14.2, None, 56.9, None, None), 616),
    Board(r"Quadro RTX [5-8]000", None, 3, None),
    Board(r"MI355X", None, 5, 256, Rates(157.3, None, 2516.6, 2516.6, 5033.2, 10066.3), 8000),
    Board(r"MI350X", None, 5, 256, Rates(144.2, None, 2306.9, 2306.9, 4613.7, 9227.5), 8000),
    Board(r"MI325X", None, 5, 304, _MI300, 6000),
    Board(r"MI300X", None, 5, 304, _MI300, 5300),
    # Of the MI250X one of two dies is a device.
    Board(r"MI250X", None, None, 110, Rates(47.9, None, 191.5, 191.5, None), 1638.4),
    Board(r"MI210", None, 4, 104, Rates(45.3, None, 181, 181, None), 1638.4),
    Board(r"MI100", None, 4, 120, Rates(46.1, None, 184.6, 92.3, None), 1228.8),
)


class Peaks(Record, frozen=True):
    """Peak rates of one GPU's links, in GB/s and one direction; None if they are not known."""

    nvlink: float | None = None  # over all NVLinks of the GPU
    pcie: float | None = None  # between the GPU and the host
    network: float | None = None  # of one NIC; no export has it
    # the links whose rate the user gave; the others are assumed from the GPU's name
    given: frozenset[str] = frozenset()

    def of(self, link: str | None) -> float | None:
        """Return the peak of a link, None if that is unknown."""
        rates = {"nvlink": self.nvlink, "pcie": self.pcie, "network": self.network}
        return rates.get(link or "")

    def is_assumed(self, link: str | None) -> bool:
        """Return whether the peak of a link is assumed from the name of the board."""
        return self.of(link) is not None and link not in self.given


# Block scales cost nothing.
_RATE_OF = {"mxfp8": "fp8", "nvfp4": "fp4", "mxfp4": "fp4"}


@cache
def board(gpu: str | None) -> Board | None:
    """Return the board of this name, or None for one that is not known."""
    if gpu is None:
        return None
    return next((board for board in BOARDS if re.search(board.pattern, gpu, re.IGNORECASE)), None)


def peak_flops_per_s(
    gpu: str | None, precision: str | None, *, tensor_cores: bool | None
) -> float | None:
    """Return the peak rate of a GPU for multiplications and additions; None if that is unknown.

    `precision`: the number format, such as `bf16`; FP32's rate is that without tensor cores, all
    others' with them.
    """
    known = board(gpu)
    if known is None or known.rates is None or tensor_cores is not (precision != "fp32"):
        return None
    of_rate = _RATE_OF.get(precision or "", precision or "")
    tera: float | None = known.rates._asdict().get(of_rate)
    return None if tera is None else tera * 1e12


def peak_memory_gb_per_s(gpu: str | None) -> float | None:
    """Return the peak rate of a GPU's memory; None if that is unknown."""
    known = board(gpu)
    return None if known is None else known.memory


def peaks(gpu: str | None, overrides: Mapping[str, float] | None = None) -> Peaks:
    """Return the peak rates of a GPU, by its name, with rates that the user gave, by link."""
    given = overrides or {}
    known_board = board(gpu)
    pcie = PCIE_X16.get(known_board.pcie_generation or 0) if known_board else None
    return Peaks(
        nvlink=given.get("nvlink", known_board.nvlink if known_board else None),
        pcie=given.get("pcie", pcie),
        network=given.get("network"),
        given=frozenset(given),
    )


def parse_peaks(texts: Iterable[str]) -> dict[str, float]:
    """Read rates as users write them: `nvlink=300`, `pcie=15.75`.

    Raises UsageError: no link of this name, or no positive number.
    """
    rates = {}
    for text in texts:
        link, _, number = text.partition("=")
        try:
            rate = float(number)
        except ValueError:
            rate = 0.0
        if link not in LINKS or not 0 < rate < float("inf"):
            raise UsageError(
                f"cannot read the peak rate {text!r}",
                f"it is not LINK=GB_PER_S with a link of {', '.join(LINKS)}",
                "write it as pcie=31.5, per GPU (network: per NIC) and direction",
            )
        rates[link] = rate
    return rates
