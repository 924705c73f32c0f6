"""Readiness of communication operations: launched, and with their input there.

The input is the operation that the stream waited for on the GPU before the launch. If a report has
no event records, it is the last operation other than communication that the same thread launched:
PyTorch lets the communication stream wait for the current one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.communication.stream_waits import places, stream_waits, times_of
from traceprof.run.host_order import host_order
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values
from traceprof.trace.model.special_values import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceprof.communication.stream_waits import StreamWaits
    from traceprof.intervals import Int64, Intervals, Mask
    from traceprof.run.rank import Rank

# An operation that starts later than this after the one before it waited for something else: the
# next kernel of a stream starts within a few microseconds.
FOLLOWS_NS = 20_000


class Readiness(Record, frozen=True):
    """Communication kernels of a rank, then its peer copies, each by start; int64[n] each.

    Peer copies count neither as blocking others nor as blocked.

    Attributes:
        num_kernels: how many of the operations are kernels.
        index: into all operations of the rank, its groups joined.
        start_ns: when each started.
        end_ns: when each ended.
        stream: the stream of each.
        call: the API call that launched it, -1 if that is not in the capture.
        place: the place of that call in the host's order, -1 if it is not in the capture.
        launch_ns: when that call returned, -1 if it is not in the capture.
        input: the last to end of the operations that this one waited for on the GPU: an index like
            `index`, -1 for none.
        input_end_ns: when that ended; -1 for none.
        ready_ns: when it was launched and its input was there; -1 without a launch.
        before: for a kernel, the communication kernel before it on its stream: an index into these
            operations, -1 for none.
        follows: bool[n], whether that one ended so shortly before that this one may have waited for
            it.
        covered: when communication kernels ran, by stream.
        has_events: whether inputs are known from event records, not from the order of launches.
    """

    num_kernels: int
    index: Int64
    start_ns: Int64
    end_ns: Int64
    stream: Int64
    call: Int64
    place: Int64
    launch_ns: Int64
    input: Int64
    input_end_ns: Int64
    ready_ns: Int64
    before: Int64
    follows: Mask
    covered: Mapping[int, Intervals]
    has_events: bool

    def __len__(self) -> int:
        return len(self.index)

    def behind_ns(self, since_ns: Int64, covered: Mapping[int, Intervals] | None = None) -> Int64:
        """Return how long kernels before each one ran on its stream until it started, int64[n].

        Args:
            since_ns: int64[n], the time from which to count; 0 if it is -1, or after the start.
            covered: the time to count instead of that of communication kernels, by stream.
        """
        behind = np.zeros(len(self), np.int64)
        kernels = slice(0, self.num_kernels)
        for stream, of_stream in (self.covered if covered is None else covered).items():
            on_stream = (self.stream[kernels] == stream) & (since_ns[kernels] != UNKNOWN)
            at = np.flatnonzero(on_stream)
            # Kernels that start later on this stream cover nothing before this start.
            since = np.minimum(since_ns[at], self.start_ns[at])
            behind[at] = intervals.covered_within(of_stream, since, self.start_ns[at])
        return behind


def readiness(rank: Rank) -> Readiness:
    """Return when the communication of a rank could have begun; found once for each rank.

    Args:
        rank: a rank with a GPU.

    Raises:
        TraceFormatError: the report is damaged.
    """
    return rank.cache.get(_readiness, rank)


def _readiness(rank: Rank) -> Readiness:
    kernels, copies, *_ = rank.operations.groups
    of_group = [
        (kernels, np.flatnonzero(rank.is_communication_kernel), rank.launched_by[0], 0),
        (copies, np.flatnonzero(rank.is_peer_copy), rank.launched_by[1], len(kernels)),
    ]
    columns = [
        (
            at + first,
            group.start_ns[at],
            group.ends(at),
            group.packed_stream.at(at),
            launched_by[at],
        )
        for group, at, launched_by, first in of_group
    ]
    index, start, end, stream, call = map(np.concatenate, zip(*columns, strict=True))
    num_kernels = len(columns[0][0])
    place = places(host_order(rank), call)
    launch = np.full(len(call), UNKNOWN, np.int64)
    if rank.calls is not None:
        launch[call >= 0] = rank.calls.ends(call[call >= 0])
    waits = stream_waits(rank)
    if waits is None:
        source, source_end = _launched_before(rank, call, place)
    else:
        source, source_end = _awaited(waits, stream, place)
    before = _before(stream, num_kernels)
    has_one = before >= 0
    follows = has_one & (start - np.where(has_one, end[before], start) <= FOLLOWS_NS)
    return Readiness(
        num_kernels=num_kernels,
        index=index,
        start_ns=start,
        end_ns=end,
        stream=stream,
        call=call,
        place=place,
        launch_ns=launch,
        input=source,
        input_end_ns=source_end,
        ready_ns=np.where(launch == UNKNOWN, UNKNOWN, np.maximum(launch, source_end)),
        before=before,
        follows=follows,
        covered={
            number: intervals.union(start[:num_kernels][on_stream], end[:num_kernels][on_stream])
            for number in distinct_values(stream[:num_kernels]).tolist()
            for on_stream in (stream[:num_kernels] == number,)
        },
        has_events=waits is not None,
    )


def _before(stream: Int64, num_kernels: int) -> Int64:
    """Return the kernel before each one on its stream, int64[n]; -1 for none, and for copies."""
    before = np.full(len(stream), -1, np.int64)
    order = np.argsort(stream[:num_kernels], kind="stable")
    follows = stream[order[1:]] == stream[order[:-1]]
    before[order[1:][follows]] = order[:-1][follows]
    return before


def _awaited(waits: StreamWaits, stream: Int64, place: Int64) -> tuple[Int64, Int64]:
    """Return the last operation to end that each stream waited for before a place, and its end."""
    source, end = (np.full(len(stream), -1, np.int64) for _ in range(2))
    for number in distinct_values(stream).tolist():
        waiting = np.flatnonzero(waits.stream == number)
        here = np.flatnonzero((stream == number) & (place >= 0))
        if len(waiting) == 0:
            continue
        latest, ends = _latest(waits.end_ns[waiting])
        at = np.searchsorted(waits.place[waiting], place[here], side="left") - 1
        here, at = here[at >= 0], at[at >= 0]
        source[here], end[here] = waits.operation[waiting[latest[at]]], ends[at]
    return source, end


def _latest(end_ns: Int64) -> tuple[Int64, Int64]:
    """Return the running maximum of ends: the index of its first occurrence, and its value."""
    highest = np.maximum.accumulate(end_ns)
    is_new = np.ones(len(end_ns), np.bool_)
    is_new[1:] = highest[1:] > highest[:-1]
    where = np.maximum.accumulate(np.where(is_new, np.arange(len(end_ns)), 0))
    return where, highest


def _launched_before(rank: Rank, call: Int64, place: Int64) -> tuple[Int64, Int64]:
    """Return the last operation but communication that the same thread launched before, int64[n].

    Args:
        rank: the rank.
        call: int64[n], the call that launched each communication operation, -1 for none.
        place: int64[n], the place of that call in the host's order.

    Returns:
        Two int64[n]: an index into all operations of the rank, and when that operation ended; -1
        for none.
    """
    source, end = (np.full(len(call), -1, np.int64) for _ in range(2))
    calls, order = rank.calls, host_order(rank)
    if calls is None:
        return source, end
    thread = np.full(len(call), UNKNOWN, np.int64)
    thread[call >= 0] = calls.packed_thread.at(call[call >= 0])
    others, of_other = _other_operations(rank)
    for number in distinct_values(thread[call >= 0]).tolist():
        at = np.flatnonzero(calls.packed_thread.isin([number]).take(of_other))
        where = order.take(of_other.take(at))
        if not (where[1:] > where[:-1]).all():
            sorting = np.argsort(where, kind="stable")
            ascending = where.take(sorting)
            if (ascending[1:] == ascending[:-1]).any():  # of one call, such as a graph's
                start, stop = times_of(rank, others[at])
                sorting = np.lexsort((stop, start, where))
            where = ascending
            at = at.take(sorting)
            del sorting, ascending  # there can be many
        here = np.flatnonzero((thread == number) & (call >= 0))
        last = np.searchsorted(where, place[here], side="left") - 1
        here, last = here[last >= 0], others[at[last[last >= 0]]]
        source[here], end[here] = last, times_of(rank, last)[1]
    return source, end


def _other_operations(rank: Rank) -> tuple[Int64, Int64]:
    """Return the operations with a call that are no communication, and their calls, int64[m]."""
    communicates = (rank.is_communication_kernel, rank.is_peer_copy, None, None)
    index, call, first = [], [], 0
    for mask, launched_by in zip(communicates, rank.launched_by, strict=True):
        at = np.flatnonzero((launched_by >= 0) if mask is None else (launched_by >= 0) & ~mask)
        index.append(at + first)
        call.append(launched_by.take(at))
        first += len(launched_by)
    return np.concatenate(index), np.concatenate(call)
