"""Opens stores: checks file and version; one writer at a time, all or nothing."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from traceprof.errors import TraceFileError, UsageError
from traceprof.store.tables import MIGRATIONS, migrate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlite_utils import Database

    from traceprof.trace.folder import AnyPath


_APPLICATION = int.from_bytes(b"trpf", "big")  # SQLite keeps it in the file's head
_MARK = slice(68, 72)  # where SQLite keeps it there
_MAX_WAIT_S = 120.0  # for others who write


@contextmanager
def written(path: AnyPath) -> Iterator[Database]:
    """Yield a store, made or brought up to date, whose changes all happen at the end or never."""
    from sqlite_utils import Database  # noqa: PLC0415  (it takes pandas with it)

    with closing(connected(Path(path), "rwc")) as connection:
        connection.execute("BEGIN IMMEDIATE")  # waits for its turn before it reads anything
        try:
            store = Database(connection, execute_plugins=False, recursive_triggers=False)
            version = version_of(connection, path)
            migrate(store, version)
            if version < len(MIGRATIONS):
                store.execute(f"PRAGMA application_id = {_APPLICATION}")
                store.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
            yield store
            connection.execute("COMMIT")
        except BaseException:  # also where it is interrupted
            connection.rollback()
            raise


@contextmanager
def read(path: AnyPath) -> Iterator[sqlite3.Connection]:
    """Yield a store that there is.

    Raises:
        TraceprofError: there is none.
    """
    source = Path(path)
    if not source.is_file():
        raise TraceFileError(f"cannot read {path}", "there is no such file", "check the path")
    # What somebody who was interrupted has left must be undone, which takes more than reading.
    mode = "rw" if os.access(source, os.W_OK) else "ro"
    with errors(path), closing(connected(source, mode)) as connection:
        if version_of(connection, path) == 0:
            raise UsageError(f"cannot read {path}", "no run was saved there", "save one first")
        yield connection


def connected(path: Path, mode: str) -> sqlite3.Connection:
    """Return a connection with a mode of SQLite's: `ro`, `rw`, or `rwc`, which makes the file."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", timeout=_MAX_WAIT_S, uri=True)


@contextmanager
def errors(path: AnyPath) -> Iterator[None]:
    """Turn what SQLite says of a store into an error that says what to do."""
    try:
        yield
    except sqlite3.Error as error:
        remedy = "choose another file, or check the disk and the permissions"
        raise refused(path, str(error), remedy) from error


def is_store(path: AnyPath) -> bool:
    """Say whether a file is marked as a store; whatever else it is, that is for others to find."""
    try:
        with Path(path).open("rb") as file:
            head = file.read(_MARK.stop)
    except OSError:
        return False
    return head.startswith(b"SQLite format 3\0") and head[_MARK] == _APPLICATION.to_bytes(4, "big")


def version_of(connection: sqlite3.Connection, path: AnyPath) -> int:
    """Return the version of a store, 0 of an empty file.

    Raises:
        UsageError: it is something else, or a newer traceprof wrote it.
    """
    [application], [version] = (
        connection.execute(f"PRAGMA {name}").fetchone()
        for name in ("application_id", "user_version")
    )
    if not has_tables(connection) and application in {0, _APPLICATION}:
        return 0
    if application != _APPLICATION:
        raise refused(path, "it is a database of something else", "choose another file")
    if version > len(MIGRATIONS):
        why = f"a newer traceprof wrote it (version {version} of the store)"
        raise refused(path, why, "update traceprof, or choose another file")
    return int(version)


def has_tables(connection: sqlite3.Connection) -> bool:
    """Say whether there is anything in a database."""
    return connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None


def refused(path: AnyPath, why: str, remedy: str) -> UsageError:
    """Return the error for a file in which no run can be saved."""
    return UsageError(f"cannot use {path} as a store of runs", why, remedy)
