"""Communication that nothing hides, operation by operation, and possible reasons.

An exposed nanosecond belongs to one operation: of those that run, the one that began first; of
those that began together, the one that ends first. The exposed time of an operation is divided
among the reasons in the order of `REASONS`, each as much as it accounts for.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.communication.compute_after import compute_after
from traceprof.communication.needed import needed_at_once
from traceprof.communication.readiness import FOLLOWS_NS, Readiness, readiness
from traceprof.communication.stream_waits import operations_on
from traceprof.intervals import Intervals
from traceprof.run.host_clock import clocks_disagree
from traceprof.structs import Record
from traceprof.trace.columns import pack_all, unpack_all
from traceprof.trace.grouping import distinct_values
from traceprof.trace.model.special_values import UNKNOWN

if TYPE_CHECKING:
    from traceprof.communication.compute_after import ComputeAfter
    from traceprof.intervals import Int64
    from traceprof.run.rank import Rank, Window
    from traceprof.trace.columns import PackedColumns

# If more operations than this start before their launch does, clocks of GPU and host disagree.
_MAX_LATE_SHARE = 0.01


class Rest(IntEnum):
    """The reason for the exposed time that waiting, late launches and queues do not explain."""

    UNKNOWN = 0
    SAME_STREAM = 1
    NEEDED_AT_ONCE = 2
    LATE_INPUT = 3
    LATE_LAUNCH = 4


class Exposure(Record, frozen=True):
    """The communication operations of a rank of which a part is exposed in a window, by start.

    Attributes:
        kernel: int64[n], index among the rank's communication kernels, by start; -1 for a peer
            copy.
        start_ns: int64[n], when it started, in the window or not.
        exposed_ns: int64[n], the part of it that no compute hides.
        late_launch_ns: int64[n], how long compute ran while its input was there and it was not yet
            launched; 0 if that is unknown.
        queued_ns: int64[n], how long compute ran while it was ready and behind others.
        rest: int64[n], values of `Rest`.
        line: int64[n], the line of communication in which it stood, each begun as the one before it
            on its stream ended: the same number for all of a line.
        idle_compute_ns: int64[n], how long compute ran before that line's input was there, while
            its stream had no communication: what more could hide, had the input come earlier.
        first_piece: int64[n + 1], index of its first exposed piece below.
        piece_start_ns: int64[m], ascending.
        piece_end_ns: int64[m].
        is_judged: whether launches can give reasons: the clocks of GPU and host agree.
        has_events: whether inputs are known from event records, not from the order of launches.
    """

    kernel: Int64
    start_ns: Int64
    exposed_ns: Int64
    late_launch_ns: Int64
    queued_ns: Int64
    rest: Int64
    line: Int64
    idle_compute_ns: Int64
    first_piece: Int64
    piece_start_ns: Int64
    piece_end_ns: Int64
    is_judged: bool
    has_events: bool

    def __len__(self) -> int:
        return len(self.kernel)


class PackedExposure(Record, frozen=True):
    """An `Exposure` in fewer bytes, to keep.

    Attributes:
        data: its columns; of pieces, the differences between their starts.
        is_judged: as there.
        has_events: as there.
    """

    data: PackedColumns
    is_judged: bool
    has_events: bool

    @classmethod
    def of(cls, exposed: Exposure) -> PackedExposure:
        """Return an exposure packed."""
        return cls(
            pack_all(
                (
                    exposed.kernel,
                    exposed.start_ns,
                    exposed.exposed_ns,
                    exposed.late_launch_ns,
                    exposed.queued_ns,
                    exposed.rest,
                    exposed.line,
                    exposed.idle_compute_ns,
                    exposed.first_piece,
                    exposed.piece_end_ns - exposed.piece_start_ns,
                    np.diff(exposed.piece_start_ns, prepend=exposed.start_ns[:1]),
                )
            ),
            exposed.is_judged,
            exposed.has_events,
        )

    @property
    def unpacked(self) -> Exposure:
        """The exposure, unpacked anew at each use."""
        kernel, start, exposed, late, queued, rest, line, idle_compute, first, length, gaps = (
            unpack_all(self.data)
        )
        piece_start = np.cumsum(gaps)
        piece_start += start[:1]
        return Exposure(
            kernel=kernel,
            start_ns=start,
            exposed_ns=exposed,
            late_launch_ns=late,
            queued_ns=queued,
            rest=rest,
            line=line,
            idle_compute_ns=idle_compute,
            first_piece=first,
            piece_start_ns=piece_start,
            piece_end_ns=piece_start + length,
            is_judged=self.is_judged,
            has_events=self.has_events,
        )


class Neighbours(Record, frozen=True):
    """Exposed operations and their neighbours, int64[n] each: into all operations of the rank.

    Attributes:
        itself: the exposed operation.
        input: the operation that made its input, -1 for none.
        next_compute: the next compute after its end, -1 for none.
    """

    itself: Int64
    input: Int64
    next_compute: Int64


def exposure(rank: Rank, window: Window) -> tuple[Exposure, Neighbours]:
    """Return a rank's exposed communication in a window, and reasons other than waiting.

    Args:
        rank: a rank with a GPU.
        window: the time that counts.

    Returns:
        The exposed operations, and their neighbours.

    Raises:
        TraceFormatError: the report is damaged.
    """
    ready = readiness(rank)
    order = np.lexsort((ready.end_ns, ready.start_ns))
    low, high = _owned(ready.start_ns[order], ready.end_ns[order], window)
    owns = low < high
    owner, low, high = order[owns], low[owns], high[owns]
    pieces = intervals.subtract(Intervals(low, high), rank.compute)
    # Pieces come in the order of their owners.
    of_piece = intervals.num_before(low, pieces.start_ns, "right") - 1
    first = np.flatnonzero(np.diff(of_piece, prepend=-1))
    operations = owner[of_piece[first]]
    exposed = np.add.reduceat(pieces.length_ns, first) if len(first) else first
    is_judged = _clocks_agree(rank)
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
    return exposed_operations, Neighbours(
        ready.index[operations], ready.input[operations], after.index
    )


def _owned(start_ns: Int64, end_ns: Int64, window: Window) -> tuple[Int64, Int64]:
    """Return the start and end of the part of a window that belongs to each operation, int64[n]."""
    reached = np.full(len(start_ns), window.start_ns, np.int64)
    if len(start_ns):
        np.maximum(np.maximum.accumulate(end_ns)[:-1], window.start_ns, out=reached[1:])
    return np.maximum(start_ns, reached), np.minimum(end_ns, window.end_ns)


def _clocks_agree(rank: Rank) -> bool:
    """Return whether operations start after their launch, and end before they are read."""
    calls, num_launched, num_late = rank.calls, 0, 0
    if calls is None:
        return True
    if clocks_disagree(rank):
        return False
    call_start = calls.start_ns
    for group, launched_by in zip(rank.operations.groups, rank.launched_by, strict=True):
        is_launched = launched_by >= 0
        num_launched += int(np.count_nonzero(is_launched))
        # Without a call, the index -1 takes the last one: it does not count.
        late = group.start_ns < call_start.take(launched_by) if len(calls) else ~is_launched
        num_late += int(np.count_nonzero(late & is_launched))
    return num_late <= _MAX_LATE_SHARE * num_launched


def _lines(ready: Readiness) -> Int64:
    """Return the first operation of the line in which each one stands, int64[all], itself if alone.

    In a line, kernels of one stream begin as the one before them ends: the stream is never free.
    """
    first = np.arange(len(ready))
    order = np.argsort(ready.stream[: ready.num_kernels], kind="stable")
    is_first = ~ready.follows[order]
    first[order] = order[np.flatnonzero(is_first)[np.cumsum(is_first) - 1]]
    return first


def _idle_compute(rank: Rank, ready: Readiness, first: Int64) -> Int64:
    """Return how long compute ran between lines and the communication before, int64[n].

    It counts until the first operation's input was there; if that is not known, until it began.

    Args:
        rank: the rank.
        ready: when its communication could have begun.
        first: int64[n], indices into `ready`: the first operation of each line.
    """
    before = ready.before[first]
    end_before = np.where(before >= 0, ready.end_ns[before], UNKNOWN)
    start, input_end = ready.start_ns[first], ready.input_end_ns[first]
    until = np.where(input_end == UNKNOWN, start, np.minimum(input_end, start))
    return intervals.covered_within(rank.compute, end_before, np.maximum(end_before, until))


def _reasons(
    rank: Rank,
    ready: Readiness,
    operations: Int64,
    line: Int64,
    after: ComputeAfter,
    *,
    is_judged: bool,
) -> tuple[Int64, Int64, Int64]:
    """Return the most that late launches and queues explain of some operations, and the `Rest`.

    Args:
        rank: the rank.
        ready: when its communication could have begun.
        operations: int64[n], indices into `ready`.
        line: int64[n], the first operation of the line of each.
        after: the next compute after each.
        is_judged: whether launches can give reasons.
    """
    launch, end = ready.launch_ns[operations], ready.end_ns[operations]
    has_launch = (launch != UNKNOWN) & is_judged
    since = np.maximum(ready.input_end_ns[operations], _end_before(rank, ready, operations))
    has_since = has_launch & (since != UNKNOWN)
    late = np.zeros(len(operations), np.int64)
    late[has_since] = intervals.covered_within(
        rank.compute, since[has_since], np.maximum(launch, since)[has_since]
    )
    beside_compute = {
        stream: intervals.intersect(covered, rank.compute)
        for stream, covered in ready.covered.items()
    }
    queued = np.where(has_launch, ready.behind_ns(ready.ready_ns, beside_compute)[operations], 0)
    # Of several that apply, the last one counts.
    rest = np.full(len(operations), Rest.UNKNOWN, np.int64)
    # One that stood in line is as late as the first of its line.
    begins_ready = ready.start_ns - ready.ready_ns <= FOLLOWS_NS
    rest[begins_ready[operations] | (ready.launch_ns[line] != UNKNOWN) & begins_ready[line]] = (
        Rest.LATE_INPUT
    )
    rest[needed_at_once(rank, ready, operations)] = Rest.NEEDED_AT_ONCE
    rest[(after.index >= 0) & (after.stream == ready.stream[operations])] = Rest.SAME_STREAM
    is_late = (after.launch_ns != UNKNOWN) & (after.launch_ns > end)
    rest[is_late] = Rest.LATE_LAUNCH
    rest[~has_launch] = Rest.UNKNOWN
    queued[rest == Rest.LATE_LAUNCH] = 0
    return late, queued, rest


def _end_before(rank: Rank, ready: Readiness, operations: Int64) -> Int64:
    """Return when the operation of any kind before each one on its stream ended, int64[n], or -1.

    Args:
        rank: the rank.
        ready: when its communication could have begun.
        operations: int64[n], indices into `ready`.
    """
    on_streams = operations_on(rank, distinct_values(ready.stream[operations]))
    order = np.lexsort((on_streams.end_ns, on_streams.start_ns, on_streams.stream))
    stream, index = on_streams.stream[order], on_streams.index[order]
    end = np.full(len(order), UNKNOWN, np.int64)
    end[1:] = np.where(stream[1:] == stream[:-1], on_streams.end_ns[order][:-1], UNKNOWN)
    by_index = np.argsort(index)
    place = np.searchsorted(index, ready.index[operations], sorter=by_index)
    before: Int64 = end[by_index[place]] if len(order) else np.empty(0, np.int64)
    return before
