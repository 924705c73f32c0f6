"""Ways to damage an export: its bytes, and by SQL what stands in its tables."""

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from traceprof.trace.sqlite.database import quote

Damage = Callable[[bytearray, random.Random], None]

_HEADER = 100
_VALUES = (
    *("NULL", "0.5", "''", "' '", "'one\n1,2'", "x'ff00'", "0", "1", "-1", "99999", "1e300"),
    *("-9223372036854775808", "9223372036854775807", "4611686018427387904", "4294967296"),
)


def page_size(data: bytes | bytearray) -> int:
    """Return the size of a database's pages; one that its length allows, where that is none."""
    size = int.from_bytes(data[16:18], "big")
    return size if 512 <= size <= len(data) // 2 else 512


def _page(data: bytearray, chosen: random.Random, first: int = 0) -> slice:
    size = page_size(data)
    number = chosen.randrange(first, len(data) // size)
    return slice(size * number, size * (number + 1))


def noise(data: bytearray, chosen: random.Random) -> None:
    for _ in range(chosen.choice((1, 1, 5, 20))):
        at, length = chosen.randrange(len(data)), chosen.choice((1, 2, 8, 64, 512))
        data[at : at + length] = chosen.randbytes(min(length, len(data) - at))


def flipped_bits(data: bytearray, chosen: random.Random) -> None:
    for _ in range(chosen.choice((1, 5, 50))):
        data[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)


def wrong_header(data: bytearray, chosen: random.Random) -> None:
    data[chosen.randrange(16, _HEADER)] = chosen.choice((0, 1, 127, 128, 255))


def wrong_schema(data: bytearray, chosen: random.Random) -> None:
    for _ in range(chosen.choice((1, 3, 30))):
        data[chosen.randrange(_HEADER, page_size(data))] = chosen.randrange(256)


def wrong_pointers(data: bytearray, chosen: random.Random) -> None:
    page = _page(data, chosen, 1)
    for _ in range(chosen.choice((1, 3))):
        data[page.start + chosen.randrange(40)] = chosen.randrange(256)


def empty_page(data: bytearray, chosen: random.Random) -> None:
    page = _page(data, chosen)
    data[page] = bytes(page_size(data))


def repeated_page(data: bytearray, chosen: random.Random) -> None:
    page, other = _page(data, chosen, 1), _page(data, chosen, 1)
    data[page] = data[other]


def swapped_pages(data: bytearray, chosen: random.Random) -> None:
    page, other = _page(data, chosen), _page(data, chosen)
    data[page], data[other] = data[other], data[page]


DAMAGES: tuple[Damage, ...] = (
    noise, flipped_bits, wrong_header, wrong_schema, wrong_pointers, empty_page, repeated_page,
    swapped_pages,
)  # fmt: skip


def alter_rows(path: Path, chosen: random.Random) -> None:
    """Change rows of some tables in SQL, where their constraints allow it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA synchronous = OFF")
        database.execute("PRAGMA journal_mode = MEMORY")
        names = database.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
        )
        tables = [name for (name,) in names]
        for _ in range(chosen.choice((1, 1, 2, 5))):
            table = chosen.choice(tables)
            columns = [row[1] for row in database.execute(f"PRAGMA table_info({quote(table)})")]
            if not columns:  # it was dropped before
                continue
            with suppress(sqlite3.Error):
                database.execute(_statement(quote(table), [*map(quote, columns)], chosen))


def _statement(table: str, columns: list[str], chosen: random.Random) -> str:
    column, other = chosen.choice(columns), chosen.choice(columns)
    more = chosen.choice((1, -1, 10**6, 10**12))
    part, of = chosen.randrange(100), chosen.choice((1, 2, 7, 100))
    rows = f"WHERE rowid % {of} = {part % of}"
    return chosen.choice(
        (
            f"UPDATE {table} SET {column} = {chosen.choice(_VALUES)} {rows}",
            f"UPDATE {table} SET {column} = {other} {rows}",
            f"UPDATE {table} SET {column} = {column} + {more} {rows}",
            f"UPDATE {table} SET {column} = -{column} {rows}",
            f"UPDATE {table} SET {column} = (SELECT {column} FROM {table} LIMIT 1) {rows}",
            f"DELETE FROM {table} {rows}",
            f"INSERT INTO {table} SELECT * FROM {table} {rows}",
            f"ALTER TABLE {table} DROP COLUMN {column}",
            f"DROP TABLE {table}",
        )
    )
