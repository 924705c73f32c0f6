"""What an Nsight export says of the host: API calls, synchronizations, blocked launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.trace.columns import Differences, pack
from traceprof.trace.model.operations import ApiCalls, LaunchStalls, Synchronizations
from traceprof.trace.nsight import schema
from traceprof.trace.nsight.rows import Parts, check_few_processes, check_times, pieces
from traceprof.trace.sqlite.read_columns import NULL, expect_rows, read_columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceprof.trace.columns import Packed
    from traceprof.trace.sqlite.database import Database

_NOTHING = np.empty(0, np.int64)
NO_CALLS = ApiCalls(Differences(_NOTHING), *[pack(_NOTHING)] * 4)
NO_SYNCHRONIZATIONS = Synchronizations(*[_NOTHING] * 7)
NO_STALLS = LaunchStalls(*[_NOTHING] * 4)


def read_api_calls(database: Database) -> Iterator[tuple[int, ApiCalls]]:
    """Yield each process and its CUDA API calls."""
    for process, columns in _by_process(database, schema.API_CALL, "globalTid"):
        yield process, _in_order(columns)


def _in_order(columns: dict[str, Packed]) -> ApiCalls:
    start = columns.pop("start").values
    length, thread, name = (columns[each] for each in ("length", "globalTid", "nameId"))
    correlation = columns.pop("correlationId").values
    if not (correlation[1:] > correlation[:-1]).all():
        order = np.lexsort((start, correlation))
        start, correlation = start[order], correlation[order]
        length, thread, name = (each.taken(order) for each in (length, thread, name))
    ahead = pack(correlation - np.arange(len(start)))
    return ApiCalls(Differences(start), length, ahead, thread, name)


def read_synchronizations(database: Database) -> dict[int, Synchronizations]:
    """Return the synchronizations of each process."""
    waits = {}
    names = ("streamId", "correlationId", "syncType", "eventId", "eventSyncId")
    for process, columns in _by_process(database, schema.WAIT, "globalPid"):
        start = columns["start"].values
        order = np.argsort(start, kind="stable")
        end = start + columns["length"].values
        others = (columns[name].values[order] for name in names)
        waits[process] = Synchronizations(start[order], end[order], *others)
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
    for process, columns in _by_process(database, schema.DRIVER_OVERHEAD, "globalTid"):
        kind, start = columns["overheadType"].values, columns["start"].values
        chosen = np.flatnonzero(np.isin(kind, np.array(kinds, np.int64)))
        order = chosen[np.argsort(start[chosen], kind="stable")]
        end = start + columns["length"].values
        others = (columns[name].values[order] for name in ("globalTid", "correlationId"))
        stalls[process] = LaunchStalls(start[order], end[order], *others)
    return stalls


def _by_process(
    database: Database, table: schema.Table, owner: str
) -> Iterator[tuple[int, dict[str, Packed]]]:
    """Yield a table's columns by process; rows without start, owner or correlation mean nothing.

    Args:
        database: the export.
        table: what to read.
        owner: the column that tells the thread or process.

    Yields:
        A process with its columns, `length` in the place of `end`; 0 where the capture ended before
        the call did.
    """
    if table.name not in database.columns:
        return
    database.require(table.name, table.required)
    present = database.columns[table.name]
    columns = [name for name in (*table.required, *table.optional) if name in present]
    expect_rows(database, [table.name])
    parts = Parts()
    for chunk in read_columns(database, table.name, columns):
        needed = [chunk["start"], chunk[owner], chunk["correlationId"]]
        kept = chunk
        if any(each.min(initial=0) == NULL for each in needed):
            usable = np.logical_and.reduce([each != NULL for each in needed])
            kept = {name: each[usable] for name, each in chunk.items()}
        if len(kept["start"]) == 0:
            continue
        end = np.maximum(kept["start"], kept.pop("end"))
        check_times(database, table.name, kept["start"], end)
        kept["length"] = end - kept["start"]
        of_row = schema.process_of_thread(kept[owner])
        parts.add(kept, ((int(of_row[rows][0]), rows) for rows in pieces(of_row)))
        check_few_processes(database, table.name, len(parts))
    for process, found in parts.finished():
        missing = pack(np.full(len(found["start"]), NULL, np.int64))
        yield process, {**dict.fromkeys(table.optional, missing), **found}
