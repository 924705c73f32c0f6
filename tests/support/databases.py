"""What an SQLite database holds, read without changing it."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any


def query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query."""
    with closing(_opened(path)) as database:
        return database.execute(sql).fetchall()


def dump(path: Path) -> list[str]:
    """Return all that a database holds, as SQL."""
    with closing(_opened(path)) as database:
        return list(database.iterdump())


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)
