"""Numbers for people."""

import pytest

from traceprof import units
from traceprof.errors import UsageError


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0 ns"), (999, "999 ns"), (1_000, "1 µs"), (1_234_567, "1.23 ms"),
        (17_172_652, "17.2 ms"), (299_848_812, "300 ms"), (1_828_647_601, "1.83 s"),
        (9_999_999, "10.0 ms"), (3_600_000_000_000, "3600 s"), (-1_500, "-1.50 µs"),
        (999_499, "999 µs"), (999_500, "1.00 ms"), (-999_999_999, "-1.00 s"),
    ],
)  # fmt: skip
def test_durations(nanoseconds: int, text: str) -> None:
    assert units.duration(nanoseconds) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (None, "0 B"), (999, "999 B"), (999_499, "999 kB"), (999_500, "1 MB"), (12_345, "12.3 kB"),
        (1_234_000_000_000, "1234 GB"),
    ],
)  # fmt: skip
def test_sizes(num_bytes: int | None, text: str) -> None:
    assert units.size_text(num_bytes) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.01234, "0.0123"), (587.46, "587"), (999.4, "999"), (999.6, "1000"), (1979, "1979")],
)
def test_three_digits(value: float, text: str) -> None:
    assert units.three_digits(value) == text


@pytest.mark.parametrize(
    ("number", "thing", "text"),
    [
        (1, "memory copy", "1 memory copy"),
        (0, "memory copy", "0 memory copies"),
        (2, "thread switch", "2 thread switches"),
        (3, "process", "3 processes"),
        (12_345_678, "kernel", "12345678 kernels"),
        (1.0, "core", "1 core"),
        (0.5, "core", "0.5 cores"),
        (2, "key", "2 keys"),
    ],
)
def test_counts(number: float, thing: str, text: str) -> None:
    assert units.counted(number, thing) == text


def test_how_often() -> None:
    assert [units.times(number) for number in (1, 2)] == ["once", "2 times"]


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("0", 0),
        ("1500000", 1_500_000),
        ("1.5ms", 1_500_000),
        ("2s", 2_000_000_000),
        ("-3.5us", -3_500),
        ("1726746949.749755996s", 1_726_746_949_749_755_996),  # more digits than a float holds
        (" 7 ns ", 7),
    ],
)
def test_times(text: str, nanoseconds: int) -> None:
    assert units.parse_time(text) == nanoseconds


@pytest.mark.parametrize("text", ["", "x", "1m", "1e9", "0x10", "1..5s", "1.5", "1."])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(UsageError):
        units.parse_time(text)


def test_shares() -> None:
    assert units.percent(0.0573) == "5.7 %"
