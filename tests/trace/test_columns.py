"""Columns hold what was put into them, whatever it is."""

import pickle
from typing import cast
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceprof.intervals import Int64, Mask
from traceprof.structs import Record
from traceprof.trace import columns
from traceprof.trace.columns import Column, ColumnBuilder, Packed, pack, pack_ahead
from traceprof.trace.grouping import groups
from traceprof.trace.nsight.rows import RowsByKey
from traceprof.trace.sqlite.database import Database

LEAST, GREATEST = -(1 << 63), (1 << 63) - 1
NUMBERS = st.one_of(
    st.integers(LEAST, GREATEST),
    st.integers(-3, 300),
    st.integers(1 << 48, (1 << 48) + 70_000),
    st.sampled_from([LEAST, GREATEST, 0, 255, 256, 65535, 65536, (1 << 32) - 1, 1 << 32]),
)
COLUMNS = st.lists(NUMBERS, max_size=20)


def built(numbers: list[int], part: int = 3) -> Column:
    builder = ColumnBuilder()
    for begin in range(0, len(numbers), part):
        builder.append(np.array(numbers[begin : begin + part], np.int64))
    return builder.finish()


def assert_holds(column: Column, numbers: list[int]) -> None:
    assert len(column) == len(numbers)
    order, distinct = np.arange(len(numbers))[::-1], sorted({*numbers})
    assert column.values.dtype == np.int64
    assert column.values.tolist() == column.kept.tolist() == numbers
    assert column.at(order).tolist() == column.taken(order).values.tolist() == numbers[::-1]
    assert column.at(slice(1, -1, 2)).tolist() == numbers[1:-1:2]
    assert column.at(np.arange(len(numbers)) % 2 == 0).tolist() == numbers[::2]
    assert column.distinct.tolist() == distinct
    assert column.counted()[1].tolist() == [numbers.count(number) for number in distinct]
    some = numbers[::2]
    assert column.counted(slice(None, None, 2))[0].tolist() == sorted({*some})
    assert column.isin(some).tolist() == [number in some for number in numbers]
    places = column.places_in(np.array(distinct, np.int64))
    assert places.tolist() == [distinct.index(number) for number in numbers]
    if numbers:
        assert column.first == numbers[0]
    assert column.whole.tolist() == numbers
    assert column.whole is column.whole
    column.release()
    sent = pickle.loads(pickle.dumps(column))  # noqa: S301  (our own)
    assert sent.values.tolist() == numbers


@given(COLUMNS)
def test_a_column_comes_back(numbers: list[int]) -> None:
    assert_holds(pack(np.array(numbers, np.int64)), numbers)
    assert_holds(built(numbers), numbers)


_ROWS = 3
NEAR = st.tuples(
    st.integers(-(1 << 62), 1 << 62),
    st.lists(st.integers(-9, 1 << 31), min_size=_ROWS, max_size=_ROWS),
)


@given(st.lists(NEAR, max_size=6), st.integers(0, _ROWS - 1))
def test_blocks_of_numbers_near_each_other(
    blocks: list[tuple[int, list[int]]], num_missing: int
) -> None:
    numbers = [base + step for base, steps in blocks for step in steps]
    numbers = numbers[: max(len(numbers) - num_missing, 0)]
    with mock.patch.object(columns, "_BLOCK_ROWS", _ROWS):
        column = pack(np.array(numbers, np.int64))
        assert_holds(column, numbers)
        assert column.add_to(np.zeros(len(numbers), np.int64)).tolist() == numbers
    assert column.nbytes <= 4 * len(numbers)


@given(st.lists(st.integers(-1000, 1000), min_size=1), st.integers(-(1 << 40), 1 << 40))
def test_sums(numbers: list[int], more: int) -> None:
    column = pack(np.array(numbers, np.int64))
    assert column.add_to(np.full(len(numbers), more)).tolist() == [n + more for n in numbers]


def test_times_take_half_of_the_memory() -> None:
    times = np.arange(10**18, 10**18 + 500_000 * 100_000, 100_000)  # 50 s
    column = pack(times)
    assert column.nbytes == times.nbytes / 2
    assert np.array_equal(column.whole, times)
    assert column.nbytes == times.nbytes * 3 / 2
    column.release()
    assert column.nbytes == times.nbytes / 2
    chosen = np.arange(0, len(times), 7)[::-1]
    assert np.array_equal(column.at(chosen), times[chosen])
    assert np.array_equal(built(times.tolist(), 9999).values, times)


