"""Databases of SQLite: what one holds, read without changing it, and changes for a test."""

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


def dump(path: Path) -> list[str]:
    """Return all that a database holds, as SQL."""
    with closing(_opened(path)) as database:
        return list(database.iterdump())


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)
