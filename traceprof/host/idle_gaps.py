"""The gaps between a rank's operations, each with the call that launched the operation after it.

An operation without length neither ends nor splits a gap. Of several that start where a gap ends,
the one launched first ends it.

**Late launches.** A launch that came before a gap may still be late. An operation can begin a usual
turn-around after the one before it, and a launch latency after its call returned. Both are measured
for each kind of operation (kernel, copy, memory set, graph). The latency L is the time from the
call's return to the start, at the fastest tenth of the gaps in which the call returned. The
turn-around T is the median length of the gaps before operations whose call had returned L or more
before the gap. Where either has fewer than `MIN_MEASURED` gaps, no launch is called late.

**Batches.** A copy of a batch goes from the host to the device. Either a step begins or ends on the
host between the compute launched before and after the copy, or the copying thread launches nothing
to the busiest compute stream, so it only loads. A thread that slept before such a copy waited for
the batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

import numpy as np

from traceprof import intervals
from traceprof.intervals import BEYOND_NS, Int64, Intervals, Mask
from traceprof.run.host_clock import clocks_disagree
from traceprof.run.rank import Rank
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_rows, distinct_values, groups, is_in, median_of, sums
from traceprof.trace.model.host import ApiCalls
from traceprof.trace.model.kinds import CopyKind
from traceprof.trace.model.special_values import NULL, OPEN_END

NO_THREAD = -1


class LaunchingThreads(Record, frozen=True):
    """Launching threads of gaps, and threads that stand in for them."""

    thread: Int64  # int64[n], the thread that launched the operation after each gap
    # int64[n], the thread of the process's last call before that launch, if it is another one that
    # launches to the same stream (PyTorch hands work over to its autograd thread); else
    # `NO_THREAD`
    stand_in: Int64

    def and_alone(self, thread: Int64) -> LaunchingThreads:
        """Append threads, int64[n], that have no stand-in."""
        alone = np.full(len(thread), NO_THREAD, np.int64)
        pairs = (self.thread, thread), (self.stand_in, alone)
        return LaunchingThreads(*(np.concatenate(pair) for pair in pairs))

    def groups(self) -> Iterator[tuple[tuple[int, ...], Int64]]:
        """Yield each combination of thread and stand-in with the indices of its gaps."""
        for rows in groups(self.thread, self.stand_in):
            thread, stand_in = int(self.thread[rows[0]]), int(self.stand_in[rows[0]])
            yield (thread,) if stand_in == NO_THREAD else (thread, stand_in), rows


def streams_by_thread(rank: Rank, calls: ApiCalls) -> dict[int, frozenset[int]]:
    """Return the streams of the rank to which each thread launches, at any time."""
    streams_of: dict[int, set[int]] = {}
    for group, launched_by in zip(rank.operations.groups, rank.launched_by, strict=True):
        rows = np.flatnonzero(launched_by >= 0)
        thread = calls.packed_thread.at(launched_by.take(rows))
        for number, stream in distinct_rows(thread, group.packed_stream.at(rows))[1]:
            streams_of.setdefault(number, set()).add(stream)
    return {thread: frozenset(streams) for thread, streams in streams_of.items()}


def launching_threads(
    calls: ApiCalls, launch: Int64, stream: Int64, streams_of: Mapping[int, frozenset[int]]
) -> LaunchingThreads:
    """Threads of gaps, by launching call and stream (int64[n]) of the next operation."""
    thread = calls.packed_thread.at(launch)
    last = _last_before(calls, calls.start_ns[launch])
    before = calls.packed_thread.at(last)
    stands_in = (last >= 0) & (before != thread)
    for number in distinct_values(before[stands_in]).tolist():
        streams = np.array(sorted(streams_of.get(number, ())), np.int64)
        stands_in &= (before != number) | is_in(stream, streams)
    return LaunchingThreads(thread, np.where(stands_in, before, NO_THREAD))


def _last_before(calls: ApiCalls, times: Int64) -> Int64:
    """Return the last call, by start, end and thread, that began before each time, else -1."""
    order = np.argsort(calls.start_ns, kind="stable")  # quick, as they are nearly in order
    start = calls.start_ns[order]
    is_tied = np.diff(start, append=BEYOND_NS) == 0
    is_tied[1:] |= is_tied[:-1]
    some = order[is_tied]
    keys = calls.packed_thread.at(some), calls.ends(some), calls.start_ns[some]
    order[is_tied] = some[np.lexsort(keys)]
    return np.append(order, -1)[np.searchsorted(start, times) - 1]


# An operation launched into an idle GPU starts 2 to 10 us after the call returns (real traces:
# median 1 to 5, under Nsight rarely above 12); after 20 us it waits for something else.
MAX_TURNAROUND_NS = 20_000
MIN_MEASURED = 10
"""Gaps from which a latency or a turn-around is measured."""

_COPIES = 1  # in `RankOperations.groups`
PREFETCH = re.compile(r"cu(?:da)?MemPrefetch|hipMemPrefetch")
_UPLOADS = (CopyKind.HOST_TO_DEVICE, CopyKind.HOST_TO_ARRAY)


class IdleGaps(Record, frozen=True):
    """The gaps of a rank from its first operation to its last, in order."""

    gaps: Intervals  # n gaps
    # bool[n], whether the call that launched the operation after the gap is known; a call that
    # begins after the operation does not count, and none does where the clocks of host and GPU
    # disagree
    has_launch: Mask
    is_queued: Mask  # bool[n], whether that call had returned when the gap began
    launching: Intervals  # the parts of queued gaps in which the launch still held the operation
    launching_stream: Int64  # int64[l], the stream of the operation after each of these
    late: Int64  # int64[m], the gaps with a launch that were not queued, ascending
    launch: Int64  # int64[m], the call that launched the operation after each late gap
    stream: Int64  # int64[m], that operation's stream
    is_upload: Mask  # bool[m], whether it is a copy from the host to the device
    # int64[k], the gaps that end with a page of unified memory on its way to the host, ascending:
    # no call launches that, a thread accesses the page. Prefetched pages do not count: those after
    # a call that prefetches, until the process makes another call
    accesses: Int64
    last_call: Int64  # int64[k], the process's last call that began before each of these ends


def idle_gaps(rank: Rank) -> IdleGaps:
    """Return the gaps of a rank, and the operations that ended them."""
    gaps = intervals.complement(rank.busy, rank.window.start_ns, rank.window.end_ns)
    calls, num = rank.calls, len(gaps)
    if calls is None or not len(calls) or clocks_disagree(rank):
        no, nothing, never = np.zeros(num, np.bool_), np.empty(0, np.int64), intervals.empty()
        none = nothing, nothing, nothing, no[:0], nothing, nothing
        return IdleGaps(gaps, no, no, never, nothing, *none)
    operation, launch = starting_at(rank, calls, gaps.end_ns)
    has_launch = (launch >= 0) & (calls.start_ns.take(launch) <= gaps.end_ns)
    returned_ns = calls.ends(launch)
    is_queued = has_launch & (returned_ns <= gaps.start_ns)
    num_operations = [len(group) for group in rank.operations.groups]
    launching, held = _launching_parts(gaps, has_launch, returned_ns, operation, num_operations)
    late = np.flatnonzero(has_launch & ~is_queued)
    accesses, last_call = _accesses(rank, calls, gaps.end_ns, launch < 0)
    return IdleGaps(
        gaps=gaps,
        has_launch=has_launch,
        is_queued=is_queued,
        launching=launching,
        launching_stream=rank.operations.streams_of(operation[held]),
        late=late,
        launch=launch[late],
        stream=rank.operations.streams_of(operation[late]),
        is_upload=_are_uploads(rank, operation[late]),
        accesses=accesses,
        last_call=last_call,
    )


def _launching_parts(
    gaps: Intervals,
    has_launch: Mask,
    returned_ns: Int64,
    operation: Int64,
    num_operations: Sequence[int],
) -> tuple[Intervals, Int64]:
    """Time in which launches made before a gap held it open beyond its turn-around.

    `has_launch`: whether the launch of the operation after each of n gaps is known. `returned_ns`:
    when its call returned; any value where it is not known. `operation`: its number, all operations
    of one kind before those of the next.

    The result has k intervals, from T after the gap's start to L after the return, and int64[k],
    their gaps.
    """
    parts = [np.empty((3, 0), np.int64)]
    for first, stop in pairwise(accumulate(num_operations, initial=0)):
        rows = np.flatnonzero(has_launch & (operation >= first) & (operation < stop))
        ahead, length = gaps.start_ns[rows] - returned_ns[rows], gaps.length_ns[rows]
        after = (ahead + length)[ahead < 0]
        after = after[after <= MAX_TURNAROUND_NS]
        if len(after) < MIN_MEASURED:
            continue
        latency = max(int(np.partition(after, len(after) // 10)[len(after) // 10]), 0)
        in_time = length[(ahead >= latency) & (length <= MAX_TURNAROUND_NS)]
        if len(in_time) < MIN_MEASURED:
            continue
        near = np.flatnonzero((ahead >= 0) & (ahead < latency))
        start = gaps.start_ns[rows[near]]
        end = start + np.minimum(length[near], latency - ahead[near])
        start += int(median_of(in_time))
        parts.append(np.stack((start, end, rows[near])).compress(start < end, axis=1))
    start, end, gap = np.concatenate(parts, axis=1)
    order = np.argsort(start, kind="stable")
    return Intervals(start[order], end[order]), gap[order]


def _accesses(
    rank: Rank, calls: ApiCalls, times: Int64, is_unlaunched: Mask
) -> tuple[Int64, Int64]:
    """Gaps that end with an access of a page, and the last call before that.

    `is_unlaunched`: whether no call launched what starts at the end of the gap.
    """
    copies = rank.operations.copies
    moved = np.flatnonzero(copies.kind == CopyKind.UNIFIED_DEVICE_TO_HOST)
    moved = moved[copies.packed_length.at(moved) > 0]
    gap = np.flatnonzero(is_unlaunched & is_in(times, copies.start_ns[moved]))
    call = _last_before(calls, times[gap])
    gap, call = gap[call >= 0], call[call >= 0]
    is_accessed = ~rank.trace.calls_named(calls, PREFETCH.match)[call]
    return gap[is_accessed], call[is_accessed]


def starting_at(rank: Rank, calls: ApiCalls, times: Int64) -> tuple[Int64, Int64]:
    """Operation that starts at each ascending distinct time, and the call that launched it.

    Indices into all groups of operations joined, and indices of calls; -1 where no operation with a
    launch starts.
    """
    operation, launch = np.full((2, len(times)), -1, np.int64)
    parts, first = [np.empty((3, 0), np.int64)], 0
    for group, launched_by in zip(rank.operations.groups, rank.launched_by, strict=True):
        gap = np.searchsorted(times, group.start_ns)
        begins = (gap < len(times)) & (launched_by >= 0)
        rows = np.flatnonzero(begins & (np.append(times, -1)[gap] == group.start_ns))
        rows = rows[group.packed_length.at(rows) > 0]
        parts.append(np.stack((gap[rows], launched_by[rows], rows + first)))
        first += len(group)
    gap, call, place = np.concatenate(parts, axis=1)
    operation[gap], launch[gap] = place, call
    rivals = np.flatnonzero(np.bincount(gap, minlength=1)[gap] > 1)
    gap, call, place = gap[rivals], call[rivals], place[rivals]
    stream = rank.operations.streams_of(place)
    keys = stream, calls.packed_thread.at(call), calls.ends(call), calls.start_ns[call], gap
    order = np.lexsort(keys)[::-1]  # of several for one gap, the last is kept
    operation[gap[order]], launch[gap[order]] = place[order], call[order]
    return operation, launch


def _are_uploads(rank: Rank, index: Int64) -> Mask:
    is_upload = np.zeros(len(index), np.bool_)
    for number, which, rows in rank.operations.parts(index):
        if number == _COPIES:
            kind = rank.operations.copies.kind[rows]
            is_upload[which] = is_in(kind, _UPLOADS) & ~rank.is_peer_copy[rows]
    return is_upload


def are_batches(
    rank: Rank,
    calls: ApiCalls,
    gaps: IdleGaps,
    threads: LaunchingThreads,
    streams_of: Mapping[int, frozenset[int]],
) -> Mask:
    """Return which late gaps end with the copy of a batch, bool[late gaps]."""
    is_batch = np.zeros(len(gaps.late), np.bool_)
    uploads = np.flatnonzero(gaps.is_upload)
    if not len(uploads):
        return is_batch
    busiest = busiest_stream(rank)
    computing = [thread for thread, streams in streams_of.items() if busiest in streams]
    only_loads = ~is_in(threads.thread[uploads], computing) & (busiest is not None)
    is_batch[uploads] = only_loads
    others = uploads[~only_loads]
    is_batch[others] = _are_at_boundaries(rank, calls, calls.start_ns[gaps.launch[others]])
    return is_batch


def busiest_stream(rank: Rank) -> int | None:
    """Return the stream with most time of compute; of equal ones the lowest. None without any."""
    kernels, graphs = rank.operations.kernels, rank.operations.graphs
    computes = ~rank.is_communication_kernel
    stream, spent = sums(
        np.append(kernels.packed_stream.at(computes), graphs.stream),
        np.append(kernels.packed_length.at(computes), graphs.length_ns),
    )
    return int(stream[spent.argmax()]) if len(stream) else None


def _are_at_boundaries(rank: Rank, calls: ApiCalls, time_ns: Int64) -> Mask:
    """Whether a step begins or ends between the compute launched before and after each time."""
    if rank.step_ranges is None or not len(time_ns):
        return np.zeros(len(time_ns), np.bool_)
    limits = np.sort(np.concatenate((rank.step_ranges.start_ns, rank.step_ranges.end_ns)))
    kernels, _, _, graphs = rank.launched_by
    launched = np.concatenate((kernels[~rank.is_communication_kernel], graphs))
    launches = calls.start_ns.take(launched[launched >= 0])
    launches.sort(kind="stable")  # fast, since they are nearly in order
    # No limit comes before the first of these, all before the last.
    launches = np.concatenate(([NULL], launches, [OPEN_END]))
    before = launches[np.searchsorted(launches, time_ns) - 1]
    after = launches[np.searchsorted(launches, time_ns, side="right")]
    num_before = np.searchsorted(limits, before, side="right")
    return np.searchsorted(limits, after, side="right") > num_before
