"""Time of a step: the mean of the steady ones, their kinds, and the steps that are left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from msgspec import Struct

from traceprof.findings import Count
from traceprof.intervals import Intervals
from traceprof.run.steps.steady_rules import StepUse
from traceprof.run.steps.step_kinds import kinds_of_steps
from traceprof.structs import Record
from traceprof.trace.grouping import median_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.analyses.breakdown import BreakdownResult, StepMeasures
    from traceprof.intervals import Int64

WhyLeftOut = Literal["cut", "opening", "rare"]
WHY_LEFT_OUT: dict[StepUse, WhyLeftOut] = {
    StepUse.CUT: "cut",
    StepUse.OPENING: "opening",
    StepUse.RARE: "rare",
}


class StepKind(Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of steady steps, of similar length."""

    num_steps: Count
    mean_ns: Count


class LeftOutSteps(Struct, frozen=True, forbid_unknown_fields=True):
    """Steps of the training that do not count toward the mean step."""

    why: Annotated[
        WhyLeftOut,
        "`cut`: the first or last step, with a part missing. `opening`: slow steps at the"
        " beginning. `rare`: far longer than others, since something else ran in them.",
    ]
    num_steps: Count
    total_ns: Count


class StepLengths(Record, frozen=True):
    """Lengths of the training steps of a rank.

    Attributes:
        num_steps: the number of steady steps.
        mean_ns: their mean length: what a step takes.
        median_ns: their median length.
        slowest: the slowest of them.
        kinds: of them, the shorter ones first; one where all are alike. Phases are kinds, in order
            of time.
        left_out: the other steps.
    """

    num_steps: int
    mean_ns: int
    median_ns: int
    slowest: StepMeasures
    kinds: tuple[StepKind, ...]
    left_out: tuple[LeftOutSteps, ...]


def judged_steps(result: BreakdownResult) -> list[StepMeasures]:
    """Return the steps of a rank that findings are about."""
    return [step for step in result.steps if step.use is not None]


def steady_steps(result: BreakdownResult) -> list[StepMeasures]:
    """Return those of them that count for what a step takes."""
    return [step for step in result.steps if step.use is StepUse.STEADY]


def steady_spans(result: BreakdownResult) -> Intervals:
    """Return when these ran, in the time of the rank's report; empty without steps."""
    windows = [
        (step.measures.window_start_ns, step.measures.window_ns) for step in steady_steps(result)
    ]
    start_ns, length_ns = np.array(windows, np.int64).reshape(-1, 2).T
    return Intervals(start_ns, start_ns + length_ns)


def step_lengths(result: BreakdownResult) -> StepLengths | None:
    """Return how long the training steps of a rank take; None if it has none."""
    steps = steady_steps(result)
    if not steps:
        return None
    lengths = np.array([step.measures.window_ns for step in steps], np.int64)
    return StepLengths(
        num_steps=len(steps),
        mean_ns=_mean(lengths),
        median_ns=round(float(median_of(lengths))),
        slowest=max(steps, key=lambda step: step.measures.window_ns),
        kinds=_kinds(lengths, np.array([step.phase for step in steps], np.int64)),
        left_out=tuple(_left_out(result)),
    )


def slowest_rank(results: Sequence[BreakdownResult]) -> BreakdownResult:
    """Return the rank whose step takes longest, else whose window that is judged is longest."""
    return max(results, key=lambda result: (step_ns(result), -result.rank))


def step_ns(result: BreakdownResult) -> int:
    """Return what a step of a rank takes; without steps all that is judged is one."""
    lengths = [step.measures.window_ns for step in steady_steps(result)]
    return _mean(np.array(lengths, np.int64)) if lengths else result.judged.window_ns


def compute_ns(result: BreakdownResult) -> float:
    """Return what compute covers in a step of a rank, the mean; see `step_ns`."""
    steps = steady_steps(result)
    if not steps:
        return result.judged.compute_ns
    return sum(step.measures.compute_ns for step in steps) / len(steps)


def _mean(lengths_ns: Int64) -> int:
    return round(int(lengths_ns.sum()) / len(lengths_ns))


def _kinds(lengths_ns: Int64, phase: Int64) -> tuple[StepKind, ...]:
    groups = [lengths_ns[kind] for kind in kinds_of_steps(lengths_ns, phase)]
    return tuple(StepKind(len(group), _mean(group)) for group in groups)


def _left_out(result: BreakdownResult) -> list[LeftOutSteps]:
    groups: dict[StepUse, list[int]] = {use: [] for use in WHY_LEFT_OUT}
    for step in result.steps:
        if step.use:
            groups[step.use].append(step.measures.window_ns)
    return [LeftOutSteps(WHY_LEFT_OUT[use], len(ns), sum(ns)) for use, ns in groups.items() if ns]
