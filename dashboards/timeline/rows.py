"""The times of one row of events, and how they look in a view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from msgspec.structs import replace

from dashboards.clock import OWN, RankClock
from traceprof import intervals
from traceprof.analyses.links.link_findings import WAYS
from traceprof.intervals import Int64, even_limits
from traceprof.trace.model.operations import PERCENT, LinkSamples
from traceprof.units import counted, three_digits


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """The times of n events in order of their start, with sums that make every view fast."""

    start_ns: Int64  # int64[n]
    end_ns: Int64  # int64[n]
    covered_ns: Int64  # int64[n + 1], how much the events before each cover together
    # int64[n], the latest end so far; None if no event begins before another's end
    reach_ns: Int64 | None

    def __len__(self) -> int:
        return len(self.start_ns)

    @classmethod
    def of(cls, start_ns: Int64, end_ns: Int64) -> Row:
        """Return the row of n events given as two int64[n], ordered by start."""
        added, reach = end_ns - start_ns, None
        if (start_ns[1:] < end_ns[:-1]).any():
            reach = np.maximum.accumulate(end_ns)
            # What each event adds to the union of those before it.
            added[1:] = np.maximum(end_ns[1:] - np.maximum(start_ns[1:], reach[:-1]), 0)
        covered = np.zeros(len(start_ns) + 1, np.int64)
        np.cumsum(added, out=covered[1:])
        return cls(start_ns, end_ns, covered, reach)

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        arrays = (self.start_ns, self.end_ns, self.covered_ns, self.reach_ns)
        return sum(array.nbytes for array in arrays if array is not None)

    @property
    def first_ns(self) -> int:
        """The first start; there must be an event."""
        return int(self.start_ns[0])

    @property
    def last_ns(self) -> int:
        """The last end; there must be an event."""
        return int(self._reach_ns[-1])

    @property
    def _reach_ns(self) -> Int64:
        return self.end_ns if self.reach_ns is None else self.reach_ns

    def length(self, index: Int64 | slice | int) -> Int64:
        """Return how long some events last, int64[m]."""
        lengths: Int64 = self.end_ns[index] - self.start_ns[index]
        return lengths

    def started_before(self, times_ns: Int64) -> Int64:
        """Return how many events began before each of some times, int64[m]."""
        return np.searchsorted(self.start_ns, times_ns)

    def covered_before(self, times_ns: Int64, started: Int64) -> Int64:
        """Return the time covered before each time, ns; `started` is `started_before` of these."""
        covered = self.covered_ns[started]
        some = started > 0
        # Those that started before a time and go on after it cover all up to the latest end.
        covered[some] -= np.maximum(self._reach_ns[started[some] - 1] - times_ns[some], 0)
        return covered

    def in_view(self, start_ns: int, end_ns: int) -> tuple[Int64, slice]:
        """Return the events that run as a view begins, and the slice of those that start in it."""
        first, stop = self.started_before(np.array([start_ns, end_ns])).tolist()
        # All before these end before the view.
        begin = max(first - 1, 0)
        if self.reach_ns is not None:
            begin = int(np.searchsorted(self.reach_ns[:first], start_ns, side="right"))
        before = np.arange(begin, first)
        return before[self.end_ns[before] > start_ns], slice(first, max(first, stop))

    def within(self, start_ns: int, end_ns: int) -> Int64:
        """Return the events that run in [start, end), int64[m]."""
        running, starting = self.in_view(start_ns, end_ns)
        return np.concatenate((running, np.arange(starting.start, starting.stop)))

    def at_least(self, events: slice, least_ns: int) -> Int64:
        """Return the events of a slice that last at least this long, int64[m], in order."""
        return events.start + np.flatnonzero(self.length(events) >= least_ns)


def merged(rows: Sequence[Row]) -> Row:
    """Return the times at which at least one of these rows had an event."""
    start = np.concatenate([row.start_ns for row in rows])
    end = np.concatenate([row.end_ns for row in rows])
    union = intervals.union(start, end)
    return Row.of(union.start_ns, union.end_ns)


@dataclass(frozen=True, slots=True)
class Viewport:
    """The part of a row that is shown."""

    edges_ns: Int64  # int64[columns + 1], where the columns start and end
    # int64[e], indices of the events that are shown one by one, in order of their start
    event: Int64
    column: Int64  # int64[b], the columns with a block, ascending
    covered_ns: Int64  # int64[b], how much of each of these columns the row's events cover
    # int64[b], how many events that are not shown one by one start in the column, or in the first
    # one go on in it; 0 if one from the column before is merely not over yet
    count: Int64

    @property
    def columns(self) -> int:
        """The number of columns that the row was cut into."""
        return len(self.edges_ns) - 1

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
    """Return the view of events without length; several in one column become a block."""
    borders = intervals.even_limits(start_ns, end_ns, columns)
    started = row.started_before(borders)
    count = np.diff(started)
    column = np.flatnonzero(count > 1)
    covered = np.zeros(len(column), np.int64)
    return Viewport(borders, started[:-1][count == 1], column, covered, count[column])


def view(row: Row, start_ns: int, end_ns: int, columns: int, most_events: int) -> Viewport:
    """Return the view of a row on a screen of so many columns.

    Where events overlap, more of them can be as long as a column than there are columns: if
    there are more than `most_events`, all are merged into blocks.
    """
    borders = intervals.even_limits(start_ns, end_ns, columns)
    columns = len(borders) - 1
    running, starting = row.in_view(start_ns, end_ns)
    least_ns = -(-(end_ns - start_ns) // columns)
    is_long = row.length(running) >= least_ns
    event = np.concatenate((running[is_long], row.at_least(starting, least_ns)))
    if len(event) > most_events:
        event = event[:0]

    started = row.started_before(borders)
    covered = np.diff(row.covered_before(borders, started))
    count = np.diff(started)
    count[0] += len(running)
    begin = row.start_ns[event]
    of_event = np.searchsorted(borders, begin, side="right") - 1
    count -= np.bincount(np.maximum(of_event, 0), minlength=columns)

    alone = intervals.union(begin, row.end_ns[event])
    by_event = np.diff(intervals.covered_before(alone, borders))
    column = np.flatnonzero((count > 0) | (covered > by_event))
    return Viewport(borders, event, column, covered[column], count[column])


_NAMES = {"nvlink": "NVLink", "pcie": "PCIe"}
_BYTES_PER_MS_A_GB_PER_S = 1e6
_NO_EVENTS = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class Samples:
    """The samples of one link in one direction."""

    of: LinkSamples  # the sampled counter, on the run's clock
    row: Row  # the times of the samples

    @classmethod
    def sampled(cls, of: LinkSamples, clock: RankClock = OWN) -> Samples:
        """Return the samples of a link on a rank's clock."""
        start, end = clock.to_run(of.start_ns), clock.to_run(of.end_ns)
        return cls(replace(of, start_ns=start, end_ns=end), Row.of(start, end))

    @cached_property
    def top(self) -> float:
        """The value that fills the row: the link's peak, or the largest sample."""
        return 100.0 if self.of.unit == PERCENT else float(max(self.of.value.max(initial=0), 1))

    @property
    def label(self) -> str:
        """The counter and its scale: `NVLink, sent · to 100 %`."""
        name = self.of.name or _NAMES.get(self.of.link, self.of.link)
        return f"{name}, {WAYS[self.of.direction]} · to {self._text(self.top)}"

    def view(self, start_ns: int, end_ns: int, columns: int) -> Viewport:
        """Return the mean in each column of a view, as a share of `top`."""
        borders = even_limits(start_ns, end_ns, columns)
        inside, num = self.row.within(start_ns, end_ns), len(borders) - 1
        start, end, value = (self.of.start_ns, self.of.end_ns, self.of.value)
        which, piece, length = intervals.pieces(start[inside], end[inside], borders)
        time = np.bincount(piece, length, num)
        total = np.bincount(piece, value[inside][which] * length, num)
        mean = total / np.maximum(time, 1)
        filled = np.round(np.minimum(mean / self.top, 1) * np.diff(borders)).astype(np.int64)
        column = np.flatnonzero(time)
        count = np.diff(self.row.started_before(borders))
        return Viewport(borders, _NO_EVENTS, column, filled[column], count[column])

    def summary(self, start_ns: int, end_ns: int) -> dict[str, Any]:
        """Return the number of samples in [start, end), and lines of text on them."""
        inside = self.row.within(start_ns, end_ns)
        if len(inside) == 0:
            return {"count": 0, "num_names": 0, "names": [], "said": ["nothing was sampled here"]}
        values, limits = self.of.value[inside], np.array([start_ns, end_ns])
        of = self.of.start_ns[inside], self.of.end_ns[inside]
        which, _, length = intervals.pieces(*of, limits)
        mean = float((values[which] * length).sum()) / max(int(length.sum()), 1)
        least, most = self._text(float(values.min())), self._text(float(values.max()))
        said = [
            f"{self._text(mean)} in the mean",
            f"{counted(len(inside), 'sample')} of {least} to {most}",
        ]
        return {"count": len(inside), "num_names": 0, "names": [], "said": said}

    def _text(self, value: float) -> str:
        if self.of.unit == PERCENT:
            return f"{value:.3g} %"
        return f"{three_digits(value / _BYTES_PER_MS_A_GB_PER_S)} GB/s"
