"""Peak rates: names as exports have them, and the user's own figures."""

from pathlib import Path

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
    line.split(",") for line in Path(__file__).with_suffix(".csv").read_text().splitlines()[1:]
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
def test_known_boards(gpu: str, nvlink: str, pcie: str, num_sms: str, memory: str) -> None:
    found, rates = board(gpu), peaks(gpu)
    assert found is not None
    numbers = rates.nvlink, rates.pcie, found.num_sms, peak_memory_gb_per_s(gpu)
    shown = ["" if number is None else f"{number:g}" for number in numbers]
    assert shown == [nvlink, pcie, num_sms, memory]
    assert rates.network is None
    assert rates.is_assumed("pcie") == bool(pcie)
    assert rates.is_assumed("nvlink") == bool(nvlink)


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
