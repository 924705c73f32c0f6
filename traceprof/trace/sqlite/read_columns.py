"""Columns of large tables as numpy arrays, chunk by chunk.

The rest of traceprof reads tables of events only by `read_columns`. It decodes the file's pages
itself, which is several times as fast as any query, and leaves the rest to SQLite: rows with
overflow pages, values that are no integers, damage.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np

from traceprof.intervals import Int64
from traceprof.trace.model.special_values import NULL
from traceprof.trace.sqlite.database import Database, quote
from traceprof.trace.sqlite.numbering import NumberedTexts
from traceprof.trace.sqlite.pages import Unsupported
from traceprof.trace.sqlite.records import decode_columns, layout_of

_NO_TEXTS: Mapping[str, NumberedTexts] = MappingProxyType({})
_LAST_ROWID = int(np.iinfo(np.int64).max)

_INTEGER = re.compile(r"\A-?[0-9]{1,19}\Z")
# Large enough to make the cost per query small.
_CHUNK_ROWS = 32_768


def read_columns(
    database: Database,
    table: str,
    columns: Sequence[str],
    texts: Mapping[str, NumberedTexts] = _NO_TEXTS,
) -> Iterator[dict[str, Int64]]:
    """Yield columns of a table, tens of thousands of rows at a time, in order of rowid.

    Args:
        database: the open file.
        table: a table with a rowid; an absent one has no rows.
        columns: names of integer columns that the table has.
        texts: by column of texts or blobs of the table, the object that numbers its values.

    Yields:
        One int64[rows] array for each column, `NULL` for NULL; for texts their numbers, -1 for
        NULL.

    Raises:
        TraceFormatError: the file is damaged, or a value is not an integer.
    """
    if table not in database.columns:
        return
    chunks = _chunks(database, table, columns, texts)
    while True:
        with database.in_use:  # its pages are read by the descriptor, which another file may get
            chunk = next(chunks, None)
        if chunk is None:
            return
        database.check_unchanged()
        if database.progress is not None:
            database.progress.advance(len(next(iter(chunk.values()))))
        yield chunk


def _chunks(
    database: Database, table: str, columns: Sequence[str], texts: Mapping[str, NumberedTexts]
) -> Iterator[dict[str, Int64]]:
    """Rows from the file's pages where possible, and the others through SQLite."""
    rowid = database.rowid(table)
    read = partial(_through_sqlite, database, table, columns, texts, rowid)
    first, num_rows = NULL, 0
    try:
        layout = layout_of(database.connection, table, columns, [*texts])
        for chunk in decode_columns(database.descriptor, layout, texts):
            num_rows += chunk.count
            if chunk.columns is not None:
                yield chunk.columns
            else:
                yield from read(chunk.first, chunk.last)
            first = chunk.last + 1
    except Unsupported:
        for rest in read(first, _LAST_ROWID):
            num_rows += len(next(iter(rest.values())))
            yield rest
        _check_complete(database, table, num_rows)


def _check_complete(database: Database, table: str, num_rows: int) -> None:
    """Check the number of rows in a scan from the first to the last one.

    A search for a rowid does not see damaged cells beside its path; a scan reads each cell.

    Raises TraceFormatError: the scan finds damage, or another number of rows.
    """
    end = quote(database.columns[table][-1])  # else SQLite would count rows without reading them
    query = f"SELECT count(*), count({end}) FROM {quote(table)} NOT INDEXED"  # noqa: S608
    with database.damage_reported():
        num_scanned = database.connection.execute(query).fetchone()[0]
    if num_scanned != num_rows:
        raise database.damaged(f"table {table} has {num_scanned} rows, {num_rows} can be found")


def _through_sqlite(
    database: Database,
    table: str,
    columns: Sequence[str],
    texts: Mapping[str, NumberedTexts],
    rowid: str,
    first: int,
    last: int,
) -> Iterator[dict[str, Int64]]:
    names = ", ".join(map(quote, (*columns, *texts)))
    end = quote(database.columns[table][-1])  # else SQLite would not detect damaged records
    query = f"SELECT {names}, typeof({end}) FROM {quote(table)} WHERE {rowid} BETWEEN ? AND ?"  # noqa: S608
    for limits in _slices(database, table, rowid, first, last):
        with database.damage_reported():
            rows = database.connection.execute(query, limits).fetchall()
        in_columns = [*zip(*rows, strict=True)][:-1]
        chunk: dict[str, Int64] = {}
        for name, values in zip((*columns, *texts), in_columns, strict=False):
            if name in texts:
                chunk[name] = texts[name].of(values)
                continue
            numbers = [NULL if value is None else _integer(value) for value in values]
            if None in numbers:
                raise database.misplaced(table, name, values[numbers.index(None)])
            chunk[name] = np.array(numbers, np.int64)
        if chunk:  # a damaged index can refer to missing rows
            yield chunk


def _integer(value: object) -> int | None:
    """Return an integer, which a text may spell exactly; None for other values."""
    if isinstance(value, str) and _INTEGER.match(value) and str(int(value)) == value:
        value = int(value)
    if isinstance(value, int) and -_LAST_ROWID - 1 <= value <= _LAST_ROWID:
        return value
    return None


def _slices(
    database: Database, table: str, rowid: str, first: int, last: int
) -> Iterator[tuple[int, int]]:
    """First and last rowid of consecutive chunks; rowids may be negative and have gaps."""
    query = (
        f"SELECT {rowid} FROM {quote(table)} WHERE {rowid} BETWEEN ? AND ? "  # noqa: S608
        f"ORDER BY {rowid} LIMIT 1 OFFSET ?"
    )
    with database.damage_reported():
        row = database.connection.execute(query, (first, last, 0)).fetchone()
    while row is not None:
        begin = row[0]
        with database.damage_reported():
            row = database.connection.execute(query, (begin, last, _CHUNK_ROWS)).fetchone()
        if row is not None and row[0] <= begin:  # a damaged index would lead to an endless loop
            raise database.damaged(f"the rows of {table} are out of order")
        yield begin, row[0] - 1 if row is not None else last


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
    """Return the number of rows of a table, 0 if it is absent."""
    if table not in database.columns:
        return 0
    with database.damage_reported():
        query = f"SELECT count(*) FROM {quote(table)} NOT INDEXED"  # noqa: S608
        return int(database.connection.execute(query).fetchone()[0])


def has_rows(database: Database, table: str) -> bool:
    """Return whether a table exists and is not empty."""
    if table not in database.columns:
        return False
    with database.damage_reported():
        query = f"SELECT EXISTS (SELECT 1 FROM {quote(table)})"  # noqa: S608
        return bool(database.connection.execute(query).fetchone()[0])
