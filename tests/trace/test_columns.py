"""Packed columns hold what was put into them, whatever it is."""

from __future__ import annotations

import mmap
import pickle
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceprof.trace.columns import Codes, Differences, Growing, GrowingTimes, Packed, pack
from traceprof.trace.grouping import groups, pieces
from traceprof.trace.nsight.rows import Parts

LEAST, GREATEST = -(1 << 63), (1 << 63) - 1
NUMBERS = st.one_of(
    st.integers(LEAST, GREATEST),
    st.integers(-3, 300),
    st.integers(1 << 48, (1 << 48) + 70_000),
    st.sampled_from([LEAST, GREATEST, 0, 255, 256, 65535, 65536, (1 << 32) - 1, 1 << 32]),
)
COLUMNS = st.lists(NUMBERS, max_size=20)


def few(numbers: list[int]) -> Packed:
    codes = Codes()
    halves = (numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :])
    parts = [codes.of(np.array(half, np.int64)) for half in halves]
    return codes.packed(pack(np.concatenate(parts)))


@given(COLUMNS)
def test_a_column_comes_back(numbers: list[int]) -> None:
    order, distinct = np.arange(len(numbers))[::-1], sorted({*numbers})
    for packed in (pack(np.array(numbers, np.int64)), few(numbers)):
        assert packed.values.dtype == np.int64
        assert packed.values.tolist() == numbers
        assert packed.at(order).tolist() == packed.taken(order).values.tolist() == numbers[::-1]
        assert packed.distinct.tolist() == distinct
        assert packed.counted()[1].tolist() == [numbers.count(each) for each in distinct]
        some = numbers[::2]
        assert packed.isin(some).tolist() == [number in some for number in numbers]
        places = packed.places_in(np.array(distinct, np.int64))
        assert places.tolist() == [distinct.index(number) for number in numbers]


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1))
def test_the_highest(numbers: list[int]) -> None:
    assert pack(np.array(numbers, np.int64)).highest == max(numbers)
    alike = [number % 7 for number in numbers]
    assert few(alike).highest == max(alike)


@given(st.lists(st.integers(-2, 260)))
def test_few_numbers_far_apart(indices: list[int]) -> None:
    numbers = [index << 50 for index in indices]
    packed = few(numbers)
    assert packed.values.tolist() == numbers
    assert packed.kept.itemsize <= 2


@given(st.lists(st.one_of(st.integers(-(1 << 62), 1 << 62), st.integers(10**18, 10**18 + 9))))
def test_differences(numbers: list[int]) -> None:
    column = Differences(np.array(numbers, np.int64))
    assert len(column) == len(numbers)
    assert (column.first, column.last) == ((numbers[0], numbers[-1]) if numbers else (0, 0))
    for _ in range(2):
        assert column.values.tolist() == numbers
        assert column.values is column.values
        column.release()
        for count in (1, 2, len(numbers), len(numbers) + 1):
            if count:
                assert column.tail(count).tolist() == numbers[-count:]
    sent = pickle.loads(pickle.dumps(column))  # noqa: S301  (our own)
    assert sent.values.tolist() == numbers


def test_differences_take_half_of_the_memory() -> None:
    column = Differences(np.arange(10**18, 10**18 + 50_000 * 4000, 4000))
    before = column.values
    column.release()
    assert len(pickle.dumps(column)) < before.nbytes / 2 + 1000
    assert column.values is not before


@given(
    st.lists(st.lists(st.integers(-(1 << 62), 1 << 62) | st.integers(9, 99), min_size=1)), st.data()
)
def test_times_by_parts(parts: list[list[int]], data: st.DataObject) -> None:
    growing = GrowingTimes()
    for part in parts:
        growing.append(np.array(part, np.int64))
    times, numbers = growing.finish(), [*chain(*parts)]
    assert times.values.tolist() == numbers
    chosen = sorted(data.draw(st.sets(st.integers(0, len(numbers) - 1)))) if numbers else []
    found = times.at(np.array(chosen, np.int64))
    assert found.tolist() == [numbers[each] for each in chosen]


