"""Numbers for people."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.kept_claims import KeptText
from traceprof import units
from traceprof.errors import UsageError


def test_what_is_shown(kept_text: KeptText) -> None:
    asked: list[tuple[Callable[..., str], tuple[Any, ...]]] = [
        (units.duration, (0, 999, 1_000, 1_234_567, 17_172_652, 299_848_812, 1_828_647_601)),
        (units.duration, (9_999_999, 3_600_000_000_000, -1_500, 999_499, 999_500, -999_999_999)),
        (units.size_text, (None, 999, 999_499, 999_500, 12_345, 1_234_000_000_000)),
        (units.three_digits, (0.01234, 587.46, 999.4, 999.6, 1979)),
        (units.times, (1, 2)),
        (units.percent, (0.0573,)),
    ]
    said = [f"{show.__name__} {value}: {show(value)}" for show, values in asked for value in values]
    numbers = 1, 0, 2, 3, 12_345_678, 1.0, 0.5
    things = "memory copy", "thread switch", "process", "core", "key"
    said += (", ".join(units.counted(number, thing) for number in numbers) for thing in things)
    kept_text("\n".join(said))


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
