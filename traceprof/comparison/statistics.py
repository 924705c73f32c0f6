"""Intervals of differences: blocks of steps drawn again, captures, and many kernels at once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from traceprof.analyses.steps.step_means import steps_of_a_block

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Float64 = npt.NDArray[np.float64]

LEVEL = 0.95
"""Of intervals: in so many of a hundred the true change lies inside."""
MAX_FALSE = 0.05
"""Of the kernels that are said to have changed, so many may be wrong."""
NUM_DRAWS = 2000
MIN_STEPS = 3
"""Of each recording: of fewer no interval is given."""
MIN_DRAWN_STEPS = 6
"""Of each recording: of fewer the interval is that of normal noise, not of draws."""
_MEDIAN_ERROR = math.sqrt(math.pi / 2)  # of a median of normal noise, in that of the mean
_SEED = 20_240_229  # any: the same question has the same answer
_MAX_VALUES = 4_000_000  # that are drawn at once
_MAX_T = 1e6


class Interval(NamedTuple):
    """Interval in which a change lies, most probably.

    Attributes:
        low: its lower end.
        high: its upper end.
    """

    low: float
    high: float


def drawn(series: Float64, side: int) -> Float64:
    """Draw a recording's steps again and again, in blocks of neighbours, and summarize each draw.

    Deviations are widened by what drawing few blocks makes them too small.

    Args:
        series: float64[n, p], of each step how long it is, then its parts.
        side: 0 or 1, so that two recordings are drawn apart from each other.

    Returns:
        float64[NUM_DRAWS, 1 + p], as `summary`.
    """
    num = len(series)
    block = steps_of_a_block(num)
    blocks = -(-num // block)
    source = np.random.default_rng([_SEED, side])
    point = summary(series)
    draws = np.empty((NUM_DRAWS, len(point)))
    at_once = max(_MAX_VALUES // (num * series.shape[1]), 1)
    for first in range(0, NUM_DRAWS, at_once):
        count = min(at_once, NUM_DRAWS - first)
        starts = source.integers(0, num, (count, blocks, 1))
        steps = ((starts + np.arange(block)) % num).reshape(count, -1)[:, :num]
        values = series[steps]
        draws[first : first + count, 0] = np.median(values[:, :, 0], axis=1)
        draws[first : first + count, 1:] = values.mean(axis=1)
    widened: Float64 = point + (draws - point) * math.sqrt(num / (num - block))
    return widened


def summary(series: Float64) -> Float64:
    """Return the median length of steps, their mean length, and the means of their parts.

    Args:
        series: float64[n, p], as above.

    Returns:
        float64[1 + p].
    """
    return np.concatenate([[np.median(series[:, 0])], series.mean(axis=0)])


def of_draws(changes: Float64) -> Interval:
    """Return the interval of changes that were drawn, float64[n]."""
    low, high = np.quantile(changes, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    return Interval(low, high)


def of_captures(before: Sequence[float], after: Sequence[float]) -> Interval | None:
    """Return the interval of the difference of the means over captures; None of one a side.

    The spread between captures is that of the machine, and the same before and after.
    """
    freedom = len(before) + len(after) - 2
    if freedom < 1:
        return None
    means = [float(np.mean(side)) for side in (before, after)]
    squares = sum(
        float(((np.asarray(side) - mean) ** 2).sum())
        for side, mean in zip((before, after), means, strict=True)
    )
    error = math.sqrt(squares / freedom * (1 / len(before) + 1 / len(after)))
    reach = t_quantile((1 + LEVEL) / 2, freedom) * error
    return Interval(means[1] - means[0] - reach, means[1] - means[0] + reach)


def of_few_steps(before: Sequence[float], after: Sequence[float]) -> Interval | None:
    """Return the interval of the difference of medians of a few steps, if noise is normal."""
    interval = of_captures(before, after)
    if interval is None:
        return None
    middle = (interval.low + interval.high) / 2
    reach = _MEDIAN_ERROR * (interval.high - interval.low) / 2
    return Interval(middle - reach, middle + reach)


def t_probability(t: float, freedom: int) -> float:
    """Return how probable a value of Student's t up to this one is (Abramowitz, Stegun 26.7.3).

    Args:
        t: the value.
        freedom: degrees of freedom, at least 1.
    """
    angle = math.atan(t / math.sqrt(freedom))
    square = math.cos(angle) ** 2
    term, total = 1.0, 0.0
    is_odd = freedom % 2
    for power in range(is_odd + 2, freedom + 1, 2):
        total += term
        term *= square * (power - 1) / power
    if is_odd:
        within = 2 / math.pi * (angle + math.sin(angle) * math.cos(angle) * total)
    else:
        within = math.sin(angle) * total
    return (1 + within) / 2


def t_quantile(probability: float, freedom: int) -> float:
    """Return the value of Student's t that is as probable as that, by bisection.

    Args:
        probability: above a half.
        freedom: degrees of freedom, at least 1.
    """
    low, high = 0.0, _MAX_T
    for _ in range(200):
        middle = (low + high) / 2
        if t_probability(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return high


def p_value(change: float, errors: Sequence[tuple[float, int]]) -> float:
    """Return how probable a change of this size is if there is none (Welch).

    Args:
        change: the difference of two means.
        errors: of each mean its standard error, and the degrees of freedom of that.
    """
    variance = sum(error**2 for error, _ in errors)
    if not variance:
        return 1.0 if not change else 0.0
    freedom = variance**2 / sum(error**4 / number for error, number in errors)
    return 2 * (1 - t_probability(abs(change) / math.sqrt(variance), max(int(freedom), 1)))


def adjusted(probabilities: Sequence[float]) -> list[float]:
    """Return the probabilities for many questions at once (Benjamini, Hochberg).

    Where those up to a limit are taken for changes, at most this share of them is none.
    """
    number = len(probabilities)
    order = sorted(range(number), key=lambda index: -probabilities[index])
    values, least = [1.0] * number, 1.0
    for place, index in enumerate(order):
        least = min(least, probabilities[index] * number / (number - place))
        values[index] = least
    return values
