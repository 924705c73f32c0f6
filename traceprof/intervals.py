"""Sets of half-open intervals [start, end) in int64 nanoseconds, as sorted arrays.

Touching is not overlapping: [0, 5) and [5, 9) share no time, and their union is [0, 9).
A zero-length interval covers nothing.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from traceprof.structs import Record

# As in `numpy.typing`, whose import takes a millisecond.
Int64 = np.ndarray[tuple[Any, ...], np.dtype[np.int64]]
Int32 = np.ndarray[tuple[Any, ...], np.dtype[np.int32]]
Float64 = np.ndarray[tuple[Any, ...], np.dtype[np.float64]]
Mask = np.ndarray[tuple[Any, ...], np.dtype[np.bool_]]

NO_NUMBERS: Int64 = np.empty(0, np.int64)
BEYOND_NS = 1 << 62
"""146 years: no clock shows it, and differences of times before it fit 64 bits."""
_MOST = int(np.iinfo(np.int64).max)


class Intervals(Record, frozen=True, dict=True):
    """Disjoint, non-touching, non-empty intervals in ascending order."""

    start_ns: Int64  # int64[n], ascending
    end_ns: Int64  # int64[n], `start_ns[i] < end_ns[i] < start_ns[i + 1]`

    def __len__(self) -> int:
        return len(self.start_ns)

    def at(self, chosen: Int64 | Mask | slice) -> Intervals:
        """Return the chosen intervals: indices, ascending, or bool[n]."""
        return Intervals(self.start_ns[chosen], self.end_ns[chosen])

    @property
    def length_ns(self) -> Int64:
        """The length of each interval, int64[n]."""
        return self.end_ns - self.start_ns

    @property
    def measure_ns(self) -> int:
        """The total time covered."""
        return int(self.length_ns.sum())

    @cached_property
    def before_ns(self) -> Int64:
        """The time covered before each interval, and at last by all, int64[n + 1]."""
        return np.append(0, np.cumsum(self.length_ns))

    def longest(self, most: int) -> list[tuple[int, int]]:
        """Return start and end of the longest intervals, longest first; equal ones in order."""
        order = largest(self.length_ns, most)
        return [*zip(self.start_ns[order].tolist(), self.end_ns[order].tolist(), strict=True)]


def total(values: Int64) -> int:
    """Return the exact sum, even where it does not fit 64 bits."""
    most = _MOST // max(len(values), 1)
    if len(values) == 0 or (values.max() <= most and values.min() >= -most):
        return int(values.sum())
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFF_FFFF).sum())


def empty() -> Intervals:
    """Return the set that covers nothing."""
    nothing = np.empty(0, np.int64)
    return Intervals(nothing, nothing)


def union(start_ns: Int64, end_ns: Int64) -> Intervals:
    """Return the union of arbitrary intervals given as two int64[n] arrays, in any order."""
    covering = end_ns > start_ns
    if not covering.all():
        start_ns, end_ns = start_ns.compress(covering), end_ns.compress(covering)
    return joined(start_ns, end_ns, 0)


def joined(start_ns: Int64, end_ns: Int64, max_between_ns: int) -> Intervals:
    """Join intervals with small gaps between them; those without length are kept.

    `start_ns`, `end_ns`: int64[n], in any order. `max_between_ns`: the longest gap that is closed.
    """
    if len(start_ns) == 0:
        return empty()
    if (start_ns[1:] < start_ns[:-1]).any():
        order = np.argsort(start_ns, kind="stable")
        start_ns, end_ns = start_ns.take(order), end_ns.take(order)
    reach = np.maximum.accumulate(end_ns)
    limit = reach[:-1] + max_between_ns if max_between_ns else reach[:-1]
    first = np.empty(len(start_ns) + 1, np.bool_)
    first[0] = first[-1] = True
    np.greater(start_ns[1:], limit, out=first[1:-1])
    return Intervals(start_ns.compress(first[:-1]), reach.compress(first[1:]))


def merge(*sets: Intervals) -> Intervals:
    """Return the union of several interval sets."""
    sets = tuple(set_ for set_ in sets if len(set_)) or (empty(),)
    if len(sets) == 1:
        return sets[0]
    return union(
        np.concatenate([set_.start_ns for set_ in sets]),
        np.concatenate([set_.end_ns for set_ in sets]),
    )


def complement(covered: Intervals, start_ns: int, end_ns: int) -> Intervals:
    """Return the parts of the window [start_ns, end_ns) that `covered` leaves free."""
    inside = clip(covered, start_ns, end_ns)
    if len(inside) and (inside.start_ns[0], inside.end_ns[-1]) == (start_ns, end_ns):
        return Intervals(inside.end_ns[:-1], inside.start_ns[1:])  # without a copy
    starts = np.concatenate((np.array([start_ns], np.int64), inside.end_ns))
    ends = np.concatenate((inside.start_ns, np.array([end_ns], np.int64)))
    # Only at the window's edges a gap may be empty.
    first, last = int(starts[0] >= ends[0]), len(starts) - int(starts[-1] >= ends[-1])
    return Intervals(starts[first:last], ends[first:last])


def subtract(left: Intervals, right: Intervals) -> Intervals:
    """Return the time that `left` covers and `right` does not."""
    if len(left) == 0 or len(right) == 0:
        return left
    # Gap i of `right` is before its interval i, the last one after all of them. Each interval of
    # `left` overlaps a contiguous run of gaps.
    first = np.searchsorted(right.start_ns, left.start_ns, "right")
    stop = np.searchsorted(right.end_ns, left.end_ns) + 1
    of_left, gap = pairs(first, stop)
    begin, over = np.append(-BEYOND_NS, right.end_ns), np.append(right.start_ns, BEYOND_NS)
    return Intervals(
        np.maximum(left.start_ns.take(of_left), begin.take(gap)),
        np.minimum(left.end_ns.take(of_left), over.take(gap)),
    )


def intersect(left: Intervals, right: Intervals) -> Intervals:
    """Return the time that both sets cover."""
    if len(left) > len(right):
        left, right = right, left
    if len(left) == 0:
        return empty()
    # Each interval of `left` overlaps a contiguous run of `right`.
    first = np.searchsorted(right.end_ns, left.start_ns, "right")
    stop = np.searchsorted(right.start_ns, left.end_ns)
    of_left, of_right = pairs(first, stop)
    return Intervals(
        np.maximum(left.start_ns.take(of_left), right.start_ns.take(of_right)),
        np.minimum(left.end_ns.take(of_left), right.end_ns.take(of_right)),
    )


def pairs(first: Int64, stop: Int64) -> tuple[Int64, Int64]:
    """Return every i with every j in [first[i], stop[i]), ascending."""
    count = np.maximum(stop - first, 0)
    left = np.repeat(np.arange(len(first)), count)
    right = np.arange(len(left)) + (first - np.cumsum(count) + count).take(left)
    return left, right


def clip(covered: Intervals, start_ns: int, end_ns: int) -> Intervals:
    """Return the part of `covered` inside the window [start_ns, end_ns)."""
    if end_ns <= start_ns or len(covered) == 0:
        return empty()
    first = int(covered.end_ns.searchsorted(start_ns, "right"))
    stop = int(covered.start_ns.searchsorted(end_ns, "left"))
    if first >= stop:
        return empty()
    cuts_first, cuts_last = covered.start_ns[first] < start_ns, covered.end_ns[stop - 1] > end_ns
    if stop - first == len(covered) and not cuts_first and not cuts_last:
        return covered
    starts, ends = covered.start_ns[first:stop].copy(), covered.end_ns[first:stop].copy()
    starts[0], ends[-1] = max(starts[0], start_ns), min(ends[-1], end_ns)
    return Intervals(starts, ends)


def pieces(start_ns: Int64, end_ns: Int64, limits_ns: Int64) -> tuple[Int64, Int64, Int64]:
    """Cut intervals, which may overlap each other, where pieces of time begin and end.

    `start_ns`, `end_ns`: int64[n], in any order. `limits_ns`: int64[m + 1], strictly ascending:
    piece j is [limits[j], limits[j + 1]).

    Returns three int64[k], for each part of an interval that lies in a piece: which interval, which
    piece, and the length of the part; 0 for an interval without length.
    """
    first = np.searchsorted(limits_ns, start_ns, side="right") - 1
    stop = np.maximum(np.searchsorted(limits_ns, end_ns, side="left"), first + 1)
    first, stop = np.maximum(first, 0), np.minimum(stop, len(limits_ns) - 1)
    which, piece = pairs(first, stop)
    length = np.minimum(end_ns[which], limits_ns[piece + 1]) - np.maximum(
        start_ns[which], limits_ns[piece]
    )
    return which, piece, length


def even_limits(start_ns: int, end_ns: int, num: int) -> Int64:
    """Return the limits of at most `num` pieces of time of equal length, int64[pieces + 1].

    Limits are whole nanoseconds; no piece is shorter than one, so that there may be fewer.
    """
    span = end_ns - start_ns
    num = max(1, min(num, span))
    index = np.arange(num + 1, dtype=np.int64)
    # span * index / num, rounded down, without leaving 64 bits
    whole, rest = divmod(span, num)
    return start_ns + whole * index + rest * index // num


def covered_before(covered: Intervals, times_ns: Int64) -> Int64:
    """Return how much of `covered` lies before each time: int64[m] ns for int64[m] times."""
    if len(covered) == 0:
        return np.zeros(len(times_ns), np.int64)
    index = np.searchsorted(covered.start_ns, times_ns)
    before: Int64 = covered.before_ns.take(index)
    unfinished = covered.end_ns.take(np.maximum(index - 1, 0)) - times_ns
    unfinished[index == 0] = 0
    before -= np.maximum(unfinished, 0, out=unfinished)
    return before


def covered_within(covered: Intervals, start_ns: Int64, end_ns: Int64) -> Int64:
    """Return how much of `covered` each window [start, end) holds: int64[m] ns.

    Windows are in any order; one that ends before its start holds nothing.
    """
    within: Int64 = covered_before(covered, end_ns)
    within -= covered_before(covered, start_ns)
    return np.maximum(within, 0, out=within)


def holder(start_ns: Int64, end_ns: Int64, times_ns: Int64) -> Int64:
    """Return which of n spans holds each time, the last one to begin; -1 if that one is over.

    `start_ns`: int64[n], ascending. `times_ns`: int64[m], in any order.
    """
    place = np.searchsorted(start_ns, times_ns, "right") - 1
    if len(start_ns):
        place[times_ns >= end_ns.take(place)] = -1
    return place


def num_inside(
    start_ns: Int64, end_ns: Int64, window_start: Int64, window_end: Int64, closed: Mask
) -> Int64:
    """Count the intervals that touch each of m windows, int64[m].

    `start_ns`: int64[n], ascending. `closed`: bool[m], whether an interval without length at the
    very end counts.
    """
    instant = start_ns == end_ns
    times = start_ns[instant]
    if len(times):
        start_ns, end_ns = start_ns[~instant], end_ns[~instant]
    begun = np.searchsorted(start_ns, window_end, side="left")
    over = np.searchsorted(np.sort(end_ns, kind="stable"), window_start, side="right")
    # Times are whole nanoseconds.
    instants: Int64 = np.searchsorted(times, window_end + closed, side="left")
    instants = instants - np.searchsorted(times, window_start, side="left")
    # A window may be empty, or lie inside an operation that spans it.
    return np.maximum(begun - over, 0) + np.maximum(instants, 0)


def largest(values: Int64, most: int) -> Int64:
    """Return the indices of the `most` largest values, largest first; equal ones in order."""
    return np.argsort(-values, kind="stable")[:most]
