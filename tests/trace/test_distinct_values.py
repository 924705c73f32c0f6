"""Distinct values, medians and quantiles, as numpy has them, without its masked arrays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from traceprof.intervals import Float64, Int64
from traceprof.trace.grouping import (
    common_values,
    distinct_values,
    is_in,
    median_of,
    quantiles_of,
    without,
)

MOST = np.iinfo(np.int64).max
INTEGERS = st.one_of(st.integers(-3, 3), st.integers(-300, 300), st.integers(-MOST - 1, MOST))
NUMBERS = arrays(np.int64, st.integers(0, 40), elements=INTEGERS)
FLOATS = st.floats(-1e12, 1e12, allow_subnormal=False)
TABLES = arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 9)), elements=FLOATS)


@given(NUMBERS, NUMBERS)
def test_sets(values: Int64, others: Int64) -> None:
    mine, theirs = set(values.tolist()), set(others.tolist())
    assert distinct_values(values).tolist() == sorted(mine)
    assert common_values(values, others).tolist() == sorted(mine & theirs)
    assert without(values, others).tolist() == sorted(mine - theirs)
    assert is_in(values, others).tolist() == [value in theirs for value in values.tolist()]


def test_sets_of_few_and_of_narrow_values() -> None:
    bytes_ = np.array([[3, 255], [3, 0]], np.uint8)
    assert distinct_values(bytes_).tolist() == [0, 3, 255]
    assert is_in(bytes_, [255, -1, 256, 3]).tolist() == [[True, True], [True, False]]
    assert is_in(bytes_, range(3, 300)).tolist() == [[True, True], [True, False]]
    assert is_in(bytes_, range(3, MOST, MOST // 20)).tolist() == [[True, False], [True, False]]
    one = np.array([7])
    assert not np.shares_memory(distinct_values(one), one)
    assert is_in(7, one)


@given(arrays(np.int64, st.integers(1, 40), elements=INTEGERS))
def test_medians_of_integers(values: Int64) -> None:
    assert median_of(values) == np.median(values)
    assert median_of(values.tolist()) == np.median(values)


@given(TABLES, st.sampled_from([None, 0, 1]))
def test_medians_of_numbers(values: Float64, axis: int | None) -> None:
    assert np.array_equal(median_of(values, axis), np.median(values, axis))


@given(TABLES, st.lists(st.floats(0, 1), min_size=1, max_size=3))
def test_quantiles(values: Float64, fractions: list[float]) -> None:
    expected = np.quantile(values, fractions, axis=1)
    assert quantiles_of(values, fractions).tobytes() == expected.tobytes()
    assert quantiles_of(values[0], fractions).tobytes() == expected[:, 0].tobytes()


@pytest.mark.parametrize(
    ("values", "axis", "expected"),
    [
        ([], None, np.nan),
        ([1.0, np.nan, 2.0], None, np.nan),
        (np.empty((2, 0)), 1, [np.nan, np.nan]),
        (np.array([[1, np.nan], [2, 3]]), 1, [np.nan, 2.5]),
    ],
)
def test_medians_that_are_unknown(values: list[float], axis: int | None, expected: object) -> None:
    found = median_of(values) if axis is None else median_of(values, axis)
    assert np.array_equal(found, np.array(expected), equal_nan=True)
