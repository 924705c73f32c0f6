"""Launch stalls: a thread is blocked in a launch because the launch queue is full, and of what."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

import numpy as np

from traceprof import intervals
from traceprof.host.queue_depth import launch_queue
from traceprof.run.launching_calls import calls_with
from traceprof.structs import Record
from traceprof.trace.grouping import is_in, median_of

if TYPE_CHECKING:
    from traceprof.host.queue_depth import LaunchQueue
    from traceprof.intervals import Int64, Intervals, Mask
    from traceprof.run.opening import Rank
    from traceprof.trace.model.host import LaunchStalls

    Source = Literal["overhead-records", "inferred"]

# A launch takes 3 to 15 µs in our traces: ten times that is not ordinary, and 50 µs is more than
# a launch that takes a lock or has a page fault.
_TIMES_USUAL = 10
LONG_NS = 50_000
# A blocked launch returns 1 to 50 µs after the operation that made room (99 % of them, on V100,
# A100 and H100), a few up to 125 µs.
_RETURNS_WITHIN_NS = 100_000
# While it waits, at most 10 operations end: a call during which many end waits for something else.
_MAX_ENDING = 16
# Below this depth a launch was never seen to block; the smallest limit in real traces is 1022.
MIN_CAP = 256
# In real traces the limit of a stream varies by one launch, that of a process by 0.5 %.
_AT_CAP_PERCENT = 99
_MIN_AT_CAP = 3  # one long launch at the greatest depth is chance: every queue has a greatest depth
_MIN_USUAL = 10  # launches that make a median


class Stalls(Record, frozen=True):
    """Times in which launches of one process were blocked, ordered by start.

    Attributes:
        source: CUPTI's own records, or inferred from depth and duration.
        start_ns: int64[n].
        end_ns: int64[n].
        thread: int64[n], the thread that was blocked.
        call: int64[n], index into the process's calls, -1 if the capture has none.
        device: int64[n], the device that was launched to; the process's first if that is unknown.
        cap: pending launches at which a launch blocks, None if it could not be learned.
        cap_scope: whether that limit is of one `stream` or of the whole `process`.
        usual_ns: the median time of a launch while the queue is less than half full.
    """

    source: Source
    start_ns: Int64
    end_ns: Int64
    thread: Int64
    call: Int64
    device: Int64
    cap: int | None
    cap_scope: str | None
    usual_ns: int

    def __len__(self) -> int:
        return len(self.start_ns)

    def chosen(self, mask: Mask) -> Stalls:
        """Return the stalls where the mask, bool[n], is true."""
        return Stalls(
            self.source, self.start_ns[mask], self.end_ns[mask], self.thread[mask],
            self.call[mask], self.device[mask], self.cap, self.cap_scope, self.usual_ns,
        )  # fmt: skip


def find_stalls(rank: Rank) -> Stalls:
    """Return the stalls of a rank's process, which must have API calls."""
    return rank.process_cache.get(_find, rank)


def _find(rank: Rank) -> Stalls:
    queue = launch_queue(rank)
    records = rank.trace.launch_stalls(rank.process)
    if records is not None and len(records.start_ns):
        return _recorded(queue, records)
    return _inferred(queue)


def _recorded(queue: LaunchQueue, records: LaunchStalls) -> Stalls:
    """Return the stalls that CUPTI recorded."""
    call = calls_with(records.correlation, lambda: records.start_ns, queue.calls)
    blocked = (queue.launches.call >= 0) & is_in(queue.launches.call, call)
    cap, scope, _ = _learned(queue, blocked)
    return Stalls(
        "overhead-records", records.start_ns, records.end_ns, records.thread, call,
        _devices(queue, call), cap, scope, _usual_ns(queue),
    )  # fmt: skip


def _inferred(queue: LaunchQueue) -> Stalls:
    """Find launches that were long, at the limit, and returned as an operation made room."""
    launches, duration = queue.launches, queue.returned_ns - queue.called_ns
    # A call that waits for its own operation, such as `.item()`, is a synchronization.
    suspect = (duration > LONG_NS) & (launches.start_ns >= queue.returned_ns)
    suspect &= (launches.call >= 0) & ~launches.is_pageable
    usual_ns, cap, scope = 0, None, None
    if suspect.any():
        usual_ns = _usual_ns(queue)
        suspect &= duration > _TIMES_USUAL * usual_ns
        del duration
        suspect[suspect] = _returns_as_room_is_made(queue, np.flatnonzero(suspect))
    if suspect.any():
        cap, scope, at_cap = _learned(queue, suspect)
        suspect &= at_cap
    indices = np.flatnonzero(suspect)
    indices = indices[np.lexsort((launches.call[indices], queue.called_ns[indices]))]
    call = launches.call[indices]
    return Stalls(
        "inferred", queue.called_ns[indices] + usual_ns, queue.returned_ns[indices],
        queue.calls.thread[call], call, _devices(queue, call), cap, scope, usual_ns,
    )  # fmt: skip


