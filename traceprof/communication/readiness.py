"""Readiness of communication operations: when each was launched and its input was there.

The input is the operation that the stream waited for on the GPU before the launch. If a report has
no event records, it is the last operation other than communication that the same thread launched:
PyTorch lets the communication stream wait for the current one.

**Stream waits.** A *place* is the position of an API call in the host's order
(`Rank.host_order`). A wait is for the last record of its event at an earlier place, and
so for the last operation before that record on the record's stream. What that stream had itself
waited for does not count. A stream's wait for itself is no wait: its operations are in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum

import numpy as np

from traceprof import intervals
from traceprof.communication.messages import Messages, messages
from traceprof.findings import MAX_EVIDENCE, Evidence
from traceprof.intervals import BEYOND_NS, NO_NUMBERS, Int64, Intervals, Mask
from traceprof.kernel_names import UNKNOWN_OPERATION
from traceprof.run.rank import Rank
from traceprof.structs import Record
from traceprof.trace.columns import Rows
from traceprof.trace.grouping import distinct_values, greatest_so_far
from traceprof.trace.model.host import ApiCalls, EventRecords, Synchronizations
from traceprof.trace.model.kinds import ApiCallKind, api_call_kind
from traceprof.trace.model.special_values import NULL, UNKNOWN


class StreamWaits(Rows, frozen=True):
    """The waits of a rank's streams for operations of other streams, in the host's order."""

    place: Int64  # int64[n], ascending, the place of the call that made the stream wait
    stream: Int64  # int64[n], the stream that waits
    # int64[n], the operation that it waits for: an index into all operations of the rank, its
    # groups joined
    operation: Int64
    awaited_stream: Int64  # int64[n], the stream of that operation
    awaited_start_ns: Int64  # int64[n], when it started
    end_ns: Int64  # int64[n], when it ended


class StreamOperations(Rows, frozen=True):
    """Operations of some streams of a rank, by group, then start, then end; int64[n] each."""

    index: Int64  # into all operations of the rank, its groups joined
    stream: Int64  # the stream of each
    start_ns: Int64  # when each started
    end_ns: Int64  # when each ended
    place: Int64  # the place of the call that launched it, -1 if that is not in the capture


def operations_on(rank: Rank, streams: Int64) -> StreamOperations:
    """Return the operations of some streams.

    `streams`: int64[m].
    """
    parts, before, place = [], 0, np.append(rank.host_order, -1)
    for group, launched_by in zip(rank.operations.groups, rank.launched_by, strict=True):
        at = np.flatnonzero(group.packed_stream.isin(streams.tolist()))
        call = place[launched_by[at]]
        stream = group.packed_stream.at(at)
        parts.append(
            StreamOperations(at + before, stream, group.start_ns[at], group.ends(at), call)
        )
        before += len(group)
    return StreamOperations.joined(parts)


def times_of(rank: Rank, index: Int64) -> tuple[Int64, Int64]:
    """Return when operations started and ended, int64[n] each.

    `index`: int64[n], into all operations of the rank, its groups joined.
    """
    start, end = np.zeros((2, len(index)), np.int64)
    for number, which, rows in rank.operations.parts(index):
        group = rank.operations.groups[number]
        start[which], end[which] = group.start_ns[rows], group.ends(rows)
    return start, end


def stream_waits(rank: Rank) -> StreamWaits | None:
    """Return the waits of a rank's streams for each other; found once for each rank.

    Only waits whose event was recorded before them; None without event records or stream waits.
    A `TraceFormatError` if the report is damaged.
    """
    return rank.cache.get(_stream_waits, rank)


def _stream_waits(rank: Rank) -> StreamWaits | None:
    records = rank.trace.event_records(rank.process)
    waits = rank.trace.synchronizations(rank.process) if records is not None else None
    if records is None or waits is None or rank.calls is None:
        return None
    is_waiting = rank.trace.calls_named(
        rank.calls, lambda name: api_call_kind(name) is ApiCallKind.STREAM_WAIT
    )
    recorded = _events(rank, rank.calls, records)
    awaiting = _events(rank, rank.calls, waits, is_waiting)
    if len(recorded.place) == 0 or len(awaiting.place) == 0:
        return None
    record = last_record(recorded, awaiting.event, awaiting.device, awaiting.place)
    wait, record = np.flatnonzero(record >= 0), record[record >= 0]
    last, is_one = _last_on_stream(rank, recorded.stream[record], recorded.place[record])
    all_waits = StreamWaits(
        awaiting.place[wait],
        awaiting.stream[wait],
        last.index,
        last.stream,
        last.start_ns,
        last.end_ns,
    )
    return all_waits.chosen(is_one & (recorded.stream[record] != awaiting.stream[wait]))


class Events(Record, frozen=True):
    """Records of events, or waits for them, whose call is in the report; int64[n] each."""

    place: Int64  # in the host's order
    device: Int64
    stream: Int64
    event: Int64


def last_record(records: Events, event: Int64, device: Int64, place: Int64) -> Int64:
    """Return the last record of each event before a place, of the waiting device; -1 for none."""
    if not len(records.place):
        return np.full(len(event), -1, np.int64)
    ids, number = np.unique(np.concatenate((records.event, event)), return_inverse=True)
    of_record, of_wait = np.split(number.reshape(-1), [len(records.event)])
    least = np.full(len(ids), np.iinfo(np.int64).max)
    most = np.full(len(ids), np.iinfo(np.int64).min)
    np.minimum.at(least, of_record, records.device)
    np.maximum.at(most, of_record, records.device)
    is_shared = least < most
    num_devices = int(max(records.device.max(initial=0), device.max(initial=0))) + 1
    of_record = of_record * num_devices + np.where(is_shared[of_record], records.device, 0)
    of_wait = of_wait * num_devices + np.where(is_shared[of_wait], np.maximum(device, 0), 0)
    size = int(max(records.place.max(initial=0), place.max(initial=0))) + 1
    keys = of_record * size + records.place
    order = np.argsort(keys, kind="stable")
    at = np.searchsorted(keys[order], of_wait * size + place, side="left") - 1
    return np.where((at >= 0) & (of_record[order[at]] == of_wait), order[at], -1)


def _events(
    rank: Rank, calls: ApiCalls, rows: EventRecords | Synchronizations, counts: Mask | None = None
) -> Events:
    """Return those of the rank's device with a known call; `counts`: bool[calls], which count."""
    num = len(rows.correlation)
    call = calls.with_ids(rows.correlation, lambda: np.full(num, BEYOND_NS))  # the last one
    chosen = (call >= 0) & (rows.stream != NULL) & (rows.event != NULL)
    if rank.num_devices > 1:
        chosen &= rows.device == rank.key.device
    if counts is not None:
        chosen &= np.append(counts, False)[call]
    at = np.flatnonzero(chosen)
    place = rank.host_order[call[at]].astype(np.int64)
    stream, event = rows.stream[at], rows.event[at]
    order = np.lexsort((event, stream, place))
    device = np.full(len(order), rank.device)
    return Events(place[order], device, stream[order], event[order])


