"""The reader of pages is held to SQLite, on tables of all kinds: the same numbers, or none."""

import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.support.databases import (
    BOUNDARIES,
    PAGE_SIZES,
    TABLE,
    compared,
    decoded,
    made,
    opened,
    outcome,
    reserve,
    rows_with_text,
    through_sqlite,
    written,
)
from tests.support.selection import in_turn, long_after
from traceprof.trace.sqlite import records as record_formats
from traceprof.trace.sqlite.database import quote
from traceprof.trace.sqlite.pages import PADDING, Unsupported, varints
from traceprof.trace.sqlite.records import layout_of

_HOLDS_FILES = {"ANALYSIS_FILE"}


@pytest.mark.traces
@pytest.mark.cpu_export
def test_every_integer_of_a_real_export(real_trace: Path) -> None:
    with closing(opened(real_trace)) as connection:
        connection.set_progress_handler(None, 0)
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0"
        for (table,) in connection.execute(query).fetchall():
            info = connection.execute(f"PRAGMA table_info({quote(table)})").fetchall()
            columns = [row[1] for row in info if row[2].upper() == "INTEGER"]
            texts = [row[1] for row in info if row[2].upper() in {"TEXT", "BLOB"}]
            expected = through_sqlite(connection, table, columns, texts)
            for some in ([], texts) if texts else ([],):
                found = compared(real_trace, connection, table, columns, expected, 1 << 18, some)
                # Some have a whole file before an integer, or a text longer than a page.
                assert found == "read" or (found == "partly" and (some or table in _HOLDS_FILES))


