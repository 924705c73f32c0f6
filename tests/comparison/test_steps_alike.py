"""Periods of a program as steps: comparable if both sides have them, and of one size."""

from types import SimpleNamespace
from typing import Any

import pytest

from traceprof.comparison.series import why_unlike
from traceprof.run.step_ranges import StepsSource

RANGES, PERIOD, NONE = StepsSource.RANGES, StepsSource.PERIOD, StepsSource.NONE


def capture(source: StepsSource, *num_kernels: int) -> Any:
    periods = [SimpleNamespace(num_kernels=num) for num in num_kernels]
    return SimpleNamespace(headline=SimpleNamespace(steps_source=source, periods=periods))


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (capture(RANGES), capture(RANGES), None),
        (capture(NONE), capture(RANGES), None),
        (capture(PERIOD, 4), capture(RANGES), "on one side only"),
        (capture(NONE), capture(PERIOD, 4), "on one side only"),
        (capture(PERIOD, 4, 1), capture(PERIOD, 4), "different numbers of phases"),
        (capture(PERIOD, 4, 2), capture(PERIOD, 8, 1), None),  # at most twice as many
        (capture(PERIOD, 4, 2), capture(PERIOD, 4, 5), "periods have 2 and 5 kernels"),
    ],
)
def test_periods_of_two_sides(before: Any, after: Any, why: str | None) -> None:
    for sides in ((before, after), (after, before)):
        said = why_unlike(sides[:1], sides[1:])
        assert said is None if why is None else why in (said or "")
