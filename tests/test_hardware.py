"""Peak rates: names as exports have them, and the user's own figures."""

import pytest

from traceprof.errors import UsageError
from traceprof.hardware import (
    BOARDS,
    PCIE_X16,
    Board,
    board,
    parse_peaks,
    peak_memory_gb_per_s,
    peaks,
)

# Names as Nsight, nvidia-smi and the real exports write them: NVLink and PCIe in GB/s, SMs, memory.
KNOWN = [
    ("Tesla P100-SXM2-16GB", 80.0, 15.75, 56, 732),
    ("Tesla P100-PCIE-16GB", None, 15.75, 56, 732),
    ("Tesla P100-PCIE-12GB", None, 15.75, 56, None),
    ("Tesla V100-SXM2-32GB", 150.0, 15.75, 80, 900),
    ("Tesla V100-SXM3-32GB", 150.0, 15.75, 80, 900),
    ("Tesla V100-PCIE-16GB", None, 15.75, 80, 900),
    ("Quadro GV100", None, 15.75, 80, None),
    ("Tesla T4", None, 15.75, 40, 320),
    ("NVIDIA GeForce RTX 2080 Ti", None, 15.75, 68, 616),
    ("Quadro RTX 6000", None, 15.75, None, None),
    ("NVIDIA A100-SXM4-40GB", 300.0, 31.5, 108, 1555),
    ("NVIDIA A100-SXM4-80GB", 300.0, 31.5, 108, 2039),
    ("NVIDIA A100-SXM4", 300.0, 31.5, 108, None),
    ("NVIDIA A800-SXM4", 200.0, 31.5, 108, None),
    ("NVIDIA A100-PCIE-40GB", None, 31.5, 108, 1555),
    ("NVIDIA A100 80GB PCIe", None, 31.5, 108, 1935),
    ("NVIDIA A800-SXM4-80GB", 200.0, 31.5, 108, 2039),
    ("NVIDIA A800-SXM4-40GB", 200.0, 31.5, 108, 1555),
    ("NVIDIA A100-SXM-64GB", None, 31.5, 108, None),
    ("NVIDIA A30", None, 31.5, 56, 933),
    ("NVIDIA A10", None, 31.5, 72, 600),
    ("NVIDIA A10G", None, 31.5, 80, 600),
    ("NVIDIA A40", None, 31.5, 84, 696),
    ("NVIDIA RTX A6000", None, 31.5, 84, 768),
    ("NVIDIA GeForce RTX 3090", None, 31.5, 82, 936),
    ("NVIDIA GeForce RTX 3090 Ti", None, 31.5, 84, 1008),
    ("NVIDIA L4", None, 31.5, 58, 300),
    ("NVIDIA L40S", None, 31.5, 142, 864),
    ("NVIDIA RTX 6000 Ada Generation", None, 31.5, 142, 960),
    ("NVIDIA GeForce RTX 4090", None, 31.5, 128, 1008),
    ("NVIDIA GeForce RTX 4090 D", None, 31.5, None, None),
    ("NVIDIA H100 80GB HBM3", 450.0, 63.0, 132, 3350),
    ("NVIDIA H100 PCIe", None, 63.0, 114, 2000),
    ("NVIDIA H100 NVL", None, 63.0, 132, 3938),
    ("NVIDIA H800", 200.0, 63.0, 132, 3350),
    ("NVIDIA H20", 450.0, 63.0, 78, 4000),
    ("NVIDIA H200", 450.0, 63.0, 132, 4800),
    ("NVIDIA H200 NVL", None, 63.0, 132, 4800),
    ("NVIDIA GH200 480GB", 450.0, None, 132, None),
    ("NVIDIA B200", 900.0, 63.0, 148, 8000),
    ("NVIDIA B300", 900.0, None, None, None),
    ("NVIDIA GB200", 900.0, None, None, 8000),
    ("NVIDIA GB300", 900.0, None, None, None),
    ("NVIDIA GB10", None, None, 48, 273),
    ("NVIDIA GeForce RTX 5080", None, 63.0, 84, 960),
    ("NVIDIA GeForce RTX 5070 Ti", None, 63.0, 70, 896),
    ("NVIDIA GeForce RTX 5070", None, 63.0, 48, 672),
    ("AMD Instinct MI355X", None, 63.0, 256, 8000),
    ("NVIDIA GeForce RTX 5090", None, 63.0, 170, 1792),
    ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", None, 63.0, 188, None),
]
UNKNOWN = [
    None,
    "",
    "NVIDIA A2",
    "NVIDIA GeForce RTX 4060",  # eight lanes
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
    "Quadro T400",
    "Intel(R) UHD Graphics 630",
]


