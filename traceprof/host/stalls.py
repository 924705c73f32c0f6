"""Stalls of the host: calls, operators and host gaps that took far longer than usual.

The thread was most likely held up: taken off its core, or by the GIL, a lock, a page fault, garbage
collection. A call or operator is stalled if its own time, less what is nested in it, is over
`MIN_FACTOR` times the usual time and `MIN_EXCESS_NS` beyond it. Usual is the median of at least
`MIN_SAMPLES` of the same name; for a gap, of gaps between the same two names.

None of these is a stall:

* waits for the GPU, allocation, set-up and data loading
* a call whose own copy is pageable or to the host, or is over when the call returns
* anything with `MIN_PENDING` operations or more of the process pending
* anything over half of which another thread of the process waits for the GPU
* what ends at most `MAX_AFTER_NS` after an operation of the process, other than a kernel that it
  launched itself and that began in its second half
* the first launch of a kernel, and the operators around it
* what overlaps a record of module loading or of the profiler's buffers
* the first of its name, and what recurs
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from traceprof import intervals
from traceprof.host.host_code import nested
from traceprof.host.thread_evidence import first_launches, host_evidence, launches_of
from traceprof.intervals import Int64, Intervals, Mask
from traceprof.run.rank import Rank
from traceprof.trace.columns import Column, Rows
from traceprof.trace.grouping import distinct_values, is_in, sorted_in_groups
from traceprof.trace.model.host import ApiCalls, HostCode
from traceprof.trace.model.kinds import CopyKind, waits_for_gpu
from traceprof.trace.model.operations import Copies

_MAX_ROWS = 1 << 19  # of more events some are left out: see `host_events`
_BLOCK_ROWS = 1 << 10
_MAX_BUSY = 0.1  # of a silence, that other threads of the process may have events for


class HostEvents(Rows, frozen=True):
    """CUDA calls, operators and the host gaps between them, in no order."""

    start_ns: Int64
    end_ns: Int64
    own_ns: Int64  # int64[n], the length less the events inside it
    thread: Int64
    name: Int64  # int64[n], equal for events of one kind and name, and for silences between such
    call: Int64  # int64[n], index of a call; -1 for an operator, -2 for a silence

    def own_stretches(self, rows: Int64) -> tuple[Int64, Int64, Int64]:
        """Segments in which events (indices) have nothing nested in them.

        The result: the place of the event among `rows`, start, and end of each segment.
        """
        silent = np.flatnonzero(self.call[rows] == SILENCE)
        loud = np.flatnonzero(self.call[rows] != SILENCE)
        parts = [(silent, self.start_ns[rows[silent]], self.end_ns[rows[silent]])]
        place = np.full(len(self.start_ns), -1)
        place[rows[loud]] = loud
        for thread in distinct_values(self.thread[rows[loud]]).tolist():
            of_thread = rows[loud[self.thread[rows[loud]] == thread]]
            spans = intervals.union(self.start_ns[of_thread], self.end_ns[of_thread])
            chosen = np.flatnonzero((self.thread == thread) & (self.call != SILENCE))
            around = intervals.holder(spans.start_ns, spans.end_ns, self.start_ns.take(chosen))
            chosen = chosen[around >= 0]
            begin, stop, piece = nested(self.start_ns[chosen], self.end_ns[chosen]).innermost()
            own = place[chosen[piece]]
            parts.append((own[own >= 0], begin[own >= 0], stop[own >= 0]))
        piece, begin, stop = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return piece, begin, stop


SILENCE = -2
_NO_EVENTS = HostEvents(*[np.empty(0, np.int64)] * 6)


def host_events(rank: Rank, calls: ApiCalls, min_ns: int) -> HostEvents:
    """CUDA calls, operators and host gaps of a rank's process.

    Host gaps are events only where operators were recorded: nothing else distinguishes running code
    from its absence. More than half a million events are sampled: evenly spread blocks, and all
    events that begin within one of `min_ns` or longer that is not a wait by its name.
    """
    start, length = calls.start_ns, calls.length_ns
    is_long = (length >= min_ns) & ~rank.trace.calls_named(calls, waits_for_gpu)
    operators = rank.trace.operators(rank.process)
    if operators is not None:
        start = np.append(start, operators.start_ns)
        length = np.append(length, operators.length_ns)
        is_long = np.append(is_long, operators.length_ns >= min_ns)
    elif not is_long.any():
        return _NO_EVENTS
    chosen = _some(start, length, is_long)
    start, length = start.take(chosen), length.take(chosen)
    both: Sequence[ApiCalls | HostCode] = [calls] if operators is None else [calls, operators]
    thread = _joined(chosen, [group.packed_thread for group in both])
    order = np.lexsort((start, thread))  # calls are nearly in order: that is quick
    if (np.diff(start.take(order)) == 0).any():
        order = np.lexsort((-length, start, thread))
    # What is in memory twice is much: each thread's events are changed where they are.
    start, end, chosen = start.take(order), length.take(order), chosen.take(order)
    edges = (np.flatnonzero(np.diff(thread.take(order))) + 1).tolist()
    end += start
    own = np.empty_like(start)
    roots: list[Int64] = []
    for first, stop in pairwise([0, *edges, len(start)]):
        rows = slice(first, stop)
        spans = nested(start[rows], end[rows])
        end[rows], own[rows] = spans.end_ns, spans.self_ns
        roots.append(first + np.flatnonzero(spans.parent < 0))
    thread = _joined(chosen, [group.packed_thread for group in both])
    name = 2 * _joined(chosen, [group.packed_name for group in both])
    is_operator = chosen >= len(calls)
    name += is_operator
    known: dict[str, int] = {}
    for key, text in rank.trace.api_names.items():  # versions of a function have a number each
        if known.setdefault(text, key) != key:
            name[name == 2 * key] = 2 * known[text]
    chosen[is_operator] = -1
    events = HostEvents(start, end, own, thread, name, chosen)
    if operators is None or len(chosen) < len(calls) + len(operators):
        return events
    return HostEvents.joined((events, _silences(rank, events, roots)))


def _joined(chosen: Int64, columns: Sequence[Column]) -> Int64:
    if len(columns) == 1:
        return columns[0].at(chosen)
    values, begin = np.empty(len(chosen), np.int64), 0
    for column in columns:
        rows = np.flatnonzero((chosen >= begin) & (chosen < begin + len(column)))
        values[rows] = column.at(chosen[rows] - begin)
        begin += len(column)
    return values


def _some(start: Int64, length: Int64, is_long: Mask) -> Int64:
    if len(start) <= _MAX_ROWS:
        return np.arange(len(start))
    block = np.arange(len(start)) // _BLOCK_ROWS
    every = -(-len(start) // _MAX_ROWS)
    long = intervals.union(start[is_long], start[is_long] + length[is_long])
    inside = intervals.holder(long.start_ns, long.end_ns, start) >= 0
    return np.flatnonzero((block % every == 0) | inside)


def _silences(rank: Rank, events: HostEvents, outermost: Sequence[Int64]) -> HostEvents:
    """Host gaps: times between outermost events, by thread, without one on any other thread."""
    steps = rank.step_ranges
    step_starts = np.empty(0, np.int64) if steps is None else np.sort(steps.start_ns)
    busy = [intervals.union(events.start_ns[of], events.end_ns[of]) for of in outermost]
    columns: list[tuple[Int64, Int64, Int64, Int64]] = []
    for number, of in enumerate(outermost):
        begin, stop = np.maximum.accumulate(events.end_ns[of])[:-1], events.start_ns[of[1:]]
        others = intervals.merge(*busy[:number], *busy[number + 1 :])
        covered = intervals.covered_within(others, begin, stop)
        counts = (stop > begin) & (covered <= _MAX_BUSY * (stop - begin))
        counts &= np.searchsorted(step_starts, begin) == np.searchsorted(step_starts, stop)
        rows = np.flatnonzero(counts)
        # Pairs of names as numbers that no event has.
        pair = -1 - (events.name[of[rows]] * (1 << 31) + events.name[of[rows + 1]])
        columns.append((begin[rows], stop[rows], events.thread[of[rows]], pair))
    begin, stop, threads, pairs = (
        np.concatenate([part[place] for part in columns]) for place in range(4)
    )
    return HostEvents(begin, stop, stop - begin, threads, pairs, np.full(len(begin), SILENCE))


MIN_FACTOR = 20
MIN_EXCESS_NS = 1_000_000
MIN_USUAL_NS = 1_000
MIN_SAMPLES = 5
MIN_PENDING = 200
MAX_AFTER_NS = 30_000
MAX_RECURRING = 0.05
"""Of the events of a name: more do not stall, they vary."""
MIN_STEPS = 3
"""Of so many steps an event that is long at the same place of most is no stall."""


class HostStalls(Rows, frozen=True):
    """The stalls of a process, by start."""

    start_ns: Int64
    end_ns: Int64
    thread: Int64
    excess_ns: Int64  # int64[n], the time beyond the usual
    usual_ns: Int64
    names: tuple[str, ...]  # n names, of a silence those before and after it
    piece: Int64  # int64[m], the stall of each stretch of stalled time
    begin_ns: Int64  # int64[m]
    stop_ns: Int64  # int64[m]

    def of_thread(self, thread: int) -> Intervals:
        """Return when a thread was stalled."""
        chosen = self.thread[self.piece] == thread
        return intervals.union(self.begin_ns[chosen], self.stop_ns[chosen])


_N = np.empty(0, np.int64)
NO_STALLS = HostStalls(_N, _N, _N, _N, _N, (), _N, _N, _N)


def host_stalls(rank: Rank) -> HostStalls:
    """Return the stalls of a rank's process; kept for all ranks of the process."""
    return rank.process_cache.get(_host_stalls, rank)


