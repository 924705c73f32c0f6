"""Columns of large tables as numpy arrays, chunk by chunk.

`read_columns` is the only way by which the rest of traceprof reads a table of events. It decodes
the file's pages itself, which is several times as fast as any query, and leaves to SQLite what it
does not understand: rows that go on elsewhere, values that are no integers, damage.
"""

from __future__ import annotations

import threading
import warnings
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import tee
from string import whitespace
from typing import TYPE_CHECKING, Any

import numpy as np

from traceprof.trace import shapes
from traceprof.trace.database import Database, quote
from traceprof.trace.layout import layout_of
from traceprof.trace.pages import Unsupported
from traceprof.trace.records import decode_columns

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from traceprof.intervals import Int64

NULL = shapes.NULL
"""What stands in a column where the export has NULL."""

# numpy reads these, which no integer's text has, as 0 or as nothing.
_READ_LAXLY = (*whitespace, "+", "-,")
_LAST_ROWID = int(np.iinfo(np.int64).max)

# Large enough that the cost per query vanishes, small enough that a chunk's text fits the cache.
_CHUNK_ROWS = 32_768
_LONGEST_TEXT = 1000
# A third finds nothing to do: parsing and what follows it take as long as two threads fetch.
_THREADS = 2


def read_columns(
    database: Database, table: str, columns: Sequence[str], *, chunk_rows: int = _CHUNK_ROWS
) -> Iterator[dict[str, Int64]]:
    """Yield integer columns of a table, some ten thousand rows at a time, in no particular order.

    Args:
        database: the open file.
        table: a table with a rowid; absent means no rows.
        columns: names of integer columns that the table has.
        chunk_rows: the most rows in a chunk that SQLite has to read.

    Yields:
        One int64[rows] array for each column, `NULL` where the export has NULL.

    Raises:
        TraceFormatError: the file is damaged, or a value is not an integer.
    """
    if table not in database.columns:
        return
    for chunk in _chunks(database, table, columns, chunk_rows):
        if database.progress is not None:
            database.progress.advance(len(chunk[columns[0]]))
        yield chunk


def read_columns_and_text(
    database: Database, table: str, columns: Sequence[str], text: str
) -> Iterator[tuple[dict[str, Int64], list[bytes]]]:
    """Yield integer columns and a column of text, some ten thousand rows at a time, in any order.

    Args:
        database: the open file.
        table: a table with a rowid.
        columns: names of integer columns that the table has.
        text: name of a column of text that it has.

    Yields:
        int64[rows] arrays as `read_columns` does; and the texts, in UTF-8, the first thousand
        characters of each, empty where the export has NULL.

    Raises:
        TraceFormatError: the file is damaged, or a value is not an integer.
    """
    rowid = database.rowid(table)
    shown = f"ifnull(substr({quote(text)}, 1, {_LONGEST_TEXT}), '')"
    source = f"FROM {quote(table)} WHERE {rowid} BETWEEN ? AND ?"
    joined = ", ".join(f"group_concat(ifnull({quote(name)}, {NULL}))" for name in columns)
    query = f"SELECT count(*), {joined}, CAST(group_concat({shown}, char(0)) AS BLOB) {source}"
    slices, limits = tee(_slices(database, table, rowid, _CHUNK_ROWS, NULL, _LAST_ROWID))
    for (count, *texts, names), of_rows in zip(_run(database, query, slices), limits, strict=True):
        if not count:
            continue
        parts = names.split(b"\0")
        if len(parts) != count:  # a text holds what stands between texts
            with database.damage_reported():
                single = f"SELECT CAST({shown} AS BLOB) {source}"
                parts = [row[0] for row in database.connection.execute(single, of_rows)]
        if database.progress is not None:
            database.progress.advance(count)
        yield (
            {
                name: _parse(each, count, database, table, name)
                for name, each in zip(columns, texts, strict=True)
            },
            parts,
        )


def _chunks(
    database: Database, table: str, columns: Sequence[str], chunk_rows: int
) -> Iterator[dict[str, Int64]]:
    """Yield rows from the file's pages as far as possible, and the others through SQLite."""
    read = partial(_through_sqlite, database, table, columns, database.rowid(table), chunk_rows)
    first = NULL
    try:
        layout = layout_of(database.connection, table, columns)
        for chunk in decode_columns(database.file, layout):
            if chunk.columns is not None:
                yield chunk.columns
            else:
                yield from read(chunk.first, chunk.last)
            first = chunk.last + 1
    except Unsupported:
        yield from read(first, _LAST_ROWID)


