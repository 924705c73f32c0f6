"""Which idle time debts take: what of it would not be there without the host's waits.

A debt may take the time in which the host launches, and short stretches in which it runs or nothing
is known of it. That time is the debts' clock. On a stream a debt of D that is incurred at clock c
lasts until c + D, and of two the one that lasts longer holds. So it is used up by all that it might
have taken, also in gaps that end with another stream's operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.intervals import BEYOND_NS, Intervals

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceprof.host.debts import Debts
    from traceprof.intervals import Int64
    from traceprof.run.rank import Mask, Window


@dataclass(frozen=True, slots=True)
class TakenTime:
    """What debts took, by start.

    Attributes:
        start_ns: int64[n].
        end_ns: int64[n], none after the next start.
        debt: int64[n], indices of the debts that held.
    """

    start_ns: Int64
    end_ns: Int64
    debt: Int64

    @property
    def covered(self) -> Intervals:
        """All of it."""
        return intervals.union(self.start_ns, self.end_ns)

    def within(self, window: Window) -> Int64:
        """Return how much of each lies in a window, int64[n] ns."""
        low, high = window.start_ns, window.end_ns
        inside: Int64 = np.minimum(self.end_ns, high) - np.maximum(self.start_ns, low)
        return np.maximum(inside, 0, out=inside)


@dataclass(frozen=True, slots=True)
class RunAhead:
    """The time of a rank that debts may take, and the debts.

    Attributes:
        takeable: n intervals.
        stream: int64[n], of the operation that ends the gap of each.
        debts: of the rank's process.
        streams_of: the streams of the rank to which each thread launches.
    """

    takeable: Intervals
    stream: Int64
    debts: Debts
    streams_of: Mapping[int, frozenset[int]]

    def taken(self, counts: Mask | None = None) -> TakenTime:
        """Return what debts take.

        Args:
            counts: which debts there are, bool[debts]; all where not given.
        """
        debts = self.debts
        until = intervals.covered_before(self.takeable, debts.start_ns) + debts.taken_ns
        nothing = np.empty(0, np.int64)
        parts = [(nothing, nothing, nothing)]
        for stream in np.unique(self.stream).tolist():
            rows = self._debts_on(stream)
            rows = rows if counts is None else rows[counts[rows]]
            if len(rows):
                parts.append(self._on_stream(self.stream == stream, rows, until[rows]))
        return _taken(parts)

    def taken_in_gaps(self, start_ns: Int64, end_ns: Int64, returned_ns: Int64) -> TakenTime:
        """Return what waits take in the gaps in which they go on, as if there were no others.

        Args:
            start_ns: int64[n], of the gap of each part of `takeable`.
            end_ns: int64[n], likewise.
            returned_ns: int64[debts], when the calls returned.
        """
        debts, nothing = self.debts, np.empty(0, np.int64)
        clock = intervals.covered_before(self.takeable, debts.start_ns)
        parts = [(nothing, nothing, nothing)]
        for stream in np.unique(self.stream).tolist():
            rows = self._debts_on(stream)
            here = np.flatnonzero(self.stream == stream)
            last = np.searchsorted(debts.start_ns[rows], end_ns[here]) - 1
            here, debt = here[last >= 0], rows[last[last >= 0]]
            goes_on = returned_ns[debt] > start_ns[here]
            here, debt = here[goes_on], debt[goes_on]
            start = np.maximum(self.takeable.start_ns[here], debts.start_ns[debt])
            left = clock[debt] + debts.taken_ns[debt]
            left -= intervals.covered_before(self.takeable, start)
            taken = np.minimum(self.takeable.end_ns[here] - start, left)
            some = taken > 0
            parts.append((start[some], (start + taken)[some], debt[some]))
        return _taken(parts)

    def _debts_on(self, stream: int) -> Int64:
        """Return the debts incurred on a stream, by start."""
        threads = [thread for thread, streams in self.streams_of.items() if stream in streams]
        return np.flatnonzero(np.isin(self.debts.thread, np.array(threads, np.int64)))

    def _on_stream(self, on_stream: Mask, rows: Int64, until: Int64) -> tuple[Int64, Int64, Int64]:
        """Return start, end and debt of what is taken on a stream; int64[m] each.

        Args:
            on_stream: which of `takeable` are.
            rows: int64[k], the debts on it, by start.
            until: int64[k], how long each lasts, by the clock.
        """
        start, end = self.takeable.start_ns[on_stream], self.takeable.end_ns[on_stream]
        times = self.debts.start_ns[rows]
        # Where a debt is incurred, another one may hold from then on.
        place = np.searchsorted(start, times) - 1
        cuts = times[(place >= 0) & (times < end[place])]
        cut_start = np.sort(np.concatenate((start, cuts)), kind="stable")
        place = np.searchsorted(start, cut_start, side="right") - 1
        cut_end = np.minimum(end[place], np.append(cut_start[1:], BEYOND_NS))
        longest = np.maximum.accumulate(until)
        is_longer = np.append(True, until[1:] > longest[:-1])
        holder = np.maximum.accumulate(np.where(is_longer, np.arange(len(rows)), 0))
        last = np.searchsorted(times, cut_start, side="right") - 1
        clock = intervals.covered_before(self.takeable, cut_start)
        taken = np.clip(longest[last] - clock, 0, cut_end - cut_start)
        taken[last < 0] = 0
        some = np.flatnonzero(taken)
        cut_start, taken = cut_start[some], taken[some]
        return cut_start, cut_start + taken, rows[holder[last[some]]]


def _taken(parts: list[tuple[Int64, Int64, Int64]]) -> TakenTime:
    """Put together what was taken on several streams."""
    start, end, debt = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(start, kind="stable")
    return TakenTime(start[order], end[order], debt[order])
