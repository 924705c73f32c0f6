"""Idle time attributed to earlier host waits: idle time that would not be there without them.

Attributable is the idle time in which the host launches, and short stretches in which it runs or
nothing is known about it. Only this time counts on the clock used here. On a stream, a wait of cost
D that begins at clock c accounts for the attributable time until c + D; of several, the last one
until its own cost is used up, then the one that lasts longest. So attributable time uses up a cost
even in gaps that end with an operation of another stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.intervals import BEYOND_NS, Intervals
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, is_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceprof.host.sync_costs import SyncCosts
    from traceprof.intervals import Int64, Mask
    from traceprof.run.rank import Window


class SyncIdle(Record, frozen=True):
    """Idle time and the waits that it is attributed to, ordered by start.

    Attributes:
        start_ns: int64[n].
        end_ns: int64[n], none after the next start.
        wait: int64[n], indices into the rank's `SyncCosts`.
    """

    start_ns: Int64
    end_ns: Int64
    wait: Int64

    @property
    def covered(self) -> Intervals:
        """All of this idle time."""
        return intervals.union(self.start_ns, self.end_ns)

    def within(self, window: Window) -> Int64:
        """Return how much of each part lies in a window, int64[n] ns."""
        low, high = window.start_ns, window.end_ns
        inside: Int64 = np.minimum(self.end_ns, high) - np.maximum(self.start_ns, low)
        return np.maximum(inside, 0, out=inside)


class AttributableIdle(Record, frozen=True):
    """The idle time of a rank that may be attributed to waits, and the costs of the waits.

    Attributes:
        spans: n intervals.
        stream: int64[n], the stream of the operation that ends the gap of each.
        costs: the waits of the rank's process.
        streams_of: the streams of the rank to which each thread launches.
    """

    spans: Intervals
    stream: Int64
    costs: SyncCosts
    streams_of: Mapping[int, frozenset[int]]

    def attributed(self, counts: Mask | None = None) -> SyncIdle:
        """Return the idle time that is attributed to waits.

        Args:
            counts: which waits there are, bool[waits]; all where not given.
        """
        costs = self.costs
        until = intervals.covered_before(self.spans, costs.start_ns) + costs.cost_ns
        nothing = np.empty(0, np.int64)
        parts = [(nothing, nothing, nothing)]
        for stream in distinct_values(self.stream).tolist():
            rows = self._waits_on(stream)
            rows = rows if counts is None else rows[counts[rows]]
            if len(rows):
                parts.append(self._on_stream(self.stream == stream, rows, until[rows]))
        return _joined(parts)

    def attributed_in_gaps(self, start_ns: Int64, end_ns: Int64, returned_ns: Int64) -> SyncIdle:
        """Return the idle time of waits in gaps that begin before they return, each by itself.

        Args:
            start_ns: int64[n], the start of the gap in which each of `spans` lies.
            end_ns: int64[n], the end of that gap.
            returned_ns: int64[waits], when the calls returned.
        """
        costs, nothing = self.costs, np.empty(0, np.int64)
        clock = intervals.covered_before(self.spans, costs.start_ns)
        parts = [(nothing, nothing, nothing)]
        for stream in distinct_values(self.stream).tolist():
            rows = self._waits_on(stream)
            here = np.flatnonzero(self.stream == stream)
            last = np.searchsorted(costs.start_ns[rows], end_ns[here]) - 1
            here, wait = here[last >= 0], rows[last[last >= 0]]
            goes_on = returned_ns[wait] > start_ns[here]
            here, wait = here[goes_on], wait[goes_on]
            start = np.maximum(self.spans.start_ns[here], costs.start_ns[wait])
            left = clock[wait] + costs.cost_ns[wait]
            left -= intervals.covered_before(self.spans, start)
            length = np.minimum(self.spans.end_ns[here] - start, left)
            some = length > 0
            parts.append((start[some], (start + length)[some], wait[some]))
        return _joined(parts)

    def _waits_on(self, stream: int) -> Int64:
        """Return the waits whose cost applies to a stream, by start."""
        threads = [thread for thread, streams in self.streams_of.items() if stream in streams]
        return np.flatnonzero(is_in(self.costs.thread, np.array(threads, np.int64)))

    def _on_stream(self, on_stream: Mask, rows: Int64, until: Int64) -> tuple[Int64, Int64, Int64]:
        """Return start, end and wait of the attributed idle time of a stream; int64[m] each.

        Args:
            on_stream: which of `spans` are of the stream.
            rows: int64[k], the waits whose cost applies to it, by start.
            until: int64[k], the clock at which each cost is used up.
        """
        start, end = self.spans.start_ns[on_stream], self.spans.end_ns[on_stream]
        times = self.costs.start_ns[rows]
        # Spans are cut where waits begin: another one may count from then on.
        place = np.searchsorted(start, times) - 1
        cuts = times[(place >= 0) & (times < end[place])]
        cut_start = np.sort(np.concatenate((start, cuts)), kind="stable")
        place = np.searchsorted(start, cut_start, side="right") - 1
        cut_end = np.minimum(end[place], np.append(cut_start[1:], BEYOND_NS))
        longest = np.maximum.accumulate(until)
        is_longer = np.append(True, until[1:] > longest[:-1])
        holder = np.maximum.accumulate(np.where(is_longer, np.arange(len(rows)), 0))
        last = np.searchsorted(times, cut_start, side="right") - 1
        clock = intervals.covered_before(self.spans, cut_start)
        own_end, end = (
            cut_start + np.where(last < 0, 0, np.clip(cost[last] - clock, 0, cut_end - cut_start))
            for cost in (until, longest)
        )
        pieces = (cut_start, own_end, rows[last]), (own_end, end, rows[holder[last]])
        start, end, wait = (np.concatenate(column) for column in zip(*pieces, strict=True))
        some = start < end
        return start[some], end[some], wait[some]


def _joined(parts: list[tuple[Int64, Int64, Int64]]) -> SyncIdle:
    """Join the attributed idle time of several streams."""
    start, end, wait = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(start, kind="stable")
    return SyncIdle(start[order], end[order], wait[order])
