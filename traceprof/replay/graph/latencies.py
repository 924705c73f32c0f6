"""Latencies: the time between the last thing that an operation waited for and its start.

A replay with measured latencies always reproduces the measurement. With the latencies of the other
half of the steps it misses where steps differ for unknown reasons.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, median_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from traceprof.intervals import Int64, Mask
    from traceprof.replay.graph.columns import GpuWork, Recorded
    from traceprof.replay.graph.stream_waits import OperationWaits

# An operation that nothing holds begins within this time of what it waited for last; later, it
# waited for something that is not recorded.
MAX_LATENCY_NS = 20_000
_CROWDED = 0.9  # of a delay must be covered by other kernels to be laid to them
_FAR = np.iinfo(np.int64).max // 4
# Seen on V100, A100 and H100, where a report has none to measure.
_USUAL_TURN_AROUND_NS, _USUAL_LAUNCH_NS, _USUAL_WAIT_NS = 1_500, 4_000, 3_000


class Latencies(Record, frozen=True):
    """Delays of the n operations of a process, ns."""

    # int64[n], when each was handed to the GPU: the call's return; its beginning, of a copy that
    # blocks it; when it began itself, of one that did so within its call
    launched_ns: Int64
    after_launch_ns: Int64  # int64[n], from then to its start, where only that held it
    after_previous_ns: Int64  # int64[n], from the end of the one before on its stream
    after_wait_ns: Int64  # int64[m], by row of `OperationWaits`
    # int64[n], how much later it began while kernels of other streams left no room
    crowded_ns: Int64
    unexplained_ns: Int64  # int64[n], how much later it began for no known reason


def measured_latencies(process: Recorded, between: OperationWaits) -> Latencies:
    """Measure the delay after each kind of thing that operations wait for.

    What held it last is measured, up to 20 us; what did not, is at most the median of its kind.
    What would have let it begin last, with usual delays, held it last: an operation that was
    launched 3 us before the stream was free, and begins 5 us later, as all do 8 us after their
    launch, waited for its launch, and would begin 1 us after the one before if launched in time.
    Waits that are only possible explain nothing.
    """
    calls, work = process.calls, process.work
    num = len(work)
    has_call = work.call >= 0
    launched = np.full(num, -_FAR)
    call = work.call[has_call]
    launched[has_call] = np.where(work.blocks[has_call], calls.start_ns[call], calls.end_ns[call])
    in_call = np.flatnonzero(work.begins_in_call)
    launched[in_call] = np.maximum(work.start_ns[in_call], calls.start_ns[work.call[in_call]])
    previous = np.full(num, -_FAR)
    follows = np.flatnonzero(work.chain[1:] == work.chain[:-1]) + 1
    previous[follows] = work.end_ns[follows - 1]
    slack_launch = work.start_ns - launched
    slack_previous = work.start_ns - previous
    consumer = between.consumer
    slack_wait = work.start_ns[consumer] - work.end_ns[between.producer]
    least_wait = np.full(num, _FAR)
    sure = np.flatnonzero(between.is_sure)
    np.minimum.at(least_wait, consumer[sure], slack_wait[sure])
    least = np.minimum(np.minimum(slack_launch, slack_previous), least_wait)

    held_by_launch = has_call & (slack_launch == least) & (slack_previous > MAX_LATENCY_NS)
    held_by_launch &= least_wait > MAX_LATENCY_NS
    held_by_launch[in_call] = False  # when they were handed over is not known better
    of_launch = [
        _usual(slack_launch, held_by_launch & way, _USUAL_LAUNCH_NS, how)
        for how in (median_of, _quick)
        for way in (work.blocks, ~work.blocks)
    ]
    usual_launch = np.where(work.blocks, *of_launch[:2])
    held_by_previous = (slack_previous == least) & (least_wait > slack_previous)
    is_queued = held_by_previous & (slack_launch > MAX_LATENCY_NS)
    is_in_time = held_by_previous & (slack_launch - slack_previous >= usual_launch)
    usual_previous = np.empty(num, np.int64)
    for kind in distinct_values(work.kind).tolist():
        of_kind = work.kind == kind
        usual = _usual(slack_previous, is_in_time & of_kind, _USUAL_TURN_AROUND_NS)
        usual_previous[of_kind] = _usual(slack_previous, is_queued & of_kind, usual)
    by_wait = (slack_wait == least[consumer]) & (slack_launch[consumer] > MAX_LATENCY_NS)
    by_wait &= between.is_sure
    usual_wait = _usual(slack_wait, by_wait, _USUAL_WAIT_NS)

    # A GPU that has been idle for long is slower to begin: the quick ones tell when it was not.
    over_launch = _over(slack_launch, np.where(work.blocks, *of_launch[2:]))
    over_previous = _over(slack_previous, usual_previous)
    over_wait = _over(slack_wait, usual_wait)
    least_over = np.minimum(over_launch, over_previous)
    np.minimum.at(least_over, consumer[sure], over_wait[sure])
    least_over[least_over == _FAR] = -_FAR  # nothing near held it
    after_launch = np.where(
        over_launch == least_over, slack_launch, np.minimum(usual_launch, slack_launch)
    )
    after_previous = np.where(
        over_previous == least_over, slack_previous, np.minimum(usual_previous, slack_previous)
    )
    after_wait = np.where(
        over_wait == least_over[consumer], slack_wait, np.minimum(usual_wait, slack_wait)
    )
    unexplained = np.minimum(slack_launch - after_launch, slack_previous - after_previous)
    np.minimum.at(unexplained, consumer[sure], (slack_wait - after_wait)[sure])
    unexplained[unexplained > _FAR // 2] = 0  # nothing of what held it is known
    crowded = np.where(_is_crowded(work, unexplained), unexplained, 0)
    return Latencies(
        launched, after_launch, after_previous, after_wait, crowded, unexplained - crowded
    )


def _is_crowded(work: GpuWork, late: Int64) -> Mask:
    """Say which operations were late while other streams ran kernels nearly always, bool[n]."""
    is_crowded = np.zeros(len(work), np.bool_)
    for rank in distinct_values(work.rank).tolist():
        kernels = (work.rank == rank) & (work.group == 0)
        running = intervals.union(work.start_ns[kernels], work.end_ns[kernels])
        rows = np.flatnonzero((work.rank == rank) & (late > 0))
        order = rows[np.argsort(work.start_ns[rows], kind="stable")]
        covered = intervals.covered_before(running, work.start_ns[order])
        covered -= intervals.covered_before(running, work.start_ns[order] - late[order])
        is_crowded[order] = covered >= _CROWDED * late[order]
    return is_crowded


def _over(slack: Int64, usual: Int64 | int) -> Int64:
    """Return how much longer than usual each took after what is near; far for what is not."""
    return np.where(slack <= MAX_LATENCY_NS, slack - usual, _FAR)


def _usual(
    slack: Int64, chosen: Mask, otherwise: int, how: Callable[[Int64], float] = median_of
) -> int:
    chosen = chosen & (slack <= MAX_LATENCY_NS)
    return int(how(slack[chosen])) if chosen.any() else otherwise


def _quick(slack: Int64) -> int:
    """Return the first decile."""
    return int(np.partition(slack, len(slack) // 10)[len(slack) // 10])