def _host_stalls(rank: Rank) -> HostStalls:
    calls = rank.calls
    if calls is None or not len(calls):
        return NO_STALLS
    events = host_events(rank, calls, MIN_EXCESS_NS)
    rows, usual = _long_ones(events)
    for excluded in (_by_own_kind, _by_copies, _by_operations, _by_threads, _recurring):
        if len(rows):
            keep = ~excluded(rank, calls, events, events.chosen(rows))
            rows, usual = rows[keep], usual[keep]
    if not len(rows):
        return NO_STALLS
    order = np.argsort(events.start_ns[rows], kind="stable")
    rows, usual = rows[order], usual[order]
    long = events.chosen(rows)
    piece, begin, stop = events.own_stretches(rows)
    begin = np.maximum(begin, long.start_ns[piece] + usual[piece])
    is_left = begin < stop
    return HostStalls(
        long.start_ns,
        long.end_ns,
        long.thread,
        long.own_ns - usual,
        usual,
        tuple(_text(rank, name) for name in long.name.tolist()),
        piece[is_left],
        begin[is_left],
        stop[is_left],
    )


def _long_ones(events: HostEvents) -> tuple[Int64, Int64]:
    may_be = np.flatnonzero(events.own_ns > MIN_EXCESS_NS)
    may_be = may_be[np.lexsort((events.own_ns[may_be], events.name[may_be]))]
    names, which = np.unique(events.name[may_be], return_inverse=True)
    rows = np.flatnonzero(is_in(events.name, names))
    name = np.searchsorted(names, events.name.take(rows))
    ordered = sorted_in_groups(events.own_ns.take(rows), name)
    count = np.bincount(name, minlength=len(names))
    first = np.cumsum(count) - count
    low, high = (ordered[first + half] for half in ((count - 1) // 2, count // 2))
    usual = np.maximum((low + high) // 2, MIN_USUAL_NS)[which]
    own = events.own_ns[may_be]
    is_long = (own > MIN_FACTOR * usual) & (own - usual > MIN_EXCESS_NS)
    is_long &= count[which] >= MIN_SAMPLES
    return may_be[is_long], usual[is_long]


def _by_own_kind(rank: Rank, calls: ApiCalls, events: HostEvents, long: HostEvents) -> Mask:
    evidence = host_evidence(rank)
    assert evidence is not None  # noqa: S101  (there are calls)
    excluded = (long.call >= 0) & rank.trace.calls_named(calls, waits_for_gpu)[long.call]

    def known(thread: int) -> Intervals:
        of = evidence.thread(thread)
        return intervals.merge(of.setup, of.allocation, of.loading, of.mpi)

    excluded |= _lie_mostly_in(known, long)
    for name in distinct_values(long.name).tolist():
        first = events.start_ns[events.name == name].min()
        excluded |= (long.name == name) & (long.start_ns == first)
    return excluded


def _lie_mostly_in(spans_of: Callable[[int], Intervals], long: HostEvents) -> Mask:
    """Which events lie for over half of their time in the spans for their thread, bool[n]."""
    inside = np.zeros(len(long), np.int64)
    for number in distinct_values(long.thread).tolist():
        here = long.thread == number
        spans = spans_of(number)
        inside[here] = intervals.covered_within(spans, long.start_ns[here], long.end_ns[here])
    return 2 * inside > long.end_ns - long.start_ns


def _by_copies(rank: Rank, calls: ApiCalls, _: HostEvents, long: HostEvents) -> Mask:
    excluded = np.zeros(len(long), np.bool_)
    for copies, call in _copies(rank, calls):
        waits = copies.is_pageable | (copies.kind == CopyKind.DEVICE_TO_HOST)
        waits |= calls.ends(call) >= copies.end_ns
        excluded |= is_in(long.call, call[waits & (call >= 0)])
    return excluded


def _copies(rank: Rank, calls: ApiCalls) -> Iterator[tuple[Copies, Int64]]:
    for key, operations in rank.operations_of_process:
        if len(operations.copies):
            yield operations.copies, launches_of(rank, key, calls, operations.copies)


def _by_operations(rank: Rank, calls: ApiCalls, _: HostEvents, long: HostEvents) -> Mask:
    start, end = long.start_ns, long.end_ns
    launches, ends, first = [_N], [_N], first_launches(rank)
    for key, operations in rank.operations_of_process:
        for group in operations.groups:
            call = launches_of(rank, key, calls, group)
            known = call >= 0
            launches.append(calls.start_ns.take(call.compress(known)))
            ends.append(group.ends(known))
        if key != rank.key:
            operations.release()
    # Both are nearly in order: stable sorts are quick.
    launched, ended = (np.sort(np.concatenate(of), kind="stable") for of in (launches, ends))
    pending = np.searchsorted(launched, start, side="right") - np.searchsorted(ended, start)
    excluded = pending >= MIN_PENDING
    before = np.searchsorted(ended, end, "right") - np.searchsorted(ended, end - MAX_AFTER_NS)
    excluded |= before > _own_late(rank, long)
    for thread in distinct_values(long.thread).tolist():
        times = np.sort(calls.start_ns[first[calls.packed_thread.at(first) == thread]])
        inside = np.searchsorted(times, end) > np.searchsorted(times, start)
        excluded |= inside & (long.thread == thread) & (long.call != SILENCE)
    return excluded


def _own_late(rank: Rank, long: HostEvents) -> Int64:
    """Number of kernels that each event launched, began late and ended shortly before it did."""
    kernels, call = rank.operations.kernels, rank.launched_by[0]
    order = np.argsort(long.call, kind="stable")
    launching = long.call[order]
    own = np.flatnonzero(is_in(call, launching[launching >= 0]))
    row = order[np.searchsorted(launching, call[own])]
    start, end, over = long.start_ns[row], long.end_ns[row], kernels.ends(own)
    is_late = 2 * kernels.starts.at(own) > start + end
    is_late &= (end - MAX_AFTER_NS <= over) & (over <= end)
    return np.bincount(row[is_late], minlength=len(long))


def _by_threads(rank: Rank, calls: ApiCalls, _: HostEvents, long: HostEvents) -> Mask:
    is_blocking = rank.trace.calls_named(calls, waits_for_gpu)
    for copies, call in _copies(rank, calls):
        is_blocking[call[copies.is_pageable & (call >= 0)]] = True
    blocking = np.flatnonzero(is_blocking)

    def of_others(thread: int) -> Intervals:
        others = blocking[calls.packed_thread.at(blocking) != thread]
        return intervals.union(calls.start_ns[others], calls.ends(others))

    excluded = _lie_mostly_in(of_others, long)
    for work in (
        rank.trace.host_activity(rank.process).driver_work,
        rank.trace.profiler_overhead(rank.process),
    ):
        spans = intervals.union(work.start_ns, np.minimum(work.end_ns, intervals.BEYOND_NS))
        excluded |= intervals.covered_within(spans, long.start_ns, long.end_ns) > 0
    return excluded


def _recurring(rank: Rank, _: ApiCalls, events: HostEvents, long: HostEvents) -> Mask:
    excluded = np.zeros(len(long), np.bool_)
    steps = rank.step_ranges
    starts = _N if steps is None else np.sort(steps.start_ns)
    for name in distinct_values(long.name).tolist():
        here = np.flatnonzero(long.name == name)
        same = np.sort(events.start_ns[events.name == name], kind="stable")
        excluded[here] |= len(here) > max(MAX_RECURRING * len(same), 1)
        if len(starts) < MIN_STEPS:
            continue
        begun = long.start_ns[here]
        step = np.searchsorted(starts, begun, side="right") - 1
        # The place among those that begin in the same step, or before the first one.
        first = np.searchsorted(same, np.where(step < 0, same[0], starts[step]))
        nth = np.searchsorted(same, begun) - first
        for number in distinct_values(nth).tolist():
            in_steps = distinct_values(step[nth == number])
            if 2 * len(in_steps) > len(starts):
                excluded[here[nth == number]] = True
    return excluded


def _text(rank: Rank, name: int) -> str:
    if name < 0:
        before, after = divmod(-1 - name, 1 << 31)
        return f"between {_text(rank, before)} and {_text(rank, after)}"
    operators = rank.trace.operators(rank.process)
    if name % 2 and operators is not None:
        return operators.names[name // 2]
    return rank.trace.api_names.get(name // 2, "unnamed call")
