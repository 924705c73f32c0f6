"""What a screen can show of a row of events: pure functions over numpy columns.

A row is cut into columns as wide as a pixel. Events at least as long as a column are shown one by
one; shorter ones are merged into blocks, one for each column, that say how many events start there
and how much of the column is covered. Every event in view is in exactly one of the two, and the
cover is that of the union of all the row's events, to the nanosecond.

Times are int64 nanoseconds below `intervals.BEYOND_NS`; intervals are half-open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals

if TYPE_CHECKING:
    from traceprof.intervals import Int64

_RUN = 256
"""Events whose longest is known: to look for long ones, most runs need not be looked at."""


@dataclass(frozen=True, slots=True)
class Row:
    """Events of one row, ordered by start, with what makes any view of them quick.

    Attributes:
        start_ns: int64[n], ascending.
        end_ns: int64[n], not before the start.
        reach_ns: int64[n], the latest end so far.
        covered_ns: int64[n + 1], the measure of the union of the first 0, 1, … n events.
        longest_ns: int64[⌈n / 256⌉], the longest duration of each run of 256 events.
    """

    start_ns: Int64
    end_ns: Int64
    reach_ns: Int64
    covered_ns: Int64
    longest_ns: Int64

    def __len__(self) -> int:
        return len(self.start_ns)

    @classmethod
    def of(cls, start_ns: Int64, end_ns: Int64) -> Row:
        """Return the row of n events given as two int64[n], ordered by start.

        Where no event begins before another's end, `reach_ns` is `end_ns` itself.
        """
        duration = end_ns - start_ns
        starts = np.arange(0, len(start_ns), _RUN)
        longest = np.maximum.reduceat(duration, starts) if len(starts) else duration
        reach = end_ns
        if (start_ns[1:] < end_ns[:-1]).any():
            reach = np.maximum.accumulate(end_ns)
            # What each event adds to the union of those before it.
            begin = np.maximum(start_ns[1:], reach[:-1])
            np.maximum(end_ns[1:] - begin, 0, out=duration[1:])
        covered = np.zeros(len(start_ns) + 1, np.int64)
        np.cumsum(duration, out=covered[1:])
        return cls(start_ns, end_ns, reach, covered, longest)

    def covered_before(self, times_ns: Int64, started: Int64) -> Int64:
        """Return how much the events cover before each time: int64[m] ns.

        Args:
            times_ns: int64[m].
            started: int64[m], how many events started before each.
        """
        covered = self.covered_ns[started]
        some = started > 0
        # Those that started before a time and go on after it cover all up to the latest end.
        covered[some] -= np.maximum(self.reach_ns[started[some] - 1] - times_ns[some], 0)
        return covered

    def in_view(self, start_ns: int, end_ns: int) -> tuple[Int64, slice]:
        """Return the events of a view [start, end).

        Returns:
            Indices of those that started before the view and go on in it, int64[m]; and the slice
            of those that start in it, of no length among them.
        """
        first, stop = np.searchsorted(self.start_ns, (start_ns, end_ns)).tolist()
        # All before these end before the view.
        begin = int(np.searchsorted(self.reach_ns[:first], start_ns, side="right"))
        running = begin + np.flatnonzero(self.end_ns[begin:first] > start_ns)
        return running, slice(first, max(first, stop))

    def at_least(self, events: slice, least_ns: int) -> Int64:
        """Return which of a slice of the events last so long, int64[m], in order."""
        runs = slice(events.start // _RUN, -(-events.stop // _RUN))
        candidates = runs.start + np.flatnonzero(self.longest_ns[runs] >= least_ns)
        indices = (candidates[:, None] * _RUN + np.arange(_RUN)).ravel()
        indices = indices[(indices >= events.start) & (indices < events.stop)]
        long: Int64 = indices[self.end_ns[indices] - self.start_ns[indices] >= least_ns]
        return long


@dataclass(frozen=True, slots=True)
class View:
    """What is shown of a row.

    Attributes:
        edges_ns: int64[columns + 1], where the columns start and end.
        event: int64[e], indices of the events that are shown one by one, in order of their start.
        column: int64[b], the columns with a block, ascending.
        covered_ns: int64[b], how much of each of these columns the row's events cover.
        count: int64[b], how many events that are not shown one by one start in the column, or in
            the first one go on in it; 0 where one from the column before is merely not over yet.
    """

    edges_ns: Int64
    event: Int64
    column: Int64
    covered_ns: Int64
    count: Int64

    @property
    def columns(self) -> int:
        """How many columns the row was cut into."""
        return len(self.edges_ns) - 1

    @property
    def num_events(self) -> int:
        """How many events are in view."""
        return len(self.event) + int(self.count.sum())

    @property
    def share(self) -> Int64:
        """How much of each block is covered, in thousandths, int64[b].

        0 only where nothing is covered, 1000 only where everything is.
        """
        width = (self.edges_ns[1:] - self.edges_ns[:-1])[self.column]
        share = np.round(self.covered_ns / width * 1000).astype(np.int64)
        share = np.where(self.covered_ns > 0, np.maximum(share, 1), 0)
        return np.where(self.covered_ns < width, np.minimum(share, 999), share)


def edges(start_ns: int, end_ns: int, columns: int) -> Int64:
    """Return where each column of [start, end) starts, and the end: int64[columns + 1].

    No column is narrower than a nanosecond, so that there may be fewer than asked for.
    """
    span = end_ns - start_ns
    columns = max(1, min(columns, span))
    index = np.arange(columns + 1, dtype=np.int64)
    # span * index / columns, rounded down, without leaving 64 bits
    whole, rest = divmod(span, columns)
    places: Int64 = start_ns + whole * index + rest * index // columns
    return places


def view(row: Row, start_ns: int, end_ns: int, columns: int, most_events: int) -> View:
    """Return what a screen shows of a row.

    Args:
        row: the events.
        start_ns: the first nanosecond in view.
        end_ns: one past the last, after the start.
        columns: how many columns there are to fill.
        most_events: where more events than this would be shown one by one, which takes rows whose
            events overlap, all are merged into blocks.
    """
    borders = edges(start_ns, end_ns, columns)
    columns = len(borders) - 1
    running, starting = row.in_view(start_ns, end_ns)
    least_ns = -(-(end_ns - start_ns) // columns)
    is_long = row.end_ns[running] - row.start_ns[running] >= least_ns
    event = np.concatenate((running[is_long], row.at_least(starting, least_ns)))
    if len(event) > most_events:
        event = event[:0]

    started = np.searchsorted(row.start_ns, borders)
    covered = np.diff(row.covered_before(borders, started))
    count = np.diff(started)
    count[0] += len(running)
    of_event = np.searchsorted(borders, row.start_ns[event], side="right") - 1
    count -= np.bincount(np.maximum(of_event, 0), minlength=columns)

    alone = intervals.union(row.start_ns[event], row.end_ns[event])
    by_event = np.diff(intervals.covered_before(alone, borders))
    column = np.flatnonzero((count > 0) | (covered > by_event))
    return View(borders, event, column, covered[column], count[column])
