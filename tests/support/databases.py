"""Databases of SQLite: what one holds, read without changing it, and changes for a test."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any


def query(path: Path, sql: str, *values: object) -> list[tuple[Any, ...]]:
    """Return the rows of a query."""
    with closing(_opened(path)) as database:
        return database.execute(sql, values).fetchall()


def change(path: Path, sql: str, *values: object) -> None:
    """Execute a statement, and commit what it changed."""
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
    """Return all that a database holds, as SQL."""
    with closing(_opened(path)) as database:
        return list(database.iterdump())


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)
