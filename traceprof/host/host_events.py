"""CUDA calls and operators of a process's threads, each with the time that is its own."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from traceprof import intervals
from traceprof.host.nesting import nested
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, is_in
from traceprof.trace.model.kinds import waits_for_gpu

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.intervals import Int64, Mask
    from traceprof.run.rank import Rank
    from traceprof.trace.columns import Column
    from traceprof.trace.model.host import ApiCalls
    from traceprof.trace.model.host_code import HostCode

_MAX_ROWS = 1 << 19  # of more events some are left out: see `host_events`
_BLOCK_ROWS = 1 << 10
_MAX_BUSY = 0.1  # of a silence, that other threads of the process may have events for


class HostEvents(Record, frozen=True):
    """CUDA calls, operators and the silences between them, in no order.

    Attributes:
        start_ns: int64[n].
        end_ns: int64[n].
        own_ns: int64[n], the length less the events inside it.
        thread: int64[n].
        name: int64[n], equal for events of one kind and name, and for silences between such.
        call: int64[n], index of a call; -1 for an operator, -2 for a silence.
    """

    start_ns: Int64
    end_ns: Int64
    own_ns: Int64
    thread: Int64
    name: Int64
    call: Int64

    def own_stretches(self, rows: Int64) -> tuple[Int64, Int64, Int64]:
        """Return the stretches of time that are the own of some events.

        Args:
            rows: int64[k], of the events.

        Returns:
            int64[m] the place of the event among `rows`, int64[m] starts, int64[m] ends.
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
            around = np.searchsorted(spans.start_ns, self.start_ns.take(chosen), side="right") - 1
            inside = (around >= 0) & (self.start_ns.take(chosen) < spans.end_ns.take(around))
            chosen = chosen[inside]
            begin, stop, piece = nested(self.start_ns[chosen], self.end_ns[chosen]).innermost()
            own = place[chosen[piece]]
            parts.append((own[own >= 0], begin[own >= 0], stop[own >= 0]))
        piece, begin, stop = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return piece, begin, stop


SILENCE = -2
_NO_EVENTS = HostEvents(*[np.empty(0, np.int64)] * 6)


class _Outermost(NamedTuple):
    """The outermost events of a thread."""

    thread: int
    start_ns: Int64
    end_ns: Int64
    name: Int64


def host_events(rank: Rank, calls: ApiCalls, min_ns: int) -> HostEvents:
    """Return the events of a rank's process.

    There are silences only where operators are known: without these nothing tells code that runs
    from code that does not. Of more than half a million events these are some blocks, evenly
    spread, and all that begin within an event of `min_ns` or longer that is not a wait by its name.

    Args:
        rank: any rank of the process.
        calls: of the process.
        min_ns: the length from which on no event is left out.
    """
    waits = [key for key, name in rank.trace.api_names.items() if waits_for_gpu(name)]
    start, length = calls.start_ns, calls.length_ns
    is_long = length >= min_ns
    is_long[is_long] = ~is_in(calls.packed_name.at(is_long), waits)
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
    del order, length, is_long, thread
    end += start
    own = np.empty_like(start)
    roots: list[Int64] = []
    for first, stop in pairwise([0, *edges, len(start)]):
        rows = slice(first, stop)
        spans = nested(start[rows], end[rows])
        end[rows], own[rows] = spans.end_ns, spans.self_ns
        roots.append(first + np.flatnonzero(spans.parent < 0))
    del spans
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
    outer = [_Outermost(int(thread[of[0]]), start[of], end[of], name[of]) for of in roots]
    silences = _silences(rank, outer)
    columns = (
        (getattr(events, field), getattr(silences, field)) for field in HostEvents.__struct_fields__
    )
    return HostEvents(*map(np.concatenate, columns))


def _joined(chosen: Int64, columns: Sequence[Column]) -> Int64:
    """Return some values of columns, as if these were one behind the other."""
    if len(columns) == 1:
        return columns[0].at(chosen)
    values, begin = np.empty(len(chosen), np.int64), 0
    for column in columns:
        rows = np.flatnonzero((chosen >= begin) & (chosen < begin + len(column)))
        values[rows] = column.at(chosen[rows] - begin)
        begin += len(column)
    return values


def _some(start: Int64, length: Int64, is_long: Mask) -> Int64:
    """Return the events to look at, as indices."""
    if len(start) <= _MAX_ROWS:
        return np.arange(len(start))
    block = np.arange(len(start)) // _BLOCK_ROWS
    every = -(-len(start) // _MAX_ROWS)
    long = intervals.union(start[is_long], start[is_long] + length[is_long])
    within = np.searchsorted(long.start_ns, start, side="right") - 1
    inside = (within >= 0) & (start < long.end_ns[within]) if len(long) else is_long
    return np.flatnonzero((block % every == 0) | inside)


def _silences(rank: Rank, outer: Sequence[_Outermost]) -> HostEvents:
    """Return the times between outermost events in which the rest of the process is silent, too.

    Args:
        rank: any rank of the process.
        outer: for each thread starts, ends and names of its outermost events.
    """
    steps = rank.step_ranges
    step_starts = np.empty(0, np.int64) if steps is None else np.sort(steps.start_ns)
    busy = [intervals.union(start, end) for _, start, end, _ in outer]
    columns: list[tuple[Int64, Int64, Int64, Int64]] = []
    for number, (thread, start, end, name) in enumerate(outer):
        begin, stop = np.maximum.accumulate(end)[:-1], start[1:]
        others = intervals.merge(*busy[:number], *busy[number + 1 :])
        covered = intervals.covered_within(others, begin, np.maximum(begin, stop))
        counts = (stop > begin) & (covered <= _MAX_BUSY * (stop - begin))
        counts &= _num_before(step_starts, begin) == _num_before(step_starts, stop)
        rows = np.flatnonzero(counts)
        # Pairs of names as numbers that no event has.
        pair = -1 - (name[:-1][rows] * (1 << 31) + name[1:][rows])
        columns.append((begin[rows], stop[rows], np.full(len(rows), thread), pair))
    begin, stop, threads, pairs = (
        np.concatenate([part[place] for part in columns]) for place in range(4)
    )
    return HostEvents(begin, stop, stop - begin, threads, pairs, np.full(len(begin), SILENCE))


def _num_before(times: Int64, limits: Int64) -> Int64:
    return np.searchsorted(times, limits, side="left")
