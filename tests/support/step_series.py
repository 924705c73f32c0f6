"""Series of steps with and without a change, and how often a comparison says that there is one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from traceprof.comparison.mean_change import mean_change

if TYPE_CHECKING:
    from collections.abc import Callable

    from traceprof.comparison.mean_change import MeanChange
    from traceprof.comparison.statistics import Interval
    from traceprof.intervals import Float64

    Noise = Callable[[np.random.Generator, int], Float64]


def independent(source: np.random.Generator, num: int) -> Float64:
    return 100 * (1 + source.normal(0, 0.02, num))


def of_boundaries(source: np.random.Generator, num: int) -> Float64:
    """Steps that take time from their neighbours, as those of real recordings do."""
    shift = source.normal(0, 0.02 / math.sqrt(2), num + 1)
    return 100 * (1 + shift[1:] - shift[:-1])


def alternating(source: np.random.Generator, num: int) -> Float64:
    is_long = (np.arange(num) + source.integers(2)) % 2 == 0
    return independent(source, num) * np.where(is_long, 7, 1)


def every_eighth(source: np.random.Generator, num: int) -> Float64:
    is_long = (np.arange(num) + source.integers(8)) % 8 == 0
    return independent(source, num) * np.where(is_long, 3, 1)


def mixed(source: np.random.Generator, num: int) -> Float64:
    return independent(source, num) * np.where(source.random(num) < 0.3, 7, 1)


def change(before: Float64, after: Float64) -> MeanChange:
    return mean_change(before, after, (before, after))


def said(before: Float64, after: Float64) -> Interval:
    """Return the interval that the verdict is made from."""
    judged = change(before, after).judged
    assert judged is not None
    return judged


def mann_whitney(before: Float64, after: Float64) -> float:
    """Return the statistic of Mann and Whitney's test, standard normal without a change."""
    sizes = len(before), len(after)
    ranks = np.argsort(np.argsort(np.concatenate([before, after]))) + 1.0
    expected = sizes[0] * (sum(sizes) + 1) / 2
    deviation = math.sqrt(sizes[0] * sizes[1] * (sum(sizes) + 1) / 12)
    return float(expected - ranks[: sizes[0]].sum()) / deviation


class Rates(NamedTuple):
    """How often series differ without a change, and with a planted one; by Mann-Whitney, too."""

    false: float
    found: float
    false_ranks: float
    found_ranks: float


def rates(noise: Noise, num: int, planted: float, runs: int) -> Rates:
    source = np.random.default_rng(29)
    counts = np.zeros(4)
    for _ in range(runs):
        before, after = noise(source, num), noise(source, num)
        low, high = said(before, after)
        slower = after * (1 + planted)
        counts += (
            not low <= 0 <= high,
            said(before, slower).low > 0,
            abs(mann_whitney(before, after)) > 1.96,
            mann_whitney(before, slower) > 1.96,
        )
    return Rates(*(counts / runs).tolist())


def drawn_from(steps: Float64, block: int) -> Noise:
    """Return what draws blocks of neighbours of a recording's steps."""

    def draw(source: np.random.Generator, num: int) -> Float64:
        starts = source.integers(0, len(steps), (-(-num // block), 1))
        chosen: Float64 = steps[((starts + np.arange(block)) % len(steps)).ravel()[:num]]
        return chosen

    return draw