def _through_sqlite(
    database: Database, table: str, columns: Sequence[str], rowid: str, chunk_rows: int,
    first: int, last: int,
) -> Iterator[dict[str, Int64]]:  # fmt: skip
    """Yield the rows whose rowids are in [first, last], so many at a time."""
    # SQLite joins the values of a column into one text, and numpy parses it: both loops run in C.
    # Twice as fast as fetching rows, with nothing but the standard library; and SQLite works
    # without Python's lock, so that two threads halve the time.
    joined = ", ".join(f"group_concat(ifnull({quote(name)}, {NULL}))" for name in columns)
    query = (
        f"SELECT count(*), {joined} FROM {quote(table)} "  # noqa: S608
        f"WHERE {rowid} BETWEEN ? AND ?"
    )
    slices = _slices(database, table, rowid, chunk_rows, first, last)
    for count, *texts in _run(database, query, slices):
        if count:  # a damaged index can promise rows that are not there
            yield {
                name: _parse(text, count, database, table, name)
                for name, text in zip(columns, texts, strict=True)
            }


def _slices(
    database: Database, table: str, rowid: str, chunk_rows: int, first: int, last: int
) -> Iterator[tuple[int, int]]:
    """Yield first and last rowid of consecutive chunks; rowids may be negative and have gaps."""
    query = (
        f"SELECT {rowid} FROM {quote(table)} WHERE {rowid} BETWEEN ? AND ? "  # noqa: S608
        f"ORDER BY {rowid} LIMIT 1 OFFSET ?"
    )
    with database.damage_reported():
        row = database.connection.execute(query, (first, last, 0)).fetchone()
    while row is not None:
        begin = row[0]
        with database.damage_reported():
            row = database.connection.execute(query, (begin, last, chunk_rows)).fetchone()
        if row is not None and row[0] <= begin:  # a damaged index would lead in circles
            raise database.damaged(f"the rows of {table} are out of order")
        yield begin, row[0] - 1 if row is not None else last


def _run(
    database: Database, query: str, slices: Iterable[tuple[int, int]]
) -> Iterator[tuple[Any, ...]]:
    """Yield the query's one row for each slice, in order; threads work ahead of the reader."""
    of_thread = threading.local()
    connections: list[sqlite3.Connection] = []

    def fetch(limits: tuple[int, int]) -> tuple[Any, ...]:
        if not hasattr(of_thread, "connection"):
            of_thread.connection = database.connect()
            connections.append(of_thread.connection)
        row: tuple[Any, ...] = of_thread.connection.execute(query, limits).fetchone()
        return row

    pending: deque[Future[tuple[Any, ...]]] = deque()
    try:
        with database.damage_reported(), ThreadPoolExecutor(_THREADS) as pool:
            for limits in slices:
                pending.append(pool.submit(fetch, limits))
                if len(pending) > _THREADS:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
    finally:
        for each in connections:
            each.close()


def expect_rows(database: Database, tables: Sequence[str]) -> None:
    """Announce to the database's progress that these tables will be read."""
    if database.progress is None:
        return
    for table in tables:
        if table in database.columns:
            with database.damage_reported():
                query = f"SELECT max({database.rowid(table)}) FROM {quote(table)}"  # noqa: S608
                highest = database.connection.execute(query).fetchone()[0]
            database.progress.expect(max(highest or 0, 0))


def count_rows(database: Database, table: str) -> int:
    """Return the number of rows of a table, 0 where it is absent."""
    if table not in database.columns:
        return 0
    with database.damage_reported():
        query = f"SELECT count(*) FROM {quote(table)}"  # noqa: S608
        return int(database.connection.execute(query).fetchone()[0])


def _parse(text: str, count: int, database: Database, table: str, column: str) -> Int64:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # older numpy only warns over what is no number
            values: Int64 = np.fromstring(text, dtype=np.int64, sep=",")
    except (ValueError, DeprecationWarning):
        values = np.empty(0, np.int64)
    is_lax = text.endswith((",", "-")) or any(each in text for each in _READ_LAXLY)
    if len(values) != count or is_lax:
        raise database.misplaced(table, column, _not_an_integer(database, table, column))
    return values


def _not_an_integer(database: Database, table: str, column: str) -> object:
    name = quote(column)
    with database.damage_reported():
        row = database.connection.execute(
            f"SELECT {name} FROM {quote(table)} "  # noqa: S608
            f"WHERE typeof({name}) NOT IN ('integer', 'null') LIMIT 1"
        ).fetchone()
    return row[0] if row else "something else"
