"""Rows that agree in some columns, in order, and numbered; distinct values, and medians.

numpy's own functions for the latter import its masked arrays, and take longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from traceprof.intervals import Float64, Int64, Mask

# Slices to be copied one by one; beyond, sorting the rows takes less time.
_MAX_RUNS = 64
_MAX_BITS = 62
_NARROW_BITS = 32
_COUNTED_BITS = 16  # of numbers that numpy sorts by counting
_FEW = 8  # values that are compared one by one
_FEW_TO_SORT = 32  # values that Python sorts sooner than numpy
_TIMES_MANY = 8  # as many places of a table as values cost less than searching


def grouped(*keys: Int64) -> tuple[Int64, Mask]:
    """Order of rows by several columns, int64[n] each, and where others begin than before.

    The first column counts first; rows that agree in all of them keep their order. The mask says of
    each row in this order whether it differs from the one before. Small numbers that fit one
    together are sorted as one, many times as fast as `np.lexsort`.
    """
    begins = np.ones(len(keys[0]), np.bool_)
    bits = [int(key.max(initial=0)).bit_length() for key in keys]
    if sum(bits) > _MAX_BITS or min(int(key.min(initial=0)) for key in keys) < 0:
        order = np.lexsort(keys[::-1])
        begins[1:] = np.logical_or.reduce([np.diff(key[order]) != 0 for key in keys])
        return order, begins
    joined: npt.NDArray[Any] = keys[0].astype(np.int64 if sum(bits) > _NARROW_BITS else np.uint32)
    for key, width in zip(keys[1:], bits[1:], strict=True):
        joined <<= width
        joined |= key.astype(joined.dtype, copy=False)
    order, joined = in_order(joined, sum(bits))
    np.not_equal(joined[1:], joined[:-1], out=begins[1:])
    return order, begins


def in_order(numbers: npt.NDArray[Any], bits: int) -> tuple[Int64, npt.NDArray[Any]]:
    """Order of numbers from 0, equal ones as they are, and the numbers in this order.

    By 16 bits at a time, the lowest first: numpy counts those instead of comparing them. `bits`: of
    the largest number.
    """
    order = None
    for done in range(0, max(bits, 1), _COUNTED_BITS):
        by_digits = _by_digits(numbers, done, bits)
        numbers = numbers.take(by_digits)
        order = by_digits if order is None else order.take(by_digits)
    assert order is not None  # noqa: S101
    return order, numbers


def _by_digits(numbers: npt.NDArray[Any], done: int, bits: int) -> Int64:
    digits = numbers >> done if done else numbers
    kind = np.uint8 if bits - done <= _COUNTED_BITS // 2 else np.uint16
    return np.argsort(digits.astype(kind), kind="stable")


def sorted_in_groups(values: Int64, group: npt.NDArray[np.integer[Any]]) -> Int64:
    """Values by group, then value; neither is negative."""
    bits = int(values.max(initial=0)).bit_length()
    of_both = bits + int(group.max(initial=0)).bit_length()
    if of_both > _MAX_BITS:
        return values[np.lexsort((values, group))]
    # Sorting one key is several times as fast as two.
    keys: npt.NDArray[Any] = group.astype(np.int64 if of_both > _NARROW_BITS else np.uint32)
    keys <<= bits
    keys |= values.astype(keys.dtype, copy=False)
    for done in range(0, of_both, _COUNTED_BITS):
        keys = keys.take(_by_digits(keys, done, of_both))
    both = keys.astype(np.int64, copy=False)
    both &= (1 << bits) - 1
    return both


def ordered(*keys: Int64) -> Int64:
    """Order of rows by several columns, as `grouped` has it."""
    return grouped(*keys)[0]


def numbered(values: Int64) -> tuple[Int64, Int64]:
    """Return the distinct values, ascending int64[m], and the index of each among them, int64[n].

    As `np.unique` does, in a fraction of the time: by a table where they lie close to each other.
    """
    low = int(values.min(initial=0))
    bits = (int(values.max(initial=0)) - low).bit_length()
    if bits > _MAX_BITS:
        return np.unique(values, return_inverse=True)
    if 1 << bits > 2 * len(values):
        order, ascending = in_order(values - low, bits)
        begins = np.ones(len(values), np.bool_)
        np.not_equal(ascending[1:], ascending[:-1], out=begins[1:])
        number = np.empty(len(values), np.int64)
        number[order] = np.cumsum(begins) - 1
        return ascending[begins] + low, number
    occurs = np.zeros(1 << bits, np.bool_)
    above = values - low if low else values
    occurs[above] = True
    return np.flatnonzero(occurs) + low, (np.cumsum(occurs) - 1).take(above)


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
    """Yield the indices of the rows that agree in every key, in the order of the rows."""
    indices: dict[tuple[int, ...], list[Int64]] = {}
    every = np.arange(len(keys[0]))
    for rows in pieces(*keys):
        indices.setdefault(tuple(int(key[rows][0]) for key in keys), []).append(every[rows])
    for parts in indices.values():
        yield np.concatenate(parts)


def pieces(*keys: Int64, most_runs: int = _MAX_RUNS) -> Iterator[slice | Int64]:
    """Yield rows that agree in every key, in order, in few pieces if that is quick.

    Rows of one process or device often follow each other: then slices are yielded, which need no
    copy, and a key may occur several times: in up to 64 runs, or `most_runs` if that is less.
    """
    if len(keys[0]) == 0:
        return
    differ = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    first = np.flatnonzero(np.append(True, differ))
    stop = np.append(first[1:], len(keys[0]))
    if len(first) <= min(most_runs, _MAX_RUNS):
        for limits in zip(first.tolist(), stop.tolist(), strict=True):
            yield slice(*limits)
        return
    of_runs = [key[first] for key in keys]
    order = np.lexsort(of_runs)
    changes = np.logical_or.reduce([np.diff(key[order], prepend=key[order[:1]]) for key in of_runs])
    number = np.empty(len(first), np.int64)
    number[order] = np.cumsum(changes)
    # A stable sort of 16 bits is many times as fast as one of 64.
    number = number.astype(np.min_scalar_type(int(number.max())))
    of_rows = np.repeat(number, stop - first)
    rows = np.argsort(of_rows, kind="stable")
    yield from np.split(rows, np.cumsum(np.bincount(of_rows))[:-1])


def distinct_values(values: npt.NDArray[np.integer[Any]]) -> Int64:
    """Return the distinct values of an array of integers, ascending int64[m].

    Values of which many follow an equal one take a tenth of the time of `np.unique`.
    """
    values = np.asarray(values).reshape(-1)
    if len(values) <= _FEW_TO_SORT:
        return np.array(sorted({*values.astype(np.int64, copy=False).tolist()}), np.int64)
    changes = np.flatnonzero(values[1:] != values[:-1])
    changes += 1
    runs = np.append(values[:1], values.take(changes)).astype(np.int64, copy=False)
    runs.sort()
    is_first = np.ones(len(runs), np.bool_)
    np.not_equal(runs[1:], runs[:-1], out=is_first[1:])
    return runs[is_first]


def is_in(values: npt.NDArray[np.integer[Any]] | int, among: npt.ArrayLike) -> Mask:
    """Return which integers of an array are among others, in the shape of the array."""
    values = np.asarray(values)
    wanted = distinct_values(np.asarray(among, np.int64))
    mask: Mask
    if len(wanted) <= _FEW:
        mask = np.zeros(values.shape, np.bool_)
        for value in wanted.tolist():
            mask |= values == value
        return mask
    low, high = int(wanted[0]), int(wanted[-1])
    if high - low > _TIMES_MANY * (len(wanted) + values.size):
        mask = wanted.take(np.searchsorted(wanted, values), mode="clip") == values
        return mask
    table = np.zeros(high - low + 3, np.bool_)
    table[wanted - (low - 1)] = True
    mask = table.take(values.astype(np.int64, copy=False) - (low - 1), mode="clip")
    return mask


def common_values(values: Int64, others: Int64) -> Int64:
    """Return the distinct values that are among others, ascending int64[m]."""
    values = distinct_values(values)
    return values[is_in(values, others)]


def without(values: Int64, others: Int64) -> Int64:
    """Return the distinct values that are not among others, ascending int64[m]."""
    values = distinct_values(values)
    return values[~is_in(values, others)]


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
    if axis is None:
        numbers, axis = numbers.reshape(-1), 0
    num = numbers.shape[axis]
    if num == 0:
        return np.full(np.delete(numbers.shape, axis), np.nan)[()]
    middle = [(num - 1) // 2, num // 2]
    is_inexact = numbers.dtype.kind == "f"
    parted = np.partition(numbers, [*middle, num - 1] if is_inexact else middle, axis)
    medians: Float64 = parted.take(range(middle[0], middle[1] + 1), axis).mean(axis)
    if is_inexact:
        last = parted.take(-1, axis)  # NaN is the greatest number
        if np.isnan(last).any():
            return np.where(np.isnan(last), np.nan, medians)[()]
    return medians


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
    medians: Float64 = (low + high) / 2
    return medians


def quantiles_of(values: npt.ArrayLike, fractions: Sequence[float]) -> Float64:
    """Quantiles along the last axis, between two numbers in proportion, float64[q, ...].

    The last axis has at least one number; the q fractions are 0 to 1.
    """
    numbers = np.asarray(values)
    last = numbers.shape[-1] - 1
    place = last * np.array(fractions)
    low = np.minimum(np.floor(place).astype(np.int64), last)
    high = np.minimum(low + 1, last)
    parted = np.partition(numbers, np.append(low, high), -1)
    below, above = (np.moveaxis(parted.take(at, -1), -1, 0) for at in (low, high))
    share = (place - low).reshape(-1, *(1,) * (numbers.ndim - 1))
    between = above - below
    # From the nearer one, as numpy does.
    quantiles: Float64 = np.where(
        share < 0.5, below + between * share, above - between * (1 - share)
    )
    return quantiles


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
