"""Waits of streams on the GPU: each wait for an event, with the operation that it waits for.

A *place* is the position of an API call in the host's order (`traceprof.run.host_order`). A wait is
for the last record of its event before it; the operation is the last one on the stream of that
record before it. What that stream itself had waited for before does not count. A stream's wait for
itself is no wait, since operations of one stream are in order anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.run.host_order import host_order
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, is_in
from traceprof.trace.model.kinds import ApiCallKind, api_call_kind
from traceprof.trace.model.special_values import NULL

if TYPE_CHECKING:
    from traceprof.intervals import Int32, Int64, Mask
    from traceprof.run.rank import Rank
    from traceprof.trace.model.host import EventRecords, Synchronizations

_NOTHING = np.empty(0, np.int64)


class StreamWaits(Record, frozen=True):
    """The waits of a rank's streams for operations of other streams, in the host's order.

    Attributes:
        place: int64[n], ascending, the place of the call that made the stream wait.
        stream: int64[n], the stream that waits.
        operation: int64[n], the operation that it waits for: an index into all operations of the
            rank, its groups joined.
        awaited_stream: int64[n], the stream of that operation.
        awaited_place: int64[n], the place of the call that launched it.
        awaited_start_ns: int64[n], when it started.
        end_ns: int64[n], when it ended.
    """

    place: Int64
    stream: Int64
    operation: Int64
    awaited_stream: Int64
    awaited_place: Int64
    awaited_start_ns: Int64
    end_ns: Int64

    def chosen(self, at: Int64 | Mask) -> StreamWaits:
        """Return the chosen rows."""
        return StreamWaits(*(getattr(self, name)[at] for name in self.__struct_fields__))


class StreamOperations(Record, frozen=True):
    """Operations of some streams of a rank, by group, then start, then end; int64[n] each.

    Attributes:
        index: into all operations of the rank, its groups joined.
        stream: the stream of each.
        start_ns: when each started.
        end_ns: when each ended.
        place: the place of the call that launched it, -1 if that is not in the capture.
    """

    index: Int64
    stream: Int64
    start_ns: Int64
    end_ns: Int64
    place: Int64

    def chosen(self, chosen: Mask | Int64) -> StreamOperations:
        """Return the chosen rows."""
        return StreamOperations(*(getattr(self, name)[chosen] for name in self.__struct_fields__))


def operations_on(rank: Rank, streams: Int64) -> StreamOperations:
    """Return the operations of some streams.

    Args:
        rank: a rank with a GPU.
        streams: int64[m].
    """
    parts, before, place = [], 0, host_order(rank)
    for group, launched_by in zip(rank.operations.groups, rank.launched_by, strict=True):
        at = np.flatnonzero(group.packed_stream.isin(streams.tolist()))
        call = places(place, launched_by[at])
        stream = group.packed_stream.at(at)
        parts.append((at + before, stream, group.start_ns[at], group.ends(at), call))
        before += len(group)
    return StreamOperations(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def times_of(rank: Rank, index: Int64) -> tuple[Int64, Int64]:
    """Return when operations started and ended, int64[n] each.

    Args:
        rank: a rank with a GPU.
        index: int64[n], into all operations of the rank, its groups joined.
    """
    start, end = np.zeros(len(index), np.int64), np.zeros(len(index), np.int64)
    first = 0
    for group in rank.operations.groups:
        here = (index >= first) & (index < first + len(group))
        if len(group) and here.any():
            start[here], end[here] = (
                group.start_ns[index[here] - first],
                group.ends(index[here] - first),
            )
        first += len(group)
    return start, end


def places(place: Int32, call: Int64) -> Int64:
    """Return the places of calls, int64[n], -1 if there is no call.

    Args:
        place: int32[m], the places of all calls.
        call: int64[n], indices of calls, -1 for none.
    """
    awaited = np.full(len(call), -1, np.int64)
    known = call >= 0
    awaited[known] = place[call[known]]
    return awaited


def stream_waits(rank: Rank) -> StreamWaits | None:
    """Return the waits of a rank's streams for each other; found once for each rank.

    Args:
        rank: a rank with a GPU.

    Returns:
        The waits whose event was recorded before them; None if the report has no event records
        or no stream waits of the rank.

    Raises:
        TraceFormatError: the report is damaged.
    """
    return rank.cache.get(_stream_waits, rank)


def _stream_waits(rank: Rank) -> StreamWaits | None:
    records = rank.trace.event_records(rank.process)
    waits = rank.trace.synchronizations(rank.process) if records is not None else None
    if records is None or waits is None or rank.calls is None:
        return None
    recorded, awaiting = _records(rank, records), _waits(rank, waits)
    if len(recorded.place) == 0 or len(awaiting.place) == 0:
        return None
    wait, record = _producers(recorded, awaiting)
    last, is_one = _last_on_stream(rank, recorded.stream[record], recorded.place[record])
    all_waits = StreamWaits(
        awaiting.place[wait],
        awaiting.stream[wait],
        last.index,
        last.stream,
        last.place,
        last.start_ns,
        last.end_ns,
    )
    return all_waits.chosen(is_one & (recorded.stream[record] != awaiting.stream[wait]))


class _Events(Record, frozen=True):
    """Records of events, or waits for them, in the host's order; int64[n] each."""

    place: Int64
    stream: Int64
    event: Int64


