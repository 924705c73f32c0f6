"""The dependency graph of one process, compressed to segments.

Consecutive calls of a thread that wait for nothing move together: they are one segment, with a node
for its begin and one for its return. So are consecutive operations of a stream that one such
segment launched and between which no other stream or thread waits. The time inside a segment is in
the weights of its edges. Collectives that are matched over ranks have a node of their own: their
data move when the last rank has come.

A replay with measured latencies always reproduces the measurement. With the latencies of the other
half of the steps it misses where steps differ for unknown reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from msgspec.structs import asdict

from traceprof import intervals
from traceprof.host.launch_stalls import Stalls
from traceprof.intervals import Int64, Mask
from traceprof.replay.graph.columns import GpuWork, HostCalls, Recorded
from traceprof.replay.graph.hidden_waits import HiddenWaits, hidden_host_waits
from traceprof.replay.graph.host_waits import (
    HostWaits,
    ThreadWaits,
    hand_overs,
    host_waits,
    loading_threads,
    lock_waits,
)
from traceprof.replay.graph.longest_path import ROOT, EdgeKind, Edges
from traceprof.replay.graph.stream_waits import (
    MAX_LOST_RECORDS,
    NO_STREAM_WAITS,
    OperationWaits,
    behind_communication,
    event_waits,
    inferred_waits,
    lost_records,
    queued_communication,
    stream_waits,
)
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, is_in, median_of

# An operation that nothing holds begins within this time of what it waited for last; later, it
# waited for something that is not recorded.
MAX_LATENCY_NS = 20_000
FIRST_NODE = ROOT + 1
"""The node at which the first segment of the host begins; each has two."""
_CROWDED = 0.9  # of a delay must be covered by other kernels to be laid to them
_FAR = np.iinfo(np.int64).max // 4
# Seen on V100, A100 and H100, where a report has none to measure.
_USUAL_TURN_AROUND_NS, _USUAL_LAUNCH_NS, _USUAL_WAIT_NS = 1_500, 4_000, 3_000
_LEAST_WAIT_NS = 1_000  # the quickest of 50 waits between streams on A100


class Latencies(Record, frozen=True):
    """Delays of the n operations of a process, ns."""

    # int64[n], when each was handed to the GPU: the call's return; its beginning, of a copy that
    # blocks it; when it began itself, of one that did so within its call
    launched_ns: Int64
    after_launch_ns: Int64  # int64[n], from then to its start, where only that held it
    after_previous_ns: Int64  # int64[n], from the end of the one before on its stream
    after_wait_ns: Int64  # int64[m], by row of `OperationWaits`
    assumed_wait_ns: Int64  # int64[m], delay beyond the quickest waits, where none was seen to hold
    crowded_ns: Int64  # int64[n], delay while kernels of other streams left no room
    unexplained_ns: Int64  # int64[n], delay for no known reason


def measured_latencies(process: Recorded, between: OperationWaits) -> Latencies:
    """Measure the delay after each kind of thing that operations wait for.

    What would have let an operation begin last, with usual delays, held it: its delay is measured,
    up to 20 us; that of the others is at most the median of its kind. Waits that are only possible
    explain nothing.
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
        for how in (median_of, lambda slack: np.sort(slack)[len(slack) // 10])
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
    beyond_least = np.clip(after_wait - _LEAST_WAIT_NS, 0, _USUAL_WAIT_NS - _LEAST_WAIT_NS)
    return Latencies(
        launched,
        after_launch,
        after_previous,
        after_wait,
        np.where(by_wait.any(), 0, beyond_least),
        crowded,
        unexplained - crowded,
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


class Process(Recorded, frozen=True):
    """A process in segments, with its waits and the data needed to weigh its edges."""

    host_waits: HostWaits  # of its calls
    lock_waits: ThreadWaits  # of calls for the driver's lock, which another thread's call holds
    hand_overs: ThreadWaits  # of threads that resume after another thread's call, calls ascending
    stream_waits: OperationWaits  # between its streams
    hidden_waits: HiddenWaits  # silences of its threads that may be waits
    lost_records: float  # share of recorded events without a record; 0 if none is waited for
    latencies: Latencies  # how long after what held it each operation began
    first_call: Int64  # int64[p], the first call of each segment of the host
    segment_of_call: Int64  # int64[calls]
    is_held: Mask  # bool[calls], which wait for something, so that they end their segment
    first_operation: Int64  # int64[q], the first operation of each segment of a stream
    segment_of_operation: Int64  # int64[operations]
    gpu_node: int  # the node at which the first segment of a stream begins; each has two
    limits_ns: Int64  # int64[s + 1], when its steps begin, and the last one ends; 0 if unknown
    is_steady: Mask  # bool[s], which of them are
    loading_threads: Int64  # int64[t], those that bring batches in many of the steps

    @property
    def is_launched_on_return(self) -> Mask:
        """Operations handed over when a waiting call returned, bool[operations]."""
        return self.work.follows_return & self.is_held.take(self.calls.outer.take(self.work.call))

    def launch_node(self, operation: Int64) -> Int64:
        """Return the node of the host by which operations with a call were handed over."""
        segment = self.segment_of_call[self.work.call[operation]]
        return FIRST_NODE + 2 * segment + self.is_launched_on_return[operation]

    def start_node(self, operation: Int64) -> Int64:
        """Return the node at which the segment of an operation begins."""
        return self.gpu_node + 2 * self.segment_of_operation[operation]

    def end_node(self, operation: Int64) -> Int64:
        """Return the node at which the segment of an operation is over."""
        return self.start_node(operation) + 1


def in_segments(
    process: Recorded, stalls: Stalls, alone: Int64, limits_ns: Int64, is_steady: Mask
) -> Process:
    """Find the waits of a process, and cut its actions into segments.

    `stalls`: waits for full queues. Some operations, int64[n], are segments `alone`.
    """
    calls, work = process.calls, process.work
    lost = lost_records(process)
    events = event_waits(process) if lost <= MAX_LOST_RECORDS else None
    waits = host_waits(process, events, stalls)
    locks, overs = lock_waits(process, waits), hand_overs(process)
    between = stream_waits(events, work)
    if between is None:
        latencies = measured_latencies(process, NO_STREAM_WAITS)
        between = inferred_waits(process, latencies.unexplained_ns + latencies.crowded_ns)
    loading = np.flatnonzero(is_in(calls.thread, loading_threads(process)))
    handed_over, waits_seen = np.append(overs.call, loading), len(waits.call) > 0
    hidden = hidden_host_waits(process, handed_over, waits_seen=waits_seen)
    is_held = np.zeros(len(calls), np.bool_)
    is_held[waits.call] = True
    is_held[locks.call] = True
    starts_segment = _host_segments(calls, is_held, np.append(overs.call, hidden.call))
    segment_of_call = np.cumsum(starts_segment) - 1
    first_call = np.flatnonzero(starts_segment)
    producers = np.concatenate((waits.operation, between.producer, hidden.operation))
    begins = _gpu_segments(work, segment_of_call, is_held[calls.outer])
    begins[np.concatenate((between.consumer, producers + 1, alone, alone + 1))] = True
    begins = begins[: len(work)]
    return Process(
        **asdict(process),
        host_waits=waits,
        lock_waits=locks,
        hand_overs=overs,
        stream_waits=between,
        hidden_waits=hidden,
        lost_records=lost,
        latencies=measured_latencies(process, between),
        first_call=first_call,
        segment_of_call=segment_of_call,
        is_held=is_held,
        first_operation=np.flatnonzero(begins),
        segment_of_operation=np.cumsum(begins) - 1,
        gpu_node=FIRST_NODE + 2 * len(first_call),
        limits_ns=limits_ns,
        is_steady=is_steady,
        loading_threads=loading_threads(process, limits_ns),
    )


def edges_of(process: Process, members: Mask) -> list[Edges]:
    """Return the edges within a process; `members`: bool[operations], of matched collectives."""
    return [*_host_edges(process), *_gpu_edges(process, members)]


def _host_segments(calls: HostCalls, is_held: Mask, begun: Int64) -> Mask:
    begins = np.zeros(len(calls) + 1, np.bool_)
    begins[:1] = True
    begins[1:-1] = np.diff(calls.thread) != 0
    # The segment that follows a wait begins with the next call outside of the one that waits.
    outer = np.flatnonzero(calls.is_outer)
    following = np.append(outer[1:], len(calls))
    begins[following[np.searchsorted(outer, np.flatnonzero(is_held))]] = True
    begins[begun] = True
    return begins[:-1]


def _gpu_segments(work: GpuWork, segment_of_call: Int64, is_held: Mask) -> Mask:
    """Say where the stream, or the segment of the launches, is another, bool[operations + 1]."""
    num = len(work)
    begins = np.zeros(num + 1, np.bool_)
    begins[:1] = True
    has_call = work.call >= 0
    call = work.call[has_call]
    segment = np.full(num, -1, np.int64)
    segment[has_call] = 2 * segment_of_call[call] + (is_held[call] & work.follows_return[has_call])
    begins[1:num] = (np.diff(work.chain) != 0) | (np.diff(segment) != 0)
    begins[1:num] |= (work.call[1:] < 0) | (work.call[:-1] < 0)
    behind = behind_communication(work)
    begins[behind] = True
    begins[behind - 1] = True
    return begins


def _host_edges(process: Process) -> list[Edges]:
    calls, waits, overs = process.calls, process.host_waits, process.hand_overs
    first, num = process.first_call, len(process.first_call)
    begin = FIRST_NODE + 2 * np.arange(num)
    is_first = np.ones(num, np.bool_)
    is_first[1:] = calls.thread[first[1:]] != calls.thread[first[:-1]]
    handed = is_in(first, overs.call)
    hidden = process.hidden_waits
    is_silent = is_in(first, hidden.call)
    follows = np.flatnonzero(~is_first & handed)
    rest, silent = np.flatnonzero(~is_first & ~handed & ~is_silent), np.flatnonzero(is_silent)
    starts = np.flatnonzero(is_first & ~handed)
    over_segment = process.segment_of_call[overs.call]
    locks = process.lock_waits
    waiting = FIRST_NODE + 2 * process.segment_of_call[waits.call] + 1
    held = process.end_node(waits.operation)
    stall = waits.is_stall
    rows = np.arange(len(waits.call))
    return [
        _edges(EdgeKind.CAPTURE, np.full(len(starts), ROOT), begin[starts], first[starts]),
        _edges(EdgeKind.PROGRAM_ORDER, begin[rest] - 1, begin[rest], first[rest]),
        Edges(
            EdgeKind.HAND_OVER,
            _return_node(process, overs.after),
            begin[over_segment],
            overs.call,
            overs.after,
        ),
        _edges(EdgeKind.NOT_HANDED_OVER, begin[follows] - 1, begin[follows], first[follows]),
        _edges(EdgeKind.SILENCE, begin[silent] - 1, begin[silent], first[silent]),
        _edges(
            EdgeKind.HIDDEN_WAIT, process.end_node(hidden.operation), begin[silent], hidden.call
        ),
        _edges(EdgeKind.CALLS, begin, begin + 1, np.arange(num)),
        _edges(EdgeKind.SYNCHRONIZATION, held[~stall], waiting[~stall], rows[~stall]),
        _edges(EdgeKind.FULL_QUEUE, held[stall], waiting[stall], rows[stall]),
        Edges(
            EdgeKind.LOCK,
            _return_node(process, locks.after),
            FIRST_NODE + 2 * process.segment_of_call[locks.call] + 1,
            locks.call,
            locks.after,
        ),
    ]


def _return_node(process: Process, call: Int64) -> Int64:
    """Return the node that the return of each call follows: the segment's end if it waits."""
    return FIRST_NODE + 2 * process.segment_of_call[call] + process.is_held[call]


def _gpu_edges(process: Process, members: Mask) -> list[Edges]:
    work, first = process.work, process.first_operation
    num = len(first)
    begin = process.gpu_node + 2 * np.arange(num)
    has_call = work.call[first] >= 0
    launched = np.flatnonzero(has_call)
    follows = np.flatnonzero(np.append(False, work.chain[first[1:]] == work.chain[first[:-1]]))
    unknown = np.flatnonzero(~has_call)
    inside = np.flatnonzero(~members[first])
    within = launched[~members[first[launched]]]
    between = process.stream_waits
    return [
        _edges(EdgeKind.CAPTURE, np.full(len(unknown), ROOT), begin[unknown], first[unknown]),
        _edges(
            EdgeKind.LAUNCH, process.launch_node(first[launched]), begin[launched], first[launched]
        ),
        _edges(EdgeKind.STREAM_ORDER, begin[follows] - 1, begin[follows], first[follows]),
        _edges(EdgeKind.OPERATIONS, begin[inside], begin[inside] + 1, first[inside]),
        _edges(
            EdgeKind.LAUNCHES, process.launch_node(first[within]), begin[within] + 1, first[within]
        ),
        _edges(
            EdgeKind.EVENT,
            process.end_node(between.producer),
            process.start_node(between.consumer),
            np.arange(len(between.producer)),
        ),
        *_queued_edges(process),
    ]


def _queued_edges(process: Process) -> Iterator[Edges]:
    for kind, (earlier, later) in queued_communication(process).items():
        begins = kind is EdgeKind.INDEPENDENT_BEGIN
        source = process.start_node(earlier) if begins else process.end_node(earlier)
        begins |= kind is EdgeKind.INDEPENDENT_ORDER
        target = process.start_node(later) if begins else process.end_node(later)
        yield _edges(kind, source, target, later)


def _edges(kind: EdgeKind, source: Int64, target: Int64, at: Int64) -> Edges:
    return Edges(kind, source, target, at, at)
