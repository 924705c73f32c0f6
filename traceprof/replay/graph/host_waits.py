"""Waits of the host for the GPU: synchronizing calls, blocking copies, full launch queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.host.host_waits import OWN_WAIT_NS
from traceprof.replay.graph.needed_waits import needed_at_once
from traceprof.replay.graph.stream_waits import TOLERANCE_NS
from traceprof.run.launching_calls import calls_with
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, without
from traceprof.trace.model.kinds import (
    ApiCallKind,
    SynchronizationKind,
    api_call_kind,
    waits_for_gpu,
)
from traceprof.trace.model.special_values import NULL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.host.launch_stalls import Stalls
    from traceprof.intervals import Int64, Mask
    from traceprof.replay.graph.columns import GpuWork, HostCalls
    from traceprof.replay.graph.event_waits import EventWaits
    from traceprof.run.opening import Rank

_NOTHING = np.empty(0, np.int64)


class HostWaits(Record, frozen=True):
    """The m waits of calls that return only after an operation is over; some calls have several.

    Attributes:
        call: int64[m], outer calls, indices into `HostCalls`.
        operation: int64[m], indices into `GpuWork`.
        own_ns: int64[m], what the call takes by itself.
        tail_ns: int64[m], how long after the operation it returns.
        is_stall: bool[m], whether the launch queue was full.
        is_needed: bool[m], whether the host likely uses at once what it waited for, or CUDA waits
            by itself.
    """

    call: Int64
    operation: Int64
    own_ns: Int64
    tail_ns: Int64
    is_stall: Mask
    is_needed: Mask


def host_waits(
    ranks: Sequence[tuple[int, Rank]],
    calls: HostCalls,
    work: GpuWork,
    events: EventWaits | None,
    stalls: Stalls,
    shift_ns: int = 0,
) -> HostWaits:
    """Return the waits of a process's host: synchronizing calls, copies, full queues.

    A call whose operation is not known waits for nothing here: it takes as long as it took.

    Args:
        ranks: of the process, each with its index among those of the run.
        calls: of the process.
        work: of all its ranks.
        events: what streams waited for, if event records show it.
        stalls: launches that a full queue blocked.
        shift_ns: what was added to times of the report.
    """
    rank = ranks[0][1]
    call, operation = _synchronized(rank, calls, work, events)
    blocked = np.flatnonzero(work.blocks)
    free_call, freed_after = _freeing(rank, calls, work)
    stall_call, stall_operation, stalled_ns = _stalled(stalls, calls, work)
    counts = [len(call) + len(blocked), len(free_call), len(stall_call)]
    is_freeing = np.repeat([False, True, False], counts)
    is_stall = np.repeat([False, False, True], counts)
    call = np.concatenate((call, calls.outer[work.call[blocked]], free_call, stall_call))
    operation = np.concatenate((operation, blocked, freed_after, stall_operation))
    length = calls.end_ns[call] - calls.start_ns[call]
    own = np.minimum(length, OWN_WAIT_NS)
    if len(stall_call):
        own[is_stall] = np.maximum(length[is_stall] - stalled_ns, 0)
    tail = calls.end_ns[call] - work.end_ns[operation]
    # What was over before the call began did not hold it: then it took what it takes.
    latest = np.full(len(calls), NULL)
    np.maximum.at(latest, call, work.end_ns[operation])
    # To free memory takes what it takes, after the wait.
    waited = np.clip(latest[call] - calls.start_ns[call], 0, length)
    own[is_freeing] = (length - waited)[is_freeing]
    is_free = latest[call] <= calls.start_ns[call]
    own = np.where(is_free, length, own)
    tail = np.where(is_free | (tail > length), 0, tail)
    possible = tail >= -TOLERANCE_NS
    # Another operation than the one that the call waited for ends earlier: it may end as late.
    is_last = work.end_ns[operation] == latest[call]
    shortest = np.full(len(calls), np.iinfo(np.int64).max)
    np.minimum.at(shortest, call[is_last], tail[is_last])
    tail = np.minimum(tail, shortest[call])
    call, operation = call[possible], operation[possible]
    is_needed = needed_at_once(ranks, calls, work, call, operation, shift_ns)
    is_needed |= is_freeing[possible]
    return HostWaits(call, operation, own[possible], tail[possible], is_stall[possible], is_needed)


class _Chains:
    """Operations of a process by stream, in the order in which they were put there."""

    def __init__(self, work: GpuWork, calls: HostCalls) -> None:
        self._by_stream: dict[int, tuple[Int64, Int64]] = {}
        in_time = np.where(work.call >= 0, calls.in_time[work.call], -1)
        order = np.lexsort((np.arange(len(work)), in_time, work.stream))
        streams, first = np.unique(work.stream[order], return_index=True)
        for stream, part in zip(streams.tolist(), np.split(order, first[1:]), strict=True):
            self._by_stream[stream] = in_time[part], part

    @property
    def streams(self) -> list[int]:
        return list(self._by_stream)

    def last_before(self, stream: Int64, time: Int64) -> Int64:
        """Return the operation last put on each stream before a place in host order, or -1."""
        chosen = np.full(len(stream), -1, np.int64)
        for number in distinct_values(stream).tolist():
            if number not in self._by_stream:
                continue
            in_time, place = self._by_stream[number]
            rows = np.flatnonzero(stream == number)
            at = np.searchsorted(in_time, time[rows], side="left") - 1
            chosen[rows[at >= 0]] = place[at[at >= 0]]
        return chosen

    def all_before(self, call: Int64, calls: HostCalls) -> tuple[Int64, Int64]:
        """Return calls and the last operation on every stream before each, int64[k] both."""
        pairs = [
            (call, self.last_before(np.full(len(call), stream), calls.in_time[call]))
            for stream in self.streams
        ]
        waiting, last = (np.concatenate([_NOTHING, *column]) for column in zip(*pairs, strict=True))
        return waiting[last >= 0], last[last >= 0]


def _freeing(rank: Rank, calls: HostCalls, work: GpuWork) -> tuple[Int64, Int64]:
    """Return the calls that free memory, and the work each waits for: all of every stream."""
    columns = rank.calls
    assert columns is not None  # noqa: S101
    ids = [
        key for key, name in rank.trace.api_names.items()
        if api_call_kind(name) is ApiCallKind.ALLOCATE and "Free" in name and waits_for_gpu(name)
    ]  # fmt: skip
    freeing = distinct_values(calls.outer[columns.packed_name.isin(ids)[calls.index]])
    return _Chains(work, calls).all_before(freeing, calls)


def _synchronized(
    rank: Rank, calls: HostCalls, work: GpuWork, events: EventWaits | None
) -> tuple[Int64, Int64]:
    """Return the synchronizing calls, each with the operations that it waited for."""
    columns = rank.calls
    assert columns is not None  # noqa: S101
    ids = [
        key for key, name in rank.trace.api_names.items()
        if api_call_kind(name) is ApiCallKind.SYNCHRONIZE
    ]  # fmt: skip
    is_wait = columns.packed_name.isin(ids)[calls.index]
    # A driver's call inside the runtime's one is the same wait.
    waiting = distinct_values(calls.outer[is_wait])
    stream, event, device = (np.full(len(calls), NULL) for _ in range(3))
    targets = _Targets(stream, event, device, np.zeros(len(calls), np.bool_))
    rows = rank.trace.synchronizations(rank.process)
    if rows is not None:
        of_rows = calls_with(rows.correlation, lambda: rows.start_ns, columns)
        place = calls.place_of(of_rows)
        place[place >= 0] = calls.outer[place[place >= 0]]
        of_stream = (rows.kind == SynchronizationKind.HOST_FOR_STREAM) & (place >= 0)
        targets.stream[place[of_stream]] = rows.stream[of_stream]
        of_event = (rows.kind == SynchronizationKind.HOST_FOR_EVENT) & (place >= 0)
        targets.event[place[of_event]] = rows.event[of_event]
        targets.device[place[of_stream | of_event]] = rows.device[of_stream | of_event]
        of_device = (rows.kind == SynchronizationKind.HOST_FOR_DEVICE) & (place >= 0)
        targets.is_device_wide[place[of_device]] = True
    chains = _Chains(work, calls)
    by_device = chains.all_before(waiting[targets.is_device_wide[waiting]], calls)
    waits, operations = [by_device[0]], [by_device[1]]
    rest = waiting[~targets.is_device_wide[waiting]]
    if events is not None:
        call, operation = _behind_events(rest, targets, calls, events)
        waits.append(call)
        operations.append(operation)
        rest = without(rest, call)
    by_stream = rest[targets.stream[rest] != NULL]
    last = chains.last_before(targets.stream[by_stream], calls.in_time[by_stream])
    waits.append(by_stream[last >= 0])
    operations.append(last[last >= 0])
    if events is None:
        call, operation = _behind_others(by_stream, last, calls, work)
        waits.append(call)
        operations.append(operation)
    rest = rest[targets.stream[rest] == NULL]
    last = _ended_before(calls.start_ns[rest], calls.end_ns[rest], rest, calls, work)
    waits.append(rest[last >= 0])
    operations.append(last[last >= 0])
    return np.concatenate(waits), np.concatenate(operations)


def _behind_others(
    waiting: Int64, last: Int64, calls: HostCalls, work: GpuWork
) -> tuple[Int64, Int64]:
    """Return the waits for a stream that seem to have been for another one as well, by times.

    The stream had been made to wait for that one since its last operation: the call returned within
    20 us of the other stream's operation, and long after its own stream's.
    """
    own_end_ns = np.where(last >= 0, work.end_ns[last], np.iinfo(np.int64).min // 2)
    other = _ended_before(calls.start_ns[waiting], calls.end_ns[waiting], waiting, calls, work)
    is_late = calls.end_ns[waiting] - own_end_ns > TOLERANCE_NS
    is_near = calls.end_ns[waiting] - work.end_ns[other] <= TOLERANCE_NS
    fits = (other >= 0) & is_late & is_near
    return waiting[fits], other[fits]


class _Targets(Record, frozen=True):
    """Streams, events and devices that calls waited for, by call; `NULL` if unknown."""

    stream: Int64
    event: Int64
    device: Int64
    is_device_wide: Mask


def _behind_events(
    waiting: Int64, targets: _Targets, calls: HostCalls, events: EventWaits
) -> tuple[Int64, Int64]:
    """Return the waits for a stream or an event, and the operations that end each.

    A stream that was made to wait for another one since its last operation waits for that one's.
    """
    place = calls.in_time[waiting] + 1
    device = targets.device[waiting]
    if len(events.devices) == 1:
        device = np.full(len(waiting), events.devices[0], np.int64)
    chain = events.chain_of(device, targets.stream[waiting])
    record = events.record_before(targets.event[waiting], device, place)
    of_event = (targets.stream[waiting] == NULL) & (targets.event[waiting] != NULL) & (record >= 0)
    chain[of_event] = events.records.chain[record[of_event]]
    place[of_event] = events.records.place[record[of_event]]
    known = of_event | ((targets.stream[waiting] != NULL) & (chain >= 0))
    return events.behind(waiting[known], chain[known], place[known])


def _stalled(stalls: Stalls, calls: HostCalls, work: GpuWork) -> tuple[Int64, Int64, Int64]:
    """Return the launches that a full queue blocked, what made room for each, and how long."""
    place = calls.place_of(stalls.call)
    known = place >= 0
    call = calls.outer[place[known]]
    last = _ended_before(calls.start_ns[call], calls.end_ns[call], call, calls, work)
    has = last >= 0
    length = (stalls.end_ns - stalls.start_ns)[known]
    return call[has], last[has], length[has]


def _ended_before(
    start_ns: Int64, end_ns: Int64, call: Int64, calls: HostCalls, work: GpuWork
) -> Int64:
    """Return the operation that ended last while a call ran, launched before it; -1 for none."""
    order = np.argsort(work.end_ns, kind="stable")
    ends = work.end_ns[order]
    at = np.searchsorted(ends, end_ns, side="right") - 1
    operation = np.where(at >= 0, order[np.maximum(at, 0)], -1)
    launch = work.call[operation]
    in_time = np.where(launch >= 0, calls.in_time[launch], -1)
    fits = (at >= 0) & (work.end_ns[operation] > start_ns) & (in_time < calls.in_time[call])
    return np.where(fits, operation, -1)
