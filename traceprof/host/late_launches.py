"""Operations that were launched late because their thread was blocked in other launches.

An operation was launched late if

* it started within 50 µs of its launch's return, so that it waited for nothing but its launch;
* its stream was idle, from the end of the operation before it (the *gap*), while
* the thread that launched it was blocked in stalls, since the thread last waited for the GPU: time
  that a thread loses before such a wait would have been lost in the wait, too.

It was late by the length of those stalls within the gap. This costs time as far as another GPU
waits for it (it communicates) or this GPU computed nothing meanwhile. A copy that a full queue
delays while the GPU is busy costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.host.launch_stalls import LONG_NS
from traceprof.host.queue_depth import launch_queue
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, is_in
from traceprof.trace.model.kinds import ApiCallKind, api_call_kind

if TYPE_CHECKING:
    from traceprof.host.launch_stalls import Stalls
    from traceprof.intervals import Int64, Intervals, Mask
    from traceprof.run.opening import Rank, Window
    from traceprof.trace.model.host import ApiCalls

# An idle stream starts a launched operation 2 to 20 µs after the call returned.
_PROMPT_NS = 50_000


class LateLaunches(Record, frozen=True):
    """Operations of one rank that were launched late, latest first.

    Attributes:
        start_ns: int64[n], when each started.
        gap_start_ns: int64[n], since when its stream was idle and its thread had not waited.
        late_ns: int64[n], how long its thread was blocked in between.
        stream: int64[n].
        group: int64[n], index into the operations' groups.
        index: int64[n], index within the group.
        costly: the time in which another GPU waited for them, or this one computed nothing.
    """

    start_ns: Int64
    gap_start_ns: Int64
    late_ns: Int64
    stream: Int64
    group: Int64
    index: Int64
    costly: Intervals


def late_launches(rank: Rank, calls: ApiCalls, stalls: Stalls, window: Window) -> LateLaunches:
    """Find the operations that start in the window and were launched late.

    Args:
        rank: the rank of the operations.
        calls: the API calls of its process.
        stalls: the stalls of its process, on all devices.
        window: the time to look at.
    """
    operations = _operations(rank)
    start, returned = operations.start_ns, np.append(calls.end_ns, 0)[operations.call]
    candidates = (operations.call >= 0) & (start - returned <= _PROMPT_NS)
    candidates &= window.holds_start(start)
    thread = np.append(calls.thread, 0)[operations.call]
    waits = _waits(rank, calls)
    rows, costly = [np.empty((3, 0), np.int64)], [intervals.empty()]
    for number in distinct_values(stalls.thread).tolist():
        chosen = np.flatnonzero(candidates & (thread == number))
        wait_end = np.sort(calls.end_ns[waits & (calls.thread == number)])
        wait_end = np.append(-intervals.BEYOND_NS, wait_end)
        called = calls.start_ns[operations.call[chosen]]
        last_wait = wait_end[np.searchsorted(wait_end, called, side="right") - 1]
        first = np.maximum(operations.idle_since_ns[chosen], last_wait)
        stop = np.maximum(np.minimum(start[chosen], returned[chosen]), first)
        of_thread = stalls.thread == number
        blocked = intervals.union(stalls.start_ns[of_thread], stalls.end_ns[of_thread])
        late = intervals.covered_within(blocked, first, stop)
        is_late = late > 0
        chosen, first, stop, late = chosen[is_late], first[is_late], stop[is_late], late[is_late]
        rows.append(np.stack((chosen, first, late)))
        communicates = operations.communicates[chosen]
        waited_for = intervals.union(first[communicates], stop[communicates])
        without_compute = intervals.subtract(intervals.union(first, stop), rank.compute)
        cost = intervals.merge(waited_for, without_compute)
        costly.append(intervals.intersect(cost, blocked))
    chosen, first, late = np.concatenate(rows, axis=1)
    order = np.lexsort((chosen, start[chosen], -late))
    chosen, first, late = chosen[order], first[order], late[order]
    return LateLaunches(
        start_ns=start[chosen],
        gap_start_ns=first,
        late_ns=late,
        stream=operations.stream[chosen],
        group=operations.group[chosen],
        index=operations.index[chosen],
        costly=intervals.clip(intervals.merge(*costly), window.start_ns, window.end_ns),
    )


class _Operations(Record, frozen=True):
    """All operations of a rank by stream, then start: arrays of one length.

    Attributes:
        start_ns: int64[n].
        stream: int64[n].
        call: int64[n], index into the calls, -1 if the capture has none.
        group: int64[n], index into the rank's groups.
        index: int64[n], index within the group.
        communicates: bool[n].
        idle_since_ns: int64[n], when the last operation before it on its stream was over.
    """

    start_ns: Int64
    stream: Int64
    call: Int64
    group: Int64
    index: Int64
    communicates: Mask
    idle_since_ns: Int64


def _operations(rank: Rank) -> _Operations:
    groups = rank.operations.groups
    start, end, stream = (
        np.concatenate([getattr(group, name) for group in groups])
        for name in ("start_ns", "end_ns", "stream")
    )
    communicates = [np.zeros(len(group), np.bool_) for group in groups]
    communicates[0], communicates[1] = rank.is_communication_kernel, rank.is_peer_copy
    order = np.lexsort((end, start, stream))
    start, end, stream = start[order], end[order], stream[order]
    begins = np.flatnonzero(np.append(True, stream[1:] != stream[:-1])) if len(stream) else stream
    idle_since = np.empty(len(start), np.int64)
    for first, stop in zip(begins, np.append(begins[1:], len(start)), strict=True):  # per stream
        idle_since[first] = -intervals.BEYOND_NS
        np.maximum.accumulate(end[first : stop - 1], out=idle_since[first + 1 : stop])
    return _Operations(
        start, stream,
        np.concatenate(rank.launched_by)[order],
        np.repeat(np.arange(len(groups)), [len(group) for group in groups])[order],
        np.concatenate([np.arange(len(group)) for group in groups])[order],
        np.concatenate(communicates)[order],
        idle_since,
    )  # fmt: skip


def _waits(rank: Rank, calls: ApiCalls) -> Mask:
    """Return which calls waited for the GPU: long synchronizations, and copies that block.

    A synchronization that finds everything done takes a few µs and hides no stall.
    """
    names = [
        name
        for name, text in rank.trace.api_names.items()
        if api_call_kind(text) is ApiCallKind.SYNCHRONIZE
    ]
    waits: Mask = is_in(calls.name, np.array(names, np.int64))
    queue = launch_queue(rank)
    began_inside = queue.launches.start_ns < queue.returned_ns
    waits[queue.launches.call[began_inside & (queue.launches.call >= 0)]] = True
    waits &= calls.end_ns - calls.start_ns > LONG_NS
    return waits
