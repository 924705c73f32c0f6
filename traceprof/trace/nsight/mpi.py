"""The processes of MPI in an Nsight export."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from traceprof.trace.nsight import schema

if TYPE_CHECKING:
    from traceprof.trace.sqlite.database import Database

_EVENTS = re.compile(r"MPI_\w*EVENTS\Z")


def mpi_processes(database: Database) -> frozenset[int]:
    """Return the processes (globalPid) with calls of MPI, or with a rank in MPI."""
    tables = [name for name in database.columns if _EVENTS.match(name)]
    threads = set()
    for table in (*tables, schema.MPI_RANKS):
        if database.has(table, "globalTid"):
            query = f'SELECT DISTINCT globalTid FROM "{table}"'  # noqa: S608
            threads |= {
                row["globalTid"] for row in database.query(query, table, {"globalTid": int})
            }
    return frozenset(schema.process_of_thread(thread) for thread in threads if thread is not None)
