"""Median of the other entries of a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from traceprof.intervals import Int64

DISTANCE_TO_DEVIATION = 1.4826
"""The standard deviation of normal values over their median distance from the median."""
OF_MEDIANS = np.pi / 2
"""The variance of medians of normal values over that of means."""


def middle_of_others(values: Int64) -> tuple[Int64, Int64]:
    """The two middle values of the other entries in a row, int64[m, r] each, for r of 2 or more.

    Their mean is the median of the others. With an odd number of others both are the same value.
    """
    num_others = values.shape[1] - 1
    order = np.argsort(values, axis=1, kind="stable")
    ordered = np.take_along_axis(values, order, axis=1)
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(values.shape[1])[np.newaxis, :], axis=1)

    def of_others(index: int) -> Int64:
        shifted = np.where(place <= index, index + 1, index)
        result: Int64 = np.take_along_axis(ordered, shifted, axis=1)
        return result

    return of_others((num_others - 1) // 2), of_others(num_others // 2)


def mean_of(low: Int64, high: Int64) -> Int64:
    """Return the mean of both, as `numpy.median` and a cast to integers give it."""
    mean: Int64 = ((low.astype(np.float64) + high) / 2).astype(np.int64)
    return mean
