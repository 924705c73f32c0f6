"""Launch stalls: calls that block because the launch queue is full, and operations late by them.

An operation was launched late if

* it started within 50 µs of its launch's return, so nothing but the launch held it up;
* its stream was idle since the operation before it (the *gap*), while
* its launching thread was blocked in stalls since the thread last waited for the GPU. Time lost
  before such a wait would have been spent waiting anyway.

It was late by the length of those stalls within the gap. This costs time only if another GPU waits
for the operation (it communicates) or this GPU computed nothing meanwhile. A copy that a full queue
delays while the GPU is busy costs nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np
from msgspec import field
from msgspec.structs import replace

from traceprof import intervals
from traceprof.host.thread_evidence import calls_of_kind, launches_of
from traceprof.intervals import BEYOND_NS, Int32, Int64, Intervals, Mask
from traceprof.run.cache import Cache, derived
from traceprof.run.rank import Rank, Window
from traceprof.structs import Record
from traceprof.trace.columns import Rows
from traceprof.trace.grouping import distinct_values, is_in, median_of, reached_before
from traceprof.trace.model.host import ApiCalls, LaunchStalls
from traceprof.trace.model.kinds import ApiCallKind, CopyKind
from traceprof.trace.model.operations import Copies, Operations
from traceprof.trace.model.special_values import NULL

Source = Literal["overhead-records", "inferred"]

_NO_CORRELATION = (NULL, 0)  # no call launched it: for example a migration of managed memory


class Launches(Rows, frozen=True):
    """Launches, or operations one by one."""

    call: Int64  # index into the calls, -1 if the capture has none
    start_ns: Int64  # the first operation's start, BEYOND_NS where it was not recorded
    end_ns: Int64  # the last operation's end, BEYOND_NS where it was not recorded
    stream: Int32  # index into `LaunchQueue.streams`, -1 if the operation was not recorded
    takes_place: Mask  # bool, whether it counts in its stream's queue: all but host copies
    is_pageable: Mask  # bool, whether it copies from or to pageable memory


class LaunchQueue(Record, frozen=True, eq=False):
    """All launches of one process, to all its devices."""

    calls: ApiCalls  # the process's API calls
    launches: Launches  # n launches, in the order of their calls' starts
    streams: tuple[tuple[int, int], ...]  # (device, stream) pairs
    operations: tuple[Operations, ...]  # the operations of the process
    cache: Cache = field(default_factory=Cache)  # values derived from these

    @property
    def end_ns(self) -> Int64:
        """The ends of the process's operations, ascending int64[m]."""
        ends = np.concatenate([operation.end_ns for operation in self.operations])
        ends.sort(kind="stable")
        return ends

    @property
    def called_ns(self) -> Int64:
        """The time of each launch's call; -BEYOND_NS before the capture, int64[n]."""
        return np.append(self.calls.start_ns, -BEYOND_NS)[self.launches.call]

    @property
    def returned_ns(self) -> Int64:
        """The time at which each call returned; -BEYOND_NS before the capture, int64[n]."""
        return np.append(self.calls.end_ns, -BEYOND_NS)[self.launches.call]

    @property
    def enter_ns(self) -> Int64:
        """The time at which each launch became pending; -BEYOND_NS before the capture, int64[n]."""
        enter = np.minimum(self.returned_ns, self.launches.start_ns)
        return np.maximum(enter, self.called_ns, out=enter)

    @property
    def leave_ns(self) -> Int64:
        """The time at which each launch was over; BEYOND_NS after the capture, int64[n]."""
        return np.maximum(self.launches.end_ns, self.enter_ns)

    @derived
    def series(self) -> tuple[Int64, Int32]:
        """Queue depth over time: times, ascending int64[k]; the depth from each on, int32[k]."""
        enter, leave = self.enter_ns, self.leave_ns
        entered = enter[self.launches.call >= 0]  # the others before the capture
        num_before = len(enter) - len(entered)
        times = np.append(entered, leave[leave < BEYOND_NS])
        order = np.argsort(times, kind="stable")  # nearly in order: quick
        times = times[order]
        depth = np.cumsum(np.where(order < len(entered), 1, -1), dtype=np.int32)
        depth += np.int32(num_before)
        last = np.diff(times, append=BEYOND_NS) != 0
        times, depth = times[last], depth[last]
        if num_before:
            times = np.append(min(self.launches.start_ns.min(), times[0]) - 1, times)
            depth = np.append(np.int32(num_before), depth)
        changed = np.diff(depth, prepend=np.int32(0)) != 0
        return times[changed], depth[changed]

    def series_within(self, start_ns: int, end_ns: int) -> tuple[Int64, Int32]:
        """Return the part of the series with the depth in [start, end]."""
        times, depth = self.series
        first = max(int(np.searchsorted(times, start_ns, side="right")) - 1, 0)
        stop = int(np.searchsorted(times, end_ns, side="right"))
        return times[first:stop], depth[first:stop]

    @property
    def depth(self) -> Int64:
        """The number of the process's pending launches when each launch was called, int64[n]."""
        return self.depth_within()

    def depth_within(self, chosen: Int64 | slice = slice(None)) -> Int64:
        """Return how many of m chosen launches were pending when each was called, int64[m]."""
        # All times are nearly in order: stable sorts are quick.
        entered, left = (
            np.sort(times[chosen], kind="stable") for times in (self.enter_ns, self.leave_ns)
        )
        called = self.called_ns[chosen]
        return np.searchsorted(entered, called) - np.searchsorted(left, called, "right")

    @derived
    def device(self) -> Int64:
        """The device that each launch was for, -1 if it was not recorded, int64[n]."""
        devices = np.array([*(device for device, _ in self.streams), -1], np.int64)
        return devices[self.launches.stream]


