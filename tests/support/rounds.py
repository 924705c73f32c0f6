"""Timing of a step before and after a change, in turn."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    Change = Callable[..., Callable[[], object]]

ROUNDS, ROUND_S, WARM_UP = 10, 0.25, 9


def timed(step: Callable[[], object], num: int, synchronize: Callable[[], object]) -> float:
    """Return microseconds of a step, mean of several."""
    synchronize()
    begin = time.perf_counter()
    for _ in range(num):
        step()
    synchronize()
    return (time.perf_counter() - begin) / num * 1e6


def time_change(
    before: Callable[[], object], after: Callable[[], object], synchronize: Callable[[], object]
) -> dict[str, list[float]]:
    """Time both in turn; microseconds of a step in each round."""
    times: dict[str, list[float]] = {"before": [], "after": []}
    steps = {"before": before, "after": after}
    nums = {}
    for name, step in steps.items():
        timed(step, WARM_UP, synchronize)
        one_us = timed(step, WARM_UP, synchronize)
        nums[name] = max(3, 3 * round(ROUND_S * 1e6 / one_us / 3))
    for _ in range(ROUNDS):
        for name, step in steps.items():
            times[name].append(round(timed(step, nums[name], synchronize), 1))
    return times
