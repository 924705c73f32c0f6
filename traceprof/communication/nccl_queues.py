"""Queues of communication kernels on their streams: kernels that waited behind others."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.communication.messages import Messages, messages
from traceprof.communication.readiness import readiness
from traceprof.findings import MAX_EVIDENCE, Evidence
from traceprof.kernel_names import UNKNOWN_OPERATION
from traceprof.structs import Record
from traceprof.trace.model.special_values import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceprof.intervals import Int64, Intervals, Mask
    from traceprof.run.rank import Rank

# NCCL's own streams run NCCL and a few small helpers; a stream with more kernels of other kinds
# than this computes.
COMPUTE_SHARE = 0.05

_MAX_NAMED = 4  # operations of a chain that its label names


class Independence(IntEnum):
    """Whether an operation could overlap with the one before it on its stream."""

    UNKNOWN = -1
    DEPENDENT = 0
    INDEPENDENT = 1


class Queue(Record, frozen=True):
    """The communication kernels of a rank in order of start, int64[n] each."""

    sent: Messages  # their messages
    start_ns: Int64  # when each started
    end_ns: Int64  # when each ended
    stream: Int64  # the stream of each
    launch_ns: Int64  # when its launch returned, -1 if that is not in the capture
    ready_ns: Int64  # when it was launched and its input was there, -1 without a launch
    before: Int64  # the one before it on its stream, -1 for none
    blocked_ns: Int64  # how long it was ready and waited behind those before it
    queued_ns: Int64  # how long it was launched and waited behind them, ready or not
    independence: Int64  # whether it is independent of the one before it, values of `Independence`
    covered: Mapping[int, Intervals]  # when communication kernels ran, by stream
    has_events: bool  # whether inputs are known from event records, not from the order of launches

    def waits(self, chosen: Mask) -> Intervals:
        """Return when any of these was ready and waited."""
        pieces = [intervals.empty()]
        for stream, covered in self.covered.items():
            here = chosen & (self.stream == stream)
            ready = intervals.union(self.ready_ns[here], self.start_ns[here])
            pieces.append(intervals.intersect(ready, covered))
        return intervals.merge(*pieces)


def queue_of(rank: Rank) -> Queue:
    """Return the communication kernels of a rank, with their waits."""
    sent, ready = messages(rank), readiness(rank)
    kernels = slice(0, ready.num_kernels)
    before = ready.before[kernels]
    return Queue(
        sent,
        ready.start_ns[kernels],
        ready.end_ns[kernels],
        ready.stream[kernels],
        ready.launch_ns[kernels],
        ready.ready_ns[kernels],
        before,
        np.where(ready.follows, ready.behind_ns(ready.ready_ns), 0)[kernels],
        np.where(ready.follows, ready.behind_ns(ready.launch_ns), 0)[kernels],
        independence_of(sent, before),
        ready.covered,
        ready.has_events,
    )


def independence_of(sent: Messages, before: Int64) -> Int64:
    """Return whether each kernel could have run beside an earlier one, int64[n]; -1 is none.

    Operations on different communicators could overlap, and so could sends or receives with
    different peers. Otherwise NCCL keeps the order of a communicator.
    """
    differ, same = np.zeros(len(before), np.bool_), np.zeros(len(before), np.bool_)
    for column in (sent.communicator, sent.group):
        previous = np.where(before >= 0, column[before], UNKNOWN)
        known = (column != UNKNOWN) & (previous != UNKNOWN) & ~same & ~differ
        differ |= known & (column != previous)
        same |= known & (column == previous)
    exchanges = sent.direction != UNKNOWN
    both_exchange = exchanges & np.where(before >= 0, exchanges[before], False)
    peers_unknown = both_exchange.copy()
    for column in (sent.peer, sent.peer_in_communicator):
        previous = np.where(before >= 0, column[before], UNKNOWN)
        known = both_exchange & (column != UNKNOWN) & (previous != UNKNOWN)
        peers_unknown &= ~known
        differ |= known & (column != previous)
    known_same = np.where(same & ~peers_unknown, Independence.DEPENDENT, Independence.UNKNOWN)
    return np.where(differ, Independence.INDEPENDENT, known_same)


def compute_streams(rank: Rank) -> Int64:
    """Return the compute streams, without those that only run NCCL's small helper kernels."""
    packed = rank.operations.kernels.packed_stream
    streams, count = packed.counted()
    communicating, others = packed.counted(rank.is_communication_kernel)
    count_of = dict(zip(communicating.tolist(), others.tolist(), strict=True))
    computing = count - np.array([count_of.get(stream, 0) for stream in streams.tolist()], np.int64)
    chosen: Int64 = streams[computing > COMPUTE_SHARE * count]
    return chosen


