"""Time of a rank's steady steps together, by part and cause, as `compare` compares it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from msgspec import Struct

from traceprof import intervals
from traceprof.findings import Count
from traceprof.host.idle_causes import IdleCause, idle_causes
from traceprof.intervals import Intervals
from traceprof.run.steady_steps import StepUse, kinds_of_steps, steady_steps
from traceprof.run.windows import shown_window
from traceprof.structs import Record
from traceprof.trace.grouping import median_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceprof.analyses.breakdown import BreakdownResult, StepMeasures
    from traceprof.intervals import Int64
    from traceprof.run.rank import Rank, Window

PARTS = ("compute_ns", "exposed_communication_ns", "exposed_copy_ns", "idle_ns")
COLUMNS = ("window_ns", *PARTS)
"""The length of a step, and the parts that sum to it."""
CAUSES = (
    "launch_bound_ns",
    "turnaround_ns",
    "queued_ns",
    "sync_ns",
    "data_loading_ns",
    "mpi_ns",
    "setup_ns",
    "allocation_ns",
    "stalled_ns",
    "waiting_ns",
    "host_code_ns",
    "unknown_ns",
)
"""Of idle time."""


def mean_step(totals: Sequence[StepTotals], *, has_steps: bool) -> dict[str, float]:
    """Return what the mean step takes on the mean rank, in ns, by column and cause."""
    counted = [rank for rank in totals if rank.num_steps or not has_steps]
    return {
        name: sum(getattr(rank, name) / max(rank.num_steps, 1) for rank in counted)
        / max(len(counted), 1)
        for name in (*COLUMNS, "lost_ns", *CAUSES)
    }


def in_whole_ns(mean: Mapping[str, float]) -> dict[str, int]:
    """Return a mean step in whole ns: parts and lost time sum to it, causes to idle time."""
    total = round(mean["window_ns"])
    parts = _rounded({name: mean[name] for name in (*PARTS, "lost_ns")}, total)
    causes = _rounded({name: mean[name] for name in CAUSES}, parts["idle_ns"])
    return {"window_ns": total, **parts, **causes}


def _rounded(parts: Mapping[str, float], total: int) -> dict[str, int]:
    """Round parts so that they sum to a total: what rounding leaves goes to the largest."""
    whole = {name: round(value) for name, value in parts.items()}
    largest = max(parts, key=lambda name: parts[name])
    whole[largest] += total - sum(whole.values())
    return whole


_MAX_STEPS_OF_A_BLOCK = 5  # neighbours are alike: noise is that between blocks of them
_MIN_BLOCKS = 6
_MAX_BLOCKS_OF_SUMS = 40


class StepTotals(Struct, frozen=True, forbid_unknown_fields=True):
    """The steady steps of a rank together; without steps, the time that findings judge.

    The four parts and lost_ns sum to window_ns, the causes of idle time (see `gpu-idle`) to
    idle_ns.
    """

    rank: Count
    num_steps: Annotated[Count, "Number of steps; 0 where no steps are known."]
    steps: Annotated[
        tuple[Count, ...],
        "Their indices among the rank's `steps`, from 0: the steps with `left_out` null.",
    ]
    window_ns: Count
    compute_ns: Count
    exposed_communication_ns: Count
    exposed_copy_ns: Count
    idle_ns: Count
    launch_bound_ns: Count
    turnaround_ns: Count
    sync_ns: Count
    data_loading_ns: Count
    mpi_ns: Count
    setup_ns: Count
    allocation_ns: Count
    waiting_ns: Count
    host_code_ns: Count
    unknown_ns: Count
    queued_ns: Count = 0
    stalled_ns: Count = 0
    lost_ns: Annotated[Count, "As in `breakdown`."] = 0


def run(rank: Rank, window: Window) -> StepTotals:
    """Add up the steady steps of a rank in a window."""
    steps = steady_steps(rank, window)

    def within(covered: intervals.Intervals) -> int:
        covered_ns = intervals.covered_within(covered, steps.start_ns, steps.end_ns)
        return intervals.total(covered_ns)

    length = intervals.total(steps.end_ns - steps.start_ns)
    compute, communication = within(rank.compute), within(rank.communication)
    exposed = communication - within(rank.overlapped)
    busy, lost = within(rank.busy), within(rank.lost)
    idle = length - busy - lost
    by_cause = dict.fromkeys(IdleCause, 0)
    if rank.device is not None:
        causes = idle_causes(rank)
        by_cause = {cause: within(causes.of(cause)) for cause in IdleCause}
    # Before its first operation and after its last one nothing is known of a rank.
    by_cause[IdleCause.UNKNOWN] += idle - sum(by_cause.values())
    return StepTotals(
        rank=rank.rank,
        num_steps=len(steps.step),
        steps=tuple((steps.step - first_shown(rank, window)).tolist()),
        window_ns=length,
        compute_ns=compute,
        exposed_communication_ns=exposed,
        exposed_copy_ns=busy - compute - exposed,
        idle_ns=idle,
        lost_ns=lost,
        **{f"{cause.value}_ns": ns for cause, ns in by_cause.items()},
    )


def first_shown(rank: Rank, window: Window) -> int:
    """Return the index of the first of the rank's steps that is shown; 0 without any."""
    if rank.steps is None:
        return 0
    shown = shown_window(rank, window)
    is_shown = (rank.steps.start_ns >= shown.start_ns) & (rank.steps.end_ns <= shown.end_ns)
    return int(is_shown.argmax()) if is_shown.any() else 0


