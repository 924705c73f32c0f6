"""Databases of SQLite: what one holds, read without changing it, and changes for a test."""

import shutil
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

from traceprof.trace.model.special_values import NULL
from traceprof.trace.sqlite.database import quote
from traceprof.trace.sqlite.numbering import NumberedTexts
from traceprof.trace.sqlite.pages import Unsupported
from traceprof.trace.sqlite.records import Chunk, Layout, decode_columns, layout_of


def query(path: Path, sql: str, *values: object) -> list[tuple[Any, ...]]:
    with closing(_opened(path)) as database:
        return database.execute(sql, values).fetchall()


def change(path: Path, sql: str, *values: object) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(sql, values)


def cut(path: Path, part: Path, begin_ns: int, end_ns: int) -> Path:
    """Write an export with those operations and calls only that start within a time."""
    shutil.copyfile(path, part)
    tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'CUPTI_ACTIVITY_%'"
    for (table,) in query(path, tables):
        if any(column == "start" for _, column, *_ in query(path, f"PRAGMA table_info({table})")):
            change(part, f"DELETE FROM {table} WHERE start < ? OR start >= ?", begin_ns, end_ns)
    return part


def dump(path: Path) -> list[str]:
    with closing(_opened(path)) as database:
        return list(database.iterdump())


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)


Row = tuple[Any, ...]

LEAST, GREATEST = -(1 << 63), (1 << 63) - 1
PAGE_SIZES = [1 << power for power in range(9, 17)]
BOUNDARIES = [
    sign * (1 << power) + more
    for power in (7, 8, 15, 16, 23, 24, 31, 32, 47, 48, 55, 56, 62)
    for sign in (1, -1)
    for more in (-1, 0, 1)
] + [LEAST + 1, GREATEST, -1, 0, 1, 2, 3]
ENDLESS = 2_000_000  # more of SQLite's steps than any of these tables needs


def written(path: Path) -> sqlite3.Connection:
    """Open a database to be written without regard to power failures."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA journal_mode = MEMORY")
    return connection


def made(path: Path, *statements: str, page_size: int = 4096) -> Path:
    with closing(written(path)) as connection:
        connection.execute(f"PRAGMA page_size = {page_size}")
        for statement in statements:
            connection.execute(statement)
    return path


def opened(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    # On a damaged file it could go on for hours.
    steps = iter(range(ENDLESS // 1000))
    connection.set_progress_handler(lambda: next(steps, None) is None, 1000)
    return connection


def through_sqlite(
    connection: sqlite3.Connection, table: str, columns: Sequence[str], texts: Sequence[str] = ()
) -> list[tuple[Any, ...]]:
    """Return rowid, integer columns and columns of texts of each row."""
    taken = {row[1].lower() for row in connection.execute(f"PRAGMA table_xinfo({quote(table)})")}
    rowid = next(name for name in ("_rowid_", "rowid", "oid") if name not in taken)
    names = ", ".join(f"ifnull({quote(name)}, {NULL})" for name in columns)
    rest = map(quote, texts)
    query = (
        f"SELECT {', '.join(filter(None, (rowid, names, *rest)))} FROM {quote(table)} NOT INDEXED"
    )
    return connection.execute(query).fetchall()


def decoded(
    path: Path,
    layout: Layout,
    texts: Mapping[str, NumberedTexts] | None = None,
    window_bytes: int | None = None,
) -> Iterator[Chunk]:
    """Yield a table's rows, read from the pages of a file."""
    with path.open("rb") as file:
        yield from decode_columns(file.fileno(), layout, texts or {}, window_bytes=window_bytes)


def compared(
    path: Path,
    connection: sqlite3.Connection,
    table: str,
    columns: Sequence[str],
    expected: Sequence[Row],
    window_bytes: int = 1,
    texts: Sequence[str] = (),
) -> str:
    """Assert that rows are read as by SQLite; return "read", "partly" or why they are not."""
    numbered = {name: NumberedTexts() for name in texts}
    done, outcome = 0, "read"
    try:
        layout = layout_of(connection, table, columns, texts)
        for chunk in decoded(path, layout, numbered, window_bytes=window_bytes):
            rows = expected[done : done + chunk.count]
            assert (chunk.first, chunk.last) == (rows[0][0], rows[-1][0])
            assert len(rows) == chunk.count
            if chunk.columns is None:
                outcome = "partly"
            else:
                read: list[list[object]] = [chunk.columns[name].tolist() for name in columns]
                for name in texts:
                    known = [*numbered[name].known, None]  # the number of NULL is -1
                    read.append([known[number] for number in chunk.columns[name].tolist()])
                assert read == [[row[place] for row in rows] for place in range(1, 1 + len(read))]
            done += chunk.count
    except Unsupported as reason:
        return str(reason)
    assert done == len(expected)
    return outcome


def outcome(
    path: Path,
    columns: Sequence[str],
    table: str = "t",
    window_bytes: int = 1,
    texts: Sequence[str] = (),
) -> str:
    """Compare columns of one table."""
    with closing(opened(path)) as connection:
        try:
            expected = through_sqlite(connection, table, columns, texts)
        except sqlite3.OperationalError:  # there is no rowid
            expected = []
        return compared(path, connection, table, columns, expected, window_bytes, texts)


def reserve(path: Path, page_size: int, reserved: int) -> None:
    """Write an empty database whose pages end with bytes that SQLite does not use."""
    made(path, "PRAGMA user_version = 1", page_size=page_size)
    data = bytearray(path.read_bytes())
    data[20] = reserved
    data[105:107] = (page_size - reserved & 0xFFFF).to_bytes(2, "big")
    path.write_bytes(data)


def refuse(*_: object, **__: object) -> NoReturn:
    """Stand in for what reads pages, and read none."""
    raise Unsupported


def rows_with_text(rows: int, length: int) -> tuple[str, ...]:
    numbers = f"WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})"
    text = f"substr(hex(zeroblob({length})), 1, i * 7 % {length})"
    return (f"INSERT INTO t {numbers} SELECT i * i, {text}, -i FROM n",)


TABLE = "CREATE TABLE t (a INTEGER, b TEXT, c INTEGER)"
