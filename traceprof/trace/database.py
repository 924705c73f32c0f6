"""A read-only SQLite file: opened without touching its folder, read with errors made clear."""

from __future__ import annotations

import os
import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlite_utils import Database as SqliteDatabase

from traceprof.errors import TraceFileError, TraceFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from traceprof.trace.model import Progress

RE_EXPORT = "export it again: nsys export --type=sqlite --force-overwrite=true REPORT.nsys-rep"
_HEADER_BYTES = 100
_WAL_FORMAT = 2


class Database:
    """Schema, metadata and small tables of an SQLite file, through sqlite-utils.

    Attributes:
        path: the file.
        connection: the read-only connection, for the reader of the large tables.
        progress: told of the rows that are read, if somebody wants to know.
    """

    def __init__(self, path: Path, progress: Progress | None = None) -> None:
        """Open `path` read-only.

        Raises:
            TraceFormatError: the file is damaged, or its writer has not finished.
            TraceFileError: SQLite cannot open it.
        """
        self.path = path
        self.progress = progress
        _check_complete(path)
        # immutable: SQLite then writes no lock, journal, -wal or -shm file beside the input.
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        try:
            self.connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
        except sqlite3.Error as error:
            raise TraceFileError(
                f"cannot open {path}", str(error), "check that the file can be read"
            ) from error
        # Metadata can hold bytes that are not UTF-8, such as Windows time zone names.
        self.connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        with self.damage_reported():
            self._sqlite = SqliteDatabase(self.connection, execute_plugins=False)
            self.columns: dict[str, tuple[str, ...]] = {
                table.name: tuple(column.name for column in table.columns)
                for table in self._sqlite.tables
            }

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    @contextmanager
    def damage_reported(self) -> Iterator[None]:
        """Turn what SQLite raises over a damaged file into a TraceFormatError."""
        try:
            yield
        except (sqlite3.Error, UnicodeError, MemoryError, OverflowError) as error:
            why = str(error) or type(error).__name__
            raise TraceFormatError(f"cannot read {self.path}", why, RE_EXPORT) from error

    def has(self, table: str, *columns: str) -> bool:
        """Say whether the table is there with all these columns."""
        return table in self.columns and set(columns) <= set(self.columns[table])

    def rows(self, table: str, where: str = "", arguments: Any = ()) -> list[dict[str, Any]]:  # noqa: ANN401
        """Return the rows of a small table as dicts, or none where the table is absent."""
        if table not in self.columns:
            return []
        with self.damage_reported():
            return list(self._sqlite[table].rows_where(where or None, arguments))

    def query(self, sql: str, arguments: Any = ()) -> list[dict[str, Any]]:  # noqa: ANN401
        """Return the rows of a query with a small result as dicts."""
        with self.damage_reported():
            return list(self._sqlite.query(sql, arguments))


def quote(identifier: str) -> str:
    """Quote the name of a table or column for SQL."""
    return '"' + identifier.replace('"', '""') + '"'


def _check_complete(path: Path) -> None:
    """Raise where the file is cut short or its last transaction is not in it."""
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    size = path.stat().st_size
    page_size = int.from_bytes(header[16:18], "big")
    page_size = 65536 if page_size == 1 else page_size
    pages = int.from_bytes(header[28:32], "big")
    written_by_this_version = header[24:28] == header[92:96]
    if len(header) < _HEADER_BYTES or (written_by_this_version and size < pages * page_size):
        raise TraceFormatError(
            f"cannot read {path}",
            f"the file is cut short: {size} bytes where its header says {pages * page_size}",
            f"copy it again, or {RE_EXPORT}",
        )
    for suffix in ("-journal", "-wal"):
        beside = path.with_name(path.name + suffix)
        if _holds_unfinished_work(beside):
            raise TraceFormatError(
                f"cannot read {path}",
                f"{beside.name} beside it holds changes that are not in it yet",
                f"wait until its writer has finished, or {RE_EXPORT}",
            )


def _holds_unfinished_work(beside: Path) -> bool:
    try:
        with beside.open("rb") as file:
            # A journal that was finished but kept is empty or begins with zeros.
            return any(file.read(8))
    except OSError:
        return os.path.lexists(beside)
