"""One report of several processes as a report for each of them."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from traceprof.trace.sqlite.database import quote

LOW_24_BITS = 0xFFFFFF  # of a thread's id; the rest is its process's


def split_by_process(path: Path, folder: Path) -> list[Path]:
    """Write a report for each process that ran kernels, with its own rows and those of nobody."""
    with closing(sqlite3.connect(path)) as database:
        query = "SELECT DISTINCT globalPid FROM CUPTI_ACTIVITY_KIND_KERNEL ORDER BY 1"
        processes = [process for (process,) in database.execute(query)]
    folder.mkdir()
    return [
        _of_process(path, folder / f"process_{number}.sqlite", process)
        for number, process in enumerate(processes)
    ]


def _of_process(path: Path, part: Path, process: int) -> Path:
    shutil.copyfile(path, part)
    with closing(sqlite3.connect(part)) as database:
        tables = "SELECT name FROM sqlite_master WHERE type = 'table'"
        for (table,) in database.execute(tables).fetchall():
            info = database.execute(f"PRAGMA table_info({quote(table)})")
            columns = [column for _, column, *_ in info]
            for column, owner in (
                ("globalPid", "globalPid"),
                ("globalTid", f"globalTid & ~{LOW_24_BITS}"),
            ):
                if column in columns:
                    database.execute(f"DELETE FROM {quote(table)} WHERE ({owner}) <> ?", (process,))
                    break
        database.commit()
    return part