def launch_queue(rank: Rank) -> LaunchQueue:
    """Launch queue of a rank's process, which has API calls; kept until it is released."""
    return rank.process_cache.get(_build, rank)


def release_queue(rank: Rank) -> None:
    """Free the launch queue of a rank's process, if no other rank shares it."""
    if rank.num_devices == 1:
        rank.process_cache.release(_build)


def _build(rank: Rank) -> LaunchQueue:
    calls = rank.calls
    if calls is None:
        raise ValueError(f"rank {rank.rank} has no API calls, and so no launch queue")
    rows, streams, operations = _rows(rank, calls)
    launches = _by_call(rows, operations, len(calls))
    unrecorded = _unrecorded(launches, calls)
    if len(unrecorded.call):
        launches = Launches.joined([launches, unrecorded])
    order = np.argsort(np.append(calls.start_ns, -BEYOND_NS)[launches.call], kind="stable")
    return LaunchQueue(calls, launches.chosen(order), streams, operations)


def _rows(
    rank: Rank, calls: ApiCalls
) -> tuple[Launches, tuple[tuple[int, int], ...], tuple[Operations, ...]]:
    parts: list[Launches] = []
    streams: list[tuple[int, int]] = []
    operations: list[Operations] = []
    for key, of_device in rank.operations_of_process:
        groups = of_device.groups
        launched_by = [launches_of(rank, key, calls, group) for group in groups]
        numbers = distinct_values(
            np.concatenate([group.packed_stream.distinct for group in groups])
        )
        for group, call in zip(groups, launched_by, strict=True):
            stream = group.packed_stream.places_in(numbers).astype(np.int32)
            stream += np.int32(len(streams))
            parts.append(_launches_of(group, call, stream))
        streams += [(key.device, number) for number in numbers.tolist()]
        operations += groups
    return Launches.joined(parts), tuple(streams), tuple(operations)


def _launches_of(group: Operations, call: Int64, stream: Int32) -> Launches:
    takes_place = np.ones(len(group), np.bool_)
    pageable = ~takes_place
    if isinstance(group, Copies):
        # Memory sets have no kind, and count.
        takes_place = is_in(group.kind, np.array([NULL, CopyKind.DEVICE_TO_DEVICE], np.int64))
        pageable = group.is_pageable
    return Launches(call, group.start_ns, group.end_ns, stream, takes_place, pageable)


