"""The launch queue of a process: launches that the GPU has not yet finished.

A launch is pending from the return of its call (or the start of its operation, if that comes first)
until its operation is over. A call counts once, however many operations it launches, as for a CUDA
graph. By this definition the limit is the same, to within one launch, in the three real exports
with stalls: a launch into a stream blocks when 1022 kernels, memory sets and copies within the
device are pending on it. Copies between host and device do not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import field

from traceprof.intervals import BEYOND_NS, num_before
from traceprof.run.cache import Cache, derived
from traceprof.run.launching_calls import launching_calls
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, is_in, without
from traceprof.trace.model.kinds import CopyKind, MemoryKind
from traceprof.trace.model.operations import Copies
from traceprof.trace.model.special_values import NULL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from traceprof.intervals import Int32, Int64, Mask
    from traceprof.run.rank import Rank
    from traceprof.trace.model.host import ApiCalls
    from traceprof.trace.model.operations import Operations


_NO_CORRELATION = (NULL, 0)  # no call launched it: for example a migration of managed memory


class Launches(NamedTuple):
    """Launches, or operations one by one: arrays of one length."""

    call: Int64  # index into the calls, -1 if the capture has none
    start_ns: Int64  # the first operation's start, BEYOND_NS where it was not recorded
    end_ns: Int64  # the last operation's end, BEYOND_NS where it was not recorded
    stream: Int32  # index into `LaunchQueue.streams`, -1 if the operation was not recorded
    takes_place: Mask  # bool, whether it counts in its stream's queue: all but host copies
    is_pageable: Mask  # bool, whether it copies from or to pageable memory

    def at(self, chosen: Mask | Int64) -> Launches:
        """Return the chosen launches."""
        rows = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
        return Launches(
            self.call.take(rows),
            self.start_ns.take(rows),
            self.end_ns.take(rows),
            self.stream.take(rows),
            self.takes_place.take(rows),
            self.is_pageable.take(rows),
        )


class LaunchQueue(Record, frozen=True, eq=False):
    """All launches of one process, to all its devices."""

    calls: ApiCalls  # the process's API calls
    launches: Launches  # n launches, in the order of their calls' starts
    streams: tuple[tuple[int, int], ...]  # (device, stream) pairs
    operations: tuple[Operations, ...]  # the operations of the process
    cache: Cache = field(default_factory=Cache)  # values derived from these, kept
    times: Cache = field(default_factory=Cache)  # values derived from these, freed by `release`

    @property
    def end_ns(self) -> Int64:
        """The ends of the process's operations, ascending int64[m]."""
        ends = np.concatenate([operation.end_ns for operation in self.operations])
        ends.sort(kind="stable")
        return ends

    @property
    def called_ns(self) -> Int64:
        """The time of each launch's call; -BEYOND_NS before the capture, int64[n]."""
        return self.times.get(_called, self)

    @property
    def returned_ns(self) -> Int64:
        """The time at which each call returned; -BEYOND_NS before the capture, int64[n]."""
        return self.times.get(_returned, self)

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
        times, depth = self._changes()
        last = np.diff(times, append=BEYOND_NS) != 0
        times, depth = times[last], depth[last]
        if self._num_before:
            times = np.append(self._begin_ns(times), times)
            depth = np.append(np.int32(self._num_before), depth)
        changed = np.diff(depth, prepend=np.int32(0)) != 0
        return times[changed], depth[changed]

    def deepest_within(self, start_ns: int, end_ns: int) -> int:
        """Return the greatest depth in [start, end]."""
        times, depth = self._changes()
        first, stop = np.searchsorted(times, [start_ns, end_ns], side="right").tolist()
        # Of changes at one time those that leave come first: none is deeper than before and after.
        deepest = int(depth[first:stop].max(initial=0))
        if first:
            return max(deepest, int(depth[first - 1]))
        if self._num_before and self._begin_ns(times) <= end_ns:
            return max(deepest, self._num_before)
        return deepest

    @derived
    def _num_before(self) -> int:
        """The number of launches from before the capture: their calls were not recorded."""
        return int(np.count_nonzero(self.launches.call < 0))

    def _begin_ns(self, times: Int64) -> int:
        return int(min(self.launches.start_ns.min(), times[0])) - 1

    def _changes(self) -> tuple[Int64, Int32]:
        """Return the times at which the depth changes by one, and the depth after each."""
        num_entered = len(self.launches.call)
        changes = np.empty(2 * num_entered, np.int64)  # in one piece: there can be many
        entered, left = changes[:num_entered], changes[num_entered:]
        np.minimum(self.returned_ns, self.launches.start_ns, out=entered)
        np.maximum(entered, self.called_ns, out=entered)
        np.maximum(self.launches.end_ns, entered, out=left)
        self.release()  # sorting takes as much again
        if self._num_before or left.max(initial=0) >= BEYOND_NS:
            num_entered -= self._num_before
            changes = np.concatenate((entered[entered > -BEYOND_NS], left[left < BEYOND_NS]))
        # The lowest bit says whether the depth grows: one sort of integers, many times faster than
        # argsort; stable, because that is fast for times that are nearly in order.
        changes <<= 1
        changes[:num_entered] |= 1
        changes.sort(kind="stable")
        depth = np.empty(len(changes), np.int32)
        np.bitwise_and(changes, 1, out=depth, casting="unsafe")
        changes >>= 1
        depth <<= 1
        depth -= 1
        np.cumsum(depth, out=depth)
        depth += np.int32(self._num_before)
        return changes, depth

    def series_within(self, start_ns: int, end_ns: int) -> tuple[Int64, Int32]:
        """Return the part of the series with the depth in [start, end]."""
        times, depth = self.series
        first = max(int(np.searchsorted(times, start_ns, side="right")) - 1, 0)
        stop = int(np.searchsorted(times, end_ns, side="right"))
        return times[first:stop], depth[first:stop]

    @property
    def depth(self) -> Int64:
        """The number of the process's pending launches when each launch was called, int64[n]."""
        return self.times.get(_depth, self)

    def depth_within(self, chosen: Int64 | slice) -> Int64:
        """Return how many of m chosen launches were pending when each was called, int64[m]."""
        # All times are nearly in order: stable sorts are quick.
        called, entered = self.called_ns[chosen], self.enter_ns[chosen]
        entered.sort(kind="stable")
        depth = num_before(entered, called)
        del entered
        left = self.leave_ns[chosen]
        left.sort(kind="stable")
        depth -= num_before(left, called, "right")
        return depth

    def release(self) -> None:
        """Free the derived times; they are made again when they are needed."""
        self.times.release()

    @derived
    def device(self) -> Int64:
        """The device that each launch was for, -1 if it was not recorded, int64[n]."""
        devices = np.array([*(device for device, _ in self.streams), -1], np.int64)
        device: Int64 = devices[self.launches.stream]
        return device


