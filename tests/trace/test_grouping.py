"""Rows that agree in several keys, and medians of what is known."""

import numpy as np
import pytest

from traceprof.trace.grouping import grouped, median_of, medians_of_known, places, sorted_in_groups

RANDOM = np.random.default_rng(1)


@pytest.mark.parametrize("length", [0, 1, 2, 1000])
@pytest.mark.parametrize("highest", [1, 7, 1 << 20, 1 << 40, (1 << 63) - 1])
@pytest.mark.parametrize("lowest", [0, -3])
def test_the_order_of_rows(length: int, highest: int, lowest: int) -> None:
    first, second = (RANDOM.integers(lowest, highest, length) for _ in range(2))
    few = first % 5
    for keys in ([first], [few, second], [second, few, first], [few, few % 2]):
        order, begins = grouped(*keys)
        assert order.tolist() == np.lexsort(keys[::-1]).tolist()
        rows = [*zip(*(key[order].tolist() for key in keys), strict=True)]
        assert begins.tolist() == [at == 0 or row != rows[at - 1] for at, row in enumerate(rows)]


@pytest.mark.parametrize("length", [0, 1, 2, 1000])
def test_places_count_the_rows_of_the_same_keys(length: int) -> None:
    first, second = (RANDOM.integers(-1, 5, length) for _ in range(2))
    rows = list(zip(first.tolist(), second.tolist(), strict=True))
    place, count = places(first, second)
    assert place.tolist() == [rows[:at].count(row) for at, row in enumerate(rows)]
    assert count.tolist() == [rows.count(row) for row in rows]


@pytest.mark.parametrize("longest", [1, 1 << 20, (1 << 26) - 1, 1 << 26, 1 << 40, 1 << 62])
def test_values_in_groups_are_sorted_in_32_bits_in_64_and_by_two_keys(longest: int) -> None:
    group = RANDOM.integers(0, 64, 500)
    values = np.append(RANDOM.integers(0, longest, 499), longest)
    expected = values[np.lexsort((values, group))]
    assert np.array_equal(sorted_in_groups(values, group), expected)
    assert len(sorted_in_groups(values[:0], group[:0])) == 0


@pytest.mark.parametrize("length", [1, 2, 5, 8])
def test_medians_of_what_is_known(length: int) -> None:
    values = RANDOM.integers(0, 100, (40, length)).astype(np.float64)
    values[RANDOM.random(values.shape) < 0.3] = np.nan
    values[:, 0] = 1
    assert medians_of_known(values).tolist() == np.nanmedian(values, axis=1).tolist()
    assert np.isnan(medians_of_known(np.full((2, length), np.nan))).all()


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
