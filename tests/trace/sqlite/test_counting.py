"""Rows are counted from the pages as SQLite counts them, or by it."""

import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from tests.support.databases import made, opened, written
from traceprof.errors import TraceFormatError
from traceprof.trace.sqlite import read_columns as reader
from traceprof.trace.sqlite.database import Database


@pytest.mark.parametrize("rows", [0, 1, 5000])
def test_rows_of_tables(path: Path, rows: int) -> None:
    made(path, "CREATE TABLE t (a INTEGER)")
    with closing(written(path)) as connection:
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO t VALUES (?)", ((number,) for number in range(rows)))
        connection.execute("COMMIT")
        connection.execute("DELETE FROM t WHERE a % 7 = 3")
    database = Database(path)
    with closing(database.connection):
        assert reader.count_rows(database, "t") == sum(number % 7 != 3 for number in range(rows))
        assert reader.count_rows(database, "nothing") == 0


def test_rows_that_were_read_are_counted(path: Path) -> None:
    made(path, "CREATE TABLE t (a INTEGER)", "INSERT INTO t VALUES (3), (4)")
    database = Database(path)
    with closing(database.connection):
        rows = reader.read_columns(database, "t", ["a"])
        assert [chunk["a"].tolist() for chunk in rows] == [[3, 4]]
        assert reader.count_rows(database, "t") == 2


def test_rows_of_a_table_without_rowids(path: Path) -> None:
    made(path, "CREATE TABLE t (a INTEGER PRIMARY KEY) WITHOUT ROWID", "INSERT INTO t VALUES (3)")
    database = Database(path)
    with closing(database.connection):
        assert reader.count_rows(database, "t") == 1


def test_damaged_pages_are_counted_as_sqlite_does_or_not_at_all(path: Path) -> None:
    made(path, "CREATE TABLE t (a INTEGER, b TEXT)", page_size=512)
    with closing(written(path)) as connection:
        rows = ((number, "x" * (number % 40)) for number in range(900))
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO t VALUES (?, ?)", rows)
        connection.execute("COMMIT")
    whole, num_refused = path.read_bytes(), 0
    for seed in range(60):
        chosen, data = Random(seed), bytearray(whole)
        for _ in range(chosen.choice([1, 3])):  # in the headers of pages
            place = chosen.randrange(1, len(data) // 512) * 512 + chosen.randrange(12)
            data[place] = chosen.randrange(256)
        path.write_bytes(data)
        database = Database(path)
        with closing(database.connection), closing(opened(path)) as connection:
            try:
                (expected,) = connection.execute("SELECT count(*) FROM t").fetchone()
            except sqlite3.DatabaseError:
                num_refused += 1
                with pytest.raises(TraceFormatError):
                    reader.count_rows(database, "t")
            else:
                assert reader.count_rows(database, "t") == expected
    assert 10 < num_refused < 50