def _depth(queue: LaunchQueue) -> Int64:
    return queue.depth_within(slice(None))


def _called(queue: LaunchQueue) -> Int64:
    return _times_of_calls(queue.launches, queue.calls, queue.calls.start_ns.__getitem__)


def _returned(queue: LaunchQueue) -> Int64:
    return _times_of_calls(queue.launches, queue.calls, queue.calls.ends)


def _times_of_calls(
    launches: Launches, calls: ApiCalls, time_of: Callable[[Int64], Int64]
) -> Int64:
    call = launches.call
    if len(calls) == 0:
        return np.full(len(call), -BEYOND_NS)
    times = time_of(call)  # the index -1 takes the last
    times[call < 0] = -BEYOND_NS
    return times


def launch_queue(rank: Rank) -> LaunchQueue:
    """Launch queue of a rank's process, which has API calls; kept until it is released."""
    return rank.process_cache.get(_build, rank)


def release_queue(rank: Rank) -> None:
    """Free the launch queue of a rank's process, or what is derived if others share it."""
    if rank.num_devices == 1:
        rank.process_cache.release(_build)
    else:
        launch_queue(rank).release()


def _build(rank: Rank) -> LaunchQueue:
    calls = rank.calls
    if calls is None:
        raise ValueError(f"rank {rank.rank} has no API calls, and so no launch queue")
    rows, streams, operations = _rows(rank, calls)
    launches = _by_call(rows, _without_call(rows, operations), len(calls))
    unrecorded = _unrecorded(launches, calls)
    if len(unrecorded.call):
        launches = _joined([launches, unrecorded])
    order = np.argsort(_times_of_calls(launches, calls, calls.start_ns.__getitem__), kind="stable")
    return LaunchQueue(calls, launches.at(order), streams, operations)


