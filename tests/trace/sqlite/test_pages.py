"""The reader of pages is held to SQLite: the same numbers, or none."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support.long import long_after
from traceprof.trace.model.special_values import NULL
from traceprof.trace.sqlite import record_formats
from traceprof.trace.sqlite.database import quote
from traceprof.trace.sqlite.layout import layout_of
from traceprof.trace.sqlite.numbered_texts import NumberedTexts
from traceprof.trace.sqlite.pages import PADDING, Unsupported, varints
from traceprof.trace.sqlite.records import decode_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    Damage = Callable[[bytearray, random.Random], None]
    Row = tuple[Any, ...]

LEAST, GREATEST = -(1 << 63), (1 << 63) - 1
PAGE_SIZES = [1 << power for power in range(9, 17)]
BOUNDARIES = [
    sign * (1 << power) + more
    for power in (7, 8, 15, 16, 23, 24, 31, 32, 47, 48, 55, 56, 62)
    for sign in (1, -1)
    for more in (-1, 0, 1)
] + [LEAST + 1, GREATEST, -1, 0, 1, 2, 3]
_HOLDS_FILES = {"ANALYSIS_FILE"}
_ENDLESS = 2_000_000  # more of SQLite's steps than any of these tables needs


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.sqlite"


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
    steps = iter(range(_ENDLESS // 1000))
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


def compared(
    path: Path,
    connection: sqlite3.Connection,
    table: str,
    columns: Sequence[str],
    expected: Sequence[Row],
    window_bytes: int = 1,
    texts: Sequence[str] = (),
) -> str:
    """Assert that rows are read as SQLite reads them; return "read", "partly" or why they are not.

    Args:
        path: the file.
        connection: to it.
        table: to read.
        columns: to read of it.
        expected: the table's rowids, columns and texts.
        window_bytes: as `decode_columns` has it.
        texts: columns of texts to read of it.
    """
    numbered = {name: NumberedTexts() for name in texts}
    done, outcome = 0, "read"
    try:
        layout = layout_of(connection, table, columns, texts)
        for chunk in decode_columns(path, layout, numbered, window_bytes=window_bytes):
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


# -- real exports and plain tables ---------------------------------------------------------------


@pytest.mark.traces
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


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("rows", [0, 1, 2, 7000])
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


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_reserved_bytes(path: Path, page_size: int) -> None:
    for reserved in (1, 8, 32):
        reserve(path, page_size, reserved)
        made(path, "CREATE TABLE t (a INTEGER, b TEXT, c INTEGER)", *rows_with_text(3000, 40))
        assert outcome(path, "ac") == "read"
        path.unlink()


def reserve(path: Path, page_size: int, reserved: int) -> None:
    """Write an empty database whose pages end with bytes that SQLite does not use."""
    made(path, "PRAGMA user_version = 1", page_size=page_size)
    data = bytearray(path.read_bytes())
    data[20] = reserved
    data[105:107] = (page_size - reserved & 0xFFFF).to_bytes(2, "big")
    path.write_bytes(data)


def rows_with_text(rows: int, length: int) -> tuple[str, ...]:
    numbers = f"WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})"
    text = f"substr(hex(zeroblob({length})), 1, i * 7 % {length})"
    return (f"INSERT INTO t {numbers} SELECT i * i, {text}, -i FROM n",)


TABLE = "CREATE TABLE t (a INTEGER, b TEXT, c INTEGER)"
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


@pytest.mark.parametrize("slot_bits", [1, 3, 16])
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
                for n in range(20_000)
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


def test_rows_that_leave_their_page_anywhere(path: Path) -> None:
    # One row in each table: a wrong length of what stays on the page makes a wrong number.
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


@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
def test_changes_beside_the_file(path: Path, suffix: str) -> None:
    made(path, TABLE, ROWS)
    path.with_name(path.name + suffix).write_bytes(b"")
    assert outcome(path, "ac") == "read"
    path.with_name(path.name + suffix).write_bytes(b"x")
    assert outcome(path, "ac") == "changes beside the file"


def test_no_file(path: Path) -> None:
    made(path, TABLE, ROWS)
    with closing(opened(path)) as connection:
        layout = layout_of(connection, "t", ["a"])
    for content in (None, b"", b"SQLite format 3\0", bytes(5000)):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(Unsupported):
            list(decode_columns(path, layout))
    path.unlink()
    path.mkdir()
    with pytest.raises(Unsupported):
        list(decode_columns(path, layout))


def test_cut_short_while_it_is_read(path: Path) -> None:
    made(path, TABLE, *rows_with_text(5000, 40))
    with closing(opened(path)) as connection:
        chunks = decode_columns(path, layout_of(connection, "t", ["a"]), window_bytes=1)
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
        None,
        "",
        b"",
        "x",
        b"x",
        "\0",
        b"\0",
        "\0\0",
        "12345678",
        "123456789",
        "é" * 9,
    ]
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
        "traceprof.trace.sqlite.numbered_texts.factors", lambda count: np.zeros(count, np.uint64)
    )
    assert outcome(path, "a", texts="b") == "partly"


# -- generated databases -------------------------------------------------------------------------


TYPES = ["INTEGER"] * 6 + [
    "INT",
    "BIGINT",
    "UNSIGNED BIG INT",
    "TEXT",
    "REAL",
    "BLOB",
    "NUMERIC",
    "",
]
CONSTRAINTS = [""] * 12 + [
    " PRIMARY KEY",
    " PRIMARY KEY DESC",
    " UNIQUE",
    " DEFAULT 5",
    " DEFAULT NULL",
]


class Generated:
    """A database with one table `t`, unlike the others, that has been written to for a while."""

    def __init__(self, path: Path, chosen: random.Random) -> None:
        self._path = path
        self._chosen = chosen
        self._types: list[str] = []
        self._wide = chosen.random() < 0.2

    def write(self) -> None:
        chosen = self._chosen
        size = chosen.choice(PAGE_SIZES[:4] if chosen.random() < 0.8 else PAGE_SIZES)
        if chosen.random() < 0.15:
            reserve(self._path, size, chosen.choice((1, 4, 16, 32)))
        with closing(written(self._path)) as connection:
            connection.execute(f"PRAGMA page_size = {size}")
            connection.execute(f"PRAGMA auto_vacuum = {chosen.choice((0, 0, 0, 1, 2))}")
            if chosen.random() < 0.05:
                connection.execute("PRAGMA encoding = 'UTF-16le'")
            if chosen.random() < 0.1:
                connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("BEGIN")
            self._create(connection)
            for _ in range(chosen.randrange(1, 6)):
                step = chosen.choice(
                    (self._insert, self._insert, self._delete, self._update, self._add_column)
                )
                with suppress(sqlite3.IntegrityError):  # no integer for a primary key
                    step(connection)
            connection.execute("COMMIT")
            if chosen.random() < 0.1:
                connection.execute("VACUUM")
            elif chosen.random() < 0.2:
                connection.execute("CREATE INDEX i ON t (c0)")

    def _create(self, connection: sqlite3.Connection) -> None:
        chosen = self._chosen
        if chosen.random() < 0.3:
            connection.execute("CREATE TABLE other (x INTEGER)")
        self._types = [chosen.choice(TYPES) for _ in range(chosen.choice((1, 2, 5, 5, 12, 40)))]
        if "INTEGER" not in self._types:
            self._types[0] = "INTEGER"
        columns, is_keyed = [], False
        for place, kind in enumerate(self._types):
            constraint = chosen.choice(CONSTRAINTS)
            if "PRIMARY" in constraint:
                constraint, is_keyed = ("" if is_keyed else constraint), True
            columns.append(f"c{place} {kind} {constraint}")
        rest = " WITHOUT ROWID" if is_keyed and chosen.random() < 0.1 else ""
        connection.execute(f"CREATE TABLE t ({', '.join(columns)}){rest}")
        self._has_rowid = not rest

    def _value(self, kind: str) -> object:
        chosen = self._chosen
        if chosen.random() < 0.15:
            return None
        if kind in ("TEXT", "BLOB"):
            length = chosen.choice((0, 1, 20, 60, 60, 5000 if self._wide else 100))
            return (
                "x" * chosen.randrange(length + 1) if kind == "TEXT" else chosen.randbytes(length)
            )
        if chosen.random() < 0.002 or kind == "REAL":
            return chosen.choice((0.5, "text", b"blob", 1e300))
        if chosen.random() < 0.5:
            return chosen.choice(BOUNDARIES)
        return chosen.getrandbits(chosen.randrange(1, 63))

    def _insert(self, connection: sqlite3.Connection) -> None:
        chosen = self._chosen
        names = [f"c{place}" for place in range(len(self._types))]
        if self._has_rowid and chosen.random() < 0.4:
            names.append("rowid")
        query = (
            f"INSERT OR IGNORE INTO t ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
        )
        for n in range(chosen.choice((1, 10, 100, 100, 300))):
            row = [*map(self._value, self._types), chosen.choice((None, *BOUNDARIES, n * n))]
            connection.execute(query, row[: len(names)])

    def _delete(self, connection: sqlite3.Connection) -> None:
        kind = self._chosen.choice(("c0 % 3 = 1", "abs(random()) % 2", "c0 > 1000", "c0 < 100"))
        connection.execute(f"DELETE FROM t WHERE {kind}")

    def _update(self, connection: sqlite3.Connection) -> None:
        place = self._chosen.randrange(len(self._types))
        value = self._value(self._types[place])
        connection.execute(
            f"UPDATE OR IGNORE t SET c{place} = ? WHERE c0 % {self._chosen.randrange(1, 9)} = 0",
            [value],
        )

    def _add_column(self, connection: sqlite3.Connection) -> None:
        kind = self._chosen.choice(TYPES)
        default = self._chosen.choice(("", "", " DEFAULT 9"))
        connection.execute(f"ALTER TABLE t ADD COLUMN c{len(self._types)} {kind}{default}")
        self._types.append(kind)

    def integers(self) -> list[str]:
        """Return some of the columns that are declared as integers."""
        found = [f"c{place}" for place, kind in enumerate(self._types) if "INT" in kind]
        return self._chosen.sample(found, self._chosen.randrange(1, len(found) + 1))

    def texts(self) -> list[str]:
        """Return the columns that may hold texts or blobs, and hardly anything else."""
        return [f"c{place}" for place, kind in enumerate(self._types) if kind in ("TEXT", "BLOB")]


@pytest.mark.slow
@pytest.mark.parametrize("seed", long_after(3, range(24)))
def test_generated_databases(path: Path, seed: int) -> None:
    chosen = random.Random(seed)
    outcomes = []
    for _ in range(100):
        generated = Generated(path, chosen)
        generated.write()
        columns, texts = generated.integers(), generated.texts()
        window_bytes = chosen.choice((1, 3000, 100_000))
        outcomes.append(outcome(path, columns, window_bytes=window_bytes))
        if texts:
            outcomes.append(outcome(path, columns, "t", window_bytes, texts))
        path.unlink()
    assert set(outcomes) <= {"read", "partly", "an unusual header", "a page of another kind"}
    assert outcomes.count("read") > 50


# -- damaged files -------------------------------------------------------------------------------


def attempted(
    path: Path, data: bytes | bytearray, columns: Sequence[str], window_bytes: int = 1
) -> str:
    """Read a damaged file both ways."""
    path.write_bytes(data)
    texts = {"b": NumberedTexts()}
    with closing(opened(path)) as connection:
        try:
            expected = through_sqlite(connection, "t", columns, [*texts])
        except (sqlite3.Error, UnicodeError, MemoryError, OverflowError):
            expected = None
        if expected is not None:
            return compared(path, connection, "t", columns, expected, window_bytes, [*texts])
        try:
            layout = layout_of(connection, "t", columns, [*texts])
            for chunk in decode_columns(path, layout, texts, window_bytes=1024):
                assert chunk.count > 0
        except Unsupported as reason:
            return str(reason)
        return "SQLite cannot read it"


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return a small file with a tree of three levels, and pages of other kinds."""
    path = tmp_path_factory.mktemp("sample") / "t.sqlite"
    columns = "a INTEGER, b TEXT, c INTEGER, d INTEGER PRIMARY KEY, e INTEGER"
    made(path, f"CREATE TABLE t ({columns})", "CREATE TABLE u (x)", page_size=512)
    with closing(written(path)) as connection:
        connection.execute("BEGIN")
        for n in range(180):
            text = "text" * (n % 4 + n // 178 * 150)
            row = (BOUNDARIES[n % len(BOUNDARIES)], text, None, n * n, n)
            connection.execute("INSERT INTO t VALUES (?, ?, ?, ?, ?)", row)
        connection.execute("DELETE FROM t WHERE e % 50 < 20")
        connection.execute("INSERT INTO u VALUES (zeroblob(1500))")
        connection.execute("COMMIT")
    return path.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("part", long_after(1, range(16)))
def test_any_byte(sample: bytes, path: Path, part: int) -> None:
    chosen = random.Random(part)
    outcomes = []
    for at in range(part, len(sample), 16):
        data = bytearray(sample)
        data[at] ^= chosen.choice((0x01, 0x80, 0xFF, chosen.randrange(1, 256)))
        # A damaged page is read beside sound ones, or alone, which takes longer.
        outcomes.append(attempted(path, data, "acde", chosen.choice((1, len(sample)))))
    assert len(set(outcomes)) > 5


def test_pages_that_lead_in_circles(sample: bytes, path: Path) -> None:
    path.write_bytes(sample)
    with closing(opened(path)) as connection:
        layout = layout_of(connection, "t", ["a"])
    data = bytearray(sample)
    root = 512 * (layout.root - 1)
    for cell in range(int.from_bytes(data[root + 3 : root + 5], "big")):
        at = root + int.from_bytes(data[root + 12 + 2 * cell : root + 14 + 2 * cell], "big")
        data[at : at + 4] = layout.root.to_bytes(4, "big")
    path.write_bytes(data)
    with pytest.raises(Unsupported, match="there twice"):
        list(decode_columns(path, layout))


def leaf_of_rows(data: bytearray) -> tuple[int, list[int]]:
    """Return where some leaf and its cells begin, which are several."""
    for page in range(512 * 3, len(data), 512):
        count = int.from_bytes(data[page + 3 : page + 5], "big")
        if data[page] == 13 and count > 3 and data[page - 512] == 13:
            pointers = (page + 8 + 2 * cell for cell in range(count))
            return page, [page + int.from_bytes(data[at : at + 2], "big") for at in pointers]
    raise AssertionError


def keys_of(data: bytearray, root: int) -> list[int]:
    """Return where the keys of an interior page's cells begin."""
    page = 512 * (root - 1)
    count = int.from_bytes(data[page + 3 : page + 5], "big")
    pointers = (page + 12 + 2 * cell for cell in range(count))
    return [page + int.from_bytes(data[at : at + 2], "big") + 4 for at in pointers]


@pytest.mark.parametrize("change", ["swapped", "too far", "key too low", "key too high"])
def test_rows_that_are_not_where_they_belong(path: Path, change: str) -> None:
    made(path, TABLE, *rows_with_text(300, 20), page_size=512)
    with closing(opened(path)) as connection:
        layout = layout_of(connection, "t", ["a"])
    data = bytearray(path.read_bytes())
    page, cells = leaf_of_rows(data)
    key = keys_of(data, layout.root)[1]
    if change == "swapped":
        data[page + 8 : page + 12] = data[page + 10 : page + 12] + data[page + 8 : page + 10]
    elif change == "too far":
        last = max(cells)
        data[last] += 1
    elif change == "key too low":
        data[key] -= 1
    else:
        data[key] += 1
    path.write_bytes(data)
    why = "leaves its page" if change == "too far" else "out of order"
    with pytest.raises(Unsupported, match=why):
        list(decode_columns(path, layout))


def test_names_that_the_schema_contradicts(path: Path) -> None:
    made(
        path,
        "CREATE TABLE t (a INTEGER, c INTEGER)",
        "CREATE TABLE u (c INTEGER, a INTEGER)",
        "INSERT INTO t VALUES (1, 2)",
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET name = CASE name WHEN 't' THEN 'u' ELSE 't' END",
        "UPDATE sqlite_master SET tbl_name = name",
    )
    # SQLite may find that out, too.
    with closing(opened(path)) as connection, pytest.raises(Unsupported):
        layout_of(connection, "t", ["a", "c"])


def noise(data: bytearray, chosen: random.Random) -> None:
    at, length = chosen.randrange(len(data)), chosen.choice((1, 2, 8, 64, 512))
    data[at : at + length] = chosen.randbytes(min(length, len(data) - at))


def zeros(data: bytearray, chosen: random.Random) -> None:
    at, length = chosen.randrange(len(data)), chosen.choice((1, 2, 8, 64, 512))
    data[at : at + length] = bytes(min(length, len(data) - at))


def flipped_bits(data: bytearray, chosen: random.Random) -> None:
    for _ in range(chosen.choice((1, 5, 50))):
        data[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)


def wrong_pointers(data: bytearray, chosen: random.Random) -> None:
    page = 512 * chosen.randrange(1, len(data) // 512)
    for _ in range(chosen.choice((1, 3))):
        data[page + chosen.randrange(40)] = chosen.randrange(256)


def copied_pages(data: bytearray, chosen: random.Random) -> None:
    page, other = (512 * chosen.randrange(1, len(data) // 512) for _ in range(2))
    data[page : page + 512] = data[other : other + 512]


def swapped_pages(data: bytearray, chosen: random.Random) -> None:
    page, other = (512 * chosen.randrange(1, len(data) // 512) for _ in range(2))
    data[page : page + 512], data[other : other + 512] = (
        data[other : other + 512],
        data[page : page + 512],
    )


def other_values(data: bytearray, chosen: random.Random) -> None:
    """Change headers of rows only, to other serial types."""
    page = 512 * chosen.randrange(1, len(data) // 512)
    for _ in range(3):
        at = page + int.from_bytes(data[page + 8 : page + 10], "big") + chosen.randrange(10)
        data[min(at, len(data) - 1)] = chosen.choice((0, 1, 6, 7, 8, 9, 10, 11, 12, 13, 128, 255))


def cut_short(data: bytearray, chosen: random.Random) -> None:
    del data[chosen.randrange(600, len(data)) :]


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        noise,
        zeros,
        flipped_bits,
        wrong_pointers,
        copied_pages,
        swapped_pages,
        other_values,
        cut_short,
    ],
)
@pytest.mark.parametrize("part", long_after(1, range(4)))
def test_damage(sample: bytes, path: Path, damage: Damage, part: int) -> None:
    chosen = random.Random(f"{damage.__name__} {part}")
    for _ in range(75):
        data = bytearray(sample)
        damage(data, chosen)
        attempted(path, data, "acde")
