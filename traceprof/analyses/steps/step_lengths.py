"""Lengths of a rank's training steps: median, mean, and two groups where steps are bimodal.

Steps are *bimodal* if there are at least ten, sorted by length they fall into two groups with at
least a tenth of them each, the longer ones take at least a fifth more than the shorter ones (by the
medians of the groups), and at least half of that difference is a stretch without any step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.analyses.breakdown import BreakdownResult, StepMeasures
    from traceprof.intervals import Int64

MIN_BIMODAL_STEPS = 10
_MIN_GROUP = 0.1  # of the steps
_MIN_RATIO = 1.2  # of the groups' medians
_MIN_GAP = 0.5  # of the difference of the medians


@dataclass(frozen=True, slots=True)
class StepGroup:
    """Steps of similar length.

    Attributes:
        num_steps: the number of steps.
        median_ns: their median length.
    """

    num_steps: int
    median_ns: int


@dataclass(frozen=True, slots=True)
class StepLengths:
    """Lengths of the training steps of a rank.

    Attributes:
        num_steps: the number of steps.
        median_ns: the median length.
        mean_ns: the mean length.
        slowest: the slowest step that another one follows: the last step ends with its last
            operation, not with the beginning of another step.
        groups: the shorter and the longer steps if they are bimodal, else nothing.
    """

    num_steps: int
    median_ns: int
    mean_ns: int
    slowest: StepMeasures
    groups: tuple[StepGroup, ...]


def training_steps(result: BreakdownResult) -> list[StepMeasures]:
    """Return the steps of a rank that findings are about; all where none of these are."""
    judged = result.judged
    end_ns = judged.window_start_ns + judged.window_ns
    inside = [
        step
        for step in result.steps
        if step.is_training
        and step.measures.window_start_ns >= judged.window_start_ns
        and step.measures.window_start_ns + step.measures.window_ns <= end_ns
    ]
    return inside or list(result.steps)


def step_lengths(result: BreakdownResult) -> StepLengths | None:
    """Return how long the training steps of a rank take; None where it has none."""
    steps = training_steps(result)
    if not steps:
        return None
    lengths = np.array([step.measures.window_ns for step in steps], np.int64)
    followed = steps[:-1] or steps
    return StepLengths(
        num_steps=len(steps),
        median_ns=int(np.median(lengths)),
        mean_ns=int(lengths.mean()),
        slowest=max(followed, key=lambda step: step.measures.window_ns),
        groups=step_groups(lengths),
    )


def step_groups(lengths_ns: Int64) -> tuple[StepGroup, ...]:
    """Return the two groups of bimodal steps, the shorter first; nothing if they are not bimodal.

    Args:
        lengths_ns: int64[n], the lengths of the steps, in any order.
    """
    num = len(lengths_ns)
    if num < MIN_BIMODAL_STEPS:
        return ()
    ordered = np.sort(lengths_ns)
    least = -(-num // round(1 / _MIN_GROUP))
    gaps = np.diff(ordered)[least - 1 : num - least]
    if len(gaps) == 0:
        return ()
    split = int(gaps.argmax()) + least
    groups = [ordered[:split], ordered[split:]]
    short, long = (float(np.median(group)) for group in groups)
    if long < _MIN_RATIO * short or gaps.max() < _MIN_GAP * (long - short):
        return ()
    return tuple(StepGroup(len(group), int(np.median(group))) for group in groups)


def slowest_rank(results: Sequence[BreakdownResult]) -> BreakdownResult:
    """Return the rank whose step takes longest, else whose window that is judged is longest."""
    return max(results, key=lambda result: (step_ns(result), -result.rank))


def step_ns(result: BreakdownResult) -> int:
    """Return what a step of a rank takes in the middle; without steps all that is judged is one."""
    lengths = step_lengths(result)
    return result.judged.window_ns if lengths is None else lengths.median_ns
