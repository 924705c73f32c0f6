"""The order of streams: operations that waited for an operation, and those that it waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dashboards.timeline.model import OPERATION
from traceprof.communication.stream_waits import stream_waits
from traceprof.run.host_order import host_order
from traceprof.run.launching_calls import launching_calls
from traceprof.trace.columns import pack_ahead
from traceprof.trace.model.operations import Operations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dashboards.timeline.model import RankTimeline, Track
    from traceprof.communication.stream_waits import StreamWaits
    from traceprof.intervals import Int64


def launching_call(timeline: RankTimeline, index: int) -> int:
    """Return the call that launched an operation; -1 if the capture does not have it."""
    rank = timeline.rank
    if rank.calls is None:
        return -1
    group, place = timeline.operation(index)
    only = picked(rank.operations.groups[group], np.array([place]))
    return int(launching_calls(only, rank.calls)[0])


def _waits(timeline: RankTimeline) -> StreamWaits | None:
    """Return the waits of a rank's streams; None without a GPU or event records."""
    return None if timeline.rank.device is None else stream_waits(timeline.rank)


def picked(operations: Operations, places: Int64) -> Operations:
    """Return some operations of a group, in the form in which their launches are looked up."""
    return Operations(
        operations.starts.taken(places),
        operations.packed_length.taken(places),
        operations.packed_stream.taken(places),
        pack_ahead(operations.packed_ahead.at(places) + places),
    )


def waiting_for(timeline: RankTimeline, index: int) -> list[int]:
    """Return the first operations after the wait of the streams that waited for an operation.

    Args:
        timeline: of a rank.
        index: the operation's number.

    Returns:
        Numbers of operations, each once; none where the report has no event records.
    """
    waits = _waits(timeline)
    if waits is None:
        return []
    next_ones = []
    for at in np.flatnonzero(waits.operation == index).tolist():
        after = _first_after(timeline, int(waits.stream[at]), int(waits.place[at]))
        if after is not None and after not in next_ones:
            next_ones.append(after)
    return next_ones


def awaited_by(timeline: RankTimeline, index: int) -> list[int]:
    """Return the operations for which an operation's stream waited directly before it.

    Args:
        timeline: of a rank.
        index: the operation's number.

    Returns:
        Numbers of operations, each once; none where the report has no event records.
    """
    waits = _waits(timeline)
    call = launching_call(timeline, index)
    if waits is None or call < 0:
        return []
    stream = _stream_of(timeline, index)
    until = int(host_order(timeline.rank)[call])
    before = np.flatnonzero((waits.stream == stream) & (waits.place < until))
    awaited = []
    for at in before[::-1].tolist():
        # Of each wait before it: is it the first that the stream ran after that wait?
        if _first_after(timeline, stream, int(waits.place[at])) != index:
            break
        awaited.append(int(waits.operation[at]))
    return list(dict.fromkeys(awaited))


def _first_after(timeline: RankTimeline, stream: int, place: int) -> int | None:
    """Return the first operation of a stream that was launched after a place of the host."""
    firsts = []
    for track in _tracks_of(timeline, stream):
        low, high = 0, len(track.index)  # a stream runs what it is given in that order
        while low < high:
            middle = (low + high) // 2
            call = launching_call(timeline, int(track.index[middle]))
            if call < 0 or int(host_order(timeline.rank)[call]) <= place:
                low = middle + 1
            else:
                high = middle
        if low < len(track.index):
            start = int(track.row.starts(np.array([low]))[0])
            firsts.append((start, int(track.index[low])))
    return min(firsts)[1] if firsts else None


def _tracks_of(timeline: RankTimeline, stream: int) -> Iterator[Track]:
    for track in timeline.tracks:
        is_on_gpu = track.source == OPERATION and len(track.index) > 0
        if is_on_gpu and _stream_of(timeline, int(track.index[0])) == stream:
            yield track


def _stream_of(timeline: RankTimeline, index: int) -> int:
    group, place = timeline.operation(index)
    return int(timeline.rank.operations.groups[group].packed_stream.at(np.array([place]))[0])
