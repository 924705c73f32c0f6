"""Exports in which everything takes longer."""

import sqlite3
from contextlib import closing
from pathlib import Path


def stretch(path: Path, factor: float) -> None:
    """Let everything in an export take so many times as long."""
    with closing(sqlite3.connect(path)) as connection, connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        for (table,) in tables.fetchall():
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            for column in {"start", "end"}.intersection(columns):
                connection.execute(
                    f'UPDATE {table} SET "{column}" = CAST(round("{column}" * ?) AS INTEGER)',
                    (factor,),
                )
