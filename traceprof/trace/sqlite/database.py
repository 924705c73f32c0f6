"""Read-only SQLite files, opened without changes in their folder, with clear errors."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from traceprof.errors import TraceFileError, TraceFormatError, UsageError
from traceprof.progress import Progress
from traceprof.trace.model.special_values import clipped

Columns = Mapping[str, type[int | str]]


class FileUse:
    """Keeps a file open as long as a block runs, in any thread.

    A thread must not close a file that SQLite reads in another one: the process would crash.
    `close`: closes the file; a second call does nothing.
    """

    def __init__(self, path: Path, close: Callable[[], None]) -> None:
        self._path, self._close = path, close
        self._lock = threading.Lock()
        self._num_blocks = 0
        self._is_closing = False

    def __enter__(self) -> None:
        with self._lock:
            if self._is_closing and not self._num_blocks:
                what = f"cannot read {self._path}"
                raise UsageError(what, "it has been closed", "open or analyse it again")
            self._num_blocks += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._num_blocks -= 1
            is_last = self._is_closing and not self._num_blocks
        if is_last:
            self._close()

    def unless_read(self, action: Callable[[], None]) -> None:
        """Act while no thread reads the file; do nothing if one does."""
        with self._lock:
            if not self._num_blocks:
                action()

    def close(self) -> None:
        """Close the file, at the end of the last block if one runs."""
        with self._lock:
            self._is_closing = True
            is_unused = not self._num_blocks
        if is_unused:
            self._close()


_HEADER_BYTES = 100
_CLOSED = -1


class Database:
    """Schema, metadata and small tables of an SQLite file.

    The opened file is read, even if another one has its name now, and only as long as it does not
    change.

    Attributes:
        path: the report, for messages.
        file: the SQLite file, no link.
        descriptor: of the open file, which child processes inherit.
        progress: called with the rows that are read.
        columns: names of columns by table.
        views: names of views, which no exporter creates.
        in_use: keeps the file open while a block runs, whatever thread closes it.
        remedy: advice to the user about a damaged file.
    """

    def __init__(
        self,
        path: Path,
        progress: Progress | None = None,
        *,
        file: Path | None = None,
        remedy: str = "write it again",
    ) -> None:
        """Open a report read-only; `file`: the SQLite file, if it is not the report itself.

        Raises:
            TraceFormatError: the file is damaged, or its writer has not finished.
            TraceFileError: SQLite cannot open it.
        """
        self.path = path
        self.progress = progress
        self.remedy = remedy
        self.in_use = FileUse(path, self._close)
        self._connections_of_others: list[sqlite3.Connection] = []
        # SQLite, too, looks for a journal beside the target of a symbolic link.
        self.file = (file or path).resolve()
        # immutable: SQLite then writes no lock, journal, -wal or -shm file beside the input.
        self._uri = f"{self.file.as_uri()}?mode=ro&immutable=1"
        try:
            self.descriptor = os.open(self.file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise self._cannot_open(error.strerror or str(error)) from error
        # An unclosed descriptor lives as long as this object, not as long as the process.
        self._close_file = weakref.finalize(self, os.close, self.descriptor)
        self._close_file.atexit = False  # a thread may still read when the process ends
        self._connection: sqlite3.Connection | None = None
        try:
            self._status = os.fstat(self.descriptor)
            self._check_complete(self.file)
            try:
                self._connection = self.connect()
            except sqlite3.Error as error:
                raise self._cannot_open(str(error)) from error
            self._read_schema()
        except BaseException:
            self._close()
            raise

    def close(self) -> None:
        """Close the connection and the file once no thread reads them."""
        self.in_use.close()

    @property
    def connection(self) -> sqlite3.Connection:
        """The read-only connection, for the reader of the large tables.

        Raises TraceFormatError: there is none any more, and another file has the name now.
        """
        if self._connection is None:
            self._connection = self.connect()
        return self._connection

    def disconnect(self) -> None:
        """Close the connection until the next use, unless a thread reads: those of many add up."""
        self.in_use.unless_read(self._disconnect)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _close(self) -> None:
        self._disconnect()
        self._close_file()
        self.descriptor = _CLOSED

    def shrink(self) -> None:
        """Make SQLite release its cached pages: those of many open reports add up."""
        if self._connection is not None:  # else there are none
            with suppress(sqlite3.Error):
                self._connection.execute("PRAGMA shrink_memory")

    def reopen(self) -> None:
        """Connect again on the next use, and leave the connection of another process alone."""
        if self._connection is not None:
            self._connections_of_others.append(self._connection)  # closing it would disturb them
            self._connection = None
        self.progress = None  # which that process reports

    def connect(self) -> sqlite3.Connection:
        """Return another connection, for a thread of its own; the caller closes it.

        Raises TraceFormatError: another file has the name now.
        """
        connection = sqlite3.connect(self._uri, uri=True, check_same_thread=False)
        # SQLite resolves links, those of /proc/self/fd too: it can only open a file by its name.
        if not self._is_in_place():
            connection.close()
            raise self._changed("another file has taken its name")
        # Metadata can hold bytes that are not UTF-8, such as Windows time zone names.
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        return connection

    @contextmanager
    def damage_reported(self) -> Iterator[None]:
        """Keep the file open, and turn SQLite's errors about damage into a TraceFormatError.

        Raises UsageError: it has been closed.
        """
        try:
            with self.in_use:
                yield
        except (sqlite3.Error, UnicodeError, MemoryError, OverflowError) as error:
            raise self.damaged(str(error) or type(error).__name__) from error
        self.check_unchanged()

    def check_unchanged(self) -> None:
        """Raise if the file has changed since it was opened: the data may be mixed.

        Raises TraceFormatError: it has changed.
        """
        if self._is_changed():
            raise self._changed("another process wrote to it")

    def damaged(self, why: str, remedy: str | None = None) -> TraceFormatError:
        """Return an error with the reason why the file cannot be read."""
        if self._is_changed():
            return self._changed("another process wrote to it")
        return TraceFormatError(f"cannot read {self.path}", why, remedy or self.remedy)

    def misplaced(self, table: str, column: str, value: object) -> TraceFormatError:
        """Return the error about a value where an integer belongs."""
        shown = repr(value) if len(repr(value)) < 40 else f"{str(value)[:36]!r}…"
        return self.damaged(f"{table}.{column} holds {shown} where an integer belongs")

    def has(self, table: str, *columns: str) -> bool:
        """Return whether the table exists with all these columns."""
        return table in self.columns and set(columns) <= set(self.columns[table])

    def require(self, table: str, columns: Iterable[str]) -> None:
        """Raise a TraceFormatError if a table exists without one of these columns."""
        present = self.columns[table]
        missing = [name for name in columns if name not in present]
        if missing:
            raise self.damaged(
                f"table {table} lacks the column {', '.join(missing)}"
                f" (it has {', '.join(present[:8])}, …)"
            )

    def rowid(self, table: str) -> str:
        """Return a name of the table's rowid that no column of it hides.

        Raises TraceFormatError: the file is damaged, or the table WITHOUT ROWID: no exporter's is.
        """
        hidden = {name.lower() for name in self.columns[table]}
        for name in ("_rowid_", "rowid", "oid"):
            if name in hidden:
                continue
            query = f"SELECT {name} FROM {quote(table)} LIMIT 0"  # noqa: S608
            with self.damage_reported(), suppress(sqlite3.OperationalError):
                self.connection.execute(query)
                return name
        raise self.damaged(f"table {table} has no rowid")

    def rows(
        self,
        table: str,
        columns: Columns,
        where: str = "",
        arguments: Any = (),  # noqa: ANN401
    ) -> list[dict[str, Any]]:
        """Columns of a small table, or no row if the table is absent.

        `columns`: by name, whether integers or text belong there. `where`: an SQL condition on
        existing columns, with `arguments`.

        Each row has all these columns: None for NULL, and if the table has no such column.

        Raises TraceFormatError: the file is damaged, or holds another type instead of an integer.
        """
        present = [name for name in columns if self.has(table, name)]
        if not present:
            return []
        names = ", ".join(quote(name) for name in present)
        # SQLite only checks that a record fills its payload if the last column is requested.
        names += f", typeof({quote(self.columns[table][-1])})"
        condition = f" WHERE {where}" if where else ""
        query = f"SELECT {names} FROM {quote(table)}{condition}"  # noqa: S608
        return self.query(query, table, columns, arguments)

    def query(
        self,
        sql: str,
        table: str,
        columns: Columns,
        arguments: Any = (),  # noqa: ANN401
    ) -> list[dict[str, Any]]:
        """Rows of a query with a small result, as `rows` has them; `table` is for messages."""
        with self.damage_reported():
            cursor = self.connection.execute(sql, arguments)
            names = [name for name, *_ in cursor.description]
            rows = [dict(zip(names, row, strict=True)) for row in cursor]
        return [
            {name: self._typed(row.get(name), kind, table, name) for name, kind in columns.items()}
            for row in rows
        ]

    def _typed(
        self, value: object, kind: type[int | str], table: str, column: str
    ) -> int | str | None:
        if value is None or (kind is int and isinstance(value, int)):
            return value
        if kind is int:
            raise self.misplaced(table, column, value)
        return clipped(value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value))

    def _is_changed(self) -> bool:
        if self.descriptor == _CLOSED:
            return False
        now, then = os.fstat(self.descriptor), self._status
        return (now.st_size, now.st_mtime_ns) != (then.st_size, then.st_mtime_ns)

    def _is_in_place(self) -> bool:
        with suppress(OSError):
            return os.path.samestat(self.file.stat(), self._status)
        return False

    def _changed(self, how: str) -> TraceFormatError:
        return TraceFormatError(
            f"cannot read {self.path}",
            f"the file changed while it was read: {how}",
            "wait until its writer has finished, and try again",
        )

    def _cannot_open(self, why: str) -> TraceFileError:
        return TraceFileError(f"cannot open {self.path}", why, "check that the file can be read")

    def _read_schema(self) -> None:
        with self.damage_reported():
            tables, views = self._names("table"), self._names("view")
            if not all(isinstance(name, str) for name in tables):
                raise self.damaged("the name of a table is not text")
            query = "SELECT name FROM pragma_table_info(?)"
            self.columns: Mapping[str, tuple[str, ...]] = {
                name: tuple(column for (column,) in self.connection.execute(query, [name]))
                for name in tables
            }
            self.views = frozenset(views)

    def _names(self, kind: str) -> list[str]:
        query = "SELECT name FROM sqlite_master WHERE type = ?"
        return [name for (name,) in self.connection.execute(query, [kind])]

    def _check_complete(self, file: Path) -> None:
        """Raise if the file is cut short or its last transaction is not in it."""
        header = os.pread(self.descriptor, _HEADER_BYTES, 0)
        size = self._status.st_size
        page_size = int.from_bytes(header[16:18], "big")
        page_size = 65536 if page_size == 1 else page_size
        pages = int.from_bytes(header[28:32], "big")
        whole = pages * page_size if len(header) == _HEADER_BYTES else _HEADER_BYTES
        # SQLite before 3.7 does not update the number of pages.
        is_kept = header[24:28] == header[92:96]
        if size < _HEADER_BYTES or (is_kept and size < whole):
            raise self.damaged(
                f"the file is cut short: {size} bytes instead of {whole}",
                f"copy it again, or {self.remedy}",
            )
        for suffix in ("-journal", "-wal"):
            beside = file.with_name(file.name + suffix)
            if _holds_unfinished_work(beside):
                raise self.damaged(
                    f"{beside.name} beside it holds changes that are not in it yet",
                    f"wait until its writer has finished, or {self.remedy}",
                )


def quote(identifier: str) -> str:
    """Quote the name of a table or column for SQL."""
    return '"' + identifier.replace('"', '""') + '"'


def _holds_unfinished_work(beside: Path) -> bool:
    try:
        if not stat.S_ISREG(beside.stat().st_mode):
            return True
        with beside.open("rb") as file:
            # A finished journal that is kept is empty or begins with zeros.
            return any(file.read(8))
    except OSError:
        return os.path.lexists(beside)
