"""The gaps between a rank's operations, each with the call that launched the operation after it.

An operation without length neither ends nor splits a gap. Of several that start where a gap ends,
the one launched first ends it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.host.launching_threads import by_start
from traceprof.run.host_clock import clocks_disagree
from traceprof.structs import Record
from traceprof.trace.grouping import is_in
from traceprof.trace.model.kinds import CopyKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceprof.intervals import Int64, Intervals, Mask
    from traceprof.run.rank import Rank
    from traceprof.trace.model.host import ApiCalls

_ROWS_AT_ONCE = 1 << 16
_COPIES = 1  # in `RankOperations.groups`
PREFETCH = re.compile(r"cu(?:da)?MemPrefetch|hipMemPrefetch")
_UPLOADS = (CopyKind.HOST_TO_DEVICE, CopyKind.HOST_TO_ARRAY)


class IdleGaps(Record, frozen=True):
    """The gaps of a rank from its first operation to its last, in order.

    Attributes:
        gaps: n gaps.
        has_launch: bool[n], whether the call that launched the operation after the gap is known; a
            call that begins after the operation does not count, and none does where the clocks of
            host and GPU disagree.
        is_queued: bool[n], whether that call had returned when the gap began.
        late: int64[m], the gaps with a launch that were not queued, ascending.
        launch: int64[m], the call that launched the operation after each late gap.
        stream: int64[m], that operation's stream.
        is_upload: bool[m], whether it is a copy from the host to the device.
        accesses: int64[k], the gaps that end with a page of unified memory on its way to the host,
            ascending: no call launches that, a thread accesses the page. Prefetched pages do not
            count: those after a call that prefetches, until the process makes another call.
        last_call: int64[k], the process's last call that began before each of these ends.
    """

    gaps: Intervals
    has_launch: Mask
    is_queued: Mask
    late: Int64
    launch: Int64
    stream: Int64
    is_upload: Mask
    accesses: Int64
    last_call: Int64


def idle_gaps(rank: Rank) -> IdleGaps:
    """Return the gaps of a rank, and the operations that ended them."""
    gaps = intervals.complement(rank.busy, rank.window.start_ns, rank.window.end_ns)
    calls, num = rank.calls, len(gaps)
    if calls is None or not len(calls) or clocks_disagree(rank):
        no, nothing = np.zeros(num, np.bool_), np.empty(0, np.int64)
        return IdleGaps(gaps, no, no, nothing, nothing, nothing, no[:0], nothing, nothing)
    operation, launch = _ending(rank, calls, gaps.end_ns)
    has_launch = (launch >= 0) & (calls.start_ns.take(launch) <= gaps.end_ns)
    is_queued = has_launch & (calls.ends(launch) <= gaps.start_ns)
    late = np.flatnonzero(has_launch & ~is_queued)
    stream, is_upload = _kind_of(rank, operation[late])
    accesses, last_call = _accesses(rank, calls, gaps.end_ns, launch < 0)
    return IdleGaps(
        gaps, has_launch, is_queued, late, launch[late], stream, is_upload, accesses, last_call
    )


def _accesses(
    rank: Rank, calls: ApiCalls, times: Int64, is_unlaunched: Mask
) -> tuple[Int64, Int64]:
    """Return the gaps that end with an access of a page, and the last call before that.

    Args:
        rank: the rank of the operations.
        calls: the calls of its process, at least one.
        times: int64[n], when the gaps end.
        is_unlaunched: bool[n], whether no call launched what starts there.
    """
    copies, launched_by = rank.operations.copies, rank.launched_by[_COPIES]
    moved = np.flatnonzero(copies.kind == CopyKind.UNIFIED_DEVICE_TO_HOST)
    moved = moved[(launched_by[moved] < 0) & (copies.packed_length.at(moved) > 0)]
    gap = np.flatnonzero(is_unlaunched & is_in(times, copies.start_ns[moved]))
    if not len(gap):
        return gap, gap
    order, start = by_start(calls)
    place = np.searchsorted(start, times[gap]) - 1
    gap, place = gap[place >= 0], place[place >= 0]
    call = place if order is None else order[place]
    prefetch = [key for key, name in rank.trace.api_names.items() if PREFETCH.match(name)]
    is_accessed = ~is_in(calls.packed_name.at(call), prefetch)
    return gap[is_accessed], call[is_accessed]


def _ending(rank: Rank, calls: ApiCalls, times: Int64) -> tuple[Int64, Int64]:
    """Return the operation that starts at each time, and the call that launched it.

    Args:
        rank: the rank of the operations.
        calls: the calls of its process.
        times: int64[n], ascending and distinct.

    Returns:
        Indices into all groups of operations joined, int64[n], and indices of calls, int64[n]; -1
        where no operation with a launch starts.
    """
    operation, launch = np.full(len(times), -1, np.int64), np.full(len(times), -1, np.int64)
    several = np.zeros(len(times), np.bool_)  # more than one operation starts there
    for gap, call, place in _starting(rank, times):
        several[gap] |= operation[gap] >= 0
        several[gap[1:][gap[1:] == gap[:-1]]] = True
        operation[gap], launch[gap] = place, call
    if several.any():
        gap, call, place = (
            np.concatenate(column) for column in zip(*_starting(rank, times, several), strict=True)
        )
        stream = _kind_of(rank, place)[0]
        keys = stream, calls.packed_thread.at(call), calls.ends(call), calls.start_ns[call], gap
        order = np.lexsort(keys)[::-1]  # of several for one gap, the last is kept
        operation[gap[order]], launch[gap[order]] = place[order], call[order]
    return operation, launch


def _starting(
    rank: Rank, times: Int64, chosen: Mask | None = None
) -> Iterator[tuple[Int64, Int64, Int64]]:
    """Yield the operations that start at some times, in parts, since there can be many.

    Args:
        rank: the rank of the operations.
        times: int64[n], ascending and distinct.
        chosen: bool[n], which of the times; all where not given.

    Yields:
        Indices of times, ascending; indices of calls; indices into all groups joined.
    """
    offset = 0
    for group, launched_by in zip(rank.operations.groups, rank.launched_by, strict=True):
        for first in range(0, len(group) if len(times) else 0, _ROWS_AT_ONCE):
            part = slice(first, first + _ROWS_AT_ONCE)
            start, call = group.start_ns[part], launched_by[part]
            before, stop = np.searchsorted(times, (start[0], start[-1] + 1)).tolist()
            gap = intervals.num_before(times[before:stop], start) + before
            gap[gap == len(times)] = 0
            rows = np.flatnonzero((times[gap] == start) & (call >= 0))
            rows = rows[group.packed_length.at(rows + first) > 0]
            if chosen is not None:
                rows = rows[chosen[gap[rows]]]
            yield gap[rows], call[rows], rows + (first + offset)
        offset += len(group)


def _kind_of(rank: Rank, places: Int64) -> tuple[Int64, Mask]:
    """Return the stream of operations, and whether each copies from the host to the device.

    Args:
        rank: the rank of the operations.
        places: int64[n], indices into all groups of operations joined.

    Returns:
        int64[n], bool[n].
    """
    stream, is_upload = np.zeros(len(places), np.int64), np.zeros(len(places), np.bool_)
    offset = 0
    for number, group in enumerate(rank.operations.groups):
        rows = np.flatnonzero((places >= offset) & (places < offset + len(group)))
        indices = places[rows] - offset
        stream[rows] = group.packed_stream.at(indices)
        if number == _COPIES:
            kind = rank.operations.copies.kind[indices]
            is_upload[rows] = is_in(kind, _UPLOADS) & ~rank.is_peer_copy[indices]
        offset += len(group)
    return stream, is_upload
