"""Positions of columns in a table's rows, as SQLite itself reads the schema."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from traceprof.structs import Record
from traceprof.trace.sqlite.pages import Unsupported

if TYPE_CHECKING:
    from collections.abc import Sequence

_CREATE = "CREATE TABLE "  # SQLite's stored form, whatever its author wrote
_ROWIDS = ("_rowid_", "rowid", "oid")
_COLUMNS = "SELECT name, type, dflt_value, pk, hidden FROM pragma_table_xinfo(?) ORDER BY cid"


class Layout(Record, frozen=True):
    """A table's place in the file, and the columns wanted of it.

    Attributes:
        root: the topmost page.
        wanted: by name, the position among the stored columns; None is the rowid itself.
        texts: by name, the position of columns that hold texts or blobs.
        defaults: positions whose value in rows older than the column is not NULL.
    """

    root: int
    wanted: dict[str, int | None]
    texts: dict[str, int]
    defaults: frozenset[int]


def layout_of(
    connection: sqlite3.Connection,
    table: str,
    columns: Sequence[str] = (),
    texts: Sequence[str] = (),
) -> Layout:
    """Return the positions of a table's stored columns.

    Args:
        connection: the open file.
        table: its name, in the spelling of sqlite_master.
        columns: names of columns of integers, in the table's spelling, or of the rowid.
        texts: names of columns of texts or blobs, in the table's spelling.

    Raises:
        Unsupported: a column is not an integer or not stored, or the schema is damaged.
    """
    try:
        return _layout(connection, table, columns, texts)
    except (sqlite3.Error, UnicodeError, MemoryError, OverflowError) as error:
        raise Unsupported(str(error)) from error


def _layout(
    connection: sqlite3.Connection, table: str, columns: Sequence[str], texts: Sequence[str]
) -> Layout:
    stored = connection.execute(_COLUMNS, [table]).fetchall()
    if any(hidden for *_, hidden in stored):
        raise Unsupported("generated columns")
    positions = {name: position for position, (name, *_) in enumerate(stored)}
    names = {name.lower() for name in positions}
    rowids = {name for name in _ROWIDS if name not in names}
    # Only integers in a REAL column are read as other values than the stored ones.
    is_integer = tuple("INT" in str(declared).upper() for _, declared, *_ in stored)
    if not all(
        name in rowids or (name in positions and is_integer[positions[name]]) for name in columns
    ):
        raise Unsupported("a column that is not declared as integer")
    if not all(name in positions and not is_integer[positions[name]] for name in texts):
        raise Unsupported("a column of text that is declared as integer")
    rowid = _rowid_position(connection, table, stored)
    places = ((name, rowid if name in rowids else positions[name]) for name in columns)
    return Layout(
        _root(connection, table),
        {name: None if position == rowid else position for name, position in places},
        {name: positions[name] for name in texts},
        frozenset(place for place, row in enumerate(stored) if row[2] is not None),
    )


def _root(connection: sqlite3.Connection, table: str) -> int:
    rows = connection.execute(
        "SELECT type, name, tbl_name, rootpage, sql FROM sqlite_master WHERE lower(name) = ?",
        [table.lower()],
    ).fetchall()
    if len(rows) != 1:
        raise Unsupported("a table that is there twice")
    kind, *names, root, sql = rows[0]
    if kind != "table" or names != [table, table] or not isinstance(root, int):
        raise Unsupported("not a table")
    # SQLite uses the statement, not the names beside it.
    if not isinstance(sql, str) or not sql.startswith(_CREATE) or not _begins_with(sql, table):
        raise Unsupported("a table of another name")
    return root


def _begins_with(sql: str, table: str) -> bool:
    rest = sql.removeprefix(_CREATE)
    quoted = (f'"{table}"', f"[{table}]", f"`{table}`", f"'{table}'")
    after = rest[len(table) : len(table) + 1]
    return rest.startswith(quoted) or (rest.startswith(table) and after in {"(", " ", "\n", "\t"})


def _rowid_position(
    connection: sqlite3.Connection, table: str, stored: Sequence[tuple[object, ...]]
) -> int | None:
    """Return the position of a column that is an alias of the rowid; None without one."""
    keys = [position for position, row in enumerate(stored) if row[3]]
    if len(keys) != 1 or str(stored[keys[0]][1]).upper() != "INTEGER":
        return None
    # INTEGER PRIMARY KEY DESC is no alias: it has an index.
    query = "SELECT count(*) FROM pragma_index_list(?) WHERE origin = 'pk'"
    (indexes,) = connection.execute(query, [table]).fetchone()
    return None if indexes else keys[0]
