"""Intervals of differences over recordings, Student's t, and many kernels at once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.intervals import Float64


LEVEL = 0.95
"""Of intervals: in so many of a hundred the true change lies inside."""
MAX_FALSE = 0.05
"""Of the kernels that are said to have changed, so many may be wrong."""
_MAX_T = 1e6


class Interval(NamedTuple):
    """Confidence interval of a change."""

    low: float  # its lower end
    high: float  # its upper end


def of_captures(before: Sequence[float], after: Sequence[float]) -> Interval | None:
    """Return the interval of the difference of means over captures; None with one per side.

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


def t_probability(t: float, freedom: int) -> float:
    """Cumulative probability of Student's t (Abramowitz, Stegun 26.7.3).

    `freedom`: degrees of freedom, at least 1.
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
    """Quantile of Student's t, by bisection.

    `probability`: above a half; `freedom`: degrees of freedom, at least 1.
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
    """Return the p-value of a difference of two means (Welch).

    `errors`: the standard error of each mean, and its degrees of freedom.
    """
    variance = sum(error**2 for error, _ in errors)
    if not variance:
        return 1.0 if not change else 0.0
    freedom = variance**2 / sum(error**4 / number for error, number in errors)
    return 2 * (1 - t_probability(abs(change) / math.sqrt(variance), max(int(freedom), 1)))


def adjusted(probabilities: Sequence[float]) -> list[float]:
    """Return p-values adjusted for the number of tests (Benjamini, Hochberg).

    If those up to a limit count as changes, at most this share of them is false.
    """
    number = len(probabilities)
    order = sorted(range(number), key=lambda index: -probabilities[index])
    values, least = [1.0] * number, 1.0
    for place, index in enumerate(order):
        least = min(least, probabilities[index] * number / (number - place))
        values[index] = least
    return values


def mann_whitney(before: Float64, after: Float64) -> float:
    """Return the p-value of the Mann-Whitney test (1947).

    Uses the normal distribution, with a correction for ties.
    """
    both = np.concatenate((before, after))
    _, of, counts = np.unique(both, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[of]
    num, others = len(before), len(after)
    total = num + others
    statistic = float(ranks[:num].sum()) - num * (num + 1) / 2
    ties = float((counts**3 - counts).sum()) / (total * (total - 1))
    variance = num * others / 12 * (total + 1 - ties)
    if variance <= 0:
        return 1.0
    distance = max(abs(statistic - num * others / 2) - 0.5, 0.0)
    return math.erfc(distance / math.sqrt(2 * variance))