def _last_on_stream(rank: Rank, stream: Int64, place: Int64) -> tuple[StreamOperations, Mask]:
    """Return the last operation launched on a stream before a place, and whether there is one."""
    streams = distinct_values(stream)
    operations = operations_on(rank, streams)
    operations = operations.chosen(operations.place >= 0)
    if len(operations.index) == 0:
        none = np.zeros(len(stream), np.int64)
        return StreamOperations(none, none, none, none, none), none > 0
    size = int(max(operations.place.max(), place.max(initial=0))) + 1
    keys = np.searchsorted(streams, operations.stream) * size + operations.place
    order = np.lexsort((operations.end_ns, operations.start_ns, keys))
    wanted = np.searchsorted(streams, stream) * size + place
    at = np.searchsorted(keys[order], wanted, side="left") - 1
    last = operations.chosen(order[at])
    return last, (at >= 0) & (last.stream == stream)


# An operation that starts later than this after the one before it waited for something else: the
# next kernel of a stream starts within a few microseconds.
FOLLOWS_NS = 20_000


class Readiness(Rows, frozen=True):
    """Communication kernels of a rank, then its peer copies, each by start; int64[n] each.

    Peer copies count neither as blocking others nor as blocked.
    """

    num_kernels: int  # how many of the operations are kernels
    index: Int64  # into all operations of the rank, its groups joined
    start_ns: Int64  # when each started
    end_ns: Int64  # when each ended
    stream: Int64  # the stream of each
    call: Int64  # the API call that launched it, -1 if that is not in the capture
    place: Int64  # the place of that call in the host's order, -1 if it is not in the capture
    launch_ns: Int64  # when that call returned, -1 if it is not in the capture
    # the last to end of the operations that this one waited for on the GPU: an index like `index`,
    # -1 for none
    input: Int64
    input_end_ns: Int64  # when that ended; -1 for none
    ready_ns: Int64  # when it was launched and its input was there; -1 without a launch
    # for a kernel, the communication kernel before it on its stream: an index into these
    # operations, -1 for none
    before: Int64
    # bool[n], whether that one ended so shortly before that this one may have waited for it
    follows: Mask
    covered: Mapping[int, Intervals]  # when communication kernels ran, by stream
    has_events: bool  # whether inputs are known from event records, not from the order of launches

    def behind_ns(self, since_ns: Int64, covered: Mapping[int, Intervals] | None = None) -> Int64:
        """Return how long kernels before each one ran on its stream until it started, int64[n].

        `since_ns`: int64[n], the time from which to count; 0 if it is -1, or after the start.
        `covered`: the time to count instead of that of communication kernels, by stream.
        """
        behind = np.zeros(len(self), np.int64)
        kernels = slice(0, self.num_kernels)
        for stream, of_stream in (self.covered if covered is None else covered).items():
            on_stream = (self.stream[kernels] == stream) & (since_ns[kernels] != UNKNOWN)
            at = np.flatnonzero(on_stream)
            # Kernels that start later on this stream cover nothing before this start.
            since = np.minimum(since_ns[at], self.start_ns[at])
            behind[at] = intervals.covered_within(of_stream, since, self.start_ns[at])
        return behind


