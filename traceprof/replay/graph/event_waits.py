"""Waits of streams for events: on other devices too, and through other streams.

A wait is for the last record of its event before it, in the host's order. That record stands behind
the operation last put on its stream, and behind what that stream had been made to wait for since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.run.launching_calls import calls_with
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, is_in
from traceprof.trace.model.kinds import ApiCallKind, SynchronizationKind, api_call_kind
from traceprof.trace.model.special_values import NULL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.intervals import Int64, Mask
    from traceprof.replay.graph.columns import GpuWork, HostCalls
    from traceprof.run.opening import Rank
    from traceprof.trace.model.host import EventRecords, Synchronizations

MAX_LOST_RECORDS = 0.01
"""If more records of events are lost, all waits are inferred: each may be for a lost one."""
_NOTHING = np.empty(0, np.int64)


class _Places(Record, frozen=True):
    """Places in streams: the stream by number, and the place in the host's order."""

    chain: Int64
    place: Int64


class EventWaits(Record, frozen=True):
    """The operations of a process by stream, and the waits of its streams for events.

    Attributes:
        operation: int64[n], by stream, then in the order in which they were put there.
        key: int64[n], ascending, stream and place in one number.
        span: places are less than this.
        wait_key: int64[m], ascending, of waits whose event was recorded before.
        record_chain: int64[m], the stream of that record.
        record_place: int64[m], and where it stands.
        streams: int64[s], device and stream in one number, by the number of the stream.
        devices: int64[d], of the process.
        records: of all events.
        record_event: int64[r], their ids.
        record_device: int64[r].
    """

    operation: Int64
    key: Int64
    span: int
    wait_key: Int64
    record_chain: Int64
    record_place: Int64
    streams: Int64
    devices: Int64
    records: _Places
    record_event: Int64
    record_device: Int64

    def behind(self, owner: Int64, chain: Int64, place: Int64) -> tuple[Int64, Int64]:
        """Return the operations that must end before places in streams are reached.

        Args:
            owner: int64[n], numbers by which the caller knows each place.
            chain: int64[n], the streams, by number.
            place: int64[n], in the host's order.

        Returns:
            Owners and operations, int64[k] each: of each stream that matters the last one.
        """
        owners, operations = [_NOTHING], [_NOTHING]
        while len(owner):
            at = np.searchsorted(self.key, chain * self.span + place, side="left") - 1
            has = (at >= 0) & (self.key[at] // self.span == chain) if len(self.key) else at > 0
            owners.append(owner[has])
            operations.append(self.operation[at[has]])
            since = np.where(has, self.key[at], chain * self.span) if len(self.key) else chain
            low = np.searchsorted(self.wait_key, since, side="right")
            high = np.searchsorted(self.wait_key, chain * self.span + place, side="left")
            count = np.maximum(high - low, 0)
            first = np.repeat(low - np.cumsum(count) + count, count)
            wait = first + np.arange(int(count.sum()))
            owner, chain, place = _latest(
                np.repeat(owner, count), self.record_chain[wait], self.record_place[wait]
            )
        pairs = np.stack((np.concatenate(owners), np.concatenate(operations)))
        owner, operation = np.unique(pairs, axis=1)
        return owner, operation

    def chain_of(self, device: Int64, stream: Int64) -> Int64:
        """Return the numbers of streams, int64[n]; -1 if nothing ran or was recorded there."""
        wanted = _joined(device, stream)
        at = np.minimum(np.searchsorted(self.streams, wanted), max(len(self.streams) - 1, 0))
        return np.where(self.streams[at] == wanted, at, -1) if len(self.streams) else at - 1

    def record_before(self, event: Int64, device: Int64, place: Int64) -> Int64:
        """Return the last record of each event before a place, int64[n], -1 for none.

        An id that several devices use is that of the device which waits.
        """
        return _last_record(
            self.record_event, self.record_device, self.records.place, event, device, place
        )


def event_waits(
    ranks: Sequence[tuple[int, Rank]], calls: HostCalls, work: GpuWork
) -> EventWaits | None:
    """Return the recorded events of a process; None if there are none.

    Args:
        ranks: of the process, each with its index among those of the run.
        calls: of the process.
        work: of all its ranks.
    """
    first = ranks[0][1]
    records = first.trace.event_records(first.process)
    if not records:
        return None
    devices = np.zeros(max(index for index, _ in ranks) + 1, np.int64)
    for index, rank in ranks:
        devices[index] = rank.key.device
    only = int(devices[ranks[0][0]]) if len(ranks) == 1 else None
    recorded = _asked_at(records, calls, first, only, records.correlation >= 0)
    rows = first.trace.synchronizations(first.process)
    waits = None
    if rows is not None:
        chosen = (rows.kind == SynchronizationKind.STREAM_FOR_EVENT) & (rows.stream != NULL)
        waits = _asked_at(rows, calls, first, only, chosen & (rows.event != NULL))
    of_work = _joined(devices[work.rank], work.stream)
    sides = [of_work, _joined(recorded.device, recorded.stream)]
    if waits is not None:
        sides.append(_joined(waits.device, waits.stream))
    streams, numbers = np.unique(np.concatenate(sides), return_inverse=True)
    numbers = numbers.reshape(-1)
    of_work, of_record = numbers[: len(of_work)], numbers[len(of_work) :][: len(recorded.place)]
    span = len(calls) + 2
    # What was launched before the capture began comes before everything in it.
    in_time = np.where(work.call >= 0, calls.in_time[work.call] + 1, 0)
    key = of_work * span + in_time
    order = np.argsort(key, kind="stable")
    wait_key = chain = place = _NOTHING
    if waits is not None:
        of_wait = numbers[len(sides[0]) + len(sides[1]) :]
        record = _last_record(
            recorded.event, recorded.device, recorded.place, waits.event, waits.device, waits.place
        )
        known = record >= 0
        by_key = np.argsort((of_wait * span + waits.place)[known], kind="stable")
        wait_key = (of_wait * span + waits.place)[known][by_key]
        chain, place = of_record[record[known]][by_key], recorded.place[record[known]][by_key]
    return EventWaits(
        operation=order, key=key[order], span=span, wait_key=wait_key, record_chain=chain,
        record_place=place, streams=streams,
        devices=distinct_values(devices[[index for index, _ in ranks]]),
        records=_Places(of_record, recorded.place),
        record_event=recorded.event, record_device=recorded.device,
    )  # fmt: skip


def lost_records(rank: Rank, calls: HostCalls) -> float:
    """Return the share of the calls that record an event whose record is not in the report.

    Returns:
        0 if no stream waits for an event.
    """
    columns = rank.calls
    assert columns is not None  # noqa: S101  (the replay refuses reports without calls before)
    if not len(calls_of_kind(rank, calls, ApiCallKind.STREAM_WAIT)):
        return 0.0
    recording = distinct_values(calls.outer[calls_of_kind(rank, calls, ApiCallKind.EVENT_RECORD)])
    records = rank.trace.event_records(rank.process)
    if not records or not len(recording):
        return 1.0
    place = calls.place_of(calls_with(records.correlation, lambda: records.asked_ns, columns))
    known = is_in(recording, calls.outer[place[place >= 0]])
    return 1 - float(known.mean())


def calls_of_kind(rank: Rank, calls: HostCalls, kind: ApiCallKind) -> Int64:
    """Return the calls of a kind, indices into `calls`."""
    columns = rank.calls
    assert columns is not None  # noqa: S101
    ids = [key for key, name in rank.trace.api_names.items() if api_call_kind(name) is kind]
    return np.flatnonzero(columns.packed_name.isin(ids)[calls.index])


def awaited(waits: EventWaits, work: GpuWork) -> tuple[Int64, Int64]:
    """Return which operations could not begin before which ones of other streams were over.

    Args:
        waits: of a process.
        work: its operations.

    Returns:
        Producers and consumers, int64[k] each.
    """
    at = np.searchsorted(waits.key, waits.wait_key, side="left")
    has = at < len(waits.key)
    has[has] = waits.key[at[has]] // waits.span == waits.wait_key[has] // waits.span
    consumer = waits.operation[at[has]]
    pairs = _latest(consumer, waits.record_chain[has], waits.record_place[has])
    consumers, producers = waits.behind(*pairs)
    differ = (work.rank[consumers] != work.rank[producers]) | (
        work.stream[consumers] != work.stream[producers]
    )
    return producers[differ], consumers[differ]


class _Asked(Record, frozen=True):
    """Records of events or waits for them, whose call is in the report."""

    place: Int64
    device: Int64
    stream: Int64
    event: Int64


def _asked_at(
    rows: EventRecords | Synchronizations,
    calls: HostCalls,
    rank: Rank,
    only: int | None,
    chosen: Mask,
) -> _Asked:
    columns = rank.calls
    assert columns is not None  # noqa: S101  (the replay refuses reports without calls before)
    times = rows.start_ns if hasattr(rows, "start_ns") else rows.asked_ns
    call = calls_with(rows.correlation, lambda: times, columns)
    of_row = calls.place_of(call)
    at = np.flatnonzero(chosen & (of_row >= 0) & (rows.stream != NULL) & (rows.event != NULL))
    place = calls.in_time[of_row[at]] + 1
    device = np.full(len(at), only, np.int64) if only is not None else rows.device[at]
    return _Asked(place, device, rows.stream[at], rows.event[at])


def _last_record(
    record_event: Int64,
    record_device: Int64,
    record_place: Int64,
    event: Int64,
    device: Int64,
    place: Int64,
) -> Int64:
    """Return the last record of each event before a place, int64[n], -1 for none."""
    ids, number = np.unique(np.concatenate((record_event, event)), return_inverse=True)
    number = number.reshape(-1)
    of_record, of_wait = number[: len(record_event)], number[len(record_event) :]
    least = np.full(len(ids), np.iinfo(np.int64).max)
    most = np.full(len(ids), np.iinfo(np.int64).min)
    np.minimum.at(least, of_record, record_device)
    np.maximum.at(most, of_record, record_device)
    is_shared = least < most
    num_devices = int(max(record_device.max(initial=0), device.max(initial=0))) + 1
    of_record = of_record * num_devices + np.where(is_shared[of_record], record_device, 0)
    of_wait = of_wait * num_devices + np.where(is_shared[of_wait], np.maximum(device, 0), 0)
    size = int(max(record_place.max(initial=0), place.max(initial=0))) + 1
    keys = of_record * size + record_place
    order = np.argsort(keys, kind="stable")
    at = np.searchsorted(keys[order], of_wait * size + place, side="left") - 1
    fits = (at >= 0) & (of_record[order[at]] == of_wait) if len(order) else at > 0
    return np.where(fits, order[at], -1) if len(order) else np.full(len(event), -1, np.int64)


def _latest(owner: Int64, chain: Int64, place: Int64) -> tuple[Int64, Int64, Int64]:
    """Return each owner and stream once, with the latest place."""
    order = np.lexsort((place, chain, owner))
    owner, chain, place = owner[order], chain[order], place[order]
    is_last = np.ones(len(owner), np.bool_)
    is_last[:-1] = (owner[1:] != owner[:-1]) | (chain[1:] != chain[:-1])
    return owner[is_last], chain[is_last], place[is_last]


def _joined(device: Int64, stream: Int64) -> Int64:
    """Return device and stream in one number, int64[n]."""
    joined: Int64 = (np.maximum(device, -1) + 1) * (1 << 40) + stream
    return joined