@pytest.mark.parametrize(("gpu", "nvlink", "pcie", "num_sms", "memory"), KNOWN)
def test_known_boards(
    gpu: str, nvlink: float | None, pcie: float | None, num_sms: int, memory: float | None
) -> None:
    found = board(gpu)
    assert found is not None
    assert (found.num_sms, peak_memory_gb_per_s(gpu)) == (num_sms, memory)
    rates = peaks(gpu)
    assert (rates.nvlink, rates.pcie, rates.network) == (nvlink, pcie, None)
    assert rates.is_assumed("pcie") == (pcie is not None)
    assert rates.is_assumed("nvlink") == (nvlink is not None)


@pytest.mark.parametrize("gpu", UNKNOWN)
def test_no_rate_is_guessed(gpu: str | None) -> None:
    rates = peaks(gpu)
    assert (rates.nvlink, rates.pcie, rates.network) == (None, None, None)
    assert not rates.is_assumed("pcie")


def test_every_pattern_is_met_by_a_name_that_no_earlier_one_takes() -> None:
    names = [row[0] for row in KNOWN] + [name for name in UNKNOWN if name]
    names += ["NVIDIA H800 PCIe", "NVIDIA H800 NVL", "NVIDIA RTX A5000", "NVIDIA GeForce RTX 5080"]
    names += ["NVIDIA L40", "NVIDIA GB300", "Tesla V100S-PCIE-32GB"]
    names += [
        f"AMD Instinct {name}"
        for name in ("MI350X", "MI100", "MI210", "MI250X", "MI300X VF", "MI325X")
    ]
    assert {id(board(name)) for name in names if board(name)} == {
        id(known_board) for known_board in BOARDS
    }


@pytest.mark.parametrize(
    "known", [known for known in BOARDS if known.rates], ids=lambda b: b.pattern
)
def test_rates_double_where_numbers_are_half_as_long(known: Board) -> None:
    assert known.rates is not None
    fp32, tf32, fp16, bf16, fp8, fp4 = known.rates
    assert fp16 >= 1.99 * fp32
    if tf32 is not None:  # the data sheets of NVIDIA and AMD round
        assert fp16 / tf32 == pytest.approx(2, rel=0.02)
        assert bf16 == fp16
    if fp8 is not None:
        assert fp8 / fp16 == pytest.approx(2, rel=0.02)
    if fp4 is not None:
        assert fp8 is not None
        assert 1.98 <= fp4 / fp8 <= 4.01  # twice; of GeForce and Blackwell Ultra up to four times


@pytest.mark.parametrize(("gpu", "ghz"), [("MI350X", 2.2), ("MI355X", 2.4)])
def test_rates_of_cdna_4_follow_from_clock_and_compute_units(gpu: str, ghz: float) -> None:
    known = board(f"AMD Instinct {gpu}")
    assert known is not None
    assert known.rates is not None
    _, _, *rates = known.rates
    per_clock = (4096, 4096, 8192, 16384)
    assert rates == pytest.approx([256 * number * ghz / 1000 for number in per_clock], rel=1e-4)


@pytest.mark.parametrize(
    ("gpu", "ai_tops"), [("5090", 3352), ("5080", 1801), ("5070 Ti", 1406), ("5070", 988)]
)
def test_fp4_of_geforce_is_half_of_what_it_is_sold_as(gpu: str, ai_tops: int) -> None:
    known = board(f"NVIDIA GeForce RTX {gpu}")
    assert known is not None
    assert known.rates is not None
    assert known.rates.fp4 == pytest.approx(ai_tops / 2, rel=1e-3)


def test_no_rate_is_known_of_a_board_with_one_sparse_figure() -> None:
    known = board("NVIDIA GB10")
    assert known is not None
    assert known.rates is None


def test_pcie_rates_double_with_each_generation() -> None:
    # after 128b/130b encoding; generation 6 has flow control units of 256 bytes instead
    assert [PCIE_X16[generation] for generation in (3, 4, 5)] == [15.75, 31.5, 63.0]
    for generation, transfers in ((3, 8), (4, 16), (5, 32)):
        assert PCIE_X16[generation] == pytest.approx(16 * transfers / 8 * 128 / 130, rel=1e-3)
    assert PCIE_X16[6] == pytest.approx(128 * 242 / 256, rel=1e-3)


def test_the_user_knows_better() -> None:
    rates = peaks("NVIDIA A100-SXM4-80GB", {"pcie": 15.75, "network": 25.0})
    assert (rates.nvlink, rates.pcie, rates.network) == (300.0, 15.75, 25.0)
    assert rates.is_assumed("nvlink")
    assert not rates.is_assumed("pcie")
    assert not rates.is_assumed("network")
    assert rates.of("pcie") == 15.75
    assert rates.of(None) is None


def test_rates_are_read_as_users_write_them() -> None:
    assert parse_peaks(["nvlink=300", "pcie=15.75"]) == {"nvlink": 300.0, "pcie": 15.75}
    assert parse_peaks(()) == {}


@pytest.mark.parametrize(
    "text", ["pcie", "pcie=", "pcie=fast", "pcie=0", "pcie=-1", "pcie=inf", "pcie=nan", "usb=5", ""]
)
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="cannot read the peak rate"):
        parse_peaks([text])
