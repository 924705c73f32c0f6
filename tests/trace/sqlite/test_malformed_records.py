"""Records whose columns do not fill their payload, which SQLite calls malformed."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.databases import change, made, refuse
from traceprof.errors import TraceFormatError
from traceprof.trace.sqlite import read_columns as reader
from traceprof.trace.sqlite.database import Database
from traceprof.trace.sqlite.numbering import NumberedTexts

_MARK = 0x5DEECE66D123  # of six bytes, serial type 5
_LONG = "x" * 100  # whose serial type takes two bytes
_SIX_BYTES = 5
# Serial types of a, b, c, d, e, f of the marked record, and what one of them becomes.
_TYPES = bytes((_SIX_BYTES, 19, 1, 2, 0x81, 0x55, 6))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "t.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "CREATE TABLE t (a INTEGER, b TEXT, c INTEGER, d INTEGER, e TEXT, f INT)"
        )
        rows = [(_MARK + row, "abc", 5, 500, _LONG, 1 << 60) for row in range(3)]
        connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?, ?)", rows)
    return path


def damaged(path: Path, place: int, serial: int) -> None:
    """Give a column of the second row another serial type."""
    data = path.read_bytes()
    at = data.index(_TYPES + (_MARK + 1).to_bytes(6, "big"))
    path.write_bytes(data[: at + place] + bytes([serial]) + data[at + place + 1 :])


def values(path: Path, columns: list[str], texts: list[str]) -> list[int]:
    database = Database(path)
    numbered = {name: NumberedTexts() for name in texts}
    try:
        chunks = [*reader.read_columns(database, "t", columns, numbered)]
        return [value for chunk in chunks for value in chunk[columns[0]].tolist()]
    finally:
        database.close()


@pytest.mark.parametrize("is_by_pages", [True, False])
@pytest.mark.parametrize("texts", [[], ["b"]])
@pytest.mark.parametrize(
    ("place", "serial"),
    [
        (0, 0), (0, 9), (0, 6), (2, 0), (2, 2), (3, 1), (4, 0x82), (5, 0x57), (6, 0), (6, 9),
        (6, 0x81),
    ],
)  # fmt: skip
def test_malformed_for_sqlite_is_malformed(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: int,
    serial: int,
    texts: list[str],
    is_by_pages: bool,
) -> None:
    if not is_by_pages:
        monkeypatch.setattr(reader, "decode_columns", refuse)
    assert values(path, ["a", "c"], texts) == [_MARK, _MARK + 1, _MARK + 2]
    damaged(path, place, serial)
    with closing(sqlite3.connect(path)) as connection, pytest.raises(sqlite3.DatabaseError):
        connection.execute("SELECT * FROM t").fetchall()
    with pytest.raises(TraceFormatError, match="malformed"):
        values(path, ["a", "c"], texts)


def test_malformed_in_a_small_table(path: Path) -> None:
    damaged(path, 0, 0)
    database = Database(path)
    with pytest.raises(TraceFormatError, match="malformed"):
        database.rows("t", {"a": int})
    database.close()


def test_well_formed_is_read_by_pages(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError

    change(path, "INSERT INTO t VALUES (1, NULL, NULL, NULL, NULL, NULL)")
    change(path, "ALTER TABLE t ADD COLUMN g INTEGER")
    change(path, "INSERT INTO t VALUES (1, '', 0, 1, '', 0, 9)")
    monkeypatch.setattr(reader, "_through_sqlite", refuse)
    assert values(path, ["a"], []) == [_MARK, _MARK + 1, _MARK + 2, 1, 1]


def test_cells_beside_the_way_of_a_search(path: Path) -> None:
    # A search for a rowid looks into the middle of the page, is led before its first row, and
    # finds none: only a scan comes upon the damage.
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE u (a INTEGER)")
        connection.executemany("INSERT INTO u VALUES (?)", [(row,) for row in range(100)])
        query = "SELECT rootpage FROM sqlite_master WHERE name = 'u'"
        (root,) = connection.execute(query).fetchone()
        (page_size,) = connection.execute("PRAGMA page_size").fetchone()
    data = bytearray(path.read_bytes())
    pointers = (root - 1) * page_size + 8
    data[pointers + 2 * 10 : pointers + 2 * 100] = bytes(2 * 90)
    path.write_bytes(data)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() != ("ok",)
    database = Database(path)
    with pytest.raises(TraceFormatError, match="100 rows, 0 can be found"):
        _ = [*reader.read_columns(database, "u", ["a"])]
    database.close()


@pytest.mark.parametrize("length", range(6, 14))
@pytest.mark.parametrize("last", [b"\1", b"\x81"])
def test_a_type_of_about_nine_bytes(tmp_path: Path, length: int, last: bytes) -> None:
    """SQLite ends a number after nine bytes, whatever the last one is."""
    names = [f"c{number}" for number in range(40)]
    whole = made(tmp_path / "t", f"CREATE TABLE t ({', '.join(f'{name} INT' for name in names)})")
    change(whole, f"INSERT INTO t VALUES ({', '.join(['1000'] * len(names))})")
    header = bytes([len(names) + 1]) + b"\2" * len(names)
    data = whole.read_bytes()
    assert data.count(header) == 1
    damaged = header[:1] + (b"\x81" * length + last).rjust(len(names), b"\2")
    whole.write_bytes(data.replace(header, damaged))
    with pytest.raises(TraceFormatError):
        values(whole, ["c0", "c20"], [])


def test_damage_in_many_slices_ends_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each query that fails gives its connection back."""
    monkeypatch.setattr(reader, "_CHUNK_ROWS", 7)
    path = made(tmp_path / "t", "CREATE TABLE t (a INTEGER, b INTEGER)", page_size=512)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(n, n) for n in range(1000, 3000)])
    data = path.read_bytes()
    assert data.count(b"\3\2\2") > 1000  # a header of two types
    path.write_bytes(data.replace(b"\3\2\2", b"\x7f\2\2"))
    database = Database(path)
    with closing(database), pytest.raises(TraceFormatError, match="malformed"):
        for _ in reader.read_columns(database, "t", ["a", "b"]):
            pass
