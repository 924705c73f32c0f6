"""The steady steps of a rank, which are compared with those of another recording.

Left out are the last step of a recording, which ends with its last operation and not where another
one begins, and slow steps at the beginning, which may be warm-up that was not marked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traceprof.run.training import training_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from traceprof.intervals import Int64
    from traceprof.run.rank import Rank, Window

    Mask = npt.NDArray[np.bool_]

MIN_STEPS = 3  # with fewer, none is left out
MAX_SLOW_SHARE = 0.25  # of the steps, at the beginning
MIN_SLOWNESS = 0.05  # of a step: slower by less is not slow
MIN_DEVIATIONS = 5.0  # of the later steps: slower by less is not slow
_NORMAL = 1.4826  # standard deviations of normal noise in its median absolute deviation


@dataclass(frozen=True, slots=True)
class SteadySteps:
    """The steps of a rank that are compared; without steps, the whole window counts as one.

    Attributes:
        step: int64[n], indices into the rank's steps; empty without steps.
        start_ns: int64[m], ascending; m is n, or 1 without steps.
        end_ns: int64[m].
    """

    step: Int64
    start_ns: Int64
    end_ns: Int64


def steady_steps(rank: Rank, window: Window) -> SteadySteps:
    """Return the steps of a rank in a window that are compared with others.

    Args:
        rank: the rank.
        window: the part of it that is judged.
    """
    steps = rank.steps
    if steps is not None:
        low, high = window.start_ns, window.end_ns
        inside = np.flatnonzero((steps.start_ns >= low) & (steps.end_ns <= high))
        training = inside[steps.start_ns[inside] >= training_of(rank).start_ns]
        inside = training if len(training) else inside
        if len(inside):
            is_last = int(inside[-1]) == len(steps.start_ns) - 1
            lengths = steps.end_ns[inside] - steps.start_ns[inside]
            chosen = inside[steady(lengths, ends_early=is_last)]
            return SteadySteps(chosen, steps.start_ns[chosen], steps.end_ns[chosen])
    one = np.array([window.start_ns], np.int64), np.array([window.end_ns], np.int64)
    return SteadySteps(np.empty(0, np.int64), *one)


def steady(lengths_ns: Int64, *, ends_early: bool) -> Mask:
    """Return which steps are steady, bool[n].

    Args:
        lengths_ns: int64[n], in order of time, at least one.
        ends_early: whether no step follows the last one.
    """
    num = len(lengths_ns)
    kept = np.ones(num, np.bool_)
    if num < MIN_STEPS:
        return kept
    kept[-1] = not ends_early
    settled = lengths_ns[num // 2 : num - ends_early]
    middle = float(np.median(settled))
    deviation = _NORMAL * float(np.median(np.abs(settled - middle)))
    limit = middle + max(MIN_DEVIATIONS * deviation, MIN_SLOWNESS * middle)
    is_slow = lengths_ns[: int(MAX_SLOW_SHARE * num)] > limit
    num_slow = len(is_slow) if is_slow.all() else int(is_slow.argmin())
    kept[:num_slow] = False
    return kept