def steps_of_a_block(num_steps: int) -> int:
    """Return the number of neighbouring steps in one block, of this number of steps."""
    return min(max(num_steps // _MIN_BLOCKS, 1), _MAX_STEPS_OF_A_BLOCK)


def num_blocks(num_steps: int) -> int:
    """Return the number of blocks for sums over this number of steps; 0 if noise is unknown."""
    num = min(num_steps // steps_of_a_block(num_steps), _MAX_BLOCKS_OF_SUMS)
    return num if num > 2 else 0


def block_of(num_steps: int) -> Int64:
    """Return the block of each step, int64[num_steps]; all are of one where there are too few."""
    return np.arange(num_steps, dtype=np.int64) * max(num_blocks(num_steps), 1) // max(num_steps, 1)


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
    """Lengths of the training steps of a rank."""

    num_steps: int  # the number of steady steps
    mean_ns: int  # their mean length: what a step takes
    median_ns: int  # their median length
    slowest: StepMeasures  # the slowest of all that are judged, whether it counts or not
    # of them, the shorter ones first; one where all are alike. Phases are kinds, in order of time
    kinds: tuple[StepKind, ...]
    left_out: tuple[LeftOutSteps, ...]  # the other steps


def judged_steps(result: BreakdownResult) -> list[StepMeasures]:
    """Return the steps of a rank that findings are about."""
    return [step for step in result.steps if step.use is not None]


def counted_steps(result: BreakdownResult) -> list[StepMeasures]:
    """Return those of them that count for what a step takes."""
    return [step for step in result.steps if step.use is StepUse.STEADY]


def steady_spans(result: BreakdownResult) -> Intervals:
    """Return when these ran, in the time of the rank's report; empty without steps."""
    windows = [
        (step.measures.window_start_ns, step.measures.window_ns) for step in counted_steps(result)
    ]
    start_ns, length_ns = np.array(windows, np.int64).reshape(-1, 2).T
    return Intervals(start_ns, start_ns + length_ns)


def step_lengths(result: BreakdownResult) -> StepLengths | None:
    """Return how long the training steps of a rank take; None if it has none."""
    steps = counted_steps(result)
    if not steps:
        return None
    lengths = np.array([step.measures.window_ns for step in steps], np.int64)
    return StepLengths(
        num_steps=len(steps),
        mean_ns=_mean(lengths),
        median_ns=round(float(median_of(lengths))),
        slowest=max(judged_steps(result), key=lambda step: step.measures.window_ns),
        kinds=_kinds(lengths, np.array([step.phase for step in steps], np.int64)),
        left_out=tuple(_left_out(result)),
    )


def slowest_rank(results: Sequence[BreakdownResult]) -> BreakdownResult:
    """Return the rank whose step takes longest, else whose window that is judged is longest."""
    return max(results, key=lambda result: (step_ns(result), -result.rank))


def step_ns(result: BreakdownResult) -> int:
    """Return what a step of a rank takes; without steps all that is judged is one."""
    lengths = [step.measures.window_ns for step in counted_steps(result)]
    return _mean(np.array(lengths, np.int64)) if lengths else result.judged.window_ns


def compute_ns(result: BreakdownResult) -> float:
    """Return what compute covers in a step of a rank, the mean; see `step_ns`."""
    steps = counted_steps(result)
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