def _records(rank: Rank, records: EventRecords) -> _Events:
    call = _calls_of(rank, records.correlation)
    chosen = _is_of(rank, records.device) & (call >= 0)
    return _in_order(rank, call, records.stream, records.event, chosen)


def _waits(rank: Rank, waits: Synchronizations) -> _Events:
    call = _calls_of(rank, waits.correlation)
    names = [
        key
        for key, name in rank.trace.api_names.items()
        if api_call_kind(name) is ApiCallKind.STREAM_WAIT
    ]
    chosen = _is_of(rank, waits.device) & (call >= 0)
    known = np.flatnonzero(chosen)
    if rank.calls is not None:
        of_call = rank.calls.packed_name.at(call[known])
        chosen[known] = is_in(of_call, np.array(names, np.int64))
    return _in_order(rank, call, waits.stream, waits.event, chosen)


def _in_order(rank: Rank, call: Int64, stream: Int64, event: Int64, chosen: Mask) -> _Events:
    at = np.flatnonzero(chosen & (stream != NULL) & (event != NULL))
    place = places(host_order(rank), call[at])
    order = np.lexsort((event[at], stream[at], place))
    return _Events(place[order], stream[at][order], event[at][order])


def _is_of(rank: Rank, device: Int64) -> Mask:
    """Return which rows are of the rank's device; all if its process has no other."""
    if rank.num_devices <= 1:
        return np.ones(len(device), np.bool_)
    is_of: Mask = device == rank.key.device
    return is_of


def _calls_of(rank: Rank, correlation: Int64) -> Int64:
    """Return the last call with each correlation id, int64[n], -1 if the report has none."""
    ids = _NOTHING if rank.calls is None else rank.calls.correlation
    if len(ids) == 0:
        return np.full(len(correlation), -1, np.int64)
    call = np.searchsorted(ids, correlation, side="right") - 1
    return np.where((call >= 0) & (ids[call] == correlation), call, -1)


def _producers(records: _Events, waits: _Events) -> tuple[Int64, Int64]:
    """Return the waits whose event was recorded before, and the last such record of each."""
    number = np.unique(np.concatenate((records.event, waits.event)), return_inverse=True)[1]
    number = number.reshape(-1)
    size = int(max(records.place.max(), waits.place.max())) + 1
    of_record, of_wait = number[: len(records.event)], number[len(records.event) :]
    order = np.argsort(of_record, kind="stable")
    keys = (of_record * size + records.place)[order]
    at = np.searchsorted(keys, of_wait * size + waits.place, side="left") - 1
    is_known = (at >= 0) & (of_record[order[at]] == of_wait)
    wait = np.flatnonzero(is_known)
    return wait, order[at[wait]]


def _last_on_stream(rank: Rank, stream: Int64, place: Int64) -> tuple[StreamOperations, Mask]:
    """Return the last operation put on a stream before a place, and whether there is one.

    Args:
        rank: the rank.
        stream: int64[n].
        place: int64[n].

    Returns:
        n operations, and bool[n]; where it is false, the operation means nothing.
    """
    streams = distinct_values(stream)
    operations = operations_on(rank, streams)
    operations = operations.chosen(operations.place >= 0)
    if len(operations.index) == 0:
        none = np.zeros(len(stream), np.int64)
        return StreamOperations(none, none, none, none, none), none > 0
    size = int(max(operations.place.max(), place.max(initial=0))) + 1
    keys = np.searchsorted(streams, operations.stream) * size + operations.place
    order = np.lexsort((operations.end_ns, operations.start_ns, keys))
    wanted = np.searchsorted(streams, stream) * size + place
    at = np.searchsorted(keys[order], wanted, side="left") - 1
    last = operations.chosen(order[at])
    return last, (at >= 0) & (last.stream == stream)