def test_times_that_are_near_each_other_take_four_bytes() -> None:
    growing = GrowingTimes()
    for part in range(10):
        growing.append(np.arange(1000) * 4_000_000 + part * 10**18)
    assert growing.finish().added.kept.itemsize == 4


def append(column: Growing, part: np.ndarray[Any, np.dtype[np.int64]]) -> None:
    low, high = (int(part.min()), int(part.max())) if len(part) else (0, 0)
    column.append(part, low, high)


@given(st.lists(COLUMNS, max_size=6))
def test_a_column_grows(parts: list[list[int]]) -> None:
    column = Growing()
    for part in parts:
        append(column, np.array(part, np.int64))
    assert column.finish().values.tolist() == [*chain(*parts)]


@given(st.lists(st.tuples(COLUMNS, COLUMNS), max_size=6))
def test_limits_may_be_wider_than_a_part(parts: list[tuple[list[int], list[int]]]) -> None:
    column = Growing()
    for part, others in parts:
        both = [*part, *others]
        column.append(np.array(part, np.int64), min(both, default=0), max(both, default=0))
    assert column.finish().values.tolist() == [*chain(*(part for part, _ in parts))]


@pytest.mark.parametrize("can_resize", [True, False])
def test_many_parts(can_resize: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traceprof.trace.columns._MIN_MAPPED", 1 << 13)
    if not can_resize:
        monkeypatch.setattr(mmap, "mmap", _Fixed)
    column = Growing()
    for first in range(0, 100_000, 1000):
        append(column, np.arange(first, first + 1000))
    assert np.array_equal(column.finish().values, np.arange(100_000))


class _Fixed(mmap.mmap):
    """A mapping as some systems have them."""

    def resize(self, newsize: int) -> None:
        raise SystemError(newsize)


def test_many_rows() -> None:
    column, parts = Growing(), [np.arange(70_000) * step for step in (0, 1, 5, 100_000)]
    for part in parts:
        append(column, part)
    assert np.array_equal(column.finish().values, np.concatenate(parts))


@pytest.mark.parametrize(
    ("numbers", "size"),
    [
        ([0, 255], 1),
        ([0, 256], 2),
        ([1 << 48, (1 << 48) + 255], 1),
        ([-1, 1], 1),
        ([LEAST, LEAST], 1),
        ([0, (1 << 32) - 1], 4),
        ([-1, (1 << 32) - 1], 8),
        ([LEAST, 1], 8),
    ],
)
def test_bytes_of_a_number(numbers: list[int], size: int) -> None:
    grown = Growing()
    for number in numbers:
        append(grown, np.array([number], np.int64))
    assert pack(np.array(numbers)).kept.itemsize == grown.finish().kept.itemsize == size


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=300))
def test_rows_by_key(keys: list[tuple[int, int]]) -> None:
    first, second = np.array(keys, np.int64).T
    number = np.arange(len(keys))
    parts = Parts()
    for rows in pieces(first, second):
        assert len({*zip(first[rows].tolist(), second[rows].tolist(), strict=True)}) == 1
        key = int(first[rows][0]) * 10 + int(second[rows][0])
        parts.add({"number": number}, [(key, rows)])
    assert len(parts) == len({*keys})
    whole = [
        (int(first[rows[0]]) * 10 + int(second[rows[0]]), rows) for rows in groups(first, second)
    ]
    found = {key: columns["number"].values.tolist() for key, columns in parts.finished()}
    assert [*found] == sorted(found)
    assert {key: rows.tolist() for key, rows in whole} == found
    for key, rows_of_key in found.items():
        of = divmod(key, 10)
        assert rows_of_key == [row for row, each in enumerate(keys) if each == of]
