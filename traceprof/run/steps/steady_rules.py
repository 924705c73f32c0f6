"""Rules for steady steps, whose mean is the cost of a step."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from traceprof.run.steps.step_kinds import long_steps
from traceprof.trace.grouping import median_of, quantiles_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from traceprof.intervals import Int64, Mask

    Int8 = npt.NDArray[np.int8]

MIN_STEPS = 3
"""With fewer, none is left out."""
MIN_KERNELS = 0.9
"""Of the usual number of kernels: a first or last step with fewer is cut."""
_MAX_AS_FEW = 0.1  # of the other steps have as few kernels as a step that is cut
MIN_STEPS_OF_AN_OPENING = 6
MAX_OPENING_SHARE, MAX_OPENING_STEPS = 0.25, 10
MIN_OPENING = 1.05
"""Of the 95 % quantile of the later half: a leading step that takes longer is opening."""
MIN_RARE = 3.0
"""Of the mean of the longest kind: a step that takes longer may be rare."""
MIN_OTHER = 0.1
"""Of the usual number of kernels: where it differs by more, something else ran."""
_RARE_SHARE = 20  # one in so many steps, rounded up, may be rare


class StepUse(IntEnum):
    """The part of a recording that a step is."""

    STEADY = 0
    CUT = 1
    OPENING = 2
    RARE = 3


def step_uses(
    lengths_ns: Int64,
    num_kernels: Int64,
    *,
    ends_early: bool,
    is_cut: Mask | None = None,
    ran_else: Callable[[Int64], Mask] | None = None,
) -> Int8:
    """Return which steps are steady, and why others are not, int8[n] of `StepUse`.

    Cut are the first and the last step with under 90 % of the median number of kernels, where
    hardly another step has as few, and the last one where no step follows. Opening are leading
    steps that take longer than those of the later half do. Rare is a step that takes over three
    times as long as the longest kind, and in which something else ran.

    Args:
        lengths_ns: int64[n], in order of time.
        num_kernels: int64[n], how many kernels start in each; zeros where that is unknown.
        ends_early: whether no step follows the last one.
        is_cut: bool[n], those that are known to be cut, however few steps there are.
        ran_else: returns of some steps whether ranges or calls name something else that ran in
            them; asked for as few as can be.
    """
    lengths = np.asarray(lengths_ns, np.float64)
    uses = np.zeros(len(lengths), np.int8)
    if is_cut is not None:
        uses[is_cut] = StepUse.CUT
    if len(lengths) < MIN_STEPS:
        return uses
    if ends_early:
        uses[-1] = StepUse.CUT
    for end in (0, -1):
        others = np.delete(num_kernels, end)
        is_short = num_kernels[end] < MIN_KERNELS * median_of(num_kernels)
        if is_short and (others <= num_kernels[end]).mean() <= _MAX_AS_FEW:
            uses[end] = StepUse.CUT
    if (uses == StepUse.CUT).all():
        return np.zeros(len(lengths), np.int8)  # nothing else tells what a step takes
    left = np.flatnonzero(uses == StepUse.STEADY)
    if len(lengths) >= MIN_STEPS_OF_AN_OPENING:
        uses[left[: _num_opening(lengths[left])]] = StepUse.OPENING
    left = np.flatnonzero(uses == StepUse.STEADY)
    rare = left[_outliers(lengths[left])]
    if len(rare):
        usual = float(median_of(num_kernels[left]))
        is_other = np.abs(num_kernels[rare] - usual) > MIN_OTHER * usual
        if ran_else is not None and not is_other.all():
            is_other[~is_other] = ran_else(rare[~is_other])
        uses[rare[is_other]] = StepUse.RARE
    return uses


def _num_opening(lengths: npt.NDArray[np.float64]) -> int:
    """Return how many leading steps open a recording."""
    num = len(lengths)
    limit = MIN_OPENING * float(quantiles_of(lengths[num // 2 :], (0.95,))[0])
    most = min(max(int(MAX_OPENING_SHARE * num), 1), MAX_OPENING_STEPS)
    is_slow = lengths[:most] > limit
    return len(is_slow) if is_slow.all() else int(is_slow.argmin())


def _outliers(lengths: npt.NDArray[np.float64]) -> Mask:
    """Return which steps take far longer than the longest kind; none where these are many."""
    most = -(-len(lengths) // _RARE_SHARE)
    usual = np.sort(lengths)[:-most]
    if len(usual) == 0:
        return np.zeros(len(lengths), np.bool_)
    is_long = long_steps(usual)
    longest = usual if is_long is None else usual[is_long]
    is_outlier: Mask = lengths > MIN_RARE * float(longest.mean())
    return is_outlier if is_outlier.sum() <= most else np.zeros(len(lengths), np.bool_)
