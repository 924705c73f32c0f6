"""Spans of one thread that lie within each other, as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.intervals import num_before
from traceprof.structs import Record
from traceprof.trace.grouping import in_order

if TYPE_CHECKING:
    from traceprof.intervals import Int64


class Nested(Record, frozen=True):
    """Spans of one thread, ordered by start, longer ones first.

    Attributes:
        start_ns: int64[n].
        end_ns: int64[n], after the start: a span without length has one nanosecond.
        parent: int64[n], index of the innermost span around each, -1 for none.
        depth: int64[n], how many spans are around each.
    """

    start_ns: Int64
    end_ns: Int64
    parent: Int64
    depth: Int64

    @property
    def self_ns(self) -> Int64:
        """The time of each that is in none of its children, int64[n]."""
        self_ns = self.end_ns - self.start_ns
        inner = np.flatnonzero(self.parent >= 0)
        outer = self.parent[inner]
        inside = np.minimum(self.end_ns[inner], self.end_ns[outer]) - self.start_ns[inner]
        np.subtract.at(self_ns, outer, inside)
        self_ns[self_ns < 0] = 0
        return self_ns

    def inherited(self, own: Int64) -> Int64:
        """Return a value of each span: its own, or that of the nearest span around it.

        Args:
            own: int64[n], -1 for none.
        """
        values = own.copy()
        if own.max(initial=-1) < 0:
            return values
        order = np.argsort(self.depth, kind="stable")
        edges = np.flatnonzero(np.diff(self.depth.take(order))) + 1
        for rows in np.split(order, edges)[1:]:
            above = values[self.parent[rows]]
            values[rows] = np.where((own[rows] < 0) & (self.parent[rows] >= 0), above, own[rows])
        return values

    def innermost(self) -> tuple[Int64, Int64, Int64]:
        """Return consecutive stretches of time, each with the innermost span in it.

        Returns:
            int64[m] starts, int64[m] ends, int64[m] indices of spans.
        """
        num = len(self.start_ns)
        index = np.arange(num)
        time = np.concatenate((self.end_ns, self.start_ns))
        span = np.concatenate((self.parent, index))
        # Of equal times: inner ends, outer ends, outer starts, inner starts.
        order = np.lexsort((np.concatenate((-index, index)), np.arange(2 * num) >= num, time))
        time, span = time.take(order), span.take(order)
        start, end, span = time[:-1], time[1:], span[:-1]
        counts = (end > start) & (span >= 0)
        # `compress` takes a third of the time of a mask as index.
        return start.compress(counts), end.compress(counts), span.compress(counts)


def nested(start_ns: Int64, end_ns: Int64) -> Nested:
    """Return spans of one thread with the spans around them.

    Args:
        start_ns: int64[n], ascending; of equal starts the longer spans come first.
        end_ns: int64[n].
    """
    num, end = len(start_ns), np.maximum(end_ns, start_ns + 1)
    parent, depth = np.full(num, -1), np.zeros(num, np.int64)
    # Most calls are one after the other: only spans around others, or inside, are looked at.
    is_inside = start_ns[1:] < np.maximum.accumulate(end[:-1])
    rows = np.flatnonzero(np.append(False, is_inside) | np.append(is_inside, False))
    start, stop = start_ns[rows], end[rows]
    # Ends are nearly in order: a stable sort is quick.
    level = np.arange(len(rows)) - num_before(np.sort(stop, kind="stable"), start, "right")
    by_level, level_of = in_order(level, int(level.max(initial=0)).bit_length())
    keys = level_of * len(rows) + by_level
    place = np.empty(len(rows), np.int64)
    place[by_level] = by_level[num_before(keys, keys - len(rows)) - 1]
    is_inner = (level > 0) & (stop[place] > start)  # others overlap, but do not nest
    parent[rows] = np.where(is_inner, rows[place], -1)
    depth[rows] = np.where(is_inner, level, 0)
    return Nested(start_ns, end, parent, depth)
