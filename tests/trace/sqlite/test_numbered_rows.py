"""Combinations of columns are numbered alike from pages, from decoded columns and by SQLite."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.databases import refuse
from traceprof.trace.model.special_values import NULL
from traceprof.trace.sqlite import numbering as numbered_rows
from traceprof.trace.sqlite import read_columns as reader
from traceprof.trace.sqlite.database import Database
from traceprof.trace.sqlite.numbering import NumberedRows
from traceprof.trace.sqlite.read_columns import read_columns
from traceprof.trace.sqlite.records import decode_columns

FEW = st.one_of(st.none(), st.sampled_from([0, 1, 2, -1, 127, 128, 40_000, 1 << 31, -(1 << 62)]))
MANY = st.integers(-(1 << 63) + 1, (1 << 63) - 1)
TEXTS = st.one_of(st.none(), st.sampled_from(["", "a", "kernel<float>", "x" * 70]))
# a, b and d are numbered; between them are one of other integers and a text that nobody wants.
ROWS = st.lists(st.tuples(FEW, FEW, st.one_of(FEW, MANY), FEW, TEXTS, FEW), max_size=60)
NAMES = ("a", "b", "d")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("databases")


def written(folder: Path, rows: Sequence[tuple[object, ...]]) -> Path:
    path = folder / "rows.sqlite"
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA page_size = 512")
        connection.execute(
            "CREATE TABLE t (start INTEGER, a INTEGER, b INTEGER, other INTEGER, d INTEGER,"
            " note TEXT, last INTEGER)"
        )
        connection.executemany(
            "INSERT INTO t VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(number, *row[:4], row[4], row[5]) for number, row in enumerate(rows)],
        )
    connection.close()
    return path


def combinations(path: Path, names: Sequence[str], columns: Sequence[str]) -> list[Any]:
    """Return the combination of each row, as its number means it, and the other columns."""
    numbered = NumberedRows(names)
    database = Database(path)
    found: list[Any] = []
    for chunk in read_columns(database, "t", [*columns, *names], rows={"number": numbered}):
        assert not {*names} & {*chunk}
        means = numbered.rows[chunk["number"]].tolist()
        found += zip(means, *(chunk[name].tolist() for name in columns), strict=True)
    database.close()
    met = numbered.rows.tolist()
    assert len({tuple(row) for row in met}) == len(met) == len(numbered)
    firsts = [*dict.fromkeys(tuple(row) for row, *_ in found)]
    assert firsts == [tuple(row) for row in met]  # in the order in which they are met
    return found


def expected(path: Path, names: Sequence[str], columns: Sequence[str]) -> list[Any]:
    connection = sqlite3.connect(path)
    query = f"SELECT {', '.join((*names, *columns))} FROM t ORDER BY rowid"
    rows = [
        [NULL if value is None else value for value in row] for row in connection.execute(query)
    ]
    connection.close()
    return [(row[: len(names)], *row[len(names) :]) for row in rows]


@settings(deadline=None, max_examples=20)
@given(ROWS)
def test_they_mean_what_the_rows_have(folder: Path, rows: list[tuple[object, ...]]) -> None:
    path = written(folder, rows)
    for names, columns in (
        (NAMES, ["start"]),  # a column in between belongs to the bytes, but to no combination
        (NAMES, ["start", "other"]),  # a wanted column in between
        (("a", "b"), ["start", "last"]),
        (("b", "a"), ["start", "d"]),  # not in the order of the table
        (("d", "last"), ["start"]),  # a text in between
        (("rowid", "a"), ["start"]),
        (("rowid",), []),
        (("rowid",), ["start"]),
        (("a",), []),
    ):
        assert combinations(path, names, columns) == expected(path, names, columns)


@settings(deadline=None, max_examples=12)
@given(ROWS)
def test_without_pages_they_are_the_same(folder: Path, rows: list[tuple[object, ...]]) -> None:
    path = written(folder, rows)
    by_pages = combinations(path, NAMES, ["start"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "decode_columns", refuse)
        assert combinations(path, NAMES, ["start"]) == by_pages


@settings(deadline=None, max_examples=12)
@given(ROWS)
def test_page_by_page_they_are_the_same(folder: Path, rows: list[tuple[object, ...]]) -> None:
    path = written(folder, [*rows, *rows])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "decode_columns", decode_page_by_page)
        assert combinations(path, NAMES, ["start"]) == expected(path, NAMES, ["start"])
        # Several combinations share a slot.
        patch.setattr(numbered_rows, "_SLOT_BITS", 1)
        patch.setattr(numbered_rows, "_SLOT_SHIFT", np.uint64(63))
        assert combinations(path, NAMES, ["start"]) == expected(path, NAMES, ["start"])


def decode_page_by_page(*args: Any) -> Any:
    return decode_columns(*args, window_bytes=512)


@pytest.mark.long
def test_each_of_many_is_another(folder: Path) -> None:
    rows = [(number, number >> 3, 0, -number, None, 0) for number in range(40_000)]
    path = written(folder, rows)
    assert combinations(path, NAMES, ["start"]) == expected(path, NAMES, ["start"])
