"""Peak rates of links: per GPU and direction in GB/s (1e9 bytes), by GPU name.

An export names the GPU but neither its PCIe generation and width nor its NVLink bridges, so a peak
is what the board can reach; `Peaks` takes the user's own figures instead. Sources of the tables:
NVLink lanes, rates and generations: NVIDIA's data sheets, as collected in stas00/ml-engineering,
network/README.md; links of NVLink 3 on GA102 boards: NVIDIA's GA102 whitepaper (4 x 14.0625 GB/s);
PCIe after encoding: PCI-SIG (128b/130b: 15.75, 31.5, 63.0 for x16); SM counts: data sheets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from traceprof.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# GB/s of an x16 slot in one direction, after encoding.
PCIE_X16 = {3: 15.75, 4: 31.5, 5: 63.0, 6: 121.0}
LINKS = ("nvlink", "pcie", "network")


@dataclass(frozen=True, slots=True)
class Board:
    """A GPU board.

    Attributes:
        pattern: found in the name that Nsight gives the GPU, ignoring case.
        nvlink: GB/s in one direction over all its links; None without NVLink, or with a bridge
            that a machine may lack.
        pcie_generation: of its slot, x16; None where the host is reached over NVLink-C2C.
        num_sms: streaming multiprocessors.
    """

    pattern: str
    nvlink: float | None
    pcie_generation: int | None
    num_sms: int | None


# The first matching pattern counts: special boards stand before the family.
BOARDS: tuple[Board, ...] = (
    # Laptops wire 4, 8 or 16 lanes; a MIG slice has no NVLink and shares the slot.
    Board(r"\bLaptop\b|\bMax-Q\b|\bMIG\b", None, None, None),
    Board(r"GB300|GB200", 900.0, None, None),
    Board(r"B300", 900.0, None, None),
    Board(r"B200", 900.0, 5, 148),
    Board(r"GH200", 450.0, None, 132),
    Board(r"H100 PCIe", None, 5, 114),
    Board(r"H[128]00 NVL", None, 5, 132),
    Board(r"H800 PCIe", None, 5, None),
    Board(r"H800", 200.0, 5, 132),
    Board(r"H200|H100 .*HBM3|H100 SXM", 450.0, 5, 132),
    Board(r"H20\b", 450.0, 5, 78),
    Board(r"A800-SXM4", 200.0, 4, 108),
    Board(r"A100-SXM4", 300.0, 4, 108),
    Board(r"A[18]00\b", None, 4, 108),
    Board(r"V100-SXM[23]", 150.0, 3, 80),
    Board(r"V100\b", None, 3, 80),
    Board(r"P100-SXM2", 80.0, 3, 56),
    Board(r"P100\b", None, 3, 56),
    Board(r"A30\b", None, 4, 56),
    Board(r"A10\b", None, 4, 72),
    Board(r"A10G\b", None, 4, 80),
    Board(r"A40\b|RTX A6000", None, 4, 84),
    Board(r"RTX A[45][05]00", None, 4, None),
    Board(r"L40S?\b|RTX 6000 Ada", None, 4, 142),
    Board(r"L4\b", None, 4, 58),
    Board(r"RTX PRO 6000", None, 5, 188),
    Board(r"RTX 5090", None, 5, 170),
    Board(r"RTX 50[78]0", None, 5, None),
    Board(r"RTX 4090\b(?! D)", None, 4, 128),
    Board(r"RTX 3090 Ti", None, 4, 84),
    Board(r"RTX 3090", None, 4, 82),
    # The 3050, 4050, 4060, 5050 and 5060 have eight lanes: x16 would be a wrong guess.
    Board(r"RTX (?:30[678]0|40[789]0)", None, 4, None),
    Board(r"\bT4\b", None, 3, 40),
    Board(r"RTX 2080 Ti", None, 3, 68),
    Board(r"Quadro RTX [5-8]000", None, 3, None),
)


@dataclass(frozen=True, slots=True)
class Peaks:
    """Peak rates of one GPU's links, in GB/s and one direction; None where they are not known.

    Attributes:
        nvlink: over all NVLinks of the GPU.
        pcie: between the GPU and the host.
        network: of one NIC; no export has it.
        given: the links whose rate the user gave; the others are assumed from the GPU's name.
    """

    nvlink: float | None = None
    pcie: float | None = None
    network: float | None = None
    given: frozenset[str] = frozenset()

    def of(self, link: str | None) -> float | None:
        """Return the peak of a link, None where it is not known."""
        rates = {"nvlink": self.nvlink, "pcie": self.pcie, "network": self.network}
        return rates.get(link or "")

    def is_assumed(self, link: str | None) -> bool:
        """Return whether the peak of a link is assumed from the name of the board."""
        return self.of(link) is not None and link not in self.given


def board(gpu: str | None) -> Board | None:
    """Return the board of this name, or None for one that is not known."""
    if gpu is None:
        return None
    return next((board for board in BOARDS if re.search(board.pattern, gpu, re.IGNORECASE)), None)


def peaks(gpu: str | None, overrides: Mapping[str, float] | None = None) -> Peaks:
    """Return the peak rates of a GPU.

    Args:
        gpu: its name, as Nsight gives it.
        overrides: rates that the user gave, by link.
    """
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

    Raises:
        UsageError: no link of this name, or no positive number.
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