def _rows(
    rank: Rank, calls: ApiCalls
) -> tuple[Launches, tuple[tuple[int, int], ...], tuple[Operations, ...]]:
    parts: list[Launches] = []
    streams: list[tuple[int, int]] = []
    operations: list[Operations] = []
    for key, of_device in rank.operations_of_process:
        groups = of_device.groups
        launched_by = (
            rank.launched_by
            if key == rank.key
            else [launching_calls(group, calls) for group in groups]
        )
        numbers = distinct_values(
            np.concatenate([group.packed_stream.distinct for group in groups])
        )
        for group, call in zip(groups, launched_by, strict=True):
            stream = group.packed_stream.places_in(numbers).astype(np.int32)
            stream += np.int32(len(streams))
            parts.append(_operations(group, call, stream))
        streams += [(key.device, number) for number in numbers.tolist()]
        operations += groups
    return _joined(parts), tuple(streams), tuple(operations)


def _joined(parts: list[Launches]) -> Launches:
    """Join launches column by column; each column of the parts is freed once it is joined."""
    columns = [list(column) for column in zip(*parts, strict=True)]
    parts.clear()
    return Launches(*(np.concatenate(columns.pop(0)) for _ in Launches._fields))


def _operations(group: Operations, call: Int64, stream: Int32) -> Launches:
    every = np.ones(len(group), np.bool_)
    takes_place, is_pageable = every, ~every
    if isinstance(group, Copies):
        # Memory sets have no kind, and count.
        takes_place = is_in(group.kind, np.array([NULL, CopyKind.DEVICE_TO_DEVICE], np.int64))
        is_pageable = group.source_memory == MemoryKind.PAGEABLE
        is_pageable |= group.destination_memory == MemoryKind.PAGEABLE
    return Launches(call, group.start_ns, group.end_ns, stream, takes_place, is_pageable)


class _WithoutCall(Record, frozen=True):
    """Operations without a call, int64[n] each."""

    row: Int64  # index into the process's operations
    correlation: Int64  # the operation's id


def _without_call(rows: Launches, operations: Sequence[Operations]) -> _WithoutCall:
    row = np.flatnonzero(rows.call < 0)
    if len(row) == 0:
        return _WithoutCall(row, row)
    correlation = np.concatenate([operation.correlation for operation in operations])
    return _WithoutCall(row, correlation[row])


def _by_call(rows: Launches, orphans: _WithoutCall, num_calls: int) -> Launches:
    """One launch for each call: from its first operation's start to its last one's end.

    An operation without a call is left out, unless it was queued when the capture began: then it
    has a correlation id, and starts no later than the first operation on its stream with a call.
    """
    key = rows.call
    if len(orphans.row):
        has_call = rows.call >= 0
        first = np.full(int(rows.stream.max()) + 1, BEYOND_NS)
        np.minimum.at(first, rows.stream[has_call], rows.start_ns[has_call])
        was_queued = ~is_in(orphans.correlation, _NO_CORRELATION)
        was_queued &= rows.start_ns[orphans.row] <= first[rows.stream[orphans.row]]
        kept = has_call
        kept[orphans.row] = was_queued
        _, by_id = np.unique(orphans.correlation[was_queued], return_inverse=True)
        rows = rows.at(kept)
        key = rows.call.copy()
        key[key < 0] = num_calls + by_id.reshape(-1)
    if len(key) == 0 or np.bincount(key).max() == 1:
        return rows
    order = np.lexsort((rows.start_ns, key))
    rows, key = rows.at(order), key[order]
    begins = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
    return rows.at(begins)._replace(
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
    names = (
        without(calls.packed_name.counted(launching)[0], np.array([NULL])) if len(later) else later
    )
    call = later[is_in(calls.packed_name.at(later), names)]
    beyond, unknown = np.full(len(call), BEYOND_NS), np.full(len(call), -1, np.int32)
    none = np.zeros(len(call), np.bool_)
    return Launches(call, beyond, beyond, unknown, none, none)
