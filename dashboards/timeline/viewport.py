"""A row of events reduced to what a screen can show: pure functions over numpy columns.

A row is cut into columns as wide as a pixel. Events at least as long as a column are shown one by
one; shorter ones are merged into blocks, one for each column, that say how many events start there
and how much of the column is covered. Every event in view is in exactly one of the two, and the
cover is that of the union of all the row's events, to the nanosecond. Each event without length has
a symbol; events that are too near share one.

Times are int64 nanoseconds below `intervals.BEYOND_NS`; intervals are half-open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals

if TYPE_CHECKING:
    from dashboards.timeline.row import Row
    from traceprof.intervals import Int64


@dataclass(frozen=True, slots=True)
class Viewport:
    """The part of a row that is shown.

    Attributes:
        edges_ns: int64[columns + 1], where the columns start and end.
        event: int64[e], indices of the events that are shown one by one, in order of their start.
        column: int64[b], the columns with a block, ascending.
        covered_ns: int64[b], how much of each of these columns the row's events cover.
        count: int64[b], how many events that are not shown one by one start in the column, or in
            the first one go on in it; 0 if one from the column before is merely not over yet.
    """

    edges_ns: Int64
    event: Int64
    column: Int64
    covered_ns: Int64
    count: Int64

    @property
    def columns(self) -> int:
        """The number of columns that the row was cut into."""
        return len(self.edges_ns) - 1

    @property
    def num_events(self) -> int:
        """The number of events in view."""
        return len(self.event) + int(self.count.sum())

    @property
    def share(self) -> Int64:
        """The covered share of each block, in thousandths, int64[b].

        0 only where nothing is covered, 1000 only where everything is.
        """
        width = (self.edges_ns[1:] - self.edges_ns[:-1])[self.column]
        share = np.round(self.covered_ns / width * 1000).astype(np.int64)
        share = np.where(self.covered_ns > 0, np.maximum(share, 1), 0)
        return np.where(self.covered_ns < width, np.minimum(share, 999), share)


def moments(row: Row, start_ns: int, end_ns: int, columns: int) -> Viewport:
    """Return the view of a row whose events have no length.

    Args:
        row: the events.
        start_ns: the first nanosecond in view.
        end_ns: one past the last, after the start.
        columns: of the screen; several events in one column become a block.
    """
    borders = intervals.even_limits(start_ns, end_ns, columns)
    started = row.started_before(borders)
    count = np.diff(started)
    column = np.flatnonzero(count > 1)
    covered = np.zeros(len(column), np.int64)
    return Viewport(borders, started[:-1][count == 1], column, covered, count[column])


def view(row: Row, start_ns: int, end_ns: int, columns: int, most_events: int) -> Viewport:
    """Return the view of a row.

    Args:
        row: the events.
        start_ns: the first nanosecond in view.
        end_ns: one past the last, after the start.
        columns: of the screen.
        most_events: if more events than this were shown one by one, which only happens when events
            of a row overlap, all are merged into blocks.
    """
    borders = intervals.even_limits(start_ns, end_ns, columns)
    columns = len(borders) - 1
    running, starting = row.in_view(start_ns, end_ns)
    least_ns = -(-(end_ns - start_ns) // columns)
    is_long = row.length[running] >= least_ns
    event = np.concatenate((running[is_long], row.at_least(starting, least_ns)))
    if len(event) > most_events:
        event = event[:0]

    started = row.started_before(borders)
    covered = np.diff(row.covered_before(borders, started))
    count = np.diff(started)
    count[0] += len(running)
    begin = row.starts(event)
    of_event = np.searchsorted(borders, begin, side="right") - 1
    count -= np.bincount(np.maximum(of_event, 0), minlength=columns)

    alone = intervals.union(begin, row.ends(event))
    by_event = np.diff(intervals.covered_before(alone, borders))
    column = np.flatnonzero((count > 0) | (covered > by_event))
    return Viewport(borders, event, column, covered[column], count[column])
