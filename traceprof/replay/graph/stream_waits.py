"""Waits of streams for each other: by events, or inferred where these are not recorded."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from traceprof.communication.messages import messages
from traceprof.communication.readiness import Events, Independence, independence_of, last_record
from traceprof.intervals import NO_NUMBERS, Int64, Mask, pairs
from traceprof.replay.graph.columns import COMMUNICATION, GpuWork, Recorded
from traceprof.replay.graph.longest_path import EdgeKind
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, is_in
from traceprof.trace.model.host import EventRecords, Synchronizations
from traceprof.trace.model.kinds import ApiCallKind, SynchronizationKind, api_call_kind
from traceprof.trace.model.special_values import NULL

MAX_LOST_RECORDS = 0.01
"""If more records of events are lost, all waits are inferred: each may be for a lost one."""


class EventWaits(Record, frozen=True):
    """The operations of a process by stream, and the waits of its streams for events."""

    operation: Int64  # int64[n], by stream, then in the order in which they were put there
    key: Int64  # int64[n], ascending, stream and place in one number
    span: int  # places are less than this
    wait_key: Int64  # int64[m], ascending, of waits whose event was recorded before
    record_chain: Int64  # int64[m], the stream of that record
    record_place: Int64  # int64[m], and where it stands
    streams: Int64  # int64[s], device and stream in one number, by the number of the stream
    devices: Int64  # int64[d], of the process
    records: Events  # of all events
    chain: Int64  # int64[r], the number of the stream of each record

    def behind(self, owner: Int64, chain: Int64, place: Int64) -> tuple[Int64, Int64]:
        """Return the operations that must end before places in streams are reached.

        `owner`: int64[n], numbers by which the caller knows each place. The result is owners and
        operations, int64[k] each: of each stream that matters the last one.
        """
        owners, operations = [NO_NUMBERS], [NO_NUMBERS]
        while len(owner):
            at = np.searchsorted(self.key, chain * self.span + place, side="left") - 1
            has = (at >= 0) & (self.key[at] // self.span == chain)
            owners.append(owner[has])
            operations.append(self.operation[at[has]])
            since = np.where(has, self.key[at], chain * self.span)
            low = np.searchsorted(self.wait_key, since, side="right")
            high = np.searchsorted(self.wait_key, chain * self.span + place, side="left")
            which, wait = pairs(low, high)
            owner, chain, place = _latest(
                owner[which], self.record_chain[wait], self.record_place[wait]
            )
        found = np.stack((np.concatenate(owners), np.concatenate(operations)))
        owner, operation = np.unique(found, axis=1)
        return owner, operation

    def chain_of(self, device: Int64, stream: Int64) -> Int64:
        """Return the numbers of streams, int64[n]; -1 if nothing ran or was recorded there."""
        wanted = _joined(device, stream)
        at = np.minimum(np.searchsorted(self.streams, wanted), len(self.streams) - 1)
        return np.where(self.streams[at] == wanted, at, -1)


def event_waits(process: Recorded) -> EventWaits | None:
    """Return the recorded events of a process; None if there are none."""
    ranks, calls, work, first = process.ranks, process.calls, process.work, process.rank
    records = first.trace.event_records(first.process)
    if not records:
        return None
    devices = np.zeros(max(index for index, _ in ranks) + 1, np.int64)
    for index, rank in ranks:
        devices[index] = rank.key.device
    only = int(devices[ranks[0][0]]) if len(ranks) == 1 else None
    recorded = _asked_at(records, process, only, records.correlation >= 0)
    rows = first.trace.synchronizations(first.process)
    waits = Events(*[NO_NUMBERS] * 4)
    if rows is not None:
        waits = _asked_at(rows, process, only, rows.kind == SynchronizationKind.STREAM_FOR_EVENT)
    sides = [_joined(side.device, side.stream) for side in (recorded, waits)]
    sides.append(_joined(devices[work.rank], work.stream))
    streams = distinct_values(np.concatenate(sides))
    of_record, of_wait, of_work = (np.searchsorted(streams, side) for side in sides)
    span = len(calls) + 2
    # What was launched before the capture began comes before everything in it.
    key = of_work * span + process.launched_at + 1
    order = np.argsort(key, kind="stable")
    record = last_record(recorded, waits.event, waits.device, waits.place)
    known = record >= 0
    wait_key, record = (of_wait * span + waits.place)[known], record[known]
    by_key = np.argsort(wait_key, kind="stable")
    return EventWaits(
        operation=order,
        key=key[order],
        span=span,
        wait_key=wait_key[by_key],
        record_chain=of_record[record[by_key]],
        record_place=recorded.place[record[by_key]],
        streams=streams,
        devices=distinct_values(devices[[index for index, _ in ranks]]),
        records=recorded,
        chain=of_record,
    )


def lost_records(process: Recorded) -> float:
    """Return the share of recorded events without a record; 0 if no stream waits for an event."""
    calls, rank = process.calls, process.rank
    if not len(_calls_of_kind(process, ApiCallKind.STREAM_WAIT)):
        return 0.0
    recording = distinct_values(calls.outer[_calls_of_kind(process, ApiCallKind.EVENT_RECORD)])
    records = rank.trace.event_records(rank.process)
    if not records or not len(recording):
        return 1.0
    place = process.calls_of(records)
    known = is_in(recording, calls.outer[place[place >= 0]])
    return 1 - float(known.mean())


def _calls_of_kind(process: Recorded, kind: ApiCallKind) -> Int64:
    return np.flatnonzero(process.are_named(lambda name: api_call_kind(name) is kind))


def awaited(waits: EventWaits, work: GpuWork) -> tuple[Int64, Int64]:
    """Return the operations that others waited for, and those on other streams that did."""
    at = np.searchsorted(waits.key, waits.wait_key, side="left")
    has = at < len(waits.key)
    has[has] = waits.key[at[has]] // waits.span == waits.wait_key[has] // waits.span
    consumer = waits.operation[at[has]]
    consumers, producers = waits.behind(
        *_latest(consumer, waits.record_chain[has], waits.record_place[has])
    )
    differ = (work.rank[consumers] != work.rank[producers]) | (
        work.stream[consumers] != work.stream[producers]
    )
    return producers[differ], consumers[differ]


def _asked_at(
    rows: EventRecords | Synchronizations, process: Recorded, only: int | None, chosen: Mask
) -> Events:
    calls, of_row = process.calls, process.calls_of(rows)
    at = np.flatnonzero(chosen & (of_row >= 0) & (rows.stream != NULL) & (rows.event != NULL))
    place = calls.in_time[of_row[at]] + 1
    device = np.full(len(at), only, np.int64) if only is not None else rows.device[at]
    return Events(place, device, rows.stream[at], rows.event[at])


def _latest(owner: Int64, chain: Int64, place: Int64) -> tuple[Int64, Int64, Int64]:
    """Return each owner and stream once, with the latest place."""
    order = np.lexsort((place, chain, owner))
    owner, chain, place = owner[order], chain[order], place[order]
    is_last = np.ones(len(owner), np.bool_)
    is_last[:-1] = (owner[1:] != owner[:-1]) | (chain[1:] != chain[:-1])
    return owner[is_last], chain[is_last], place[is_last]


def _joined(device: Int64, stream: Int64) -> Int64:
    """Return device and stream in one number, int64[n]."""
    return (np.maximum(device, -1) + 1) * (1 << 40) + stream


TOLERANCE_NS = 20_000
"""The clocks of host and GPU, and of two GPUs, are aligned to some microseconds."""


class OperationWaits(Record, frozen=True):
    """The m waits of operations for one of another stream."""

    producer: Int64  # int64[m], indices into `GpuWork`
    consumer: Int64  # int64[m], the first operation put on the waiting stream after the wait
    is_recorded: bool  # whether event records show them; else they are inferred from times
    is_sure: Mask  # bool[m]; others are as late as may be: see `possible_waits`


Pairs: TypeAlias = "tuple[Int64, Int64]"
"""Operations and later ones of the same stream, int64[n] each, indices into `GpuWork`."""


NO_STREAM_WAITS = OperationWaits(NO_NUMBERS, NO_NUMBERS, False, np.empty(0, np.bool_))


def stream_waits(events: EventWaits | None, work: GpuWork) -> OperationWaits | None:
    """Return the waits of streams; None without event records."""
    if events is None:
        return None
    producer, consumer = awaited(events, work)
    return OperationWaits(producer, consumer, True, np.ones(len(producer), np.bool_))


def inferred_waits(process: Recorded, late: Int64) -> OperationWaits:
    """Return which operations seem to have waited for one of another stream, or may have.

    Nothing known held it, and it began within 20 us of the end of an operation of another stream
    that was launched before. `late`: int64[n], delay of each after what surely held it, ns.
    """
    work = process.work
    consumer = np.flatnonzero((late > TOLERANCE_NS) & (work.call >= 0))
    by_end = np.argsort(work.end_ns, kind="stable")
    at = np.searchsorted(work.end_ns[by_end], work.start_ns[consumer], side="right") - 1
    producer = by_end[np.maximum(at, 0)]
    in_time = process.launched_at
    fits = (at >= 0) & (work.chain[producer] != work.chain[consumer])
    fits &= work.start_ns[consumer] - work.end_ns[producer] <= TOLERANCE_NS
    fits &= in_time[producer] < in_time[consumer]
    producer, consumer = producer[fits], consumer[fits]
    others = possible_waits(process)
    return OperationWaits(
        np.concatenate((producer, others[0])),
        np.concatenate((consumer, others[1])),
        is_recorded=False,
        is_sure=np.repeat([True, False], [len(producer), len(others[0])]),
    )


def possible_waits(process: Recorded) -> tuple[Int64, Int64]:
    """Return the most that streams may have waited for each other by events: producers, consumers.

    Whatever an operation waited for by an event ends, in any replay, before the last of the
    producers of the operation and of those before it on its stream.
    """
    calls, work = process.calls, process.work
    wait = _calls_of_kind(process, ApiCallKind.STREAM_WAIT)
    recorded = np.sort(calls.in_time[_calls_of_kind(process, ApiCallKind.EVENT_RECORD)])
    wait = wait[np.argsort(calls.in_time[wait])]
    stream, place = _waiting_streams(process)[wait], calls.in_time[wait]
    last_record = np.searchsorted(recorded, place, side="left") - 1
    is_possible = last_record >= 0
    stream, place = stream[is_possible], place[is_possible]
    recorded = recorded[last_record[is_possible]]
    launched = process.launched_at
    first = np.flatnonzero(np.append(True, np.diff(work.chain) != 0))
    chains = [slice(*limits) for limits in zip(first, np.append(first[1:], len(work)), strict=True)]
    producers, consumers = [NO_NUMBERS], [NO_NUMBERS]
    for chain in chains:
        waits = np.flatnonzero((stream == NULL) | (stream == work.stream[chain.start]))
        at = np.searchsorted(launched[chain], place[waits])
        # Of several waits before an operation the last one is for the latest record.
        is_last = np.append(np.diff(at) != 0, True)[: len(at)] & (at < chain.stop - chain.start)
        consumer, before = chain.start + at[is_last], recorded[waits[is_last]]
        for other in chains:
            if other is chain or len(consumer) == 0:
                continue
            is_same_gpu = work.rank[other.start] == work.rank[chain.start]
            began = work.start_ns[consumer] + (0 if is_same_gpu else TOLERANCE_NS)
            ends = np.maximum.accumulate(work.end_ns[other])
            latest = np.minimum(
                np.searchsorted(launched[other], before, side="left"),
                np.searchsorted(ends, began, side="right"),
            )
            # What one before it on its stream waited for holds it as well.
            is_later = latest > np.maximum.accumulate(np.append(0, latest))[:-1]
            producers.append(other.start + latest[is_later] - 1)
            consumers.append(consumer[is_later])
    return np.concatenate(producers), np.concatenate(consumers)


def _waiting_streams(process: Recorded) -> Int64:
    """Return the stream that each call made wait, int64[calls]; `NULL` if unknown."""
    calls, rank = process.calls, process.rank
    stream = np.full(len(calls), NULL)
    rows = rank.trace.synchronizations(rank.process)
    if rows is not None:
        rows_of_waits = np.flatnonzero(rows.kind == SynchronizationKind.STREAM_FOR_EVENT)
        place = process.calls_of(rows)[rows_of_waits]
        stream[place[place >= 0]] = rows.stream[rows_of_waits[place >= 0]]
    return stream


def behind_communication(work: GpuWork) -> Int64:
    """Return the communication kernels right behind another one on their stream."""
    is_kernel = (work.kind == COMMUNICATION) & (work.group == 0)
    return np.flatnonzero(is_kernel[1:] & is_kernel[:-1] & (np.diff(work.chain) == 0)) + 1


def queued_communication(process: Recorded) -> dict[EdgeKind, Pairs]:
    """Return communication with what it stands behind on its stream, by the kind of the edge.

    Where not all operations that stand behind each other have a known communicator, they are taken
    to be of the same one.
    """
    work = process.work
    behind = behind_communication(work)
    if len(behind) == 0:
        return {}
    number, rows_of = np.full(len(work), -1, np.int64), []
    for index, rank in process.ranks:
        sent = messages(rank)
        of_group = np.where(sent.group >= 0, sent.group + len(sent.communicators), -1)
        rows = work.rows_of_kernels(index, rank)[sent.kernel]
        known = rows >= 0
        of_message = np.where(sent.communicator >= 0, sent.communicator, of_group)
        number[rows[known]] = of_message[known]
        rows_of.append((sent, rows))
    queued = distinct_values(np.append(behind, behind - 1))
    queue = np.cumsum(~is_in(queued, behind)) - 1
    is_known = np.ones(int(queue[-1]) + 1, np.bool_)
    is_known[queue[number[queued] < 0]] = False
    number[queued[~is_known[queue]]] = -1
    order = np.lexsort((queued, number[queued], queue))
    queued, queue = queued[order], queue[order]
    follows = (queue[1:] == queue[:-1]) & (number[queued[1:]] == number[queued[:-1]])
    earlier, later = queued[:-1][follows], queued[1:][follows]
    waits = np.zeros(len(work), np.bool_)
    for sent, rows in rows_of:
        place = np.full(len(work) + 1, -1, np.int64)
        place[rows] = np.arange(len(rows))  # -1 is the last one
        before = np.full(len(rows), -1, np.int64)
        is_here = place[later] >= 0
        before[place[later[is_here]]] = place[earlier[is_here]]
        dependent = independence_of(sent, before) == Independence.DEPENDENT
        waits[rows[dependent & (rows >= 0)]] = True
    is_named, is_held = number[later] >= 0, waits[later]
    different = behind[number[behind] != number[behind - 1]]
    return {
        EdgeKind.INDEPENDENT_BEGIN: (behind - 1, behind),
        EdgeKind.INDEPENDENT_ORDER: (earlier[is_held], later[is_held]),
        EdgeKind.INDEPENDENT_END: (earlier[is_named & ~is_held], later[is_named & ~is_held]),
        EdgeKind.INDEPENDENT_UNKNOWN: (earlier[~is_named], later[~is_named]),
        EdgeKind.STREAM_END: (different - 1, different),
    }
