"""Copies of exports that lack some of what shows what waited for what, or with other clocks."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from shutil import copyfile

from tests.support.opened import analysis_of

_RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
_WAITS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
_RECORDS = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
_GPU = [f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")]
_WORK = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")


def damaged(path: Path, copy: Path, damage: str) -> int:
    """Write a copy of an export with one of `DAMAGES`, and return how many rows it lacks."""
    copyfile(path, copy)
    copy.chmod(0o644)
    with closing(sqlite3.connect(copy)) as connection, connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        if _RUNTIME not in tables:
            return 0
        return DAMAGES[damage](connection, tables)


def _without_calls(connection: sqlite3.Connection, tables: set[str], *patterns: str) -> int:
    """Delete calls by name, with the waits and the records that they made."""
    like = " OR ".join("value LIKE ?" for _ in patterns)
    chosen = f"SELECT id FROM StringIds WHERE {like}"
    ids = f"SELECT correlationId FROM {_RUNTIME} WHERE nameId IN ({chosen})"
    for table in {_WAITS, _RECORDS} & tables:
        connection.execute(f"DELETE FROM {table} WHERE correlationId IN ({ids})", patterns)
    deleted = f"DELETE FROM {_RUNTIME} WHERE nameId IN ({chosen})"
    return connection.execute(deleted, patterns).rowcount


def _synchronize_calls(connection: sqlite3.Connection, tables: set[str]) -> int:
    return _without_calls(connection, tables, "%Synchronize%")


def _stream_waits(connection: sqlite3.Connection, tables: set[str]) -> int:
    return _without_calls(connection, tables, "%StreamWaitEvent%", "%EventRecord%")


def _records(connection: sqlite3.Connection, tables: set[str]) -> int:
    if _RECORDS not in tables:
        return 0
    return connection.execute(f"DELETE FROM {_RECORDS}").rowcount


def _half_of_the_records(connection: sqlite3.Connection, tables: set[str]) -> int:
    if _RECORDS not in tables:
        return 0
    return connection.execute(f"DELETE FROM {_RECORDS} WHERE rowid % 2").rowcount


def _launch_calls(connection: sqlite3.Connection, tables: set[str]) -> int:
    """Delete those of the thread that makes the second most launches, or all of the only one."""
    work = " UNION ALL ".join(
        f"SELECT correlationId FROM {name}" for name in _WORK if name in tables
    )
    threads = connection.execute(
        f"SELECT globalTid FROM {_RUNTIME} WHERE correlationId IN ({work})"
        " GROUP BY globalTid ORDER BY count(*) DESC LIMIT 2"
    ).fetchall()
    if not threads:
        return 0
    return connection.execute(
        f"DELETE FROM {_RUNTIME} WHERE globalTid = ? AND correlationId IN ({work})", threads[-1]
    ).rowcount


DAMAGES: dict[str, Callable[[sqlite3.Connection, set[str]], int]] = {
    "synchronize calls": _synchronize_calls,
    "stream waits and event records": _stream_waits,
    "event records": _records,
    "half of the records": _half_of_the_records,
    "launch calls of a thread": _launch_calls,
}


def with_late_gpu(path: Path, copy: Path, late_ns: int, drift: float = 0.0) -> Path:
    """Write a copy of an export whose GPU is late on its host's clock, and later and later."""
    copyfile(path, copy)
    copy.chmod(0o644)
    with closing(sqlite3.connect(copy)) as connection, connection:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        for name in names & {*_GPU}:
            (first_ns,) = connection.execute(f"SELECT MIN(start) FROM {name}").fetchone()
            for column in ("start", "end"):
                connection.execute(
                    f'UPDATE {name} SET "{column}" = "{column}" + ?'
                    f' + CAST(("{column}" - ?) * ? AS INTEGER)',
                    [late_ns, first_ns or 0, drift],
                )
    return copy


def on_one_clock(path: Path, copy: Path) -> Path:
    """Return an export whose GPU is on its host's clock: itself, or a copy as `analyze` moves it.

    The plain references know nothing of clocks.
    """
    with analysis_of(path) as analysis:
        moved_ns = {rank.moved_ns for rank in analysis.run.ranks} - {0}
    return with_late_gpu(path, copy, *moved_ns) if moved_ns else path
