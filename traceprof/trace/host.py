"""What an Nsight export says of the host: API calls, synchronizations, blocked launches."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from traceprof.trace import schema
from traceprof.trace.columns import check_few_processes, check_times, groups
from traceprof.trace.model import ApiCalls, LaunchStalls, Waits
from traceprof.trace.reader import NULL, expect_rows, read_columns

if TYPE_CHECKING:
    from traceprof.intervals import Int64
    from traceprof.trace.database import Database

_NOTHING = np.empty(0, np.int64)
NO_CALLS = ApiCalls(*[_NOTHING] * 5)
NO_WAITS = Waits(*[_NOTHING] * 7)
NO_STALLS = LaunchStalls(*[_NOTHING] * 4)


def read_api_calls(database: Database) -> dict[int, ApiCalls]:
    """Return the CUDA API calls of each process."""
    calls = {}
    for process, columns in _by_process(database, schema.API_CALL, "globalTid").items():
        order = np.lexsort((columns["start"], columns["correlationId"]))
        calls[process] = ApiCalls(
            columns["correlationId"][order],
            columns["start"][order],
            columns["end"][order],
            columns["globalTid"][order],
            columns["nameId"][order],
        )
    return calls


def read_waits(database: Database) -> dict[int, Waits]:
    """Return the synchronizations of each process."""
    waits = {}
    for process, columns in _by_process(database, schema.WAIT, "globalPid").items():
        order = np.argsort(columns["start"], kind="stable")
        names = ("start", "end", "streamId", "correlationId", "syncType", "eventId", "eventSyncId")
        waits[process] = Waits(*(columns[name][order] for name in names))
    return waits


def read_launch_stalls(database: Database) -> dict[int, LaunchStalls]:
    """Return CUPTI's records of a full command buffer of each process."""
    if not database.has(schema.DRIVER_OVERHEAD.name, "overheadType"):
        return {}
    rows = database.rows(schema.OVERHEAD_TYPES, {"id": int, "name": str, "label": str})
    # Nsight renumbers CUPTI's kinds: its own enumeration tells, where it is there.
    kinds = [
        row["id"]
        for row in rows
        if "COMMAND_BUFFER_FULL" in f"{row['name']} {row['label']}".upper().replace(" ", "_")
    ] or [schema.COMMAND_BUFFER_FULL]
    stalls = {}
    for process, columns in _by_process(database, schema.DRIVER_OVERHEAD, "globalTid").items():
        chosen = np.flatnonzero(np.isin(columns["overheadType"], np.array(kinds, np.int64)))
        order = chosen[np.argsort(columns["start"][chosen], kind="stable")]
        names = ("start", "end", "globalTid", "correlationId")
        stalls[process] = LaunchStalls(*(columns[name][order] for name in names))
    return stalls


def _by_process(database: Database, table: schema.Table, owner: str) -> dict[int, dict[str, Int64]]:
    """Read a table's columns by process; rows without start, owner or correlation id mean nothing.

    Args:
        database: the export.
        table: what to read.
        owner: the column that tells the thread or process.
    """
    if table.name not in database.columns:
        return {}
    database.require(table.name, table.required)
    present = database.columns[table.name]
    columns = [name for name in (*table.required, *table.optional) if name in present]
    expect_rows(database, [table.name])
    parts: dict[int, list[dict[str, Int64]]] = defaultdict(list)
    for chunk in read_columns(database, table.name, columns):
        usable = (
            (chunk["start"] != NULL) & (chunk[owner] != NULL) & (chunk["correlationId"] != NULL)
        )
        kept = chunk if usable.all() else {name: each[usable] for name, each in chunk.items()}
        # NULL, the smallest integer, where the capture ended before the call did
        kept["end"] = np.maximum(kept["start"], kept["end"])
        check_times(database, table.name, kept["start"], kept["end"])
        of_row = schema.process_of_thread(kept[owner])
        for rows in groups(of_row):
            parts[int(of_row[rows[0]])].append({name: each[rows] for name, each in kept.items()})
        check_few_processes(database, table.name, len(parts))
    joined = {}
    for process in sorted(parts):
        pieces = parts.pop(process)
        joined[process] = {
            name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]
        }
        length = len(joined[process]["start"])
        for name in table.optional:
            joined[process].setdefault(name, np.full(length, NULL, np.int64))
    return joined