@pytest.mark.parametrize(("page_size", "rows"), in_turn(PAGE_SIZES, [7000, 0, 1, 2]))
def test_all_widths_in_all_page_sizes(path: Path, page_size: int, rows: int) -> None:
    made(path, "CREATE TABLE t (a INTEGER, b INTEGER, c INTEGER)", page_size=page_size)
    values = [*BOUNDARIES, None]
    with closing(written(path)) as connection:
        connection.execute("BEGIN")
        count = len(values)
        connection.executemany(
            "INSERT INTO t VALUES (?, ?, ?)",
            ((values[n % count], n, values[n // count % count]) for n in range(rows)),
        )
        connection.execute("COMMIT")
    for window_bytes in (1, 3 * page_size, 1 << 21):
        assert outcome(path, "abc", window_bytes=window_bytes) == "read"
    assert outcome(path, "ca") == "read"


@pytest.mark.parametrize("page_size", long_after(1, PAGE_SIZES))
def test_reserved_bytes(path: Path, page_size: int) -> None:
    for reserved in (1, 8, 32):
        reserve(path, page_size, reserved)
        made(path, "CREATE TABLE t (a INTEGER, b TEXT, c INTEGER)", *rows_with_text(3000, 40))
        assert outcome(path, "ac") == "read"
        path.unlink()


ROWS = "INSERT INTO t (a, b, c) VALUES (1, 'x', 300), (NULL, NULL, -70000), (0, '', 1)"


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        ((TABLE, ROWS), "read"),
        ((TABLE, ROWS, "ALTER TABLE t ADD COLUMN d INTEGER", ROWS), "read"),
        ((TABLE, ROWS, "ALTER TABLE t ADD COLUMN d INTEGER DEFAULT 7", ROWS), "partly"),
        ((TABLE, "ALTER TABLE t ADD COLUMN d INTEGER DEFAULT 7", ROWS), "read"),
        (("CREATE TABLE t (a INT, b TEXT, c INTEGER PRIMARY KEY)", ROWS), "read"),
        (("CREATE TABLE t (a INT, b TEXT, c integer, PRIMARY KEY (c))", ROWS), "read"),
        (("CREATE TABLE t (a INT, b TEXT, c INT PRIMARY KEY)", ROWS), "read"),
        (("CREATE TABLE t (a INT, b TEXT, c INTEGER PRIMARY KEY DESC)", ROWS), "read"),
        (("CREATE TABLE t (a INT, b TEXT, c INTEGER, PRIMARY KEY (c, b))", ROWS), "read"),
        (("CREATE TABLE t (a INTEGER UNIQUE, b TEXT, c INTEGER PRIMARY KEY)", ROWS), "read"),
        (("CREATE TABLE t (rowid INT, oid TEXT, a INTEGER, b, c BIGINT)", ROWS), "read"),
        ((TABLE, "CREATE INDEX i ON t (c, a)", ROWS), "read"),
        ((TABLE, ROWS, "DELETE FROM t WHERE a = 0", "DELETE FROM t WHERE a = 1"), "read"),
        ((TABLE, ROWS, "DELETE FROM t"), "read"),
        ((TABLE, ROWS, "UPDATE t SET rowid = -9223372036854775808 WHERE a = 1"), "read"),
        (("PRAGMA auto_vacuum = FULL", TABLE, ROWS), "read"),
        (("PRAGMA auto_vacuum = INCREMENTAL", "CREATE TABLE other (x)", TABLE, ROWS), "read"),
        (("PRAGMA journal_mode = WAL", TABLE, ROWS), "read"),
        ((TABLE.replace(" t ", " s "), "ALTER TABLE s RENAME TO t", ROWS), "read"),
        (("CREATE TABLE IF NOT EXISTS /* why */ main . t (a INT, b, c INT)", ROWS), "read"),
        (("CREATE TABLE [t](a INT, b, c INT)", ROWS), "read"),
        (("CREATE TABLE t AS SELECT 1 AS a, 'x' AS b, 2 AS c",), "a column that is not declared"),
        ((TABLE, ROWS, "UPDATE t SET a = 1.5 WHERE c = 1"), "partly"),
        ((TABLE, ROWS, "UPDATE t SET a = 'x' WHERE c = 1"), "partly"),
        ((TABLE, ROWS, "UPDATE t SET a = x'00' WHERE c = 1"), "partly"),
        ((TABLE, ROWS, "UPDATE t SET b = 1.5 WHERE c = 1"), "read"),
        (("CREATE TABLE t (a REAL, b TEXT, c INTEGER)", ROWS), "a column that is not declared"),
        (("CREATE TABLE t (a, b TEXT, c INTEGER)", ROWS), "a column that is not declared"),
        ((TABLE.replace(")", ", d INTEGER AS (a + 1))"), ROWS), "generated columns"),
        ((TABLE.replace(")", ", d INTEGER AS (a + 1) STORED)"), ROWS), "generated columns"),
        (("CREATE TABLE t (a INT, b, c INT PRIMARY KEY) WITHOUT ROWID", ROWS), "a page of another"),
        (("PRAGMA encoding = 'UTF-16le'", TABLE, ROWS), "an unusual header"),
        (("PRAGMA encoding = 'UTF-16be'", TABLE, ROWS), "an unusual header"),
    ],
    ids=str,
)
def test_kinds_of_tables(path: Path, statements: tuple[str, ...], expected: str) -> None:
    made(path, *statements)
    columns = "acd" if "ADD COLUMN d" in str(statements) else "ac"
    assert outcome(path, columns).startswith(expected)


@pytest.mark.skipif(sqlite3.sqlite_version_info < (3, 37), reason="SQLite 3.37 has STRICT tables")
def test_a_strict_table(path: Path) -> None:
    made(path, f"{TABLE} STRICT", ROWS)
    assert outcome(path, "ac") == "read"


def test_no_column_but_the_rowid(path: Path) -> None:
    made(path, "CREATE TABLE t (a TEXT, b INTEGER PRIMARY KEY)", "INSERT INTO t VALUES ('', -5)")
    assert outcome(path, "b") == "read"
    assert outcome(path, "") == "read"


def test_what_is_no_table_with_rows(path: Path) -> None:
    made(path, TABLE, "CREATE VIEW v AS SELECT a FROM t", "CREATE INDEX i ON t (a)")
    with closing(opened(path)) as connection:
        for name in ("v", "sqlite_master", "absent"):
            with pytest.raises(Unsupported):
                layout_of(connection, name, [])


@pytest.mark.parametrize("page_size", [512, 1024, 4096, 65536])
def test_long_rows(path: Path, page_size: int) -> None:
    made(path, "CREATE TABLE t (a INT, b TEXT, c INT)", page_size=page_size)
    around = [page_size - 35 - 10 + more for more in range(20)]
    lengths = [0, 57, 58, 8185, 8186, page_size // 8, 2 * page_size, 5 * page_size, *around]
    with closing(written(path)) as connection:
        for length in lengths:
            row = (length, "x" * length, -length)
            connection.execute("INSERT INTO t VALUES (?, ?, ?)", row)
    # What comes before a long text is on the row's page, what comes after it is not.
    assert outcome(path, "a") == "read"
    assert outcome(path, "c") == "partly"


@pytest.mark.parametrize("slot_bits", long_after(1, [1, 3, 16]))
def test_more_formats_than_are_kept(
    path: Path, monkeypatch: pytest.MonkeyPatch, slot_bits: int
) -> None:
    monkeypatch.setattr(record_formats, "_SLOT_SHIFT", np.uint64(64 - slot_bits))
    made(path, "CREATE TABLE t (a INT, b TEXT, c INT, d TEXT)")
    chosen = random.Random(1)
    with closing(written(path)) as connection:
        connection.executemany(
            "INSERT INTO t VALUES (?, ?, ?, ?)",
            (
                (n, "x" * chosen.randrange(90), chosen.choice(BOUNDARIES), "y" * (n % 90))
                for n in range(20_000 if slot_bits == 16 else 4_000)
            ),
        )
    assert outcome(path, "ac", window_bytes=1 << 16) == "read"
    if slot_bits == 16:
        made(path, "UPDATE t SET b = substr(hex(zeroblob(900)), 1, rowid % 1800)")
        assert outcome(path, "ac", window_bytes=1 << 22) == "partly"


def test_a_hash_that_two_headers_share(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_formats, "factors", lambda count: np.zeros(count, np.uint64))
    made(path, TABLE, "INSERT INTO t VALUES (300, 'x', 5), (5, 'xx', 6)")
    assert outcome(path, "ac") == "partly"


@pytest.mark.parametrize("reserved", [0, 20])
def test_rows_that_leave_their_page_anywhere(path: Path, reserved: int) -> None:
    # One row in each table: a wrong length of what stays on the page makes a wrong number.
    reserve(path, 512, reserved)
    lengths = [(text, rest) for text in range(20, 60) for rest in (400, 470, 477, 900, 1500, 2000)]
    tables = [f"t{number}" for number in range(len(lengths))]
    with closing(written(path)) as connection:
        connection.execute("PRAGMA page_size = 512")
        connection.execute("BEGIN")
        for table, (text, rest) in zip(tables, lengths, strict=True):
            connection.execute(f"CREATE TABLE {table} (b TEXT, c INTEGER, d TEXT)")
            row = ("x" * text, 0x0123456789ABCD, "y" * rest)
            connection.execute(f"INSERT INTO {table} VALUES (?, ?, ?)", row)
        connection.execute("COMMIT")
    outcomes = [outcome(path, "c", table) for table in tables]
    assert {*outcomes} == {"read", "partly"}


@pytest.mark.parametrize("columns", [100, 125, 126, 127, 128, 200, 1000])
def test_many_columns(path: Path, columns: int) -> None:
    names = [f"c{number}" for number in range(columns)]
    made(path, f"CREATE TABLE t ({', '.join(f'{name} INTEGER' for name in names)})")
    with closing(written(path)) as connection:
        for row in range(3):
            values = ", ".join(str(number * (row - 1)) for number in range(columns))
            connection.execute(f"INSERT INTO t VALUES ({values})")
    expected = "read" if columns < 127 else "partly"
    assert outcome(path, [names[0], names[-1], names[columns // 2]]) == expected
    assert outcome(path, names) == expected


def test_no_database(path: Path) -> None:
    made(path, TABLE, ROWS)
    with closing(opened(path)) as connection:
        layout = layout_of(connection, "t", ["a"])
    for content in (b"", b"SQLite format 3\0", bytes(5000)):
        path.write_bytes(content)
        with pytest.raises(Unsupported):
            list(decoded(path, layout))


def test_cut_short_while_it_is_read(path: Path) -> None:
    made(path, TABLE, *rows_with_text(5000, 40))
    with closing(opened(path)) as connection:
        chunks = decoded(path, layout_of(connection, "t", ["a"]), window_bytes=1)
        next(chunks)
        with path.open("rb+") as file:
            file.truncate(4096 * 3)
        with pytest.raises(Unsupported, match="cut short"):
            list(chunks)


@pytest.mark.parametrize("of", [range(1, 10), *[[length] for length in range(1, 10)], [2, 3]])
def test_variable_length_integers(of: Sequence[int]) -> None:
    chosen = random.Random(1)
    encoded, values, lengths = b"", [], []
    for _ in range(5000):
        length = chosen.choice(of)
        data = bytearray(chosen.choice((0, 1, 0x7F, chosen.randrange(128))) for _ in range(length))
        for place in range(length - 1):
            data[place] |= 0x80
        if length == 9:
            data[8] = chosen.randrange(256)
        value = 0
        for place, byte in enumerate(data):
            value = value << 8 | byte if place == 8 else value << 7 | byte & 0x7F
        encoded += data
        values.append(value - (1 << 64) if value >> 63 else value)
        lengths.append(length)
    array = np.frombuffer(encoded + bytes(PADDING), np.uint8)
    at = np.cumsum([0, *lengths[:-1]])
    found, found_lengths = varints(array, at)
    assert found.tolist() == values
    assert found_lengths.tolist() == lengths


def test_texts_and_blobs(path: Path) -> None:
    values: list[object] = [
        None, "", b"", "x", b"x", "\0", b"\0", "\0\0", "12345678", "123456789", "é" * 9,
    ]  # fmt: skip
    values += ["a" * 250, "a" * 251, "a" * 250 + "b", "x" * 7 + "\0", b"\xff\xfe", "7", 7, 0.5]
    for some, expected in ((values[:-2], "read"), (values, "partly")):
        made(path, "CREATE TABLE t (a INTEGER, b TEXT, c BLOB, d)")
        with closing(written(path)) as connection:
            for number in range(300):
                row = [some[(number * step) % len(some)] for step in (1, 3, 7)]
                connection.execute("INSERT INTO t VALUES (?, ?, ?, ?)", (number, *row))
            # Bytes that are no UTF-8 in a text.
            connection.execute("INSERT INTO t VALUES (1, CAST(x'61ff62' AS TEXT), NULL, NULL)")
        assert outcome(path, "a", texts="bcd") == expected
        assert outcome(path, "", texts="b") == "read"
        assert outcome(path, "a", texts="db") == expected
        path.unlink()
    made(path, TABLE, ROWS)
    assert outcome(path, "a", texts="c").startswith("a column of text that is declared")


def test_short_rows_without_texts(path: Path) -> None:
    made(path, TABLE, ROWS, "ALTER TABLE t ADD COLUMN d TEXT", "ALTER TABLE t ADD COLUMN e INTEGER")
    assert outcome(path, "ace", texts="bd") == "read"
    made(path, "ALTER TABLE t ADD COLUMN f TEXT DEFAULT 'x'")
    assert outcome(path, "ace", texts="bd") == "read"
    assert outcome(path, "ace", texts="bdf") == "partly"


def test_texts_with_the_same_hash(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(path, TABLE, "INSERT INTO t (a, b) VALUES (1, 'same size'), (2, 'size same')")
    assert outcome(path, "a", texts="b") == "read"
    monkeypatch.setattr(
        "traceprof.trace.sqlite.numbering.factors", lambda count: np.zeros(count, np.uint64)
    )
    assert outcome(path, "a", texts="b") == "partly"