def _by_call(rows: Launches, operations: Sequence[Operations], num_calls: int) -> Launches:
    """One launch for each call: from its first operation's start to its last one's end.

    An operation without a call is left out, unless it was queued when the capture began: then it
    has a correlation id, and starts no later than the first operation on its stream with a call.
    """
    key, orphans = rows.call, np.flatnonzero(rows.call < 0)
    if len(orphans):
        has_call = rows.call >= 0
        ids = np.concatenate([operation.correlation for operation in operations])[orphans]
        first = np.full(int(rows.stream.max()) + 1, BEYOND_NS)
        np.minimum.at(first, rows.stream[has_call], rows.start_ns[has_call])
        was_queued = ~is_in(ids, _NO_CORRELATION)
        was_queued &= rows.start_ns[orphans] <= first[rows.stream[orphans]]
        kept = has_call
        kept[orphans] = was_queued
        _, by_id = np.unique(ids[was_queued], return_inverse=True)
        rows = rows.chosen(kept)
        key = rows.call.copy()
        key[key < 0] = num_calls + by_id.reshape(-1)
    if len(key) == 0 or np.bincount(key).max() == 1:
        return rows
    order = np.lexsort((rows.start_ns, key))
    rows, key = rows.chosen(order), key[order]
    begins = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
    return replace(
        rows.chosen(begins),
        end_ns=np.maximum.reduceat(rows.end_ns, begins),
        takes_place=np.logical_or.reduceat(rows.takes_place, begins),
        is_pageable=np.logical_or.reduceat(rows.is_pageable, begins),
    )


def _unrecorded(launches: Launches, calls: ApiCalls) -> Launches:
    """Launches whose operations ran after the end of the capture.

    They are the calls after the last one whose operation was recorded, if calls of their name
    launch operations. Whether other calls without an operation launched one is not known.
    """
    launching = launches.call[launches.call >= 0]
    last = calls.start_ns.take(launching).max(initial=-BEYOND_NS)
    last = max(last, launches.start_ns.min(initial=BEYOND_NS))
    later = np.flatnonzero(calls.start_ns > last)
    names = calls.packed_name.counted(launching)[0] if len(later) else later
    names = names[names != NULL]
    call = later[is_in(calls.packed_name.at(later), names)]
    beyond, unknown = np.full(len(call), BEYOND_NS), np.full(len(call), -1, np.int32)
    none = np.zeros(len(call), np.bool_)
    return Launches(call, beyond, beyond, unknown, none, none)


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


class Stalls(Rows, frozen=True):
    """Times in which launches of one process were blocked, ordered by start."""

    source: Source  # CUPTI's own records, or inferred from depth and duration
    start_ns: Int64
    end_ns: Int64
    thread: Int64  # int64[n], the thread that was blocked
    call: Int64  # int64[n], index into the process's calls, -1 if the capture has none
    # int64[n], the device that was launched to; the process's first if that is unknown
    device: Int64
    cap: int | None  # pending launches at which a launch blocks, None if it could not be learned
    cap_scope: str | None  # whether that limit is of one `stream` or of the whole `process`
    usual_ns: int  # the median time of a launch while the queue is less than half full


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
    call = queue.calls.with_ids(records.correlation, lambda: records.start_ns)
    blocked = (queue.launches.call >= 0) & is_in(queue.launches.call, call)
    cap, scope, _ = _learned(queue, blocked)
    return Stalls(
        "overhead-records",
        records.start_ns,
        records.end_ns,
        records.thread,
        call,
        _devices(queue, call),
        cap,
        scope,
        _usual_ns(queue),
    )


def _inferred(queue: LaunchQueue) -> Stalls:
    """Launches that were long, at the limit, and returned as an operation made room."""
    launches, duration = queue.launches, queue.returned_ns - queue.called_ns
    # A call that waits for its own operation, such as `.item()`, is a synchronization.
    suspect = (duration > LONG_NS) & (launches.start_ns >= queue.returned_ns)
    suspect &= (launches.call >= 0) & ~launches.is_pageable
    usual_ns, cap, scope = 0, None, None
    if suspect.any():
        usual_ns = _usual_ns(queue)
        suspect &= duration > _TIMES_USUAL * usual_ns
        suspect[suspect] = _returns_as_room_is_made(queue, np.flatnonzero(suspect))
    if suspect.any():
        cap, scope, at_cap = _learned(queue, suspect)
        suspect &= at_cap
    indices = np.flatnonzero(suspect)
    indices = indices[np.lexsort((launches.call[indices], queue.called_ns[indices]))]
    call = launches.call[indices]
    return Stalls(
        "inferred",
        queue.called_ns[indices] + usual_ns,
        queue.returned_ns[indices],
        queue.calls.thread[call],
        call,
        _devices(queue, call),
        cap,
        scope,
        usual_ns,
    )