def _usual_ns(queue: LaunchQueue) -> int:
    """Return the median duration of launches made while the queue was less than half full.

    If there are too few, as in a capture that began with a full queue: the median of launches that
    are too short to be stalls.
    """
    captured = queue.launches.call >= 0
    duration, depth = (queue.returned_ns - queue.called_ns)[captured], queue.depth[captured]
    calm = duration[2 * depth < depth.max(initial=0)]
    if len(calm) < _MIN_USUAL:
        calm = duration[duration <= LONG_NS]
    return int(median_of(calm)) if len(calm) else 0


def _returns_as_room_is_made(queue: LaunchQueue, chosen: Int64) -> Mask:
    """Return whether launches returned close to an operation's end and saw few ends, bool[m].

    Loading a kernel's module, or waiting for a lock, goes on no matter which operations end.

    Args:
        queue: of the process.
        chosen: int64[m], indices of launches.
    """
    called, returned, ends = queue.called_ns[chosen], queue.returned_ns[chosen], queue.end_ns
    stop = np.searchsorted(ends, returned, side="right")
    num_ending = stop - np.searchsorted(ends, called, side="right")
    before = ends[np.maximum(stop - 1, 0)]
    after = ends[np.minimum(stop, len(ends) - 1)]
    away = np.minimum(np.abs(returned - before), np.abs(after - returned))
    close: Mask = (away <= _RETURNS_WITHIN_NS) & (num_ending <= _MAX_ENDING)
    return close


def _learned(queue: LaunchQueue, blocked: Mask) -> tuple[int | None, str | None, Mask]:
    """Learn the limit from launches that look blocked.

    The queue of each stream and that of the whole process are tried. The greatest depth at which
    anything was launched is the limit if, of the launches that look blocked at half that depth or
    more, most were made at that depth.

    Returns:
        The limit, its scope, and which launches were made at a limit, bool[n].
    """
    at_cap, launches, of_streams = np.zeros(len(blocked), np.bool_), queue.launches, []
    for stream in range(len(queue.streams)):
        rows = np.flatnonzero((launches.stream == stream) & launches.takes_place)
        if np.count_nonzero(blocked.take(rows)) >= _MIN_AT_CAP:  # else it has no limit
            depth = queue.depth_within(rows)
            of_streams.append(_limit(depth, rows, blocked, at_cap))
    rows = np.flatnonzero(launches.call >= 0)
    of_process = _limit(queue.depth.take(rows), rows, blocked, at_cap)
    if any(of_streams):
        return max(filter(None, of_streams)), "stream", at_cap
    return of_process, "process" if of_process else None, at_cap


def _limit(depth: Int64, rows: Int64, blocked: Mask, at_cap: Mask) -> int | None:
    """Return the limit of one queue, None if it reached none, and mark its launches in `at_cap`.

    Args:
        depth: int64[m], of its launches.
        rows: int64[m], indices of these.
        blocked: bool[n], which launches look blocked.
        at_cap: bool[n], which were made at a limit.
    """
    greatest = int(depth.max(initial=0))
    if greatest < MIN_CAP:
        return None
    at_limit, deep = 100 * depth >= _AT_CAP_PERCENT * greatest, depth[blocked.take(rows)]
    num_there = np.count_nonzero(100 * deep >= _AT_CAP_PERCENT * greatest)
    num_deep = np.count_nonzero(2 * deep >= greatest)
    if num_there < _MIN_AT_CAP or 2 * num_there < num_deep:
        return None
    at_cap[rows[at_limit]] = True
    return greatest


def _devices(queue: LaunchQueue, call: Int64) -> Int64:
    """Return the device for which each call launched, the first where that is unknown."""
    if len(call) == 0:
        return call
    by_call = np.full(len(queue.calls) + 1, -1, np.int64)
    launched = queue.launches.call >= 0
    by_call[queue.launches.call[launched]] = queue.device[launched]
    device = by_call[call]
    device[device < 0] = min(number for number, _ in queue.streams)
    return device


class Holder(Record, frozen=True):
    """A kernel or kind of copy that ran while launches were blocked.

    Attributes:
        name: a kernel's function or a kind of copy.
        held_ns: how long its operations ran during stalls; overlapping ones each count in full.
    """

    name: str
    held_ns: int


def queue_holders(rank: Rank, blocked: Intervals) -> tuple[Holder, ...]:
    """Return the operations that ran while launches were blocked, longest first."""
    held: Counter[str] = Counter()
    if len(blocked) == 0:
        return ()
    for index, group in enumerate(rank.operations.groups):
        stop = int(np.searchsorted(group.start_ns, blocked.end_ns[-1]))
        running = np.flatnonzero(group.end_ns[:stop] > blocked.start_ns[0])
        during = intervals.covered_within(blocked, group.start_ns[running], group.end_ns[running])
        running, during = running[during > 0], during[during > 0]
        name = getattr(group, ("name", "kind", "stream", "stream")[index])[running]
        if index >= 2:  # memory sets and graphs have no names
            name = np.zeros(len(running), np.int64)
        _, first, which = np.unique(name, return_index=True, return_inverse=True)
        sums = np.zeros(len(first), np.int64)
        np.add.at(sums, which, during)
        for position, total in zip(running[first].tolist(), sums.tolist(), strict=True):
            held[rank.operation_name(index, position)] += total
    ranked = sorted(held.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Holder(name, held_ns) for name, held_ns in ranked)
