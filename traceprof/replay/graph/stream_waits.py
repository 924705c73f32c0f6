"""Waits between the streams of a process: by recorded events, or inferred from times.

Without event records it is not known which streams waited for which. An operation that nothing
known held, and that began right after one of another stream, is taken to have waited for that one.
Besides, a stream that was made to wait (`cudaStreamWaitEvent`) waited for some event recorded
before: for nothing that was launched after the last record, and for nothing that was still running
when the waiting operation began. So each operation waited at most for the last one of every other
stream of which neither is true.

Communication that stands behind other communication on its stream need not wait for it, but for
that of its own communicator: NCCL keeps its order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from traceprof.communication.messages import messages
from traceprof.communication.nccl_queues import Independence, independence_of
from traceprof.replay.graph.columns import COMMUNICATION
from traceprof.replay.graph.event_waits import awaited, calls_of_kind
from traceprof.run.launching_calls import calls_with
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, is_in
from traceprof.trace.model.kinds import ApiCallKind, SynchronizationKind
from traceprof.trace.model.special_values import NULL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.intervals import Int64, Mask
    from traceprof.replay.graph.columns import GpuWork, HostCalls
    from traceprof.replay.graph.event_waits import EventWaits
    from traceprof.run.opening import Rank

TOLERANCE_NS = 20_000
"""The clocks of host and GPU, and of two GPUs, are aligned to some microseconds."""
_NOTHING = np.empty(0, np.int64)


class OperationWaits(Record, frozen=True):
    """The m waits of operations for one of another stream.

    Attributes:
        producer: int64[m], indices into `GpuWork`.
        consumer: int64[m], the first operation put on the waiting stream after the wait.
        is_recorded: whether event records show them; else they are inferred from times.
        is_sure: bool[m]; others are as late as may be: see `possible_waits`.
    """

    producer: Int64
    consumer: Int64
    is_recorded: bool
    is_sure: Mask


Pairs: TypeAlias = "tuple[Int64, Int64]"
"""Operations and later ones of the same stream, int64[n] each, indices into `GpuWork`."""


class QueuedCommunication(Record, frozen=True):
    """Communication that stands behind other communication on its stream.

    Attributes:
        all: each with the one right before it.
        in_order: each with the last one before it that it has to wait for on any stream.
        together: with the last one of the same communicator, where it need not: peers differ.
        unknown: with the one right before it, where communicators are not known.
        of_others: with the one right before it, where that is of another communicator.
    """

    all: Pairs
    in_order: Pairs
    together: Pairs
    unknown: Pairs
    of_others: Pairs


NO_STREAM_WAITS = OperationWaits(_NOTHING, _NOTHING, False, np.empty(0, np.bool_))


def stream_waits(events: EventWaits | None, work: GpuWork) -> OperationWaits | None:
    """Return the waits of streams; None without event records.

    Args:
        events: of a process.
        work: of all its ranks.
    """
    if events is None:
        return None
    producer, consumer = awaited(events, work)
    return OperationWaits(producer, consumer, True, np.ones(len(producer), np.bool_))


def inferred_waits(rank: Rank, late: Int64, calls: HostCalls, work: GpuWork) -> OperationWaits:
    """Return which operations seem to have waited for one of another stream, or may have.

    An operation that nothing known held, and that began within 20 us of the end of another stream's
    operation which was launched before it, is taken to have waited for that one.

    Args:
        rank: one rank of the process.
        late: int64[n], from the end of what each operation surely waited for to its start.
        calls: of the process.
        work: its operations.
    """
    consumer = np.flatnonzero((late > TOLERANCE_NS) & (work.call >= 0))
    by_end = np.argsort(work.end_ns, kind="stable")
    at = np.searchsorted(work.end_ns[by_end], work.start_ns[consumer], side="right") - 1
    producer = by_end[np.maximum(at, 0)]
    in_time = np.where(work.call >= 0, calls.in_time[work.call], -1)
    fits = (at >= 0) & (work.chain[producer] != work.chain[consumer])
    fits &= work.start_ns[consumer] - work.end_ns[producer] <= TOLERANCE_NS
    fits &= in_time[producer] < in_time[consumer]
    producer, consumer = producer[fits], consumer[fits]
    others = possible_waits(rank, calls, work)
    return OperationWaits(
        np.concatenate((producer, others[0])),
        np.concatenate((consumer, others[1])),
        is_recorded=False,
        is_sure=np.repeat([True, False], [len(producer), len(others[0])]),
    )


def possible_waits(rank: Rank, calls: HostCalls, work: GpuWork) -> tuple[Int64, Int64]:
    """Return the most that streams of a process may have waited for each other by events.

    Returns:
        Producers and consumers, int64[k] each, indices into `work`. No operation waited by an event
        for what ends, in any replay, after all the producers of it and of those before it on its
        stream.
    """
    wait = calls_of_kind(rank, calls, ApiCallKind.STREAM_WAIT)
    recorded = np.sort(calls.in_time[calls_of_kind(rank, calls, ApiCallKind.EVENT_RECORD)])
    if len(wait) == 0 or len(recorded) == 0 or len(work) == 0:
        return _NOTHING, _NOTHING
    wait = wait[np.argsort(calls.in_time[wait])]
    stream, place = _waiting_streams(rank, calls)[wait], calls.in_time[wait]
    last_record = np.searchsorted(recorded, place, side="left") - 1
    is_possible = last_record >= 0
    stream, place = stream[is_possible], place[is_possible]
    recorded = recorded[last_record[is_possible]]
    launched = np.where(work.call >= 0, calls.in_time[work.call], -1)
    first = np.flatnonzero(np.append(True, np.diff(work.chain) != 0))
    chains = [slice(*limits) for limits in zip(first, np.append(first[1:], len(work)), strict=True)]
    producers, consumers = [_NOTHING], [_NOTHING]
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


def _waiting_streams(rank: Rank, calls: HostCalls) -> Int64:
    """Return the stream that each call made wait, int64[calls]; `NULL` if unknown."""
    stream = np.full(len(calls), NULL)
    rows, columns = rank.trace.synchronizations(rank.process), rank.calls
    assert columns is not None  # noqa: S101
    if rows is not None:
        rows_of_waits = np.flatnonzero(rows.kind == SynchronizationKind.STREAM_FOR_EVENT)
        place = calls.place_of(calls_with(rows.correlation, lambda: rows.start_ns, columns))
        place = place[rows_of_waits]
        stream[place[place >= 0]] = rows.stream[rows_of_waits[place >= 0]]
    return stream


def behind_communication(work: GpuWork) -> Int64:
    """Return the communication kernels right behind another one on their stream."""
    is_kernel = (work.kind == COMMUNICATION) & (work.group == 0)
    return np.flatnonzero(is_kernel[1:] & is_kernel[:-1] & (np.diff(work.chain) == 0)) + 1


def queued_communication(ranks: Sequence[tuple[int, Rank]], work: GpuWork) -> QueuedCommunication:
    """Return which communication stands behind other communication, and which has to.

    Where not all operations that stand behind each other have a known communicator, they are taken
    to be of the same one.

    Args:
        ranks: of a process, each with its index among those of the run.
        work: of all its ranks.
    """
    behind = behind_communication(work)
    if len(behind) == 0:
        nothing = _NOTHING, _NOTHING
        return QueuedCommunication(nothing, nothing, nothing, nothing, nothing)
    number, rows_of = np.full(len(work), -1, np.int64), []
    for index, rank in ranks:
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

    def pairs(chosen: Mask) -> Pairs:
        return earlier[chosen], later[chosen]

    return QueuedCommunication(
        all=(behind - 1, behind),
        in_order=pairs(is_held),
        together=pairs(is_named & ~is_held),
        unknown=pairs(~is_named),
        of_others=(different - 1, different),
    )