def chains(rank: Rank, queue: Queue, blocked: Mask, avoidable: Intervals) -> tuple[Evidence, ...]:
    """Return chains of kernels that waited behind each other: the costliest first, then longest."""
    order = np.argsort(queue.stream, kind="stable")
    waiting = order[blocked[order]]
    if len(waiting) == 0:
        return ()
    chain = np.cumsum(~blocked[order])[blocked[order]]  # equal if no free one is in between
    first = np.flatnonzero(np.append(True, chain[1:] != chain[:-1]))
    stop = np.append(first[1:], len(chain))
    head = queue.before[waiting[first]]
    start = np.maximum(np.minimum.reduceat(queue.ready_ns[waiting], first), queue.start_ns[head])
    end = queue.start_ns[waiting[stop - 1]]
    counted = intervals.covered_within(
        avoidable,
        np.minimum(queue.ready_ns[waiting], queue.start_ns[waiting]),
        queue.start_ns[waiting],
    )
    counted[queue.independence[waiting] == Independence.DEPENDENT] = 0
    cost = np.add.reduceat(counted, first)
    worst = np.lexsort((start, start - end, -cost))[:MAX_EVIDENCE]
    return tuple(
        Evidence(
            int(start[index]),
            int(end[index]),
            _chain_text(
                rank, queue, [int(head[index]), *waiting[first[index] : stop[index]].tolist()]
            ),
        )
        for index in worst.tolist()
    )


def among_compute(rank: Rank, queue: Queue, chosen: Mask) -> tuple[Evidence, ...]:
    """Return the longest of these kernels, which run on streams that compute."""
    indices = np.flatnonzero(chosen)
    length = queue.end_ns[indices] - queue.start_ns[indices]
    longest = indices[intervals.largest(length, MAX_EVIDENCE)]
    return tuple(
        Evidence(
            int(queue.start_ns[index]),
            int(queue.end_ns[index]),
            f"{_name(rank, queue.sent, index)}{queue.sent.peer_text(index)} on stream"
            f" {queue.stream[index]}, which computes",
        )
        for index in longest.tolist()
    )


def _chain_text(rank: Rank, queue: Queue, chain: Sequence[int]) -> str:
    """Write a chain: `SendRecv to 2 behind SendRecv to 1 on stream 20`."""
    sent = queue.sent
    if len(chain) > _MAX_NAMED:
        shown = [chain[-1], chain[-2], None, chain[0]]
    else:
        shown = [*reversed(chain)]
    names = {index: sent.readable_communicator(index) for index in shown if index is not None}
    are_several = len({*names.values()}) > 1
    texts = []
    for index in shown:
        if index is None:
            texts.append(f"{len(chain) - 3} more")
            continue
        peer = sent.peer_text(index)
        needs_name = are_several and (not peer or sent.peer[index] == UNKNOWN)
        name = names[index] if needs_name else None
        texts.append(f"{_name(rank, sent, index)}{peer}{f' in {name}' if name else ''}")
    return f"{' behind '.join(texts)} on stream {queue.stream[chain[0]]}"


def _name(rank: Rank, sent: Messages, index: int) -> str:
    operation = sent.operations[int(sent.operation[index])]
    if operation != UNKNOWN_OPERATION:
        return operation
    return rank.operation_name(0, int(sent.kernel[index]))