def _usual_ns(queue: LaunchQueue) -> int:
    """Median duration of launches made while the queue was less than half full.

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
    """Whether launches (indices) returned close to an operation's end and saw few ends.

    Loading a kernel's module, or waiting for a lock, ends independently of operations.
    """
    called, returned, ends = queue.called_ns[chosen], queue.returned_ns[chosen], queue.end_ns
    stop = np.searchsorted(ends, returned, side="right")
    num_ending = stop - np.searchsorted(ends, called, side="right")
    before = ends[np.maximum(stop - 1, 0)]
    after = ends[np.minimum(stop, len(ends) - 1)]
    away = np.minimum(np.abs(returned - before), np.abs(after - returned))
    return (away <= _RETURNS_WITHIN_NS) & (num_ending <= _MAX_ENDING)


def _learned(queue: LaunchQueue, blocked: Mask) -> tuple[int | None, str | None, Mask]:
    """Queue limit, its scope, and a mask of the launches made at a limit.

    The queue of each stream and that of the whole process are tried. The greatest depth at which
    anything was launched is the limit if, of the launches that look blocked at half that depth or
    more, most were made at that depth.
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
    """Limit of one queue, None if it reached none; marks its launches in `at_cap`.

    `depth` has a value for each of `rows`; `blocked` and `at_cap` are masks of all launches.
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
    if len(call) == 0:
        return call
    by_call = np.full(len(queue.calls) + 1, -1, np.int64)
    launched = queue.launches.call >= 0
    by_call[queue.launches.call[launched]] = queue.device[launched]
    device = by_call[call]
    device[device < 0] = min(number for number, _ in queue.streams)
    return device


class Holder(Record, frozen=True):
    """A kernel or kind of copy that ran while launches were blocked."""

    name: str  # a kernel's function or a kind of copy
    held_ns: int  # how long its operations ran during stalls; overlapping ones each count in full


def queue_holders(rank: Rank, blocked: Intervals) -> tuple[Holder, ...]:
    """Operations that ran while launches were blocked, longest first."""
    held: Counter[str] = Counter()
    if len(blocked) == 0:
        return ()
    for index, group in enumerate(rank.operations.groups):
        stop = int(np.searchsorted(group.start_ns, blocked.end_ns[-1]))
        running = np.flatnonzero(group.end_ns[:stop] > blocked.start_ns[0])
        during = intervals.covered_within(blocked, group.start_ns[running], group.end_ns[running])
        held.update(rank.time_by_operation(index, running[during > 0], during[during > 0]))
    ranked = sorted(held.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Holder(name, held_ns) for name, held_ns in ranked)


# An idle stream starts a launched operation 2 to 20 µs after the call returned.
_PROMPT_NS = 50_000


class LateLaunches(Record, frozen=True):
    """Operations of one rank that were launched late, latest first."""

    start_ns: Int64  # int64[n], when each started
    gap_start_ns: Int64  # int64[n], since when its stream was idle and its thread had not waited
    late_ns: Int64  # int64[n], how long its thread was blocked in between
    stream: Int64
    group: Int64  # int64[n], index into the operations' groups
    index: Int64  # int64[n], index within the group
    costly: Intervals  # the time in which another GPU waited for them, or this one computed nothing


def late_launches(rank: Rank, calls: ApiCalls, stalls: Stalls, window: Window) -> LateLaunches:
    """Find the operations that start in the window and were launched late."""
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
    start_ns: Int64
    stream: Int64
    call: Int64  # int64[n], index into the calls, -1 if the capture has none
    group: Int64  # int64[n], index into the rank's groups
    index: Int64  # int64[n], index within the group
    communicates: Mask  # bool[n]
    idle_since_ns: Int64  # int64[n], when the last operation before it on its stream was over


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
    return _Operations(
        start,
        stream,
        np.concatenate(rank.launched_by)[order],
        np.repeat(np.arange(len(groups)), [len(group) for group in groups])[order],
        np.concatenate([np.arange(len(group)) for group in groups])[order],
        np.concatenate(communicates)[order],
        reached_before(end, stream),
    )


def _waits(rank: Rank, calls: ApiCalls) -> Mask:
    """Calls that waited for the GPU: long synchronizations, and copies that block.

    A synchronization that finds everything done takes a few µs and hides no stall.
    """
    waits = calls_of_kind(rank, calls, ApiCallKind.SYNCHRONIZE)
    queue = launch_queue(rank)
    began_inside = queue.launches.start_ns < queue.returned_ns
    waits[queue.launches.call[began_inside & (queue.launches.call >= 0)]] = True
    waits &= calls.end_ns - calls.start_ns > LONG_NS
    return waits
