"""Kinds of steps: a loader that falls behind makes some steps short and others long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.trace.grouping import distinct_values, median_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from traceprof.intervals import Mask


MIN_STEPS = 3
"""Of each kind."""
_MIN_SHARE = 0.1  # of the steps, of each kind
_MIN_RATIO = 1.5  # of the means of the kinds
MIN_EXPLAINED = 0.80
"""Share of the variance of the logarithms of the lengths that lies between the two kinds."""


def long_steps(lengths_ns: npt.ArrayLike, min_explained: float = MIN_EXPLAINED) -> Mask | None:
    """Return which steps are of the longer of two kinds; None if all are of one kind.

    The kinds are divided at the cut of the sorted logarithms of the lengths that explains most of
    their variance, tried one by one (Otsu, "A threshold selection method from gray-level
    histograms", 1979).

    Args:
        lengths_ns: float64[n] or int64[n], in any order.
        min_explained: share of the variance that the cut has to explain.

    Returns:
        bool[n], or None.
    """
    lengths = np.asarray(lengths_ns, np.float64)
    num = len(lengths)
    least = max(MIN_STEPS, int(np.ceil(_MIN_SHARE * num)))
    if num < 2 * least or lengths.min() <= 0:
        return None
    order = np.argsort(lengths, kind="stable")
    logarithms = np.log(lengths[order])
    deviations = logarithms - logarithms.mean()
    total = float((deviations**2).sum())
    if total <= 0:
        return None
    num_short = np.arange(1, num)
    sums = np.cumsum(deviations)[:-1]
    between = sums**2 * num / (num_short * (num - num_short))
    cut = int(between.argmax()) + 1
    if between[cut - 1] < min_explained * total or min(cut, num - cut) < least:
        return None
    is_long = np.zeros(num, np.bool_)
    is_long[order[cut:]] = True
    if lengths[is_long].mean() < _MIN_RATIO * lengths[~is_long].mean():
        return None
    return is_long


def kinds_of_steps(lengths_ns: npt.ArrayLike, phase: npt.NDArray[np.int64]) -> list[Mask]:
    """Return which steps are of each kind, the shorter first; phases are kinds, in order of time.

    Args:
        lengths_ns: float64[n] or int64[n].
        phase: int64[n], of the program, equal for all steps where it has one.

    Returns:
        bool[n] for each kind; at least one kind.
    """
    phases = distinct_values(phase)
    if len(phases) > 1:
        return [phase == number for number in phases.tolist()]
    is_long = long_steps(lengths_ns)
    return [np.ones(len(phase), np.bool_)] if is_long is None else [~is_long, is_long]


def regular_spacing(is_long: Mask) -> int | None:
    """Return every how many steps a long one comes; None if they come irregularly.

    Args:
        is_long: bool[n], in order of time.
    """
    distances = np.diff(np.flatnonzero(is_long))
    if len(distances) < MIN_STEPS:
        return None
    usual = int(median_of(distances))
    is_regular = usual > 1 and float((distances == usual).mean()) >= MIN_EXPLAINED
    return usual if is_regular else None