def readiness(rank: Rank) -> Readiness:
    """Return the earliest possible start of a rank's communication; found once for each rank.

    A `TraceFormatError` if the report is damaged.
    """
    return rank.cache.get(_readiness, rank)


def _readiness(rank: Rank) -> Readiness:
    kernels, copies, *_ = rank.operations.groups
    of_group = [
        (kernels, np.flatnonzero(rank.is_communication_kernel), rank.launched_by[0], 0),
        (copies, np.flatnonzero(rank.is_peer_copy), rank.launched_by[1], len(kernels)),
    ]
    columns = [
        (
            at + first,
            group.start_ns[at],
            group.ends(at),
            group.packed_stream.at(at),
            launched_by[at],
        )
        for group, at, launched_by, first in of_group
    ]
    index, start, end, stream, call = map(np.concatenate, zip(*columns, strict=True))
    num_kernels = len(columns[0][0])
    place = np.append(rank.host_order, -1)[call]
    launch = np.append(NO_NUMBERS if rank.calls is None else rank.calls.end_ns, UNKNOWN)[call]
    waits = stream_waits(rank)
    if waits is None:
        source, source_end = _launched_before(rank, call, place)
    else:
        source, source_end = _awaited(waits, stream, place)
    before = _before(stream, num_kernels)
    has_one = before >= 0
    follows = has_one & (start - np.where(has_one, end[before], start) <= FOLLOWS_NS)
    return Readiness(
        num_kernels=num_kernels,
        index=index,
        start_ns=start,
        end_ns=end,
        stream=stream,
        call=call,
        place=place,
        launch_ns=launch,
        input=source,
        input_end_ns=source_end,
        ready_ns=np.where(launch == UNKNOWN, UNKNOWN, np.maximum(launch, source_end)),
        before=before,
        follows=follows,
        covered={
            number: intervals.union(start[:num_kernels][on_stream], end[:num_kernels][on_stream])
            for number in distinct_values(stream[:num_kernels]).tolist()
            for on_stream in (stream[:num_kernels] == number,)
        },
        has_events=waits is not None,
    )


def _before(stream: Int64, num_kernels: int) -> Int64:
    """Return the kernel before each one on its stream, int64[n]; -1 for none, and for copies."""
    before = np.full(len(stream), -1, np.int64)
    order = np.argsort(stream[:num_kernels], kind="stable")
    follows = stream[order[1:]] == stream[order[:-1]]
    before[order[1:][follows]] = order[:-1][follows]
    return before


def _awaited(waits: StreamWaits, stream: Int64, place: Int64) -> tuple[Int64, Int64]:
    """Return the last operation to end that each stream waited for before a place, and its end."""
    source, end = (np.full(len(stream), -1, np.int64) for _ in range(2))
    for number in distinct_values(stream).tolist():
        waiting = np.flatnonzero(waits.stream == number)
        here = np.flatnonzero((stream == number) & (place >= 0))
        latest = waiting[greatest_so_far(waits.end_ns[waiting])]
        at = np.searchsorted(waits.place[waiting], place[here], side="left") - 1
        here, last = here[at >= 0], latest[at[at >= 0]]
        source[here], end[here] = waits.operation[last], waits.end_ns[last]
    return source, end


