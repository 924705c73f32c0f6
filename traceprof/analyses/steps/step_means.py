"""Time of a rank's steady steps together, by part and cause, as `compare` compares it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import numpy as np
from msgspec import Struct

from traceprof import intervals
from traceprof.findings import Count
from traceprof.host.idle_causes import IdleCause, idle_causes
from traceprof.run.steady_steps import steady_steps
from traceprof.run.windows import shown_window

if TYPE_CHECKING:
    from traceprof.intervals import Int64
    from traceprof.run.rank import Rank, Window

_MAX_STEPS_OF_A_BLOCK = 5  # neighbours are alike: noise is that between blocks of them
_MIN_BLOCKS = 6
_MAX_BLOCKS_OF_SUMS = 40


class StepTotals(Struct, frozen=True, forbid_unknown_fields=True):
    """The steady steps of a rank together; without steps, the time that findings judge.

    The four parts sum to window_ns, the causes of idle time (see `gpu-idle`) to idle_ns.
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
    stalled_ns: Count = 0


def run(rank: Rank, window: Window) -> StepTotals:
    """Add up the steady steps of a rank in a window."""
    steps = steady_steps(rank, window)

    def within(covered: intervals.Intervals) -> int:
        covered_ns = intervals.covered_within(covered, steps.start_ns, steps.end_ns)
        return intervals.total(covered_ns)

    length = intervals.total(steps.end_ns - steps.start_ns)
    compute, communication = within(rank.compute), within(rank.communication)
    exposed = communication - within(rank.overlapped)
    busy = within(rank.busy)
    idle = length - busy
    by_cause = dict.fromkeys(IdleCause, 0)
    if rank.device is not None:
        causes = idle_causes(rank)
        by_cause = {cause: within(causes.of(cause)) for cause in IdleCause}
    # Before its first operation and after its last one nothing is known of a rank.
    by_cause[IdleCause.UNKNOWN] += idle - sum(by_cause.values())
    return StepTotals(
        rank=rank.rank,
        num_steps=len(steps.step),
        steps=tuple((steps.step - _first_shown(rank, window)).tolist()),
        window_ns=length,
        compute_ns=compute,
        exposed_communication_ns=exposed,
        exposed_copy_ns=busy - compute - exposed,
        idle_ns=idle,
        **{f"{cause.value}_ns": ns for cause, ns in by_cause.items()},
    )


def _first_shown(rank: Rank, window: Window) -> int:
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
