"""The reader of pages is held to SQLite on databases made by chance."""

import random
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.support.databases import BOUNDARIES, PAGE_SIZES, outcome, reserve, written
from tests.support.selection import long_after

TYPES = ["INTEGER"] * 6 + [
    "INT", "BIGINT", "UNSIGNED BIG INT", "TEXT", "REAL", "BLOB", "NUMERIC", "",
]  # fmt: skip
CONSTRAINTS = [""] * 12 + [
    " PRIMARY KEY", " PRIMARY KEY DESC", " UNIQUE", " DEFAULT 5", " DEFAULT NULL",
]  # fmt: skip


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
@pytest.mark.parametrize("seed", long_after(1, range(24)))
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
