"""Long series reduced to the width of a chart: extremes and covered shares, none hidden."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from traceprof import intervals
from traceprof.intervals import even_limits

if TYPE_CHECKING:
    import numpy.typing as npt

    from traceprof.intervals import Float64, Int64, Intervals


MAX_POINTS = 1500
"""About as many as a wide chart has pixels across."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """The least and the greatest value of a series in each of n pieces of time.

    Attributes:
        start_ns: int64[n], where each piece begins; the next one's start is its end.
        least: [n].
        most: [n].
    """

    start_ns: Int64
    least: npt.NDArray[Any]
    most: npt.NDArray[Any]


def envelope(
    times_ns: Int64, values: npt.NDArray[Any], start_ns: int, end_ns: int, num: int = MAX_POINTS
) -> Envelope:
    """Return the extremes of a step function within each piece of a window.

    Args:
        times_ns: int64[k], ascending, the time from which each value holds.
        values: [k]; the first one also holds before the first time.
        start_ns: of the window.
        end_ns: its end.
        num: the largest number of pieces.
    """
    first = max(int(np.searchsorted(times_ns, start_ns, side="right")) - 1, 0)
    stop = max(int(np.searchsorted(times_ns, end_ns, side="left")), first + 1)
    times, values = times_ns[first:stop], values[first:stop]
    if len(times) == 0 or end_ns <= start_ns:
        return Envelope(times[:0], values[:0], values[:0])
    if len(times) <= num:
        times = np.maximum(times, start_ns)
        return Envelope(times, values, values)
    limits = even_limits(start_ns, end_ns, num)
    # Of each piece the value that holds as it begins, and those that come before it ends.
    held = np.maximum(np.searchsorted(times, limits[:-1], side="right") - 1, 0)
    until = np.searchsorted(times, limits[1:], side="left")
    slices = np.stack((held, np.maximum(until, held + 1)), axis=1).ravel()
    padded = np.append(values, values[-1])  # the last slice may end where the values do
    return Envelope(
        limits[:-1],
        np.minimum.reduceat(padded, slices)[::2],
        np.maximum.reduceat(padded, slices)[::2],
    )


def covered_share(covered: Intervals, limits: Int64) -> Float64:
    """Return the share of each piece that is covered, 0 to 1, float64[m] for m + 1 limits."""
    length = np.diff(limits)
    within = intervals.covered_within(covered, limits[:-1], limits[1:])
    share: Float64 = within / np.maximum(length, 1)
    return share


def group_starts(count: int, most: int) -> Int64:
    """Return the starts of groups of almost equal size, int64[min(count, most)]."""
    num = min(count, most)
    starts: Int64 = np.arange(num, dtype=np.int64) * count // max(num, 1)
    return starts
