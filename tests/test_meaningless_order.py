"""What means nothing in an export changes nothing: order of rows, ids, texts that stand twice."""

import json
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.selection import in_turn
from tests.support.traces import SAMPLES
from traceprof.analysis import analyze_reports
from traceprof.reports.json import render
from traceprof.trace.nsight import schema
from traceprof.trace.sqlite.database import quote

Database = sqlite3.Connection

_MAX_BYTES = 20_000_000  # of a real export
_CORRELATION = "correlationId"


def _tables(db: Database, column: str) -> list[str]:
    """Return the tables with a column."""
    names = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return [
        quote(name)
        for (name,) in names
        if any(column == known for _, known, *_ in db.execute(f"PRAGMA table_info({quote(name)})"))
    ]


def _in_order(db: Database, order: str) -> None:
    for table in _tables(db, "start"):
        db.execute(f"CREATE TEMP TABLE rows AS SELECT * FROM {table} ORDER BY {order}")
        db.execute(f"DELETE FROM {table}")
        db.execute(f"INSERT INTO {table} SELECT * FROM rows")
        db.execute("DROP TABLE rows")


def rows_backwards(db: Database) -> None:
    _in_order(db, "rowid DESC")


def rows_shuffled(db: Database) -> None:
    db.create_function("place", 1, lambda row: random.Random(row).random())
    _in_order(db, "place(rowid)")


def correlation_ids_descending(db: Database) -> None:
    tables = _tables(db, _CORRELATION)
    query = f"SELECT coalesce(max({_CORRELATION}), 0) FROM"
    above = max((db.execute(f"{query} {name}").fetchone()[0] for name in tables), default=0) + 1
    for table in tables:
        other = f"{_CORRELATION} = ? - {_CORRELATION}"
        db.execute(f"UPDATE {table} SET {other} WHERE {_CORRELATION} > 0", [above])


def correlation_ids_shuffled(db: Database) -> None:
    ids = {
        number
        for table in _tables(db, _CORRELATION)
        for (number,) in db.execute(f"SELECT DISTINCT {_CORRELATION} FROM {table}")
        if number
    }
    others = sorted(ids)
    random.Random(1).shuffle(others)
    by_id = dict(zip(sorted(ids), others, strict=True))
    db.create_function("other", 1, lambda number: by_id.get(number, number))
    for table in _tables(db, _CORRELATION):
        db.execute(f"UPDATE {table} SET {_CORRELATION} = other({_CORRELATION})")


def texts_twice(db: Database) -> None:
    """Have each text under two ids, of which every second row takes the other."""
    (more,) = db.execute(f"SELECT max(id) + 1 FROM {schema.STRINGS}").fetchone()
    db.execute(f"INSERT INTO {schema.STRINGS} SELECT id + ?, value FROM {schema.STRINGS}", [more])
    for column in schema.STRING_COLUMNS:
        for table in _tables(db, column):
            db.execute(f"UPDATE {table} SET {column} = {column} + ? WHERE rowid % 2", [more])


WAYS = (
    rows_backwards,
    rows_shuffled,
    correlation_ids_descending,
    correlation_ids_shuffled,
    texts_twice,
)


@pytest.mark.slow
@pytest.mark.parametrize(("path", "way"), in_turn(SAMPLES, WAYS))
def test_samples(tmp_path: Path, path: Path, way: Callable[[Database], None]) -> None:
    assert_same(tmp_path, path, way)


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.cpu_export
def test_real_exports(tmp_path: Path, real_trace: Path, way: Callable[[Database], None]) -> None:
    if real_trace.stat().st_size > _MAX_BYTES:
        pytest.skip("it is large")
    assert_same(tmp_path, real_trace, way)


def assert_same(folder: Path, path: Path, way: Callable[[Database], None]) -> None:
    """Assert that an analysis says the same of an export and of one that was changed in a way."""
    copy = folder / "t.sqlite"
    shutil.copyfile(path, copy)
    copy.chmod(0o644)
    before = _answer(copy)
    with closing(sqlite3.connect(copy)) as db, db:
        db.execute("PRAGMA synchronous = OFF")
        way(db)
    assert _answer(copy) == before


def _answer(path: Path) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(render(analyze_reports([path])))
    return answer
