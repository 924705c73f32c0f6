"""The reader of pages reads of damaged files what SQLite reads, or nothing."""

import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.databases import (
    BOUNDARIES,
    TABLE,
    compared,
    decoded,
    made,
    opened,
    rows_with_text,
    through_sqlite,
    written,
)
from tests.support.selection import long_after
from traceprof.trace.sqlite.numbering import NumberedTexts
from traceprof.trace.sqlite.pages import Unsupported
from traceprof.trace.sqlite.records import layout_of


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
            for chunk in decoded(path, layout, texts, window_bytes=1024):
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
@pytest.mark.parametrize("part", long_after(1, range(32)))
def test_any_byte(sample: bytes, path: Path, part: int) -> None:
    chosen = random.Random(part)
    outcomes = []
    for at in range(part, len(sample), 32):
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
        list(decoded(path, layout))


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
        list(decoded(path, layout))


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
