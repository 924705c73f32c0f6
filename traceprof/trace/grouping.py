"""Rows that agree in some columns, in order, and numbered; distinct values, and medians."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from traceprof.intervals import BEYOND_NS, Float64, Int64, Mask

_MAX_BITS = 62
_MAX_SPREAD = 2  # numbers between the lowest and the highest value, for each value


def grouped(*keys: Int64) -> tuple[Int64, Mask]:
    """Order of rows by several columns, int64[n] each, and where others begin than before.

    The first column counts first; rows that agree in all of them keep their order. The mask says of
    each row in this order whether it differs from the one before.
    """
    order = np.lexsort(keys[::-1])
    begins = np.ones(len(order), np.bool_)
    begins[1:] = np.logical_or.reduce([np.diff(key[order]) != 0 for key in keys])
    return order, begins


def sorted_in_groups(values: Int64, group: npt.NDArray[np.integer[Any]]) -> Int64:
    """Values by group, then value; neither is negative."""
    bits = int(values.max(initial=0)).bit_length()
    if bits + int(group.max(initial=0)).bit_length() > _MAX_BITS:
        return values[np.lexsort((values, group))]
    keys: Int64 = group.astype(np.int64) << bits | values  # one key sorts several times as fast
    keys.sort()
    return keys & ((1 << bits) - 1)


def numbered(values: Int64) -> tuple[Int64, Int64]:
    """Return the distinct values, ascending int64[m], and the index of each, int64[n]."""
    table = _table(values)
    if table is None:
        distinct, which = np.unique(values, return_inverse=True)
        return distinct, which.reshape(-1)
    distinct, occurs, above = table
    return distinct, (np.cumsum(occurs) - 1).take(above)


def _table(values: npt.NDArray[np.integer[Any]]) -> tuple[Int64, Mask, Int64] | None:
    """Distinct values; which numbers from the lowest on occur; how far each is above it.

    None where the values are far apart, so that sorting them takes less time.
    """
    low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
    if high - low >= _MAX_SPREAD * values.size:
        return None
    above = np.subtract(values, low, dtype=np.int64)
    occurs = np.zeros(high - low + 1, np.bool_)
    occurs[above] = True
    return np.flatnonzero(occurs) + low, occurs, above


def numbered_rows(*keys: Int64) -> Int64:
    """Return numbers of rows from 0 in the order of `grouped`, int64[n]: equal rows have one."""
    order, begins = grouped(*keys)
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(begins) - 1
    return number


def distinct_rows(*keys: Int64) -> tuple[Int64, list[tuple[int, ...]]]:
    """Return the number of each row, as `numbered_rows` has it, and the distinct rows by number."""
    number = numbered_rows(*keys)
    _, first = np.unique(number, return_index=True)
    return number, list(zip(*(key[first].tolist() for key in keys), strict=True))


def places(*keys: Int64) -> tuple[Int64, Int64]:
    """Place of each row among those that agree in every key, and how many these are."""
    order, begins = grouped(*keys)
    first = np.flatnonzero(begins)
    size = np.diff(np.append(first, len(order)))
    place, count = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
    place[order] = np.arange(len(order)) - np.repeat(first, size)
    count[order] = np.repeat(size, size)
    return place, count


def groups(*keys: Int64) -> Iterator[Int64]:
    """Yield the rows that agree in every key, by key; the rows of each in their order."""
    order, begins = grouped(*keys)
    for first, stop in pairwise([*np.flatnonzero(begins).tolist(), len(order)]):
        yield order[first:stop]


def are_first(group: Int64, times_ns: Int64) -> Mask:
    """Return which times are the earliest of their group, a number from 0; of equal ones all."""
    earliest = np.full(int(group.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(earliest, group, times_ns)
    return times_ns == earliest.take(group)


def distinct_values(values: npt.NDArray[np.integer[Any]]) -> Int64:
    """Return the distinct values of an array of integers, ascending int64[m]."""
    table = _table(values)
    return np.unique(values).astype(np.int64, copy=False) if table is None else table[0]


def is_in(values: npt.NDArray[np.integer[Any]] | int, among: npt.ArrayLike) -> Mask:
    """Return which integers of an array are among others, in the shape of the array."""
    return np.isin(values, np.asarray(among, np.int64))


def reached_before(end_ns: Int64, group: Int64) -> Int64:
    """Return the latest end of the earlier rows of each row's group, int64[n].

    The rows of a group follow each other; its first one has -`BEYOND_NS`.
    """
    reached = np.full(len(end_ns), -BEYOND_NS)
    first = np.flatnonzero(np.append(True, group[1:] != group[:-1])).tolist()
    for begin, stop in pairwise((*first, len(group))):
        np.maximum.accumulate(end_ns[begin : stop - 1], out=reached[begin + 1 : stop])
    return reached


def greatest_so_far(values: Int64) -> Int64:
    """Return the place of the greatest value up to each, the first of equal ones, int64[n]."""
    greatest = np.maximum.accumulate(values)
    is_new = np.append(True, greatest[1:] > greatest[:-1])[: len(values)]
    return np.maximum.accumulate(np.where(is_new, np.arange(len(values)), 0))


def sums(keys: Int64, values: Int64) -> tuple[Int64, Int64]:
    """Return the distinct keys, ascending, and the sum of the values of each, exact."""
    distinct, which = numbered(keys)
    total = np.zeros(len(distinct), np.int64)
    np.add.at(total, which, values)
    return distinct, total


def named_sums(keys: Int64, values: Int64, name_of: Callable[[int], str]) -> Counter[str]:
    """Return the sum of the values of all keys with one name, exact; only sums other than 0."""
    named: Counter[str] = Counter()
    for key, total in zip(*(column.tolist() for column in sums(keys, values)), strict=True):
        if total:
            named[name_of(key)] += total
    return named


@overload
def median_of(values: npt.ArrayLike, axis: None = None) -> float: ...


@overload
def median_of(values: npt.ArrayLike, axis: int) -> Float64: ...


def median_of(values: npt.ArrayLike, axis: int | None = None) -> float | Float64:
    """Median of numbers, of two in the middle their mean; NaN if one of them is NaN.

    Without numbers it is NaN. `axis`: along which the medians are taken; of all numbers where not
    given.
    """
    numbers = np.asarray(values)
    if not numbers.size:
        return np.full(() if axis is None else np.delete(numbers.shape, axis), np.nan)[()]
    return np.median(numbers, axis)


def medians_of_known(values: Float64) -> Float64:
    """Median of the numbers of each row that are not NaN; NaN where there are none.

    The last axis has at least one number.
    """
    ordered = np.sort(values)  # NaN comes last
    num = np.count_nonzero(~np.isnan(values), axis=-1)[..., np.newaxis]
    low, high = (
        np.take_along_axis(ordered, np.maximum(place, 0), -1)[..., 0]
        for place in ((num - 1) // 2, num // 2)
    )
    return (low + high) / 2


def quantiles_of(values: npt.ArrayLike, fractions: Sequence[float]) -> Float64:
    """Quantiles along the last axis, between two numbers in proportion, float64[q, ...].

    The last axis has at least one number; the q fractions are 0 to 1.
    """
    return np.quantile(np.asarray(values, float), fractions, axis=-1)


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
        return np.take_along_axis(ordered, shifted, axis=1)

    return of_others((num_others - 1) // 2), of_others(num_others // 2)


def mean_of(low: Int64, high: Int64) -> Int64:
    """Return the mean of both, as `numpy.median` and a cast to integers give it."""
    return ((low.astype(np.float64) + high) / 2).astype(np.int64)
