"""Columns of large tables as numpy arrays, chunk by chunk.

`read_columns` is the only way by which the rest of traceprof reads a table of events, so that a
faster reader can take its place.
"""

from __future__ import annotations

import warnings
from string import whitespace
from typing import TYPE_CHECKING

import numpy as np

from traceprof.trace.database import Database, quote

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceprof.intervals import Int64

NULL = int(np.iinfo(np.int64).min)
"""What stands in a column where the export has NULL."""

# numpy reads these, which no integer's text has, as 0 or as nothing.
_READ_LAXLY = (*whitespace, "+", "-,")
_LAST_ROWID = int(np.iinfo(np.int64).max)

# Large enough that the cost per query vanishes, small enough that a chunk's text fits the cache.
_CHUNK_ROWS = 32_768


def read_columns(
    database: Database,
    table: str,
    columns: Sequence[str],
    *,
    where: str = "",
    chunk_rows: int = _CHUNK_ROWS,
) -> Iterator[dict[str, Int64]]:
    """Yield integer columns of a table, some ten thousand rows at a time, in no particular order.

    Args:
        database: the open file.
        table: a table with a rowid; absent means no rows.
        columns: names of integer columns that the table has.
        where: an SQL condition on the table's columns.
        chunk_rows: the number of rows in each chunk but the last.

    Yields:
        One int64[rows] array for each column, `NULL` where the export has NULL.

    Raises:
        TraceFormatError: the file is damaged, or a value is not an integer.
    """
    if table not in database.columns:
        return
    rowid = database.rowid(table)
    # SQLite joins the values of a column into one text, and numpy parses it: both loops run in C.
    # Twice as fast as fetching rows, with nothing but the standard library.
    joined = ", ".join(f"group_concat(ifnull({quote(name)}, {NULL}))" for name in columns)
    names = ", ".join(quote(name) for name in columns)
    condition = f"AND ({where})" if where else ""
    query = (
        f"SELECT count(*), max(row_), {joined} FROM (SELECT {rowid} AS row_, {names} "  # noqa: S608
        f"FROM {quote(table)} WHERE {rowid} >= ? {condition} ORDER BY {rowid} LIMIT ?)"
    )
    first = NULL  # rowids may be negative, and have gaps
    while True:
        with database.damage_reported():
            count, last, *texts = database.connection.execute(query, (first, chunk_rows)).fetchone()
        if not count:
            return
        if last < first:  # else a damaged index would be followed in circles
            raise database.damaged(f"the rows of {table} are out of order")
        if database.progress is not None:
            database.progress.advance(count)
        yield {
            name: _parse(text, count, database, table, name)
            for name, text in zip(columns, texts, strict=True)
        }
        if count < chunk_rows or last == _LAST_ROWID:
            return
        first = last + 1


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