def test_many_rows() -> None:
    column, parts = ColumnBuilder(), [np.arange(1_000) * step for step in (0, 1, 5, 100_000) * 200]
    for part in parts:
        column.append(part)
    assert np.array_equal(column.finish().values, np.concatenate(parts))


@pytest.mark.parametrize(
    ("numbers", "size"),
    [
        ([0, 255], 1), ([0, 256], 2), ([1 << 48, (1 << 48) + 255], 1), ([-1, 1], 1),
        ([LEAST, LEAST + 255], 1), ([0, (1 << 32) - 1], 4), ([-1, (1 << 32) - 1], 8),
        ([LEAST, 1], 8),
    ],
)  # fmt: skip
def test_bytes_of_a_number(numbers: list[int], size: int) -> None:
    assert pack(np.array(numbers)).nbytes == built(numbers, 1).nbytes == 2 * size


@pytest.mark.parametrize(("number", "size"), [(0, 1), (-1, 1), (LEAST, 1), (1 << 16, 4)])
def test_one_number_is_kept_once(number: int, size: int) -> None:
    numbers = [number] * 100_000
    sent = pickle.dumps(pack(np.array(numbers)))
    assert len(sent) < 1000
    for column in (pack(np.array(numbers)), built(numbers, 1000), pickle.loads(sent)):  # noqa: S301  (our own)
        assert column.values.tolist() == numbers
        assert column.at(slice(5)).tolist() == numbers[:5]
        assert column.taken(np.array([3, 7])).values.tolist() == numbers[:2]
        assert column.nbytes == size


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=300))
def test_rows_by_key(keys: list[tuple[int, int]]) -> None:
    first, second = np.array(keys, np.int64).T
    number, half = np.arange(len(keys)), len(keys) // 2
    parts = RowsByKey(cast("Database", None), "t")
    for chunk in (slice(half), slice(half, None)):
        parts.add({"number": number[chunk]}, first[chunk], second[chunk])
    found = {key: columns["number"].values.tolist() for key, columns in parts.finished()}
    assert [*found] == sorted({*keys})
    for key, rows_of_key in found.items():
        assert rows_of_key == [row for row, numbers in enumerate(keys) if numbers == key]
    whole = {(int(first[rows[0]]), int(second[rows[0]])): rows for rows in groups(first, second)}
    assert {key: rows.tolist() for key, rows in whole.items()} == found


@pytest.mark.parametrize(("step", "size"), [(1, 1), (3, 2), (70, 4)])
def test_ids_that_run_ahead_slowly_take_two_bytes(step: int, size: int) -> None:
    ids = 5 + np.arange(100_000) * step
    packed = pack_ahead(ids)
    assert (packed.add_to(np.arange(len(ids))) == ids).all()
    assert packed.nbytes <= size * len(ids)
    some = np.array([99_999, 0, 50_000, 32_768])
    assert (packed.at(some) == (ids - np.arange(len(ids)))[some]).all()
    number = 5 + 40_000 * (step - 1)
    assert packed.isin([number])[40_000]
    assert packed.isin([number]).sum() == (1 if step > 1 else len(ids))


class Table(Record, frozen=True):
    rank: int
    numbers: Int64
    parts: Int64
    is_known: Mask
    names: tuple[str, ...] = ()


@pytest.mark.parametrize("num", [0, 1, 20, 10_000])
def test_a_record_is_unpacked_as_it_was_packed(num: int) -> None:
    """Small ones are compressed."""
    random = np.random.default_rng(5)
    numbers, parts = random.integers(-1, 1 << 40, num), random.integers(0, 1 << 20, (num, 3))
    before = Table(3, numbers, parts, numbers % 2 == 0, ("a",))
    packed = pickle.loads(pickle.dumps(Packed.of(before)))  # noqa: S301  (our own)
    assert isinstance(packed.data, bytes) == (num == 20)
    after = packed.unpacked
    assert (after.rank, after.names) == (3, ("a",))
    for name in ("numbers", "parts", "is_known"):
        found, expected = getattr(after, name), getattr(before, name)
        np.testing.assert_array_equal(found, expected)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