def _launched_before(rank: Rank, call: Int64, place: Int64) -> tuple[Int64, Int64]:
    """Return the last operation other than communication that the same thread launched before.

    `call`: int64[n], the call that launched each communication operation, -1 for none. `place`:
    int64[n], the place of that call in the host's order. Returns two int64[n]: an index into all
    operations of the rank, and the end of that operation; -1 for none.
    """
    source, end = (np.full(len(call), -1, np.int64) for _ in range(2))
    calls, order = rank.calls, rank.host_order
    if calls is None:
        return source, end
    thread = np.append(calls.thread, UNKNOWN)[call]
    of_operation = np.concatenate(rank.launched_by)
    is_other = of_operation >= 0
    communicates = np.append(rank.is_communication_kernel, rank.is_peer_copy)  # which come first
    is_other[: len(communicates)] &= ~communicates
    others = np.flatnonzero(is_other)
    for number in distinct_values(thread[call >= 0]).tolist():
        of_thread = calls.packed_thread.isin([number])
        own = others[of_thread[of_operation[others]]]
        start, stop = times_of(rank, own)
        own = own[np.lexsort((stop, start, order[of_operation[own]]))]
        where = order[of_operation[own]]
        here = np.flatnonzero((thread == number) & (call >= 0))
        last = np.searchsorted(where, place[here], side="left") - 1
        here, last = here[last >= 0], own[last[last >= 0]]
        source[here], end[here] = last, times_of(rank, last)[1]
    return source, end


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
    """The communication kernels of a rank in order of start."""

    sent: Messages  # their messages
    kernels: Readiness  # of the kernels alone
    blocked_ns: Int64  # how long each was ready and waited behind those before it
    queued_ns: Int64  # how long it was launched and waited behind them, ready or not
    independence: Int64  # whether it is independent of the one before it, values of `Independence`

    def waits(self, chosen: Mask) -> Intervals:
        """Return when any of these was ready and waited."""
        pieces, kernels = [intervals.empty()], self.kernels
        for stream, covered in kernels.covered.items():
            here = chosen & (kernels.stream == stream)
            ready = intervals.union(kernels.ready_ns[here], kernels.start_ns[here])
            pieces.append(intervals.intersect(ready, covered))
        return intervals.merge(*pieces)


def queue_of(rank: Rank) -> Queue:
    """Return the communication kernels of a rank, with their waits."""
    sent, ready = messages(rank), readiness(rank)
    kernels = ready.chosen(slice(ready.num_kernels))
    blocked_ns, queued_ns = (
        np.where(kernels.follows, kernels.behind_ns(since), 0)
        for since in (kernels.ready_ns, kernels.launch_ns)
    )
    independence = independence_of(sent, kernels.before)
    return Queue(sent, kernels, blocked_ns, queued_ns, independence)


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
    return streams[computing > COMPUTE_SHARE * count]


def chains(rank: Rank, queue: Queue, blocked: Mask, avoidable: Intervals) -> tuple[Evidence, ...]:
    """Return chains of kernels that waited behind each other: the costliest first, then longest."""
    kernels, ready_ns, start_ns = queue.kernels, queue.kernels.ready_ns, queue.kernels.start_ns
    order = np.argsort(kernels.stream, kind="stable")
    waiting = order[blocked[order]]
    if len(waiting) == 0:
        return ()
    chain = np.cumsum(~blocked[order])[blocked[order]]  # equal if no free one is in between
    first = np.flatnonzero(np.append(True, chain[1:] != chain[:-1]))
    stop = np.append(first[1:], len(chain))
    head = kernels.before[waiting[first]]
    start = np.maximum(np.minimum.reduceat(ready_ns[waiting], first), start_ns[head])
    end = start_ns[waiting[stop - 1]]
    counted = intervals.covered_within(avoidable, ready_ns[waiting], start_ns[waiting])
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
    kernels, indices = queue.kernels, np.flatnonzero(chosen)
    length = kernels.end_ns[indices] - kernels.start_ns[indices]
    longest = indices[intervals.largest(length, MAX_EVIDENCE)]
    return tuple(
        Evidence(
            int(kernels.start_ns[index]),
            int(kernels.end_ns[index]),
            f"{_name(rank, queue.sent, index)}{queue.sent.peer_text(index)} on stream"
            f" {kernels.stream[index]}, which computes",
        )
        for index in longest.tolist()
    )


def _chain_text(rank: Rank, queue: Queue, chain: Sequence[int]) -> str:
    """Write a chain: `SendRecv to 2 behind SendRecv to 1 on stream 20`."""
    sent, kernels = queue.sent, queue.kernels
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
    return f"{' behind '.join(texts)} on stream {kernels.stream[chain[0]]}"


def _name(rank: Rank, sent: Messages, index: int) -> str:
    operation = sent.operations[int(sent.operation[index])]
    if operation != UNKNOWN_OPERATION:
        return operation
    return rank.operation_name(0, int(sent.kernel[index]))
