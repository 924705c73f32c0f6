"""Communication that nothing hides, operation by operation, and possible reasons.

An exposed nanosecond belongs to one operation: of those that run, the one that began first; of
those that began together, the one that ends first. The exposed time of an operation is divided
among the reasons in the order of `REASONS`, each as much as it accounts for. One reason is a
blocking dependency: the next compute needed the operation, so there was nothing to hide it behind.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from traceprof import intervals
from traceprof.communication.readiness import (
    FOLLOWS_NS,
    Readiness,
    StreamWaits,
    operations_on,
    readiness,
    stream_waits,
)
from traceprof.intervals import Int64, Intervals, Mask
from traceprof.run.host_clock import clocks_disagree, many_are_early
from traceprof.run.rank import Rank, Window
from traceprof.trace.columns import Rows
from traceprof.trace.grouping import distinct_values, is_in, reached_before
from traceprof.trace.model.special_values import UNKNOWN


def compute_after(rank: Rank, times_ns: Int64, stream: Int64) -> Int64:
    """Return the compute that starts first at or after each time, int64[n], -1 for none.

    Of several that start together it is one on the given stream, else the one that ends first.
    Indices are into all operations of the rank, its groups joined.
    """
    kernels, graphs = rank.operations.kernels, rank.operations.graphs
    chosen = np.flatnonzero(~rank.is_communication_kernel)
    start = kernels.start_ns[chosen]
    if len(graphs):  # kernels alone are in order
        end = np.append(kernels.ends(chosen), graphs.end_ns)
        chosen = np.append(chosen, np.arange(-len(graphs), 0) + len(rank.operations))
        start = np.append(start, graphs.start_ns)
        order = np.lexsort((end, start))
        chosen, start = chosen[order], start[order]
    first = np.searchsorted(start, times_ns, side="left")
    operations = np.append(chosen, -1)[first]
    at = np.flatnonzero(operations >= 0)
    which, place = intervals.pairs(first[at], np.searchsorted(start, start[first[at]], "right"))
    on_stream = np.flatnonzero(rank.operations.streams_of(chosen[place]) == stream[at[which]])
    which, first_one = np.unique(which[on_stream], return_index=True)
    operations[at[which]] = chosen[place[on_stream[first_one]]]
    return operations


def _launched(rank: Rank, index: Int64) -> Int64:
    """Return when the launches of operations returned, int64[n]; -1 if unknown."""
    if rank.calls is None:
        return np.full(len(index), UNKNOWN, np.int64)
    call = np.append(np.concatenate(rank.launched_by), -1)[index]
    return np.append(rank.calls.end_ns, UNKNOWN)[call]


def needed_at_once(rank: Rank, ready: Readiness, operations: Int64) -> Mask:
    """Return which operations are blocking dependencies: compute waits, with nothing else to do.

    No compute was launched between the operation and the wait of a compute stream for it, and no
    other communication was outstanding: launched before the wait, not over when the operation's
    launch began, and not yet waited for by a compute stream. All false without event records.

    `operations`: int64[n], indices into `ready`.
    """
    is_needed: Mask = np.zeros(len(operations), np.bool_)
    waits = stream_waits(rank)
    if waits is None or len(operations) == 0:
        return is_needed
    streams, _ = rank.operations.kernels.packed_stream.counted(~rank.is_communication_kernel)
    streams = np.append(streams, rank.operations.graphs.stream)
    computing = np.flatnonzero(is_in(waits.stream, streams))
    awaited, first = np.unique(waits.operation[computing], return_index=True)
    at = np.minimum(np.searchsorted(awaited, ready.index[operations]), len(awaited) - 1)
    if len(awaited) == 0:
        return is_needed
    is_needed = (awaited[at] == ready.index[operations]) & (ready.place[operations] >= 0)
    at = first[at[is_needed]]
    chosen = operations[is_needed]
    until = waits.place[computing[at]]
    is_alone = _no_compute_between(rank, ready.place[chosen], until)
    candidates = np.flatnonzero(is_alone)
    is_alone[candidates] = _none_outstanding(
        rank, ready, chosen[candidates], until[candidates], waits.chosen(computing)
    )
    is_needed[is_needed] = is_alone
    return is_needed


def _no_compute_between(rank: Rank, place: Int64, until: Int64) -> Mask:
    """Return whether no compute was launched between two places each, bool[n]."""
    kernels, *_, graphs = rank.launched_by
    call = np.concatenate((kernels[~rank.is_communication_kernel], graphs))
    launched = np.sort(rank.host_order[call[call >= 0]], kind="stable")
    after = np.searchsorted(launched, place, side="right")
    return np.searchsorted(launched, until, side="left") <= after


def _none_outstanding(
    rank: Rank, ready: Readiness, operations: Int64, until: Int64, waits: StreamWaits
) -> Mask:
    """Return for which operations no other communication was outstanding, bool[n].

    `operations`: int64[n], indices into `ready`. `until`: int64[n], the place of the wait for each.
    """
    is_none = np.ones(len(operations), np.bool_)
    if rank.calls is None:
        return is_none
    begun, place = rank.calls.start_ns[ready.call[operations]], ready.place[operations]
    for stream in distinct_values(ready.stream).tolist():
        here = np.flatnonzero((ready.stream == stream) & (ready.place >= 0))
        here = here[np.lexsort((ready.start_ns[here], ready.place[here]))]
        # A wait for an operation is a wait for all operations before it on its stream.
        awaited = waits.chosen(waits.awaited_stream == stream)
        starts = np.sort(ready.start_ns[here])
        num_until = np.searchsorted(starts, awaited.awaited_start_ns, side="right")
        num_known = np.append(0, np.maximum.accumulate(num_until))
        first = num_known[np.searchsorted(awaited.place, place)]
        # Operations of a stream end in order; the operation itself does not count.
        last = np.searchsorted(ready.place[here], until) - 1
        last -= np.append(here, -1)[last] == operations
        is_none &= (last < first) | (np.append(ready.end_ns[here], 0)[last] <= begun)
    return is_none


class Reason(IntEnum):
    """The reasons for exposed communication, in the order in which they are tried."""

    WAITING = 0
    LATE_LAUNCH = 1
    QUEUED = 2
    SAME_STREAM = 3
    NEEDED_AT_ONCE = 4
    LATE_INPUT = 5
    TRANSFER = 6
    UNKNOWN = 7

    @property
    def metric(self) -> str:
        """The name of its metric."""
        return f"{self.name.lower()}_ns"


class Exposure(Rows, frozen=True):
    """Communication operations of a rank that are at least partly exposed in a window, by start."""

    # int64[n], index among the rank's communication kernels, by start; -1 for a peer copy
    kernel: Int64
    start_ns: Int64  # int64[n], when it started, in the window or not
    exposed_ns: Int64  # int64[n], the part of it that no compute hides
    # int64[n], how long compute ran while its input was there and it was not yet launched; 0 if
    # that is unknown
    late_launch_ns: Int64
    queued_ns: Int64  # int64[n], how long compute ran while it was ready and behind others
    rest: Int64  # int64[n], the `Reason` of what waiting, late launches and queues do not explain
    # int64[n], the line of communication in which it stood, each begun as the one before it on its
    # stream ended: the same number for all of a line
    line: Int64
    # int64[n], how long compute ran before that line's input was there, while its stream had no
    # communication: what more could hide, had the input come earlier
    idle_compute_ns: Int64
    first_piece: Int64  # int64[n + 1], index of its first exposed piece below
    piece_start_ns: Int64  # int64[m], ascending
    piece_end_ns: Int64  # int64[m]
    is_judged: bool  # whether launches can give reasons: the clocks of GPU and host agree
    has_events: bool  # whether inputs are known from event records, not from the order of launches


def exposure(rank: Rank, window: Window) -> tuple[Exposure, Int64]:
    """Return a rank's exposed communication in a window, with reasons, and int64[3, n].

    These are the operation itself, that which made its input and the next compute after it, as
    indices into all operations of the rank; -1 for none. A `TraceFormatError` if the report is
    damaged.
    """
    ready = readiness(rank)
    order = np.lexsort((ready.end_ns, ready.start_ns))
    start, end = ready.start_ns[order], ready.end_ns[order]
    low = np.maximum(start, np.maximum(reached_before(end, 0 * end), window.start_ns))
    high = np.minimum(end, window.end_ns)
    owns = low < high
    owner, low, high = order[owns], low[owns], high[owns]
    pieces = intervals.subtract(Intervals(low, high), rank.compute)
    # Pieces come in the order of their owners.
    of_piece = np.searchsorted(low, pieces.start_ns, "right") - 1
    first = np.flatnonzero(np.diff(of_piece, prepend=-1))
    operations = owner[of_piece[first]]
    exposed = np.add.reduceat(pieces.length_ns, first)
    # Reasons compare times of the host with those of the GPU to the microsecond.
    is_judged = rank.calls is None or not (
        clocks_disagree(rank) or many_are_early(rank, rank.calls)
    )
    after = compute_after(rank, ready.end_ns[operations], ready.stream[operations])
    line = _lines(ready)[operations]
    late, queued, rest = _reasons(rank, ready, operations, line, after, is_judged=is_judged)
    exposed_operations = Exposure(
        kernel=np.where(operations < ready.num_kernels, operations, -1),
        start_ns=ready.start_ns[operations],
        exposed_ns=exposed,
        late_launch_ns=late,
        queued_ns=queued,
        rest=rest,
        line=line,
        idle_compute_ns=_idle_compute(rank, ready, line),
        first_piece=np.append(first, len(pieces)),
        piece_start_ns=pieces.start_ns,
        piece_end_ns=pieces.end_ns,
        is_judged=is_judged,
        has_events=ready.has_events,
    )
    return exposed_operations, np.stack((ready.index[operations], ready.input[operations], after))


def _lines(ready: Readiness) -> Int64:
    """Return the first operation of the back-to-back run that each belongs to, int64[all].

    In such a run each kernel begins as the one before it ends: the stream is never free.
    """
    first = np.arange(len(ready))
    order = np.argsort(ready.stream[: ready.num_kernels], kind="stable")
    is_first = ~ready.follows[order]
    first[order] = order[np.flatnonzero(is_first)[np.cumsum(is_first) - 1]]
    return first


def _idle_compute(rank: Rank, ready: Readiness, first: Int64) -> Int64:
    """Return how long compute ran between communication and the next back-to-back run, int64[n].

    It counts until the input of the first operation was there, or, if that is unknown, its start.

    `first`: int64[n], indices into `ready`: the first operation of each line.
    """
    before = ready.before[first]
    end_before = np.where(before >= 0, ready.end_ns[before], UNKNOWN)
    start, input_end = ready.start_ns[first], ready.input_end_ns[first]
    until = np.where(input_end == UNKNOWN, start, np.minimum(input_end, start))
    return intervals.covered_within(rank.compute, end_before, until)


def _reasons(
    rank: Rank, ready: Readiness, operations: Int64, line: Int64, after: Int64, *, is_judged: bool
) -> tuple[Int64, Int64, Int64]:
    """Return upper bounds on what late launches and queues explain, and the reason of the rest.

    `operations`: int64[n], indices into `ready`. `line`: int64[n], the first of its
    back-to-back run. `after`: int64[n], the next compute.
    """
    launch, end = ready.launch_ns[operations], ready.end_ns[operations]
    has_launch = (launch != UNKNOWN) & is_judged
    since = np.maximum(ready.input_end_ns[operations], _end_before(rank, ready, operations))
    has_since = has_launch & (since != UNKNOWN)
    late = np.zeros(len(operations), np.int64)
    late[has_since] = intervals.covered_within(rank.compute, since[has_since], launch[has_since])
    beside_compute = {
        stream: intervals.intersect(covered, rank.compute)
        for stream, covered in ready.covered.items()
    }
    queued = np.where(has_launch, ready.behind_ns(ready.ready_ns, beside_compute)[operations], 0)
    # Of several that apply, the last one counts.
    rest = np.full(len(operations), Reason.UNKNOWN, np.int64)
    # One that stood in line is as late as the first of its line.
    begins_ready = ready.start_ns - ready.ready_ns <= FOLLOWS_NS
    rest[begins_ready[operations] | (ready.launch_ns[line] != UNKNOWN) & begins_ready[line]] = (
        Reason.LATE_INPUT
    )
    rest[needed_at_once(rank, ready, operations)] = Reason.NEEDED_AT_ONCE
    of_same = rank.operations.streams_of(after) == ready.stream[operations]
    rest[(after >= 0) & of_same] = Reason.SAME_STREAM
    rest[_launched(rank, after) > end] = Reason.LATE_LAUNCH
    rest[~has_launch] = Reason.UNKNOWN
    queued[rest == Reason.LATE_LAUNCH] = 0
    return late, queued, rest


def _end_before(rank: Rank, ready: Readiness, operations: Int64) -> Int64:
    """Return when the operation of any kind before each one on its stream ended, int64[n], or -1.

    `operations`: int64[n], indices into `ready`.
    """
    on_streams = operations_on(rank, distinct_values(ready.stream[operations]))
    order = np.lexsort((on_streams.end_ns, on_streams.start_ns, on_streams.stream))
    index = on_streams.index[order]
    end = reached_before(on_streams.end_ns[order], on_streams.stream[order])
    by_index = np.argsort(index)
    place = np.searchsorted(index, ready.index[operations], sorter=by_index)
    return np.maximum(end[by_index[place]], UNKNOWN)
