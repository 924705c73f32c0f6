"""Columns of large tables as numpy arrays, chunk by chunk.

`read_columns` is the only way by which the rest of traceprof reads a table of events, so that a
faster reader can take its place.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from traceprof.errors import TraceFormatError
from traceprof.trace.database import RE_EXPORT, Database, quote

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceprof.intervals import Int64

NULL = int(np.iinfo(np.int64).min)
"""What stands in a column where the export has NULL."""

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
    # SQLite joins the values of a column into one text, and numpy parses it: both loops run in C.
    # Twice as fast as fetching rows, with nothing but the standard library.
    joined = ", ".join(f"group_concat(ifnull({quote(name)}, {NULL}))" for name in columns)
    names = ", ".join(quote(name) for name in columns)
    condition = f"AND ({where})" if where else ""
    query = (
        f"SELECT count(*), max(_rowid_), {joined} FROM (SELECT _rowid_, {names} "  # noqa: S608
        f"FROM {quote(table)} WHERE _rowid_ > ? {condition} ORDER BY _rowid_ LIMIT ?)"
    )
    last = NULL
    while True:
        with database.damage_reported():
            count, last, *texts = database.connection.execute(query, (last, chunk_rows)).fetchone()
        if not count:
            return
        if database.progress is not None:
            database.progress.advance(count)
        yield {
            name: _parse(text, count, database, table, name)
            for name, text in zip(columns, texts, strict=True)
        }
        if count < chunk_rows:
            return


def expect_rows(database: Database, tables: Sequence[str]) -> None:
    """Announce to the database's progress that these tables will be read."""
    if database.progress is None:
        return
    for table in tables:
        if table in database.columns:
            with database.damage_reported():
                query = f"SELECT max(_rowid_) FROM {quote(table)}"  # noqa: S608
                highest = database.connection.execute(query).fetchone()[0]
            database.progress.expect(highest or 0)


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
    if len(values) != count:
        raise TraceFormatError(
            f"cannot read {database.path}",
            f"{table}.{column} holds {_not_an_integer(database, table, column)}"
            " where an integer belongs",
            RE_EXPORT,
        )
    return values


def _not_an_integer(database: Database, table: str, column: str) -> str:
    name = quote(column)
    with database.damage_reported():
        row = database.connection.execute(
            f"SELECT substr({name}, 1, 40) FROM {quote(table)} "  # noqa: S608
            f"WHERE typeof({name}) NOT IN ('integer', 'null') LIMIT 1"
        ).fetchone()
    return repr(row[0]) if row else "a value"
