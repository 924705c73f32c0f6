"""Host calls of an Nsight export: API calls, synchronizations, blocked launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.trace.columns import pack, pack_ahead
from traceprof.trace.grouping import is_in, numbered, pieces
from traceprof.trace.model.host import ApiCalls, EventRecords, LaunchStalls, Synchronizations
from traceprof.trace.model.kinds import SynchronizationKind, synchronization_kind
from traceprof.trace.model.special_values import NULL
from traceprof.trace.nsight import schema
from traceprof.trace.nsight.rows import RowsByProcess, check_few_processes, check_times
from traceprof.trace.sqlite.read_columns import expect_rows, read_columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from traceprof.intervals import Int64
    from traceprof.trace.columns import Column
    from traceprof.trace.sqlite.database import Database


def read_api_calls(database: Database) -> Iterator[tuple[int, ApiCalls]]:
    """Yield each process and its CUDA API calls."""
    for process, columns in _by_process(database, schema.API_CALL, "globalTid"):
        yield process, _in_order(columns)


def _in_order(columns: dict[str, Column]) -> ApiCalls:
    start = columns.pop("start").values
    length, thread, name = (columns[column] for column in ("length", "globalTid", "nameId"))
    correlation = columns.pop("correlationId").values
    if not (correlation[1:] > correlation[:-1]).all():
        order = np.lexsort((start, correlation))
        start, correlation = start.take(order), correlation.take(order)
        length, thread, name = (column.taken(order) for column in (length, thread, name))
    return ApiCalls(pack(start), length, pack_ahead(correlation), thread, name)


def read_synchronizations(database: Database) -> dict[int, dict[str, Column]]:
    """Return the columns of each process's synchronizations, for `synchronizations_of`."""
    return dict(_by_process(database, schema.WAIT, "globalPid"))


def synchronizations_of(
    columns: Mapping[str, Column], calls: ApiCalls | None, api_names: Mapping[int, str]
) -> Synchronizations:
    """Return the synchronizations of a process.

    Args:
        columns: as they were read.
        calls: API calls of the process: their names show the kinds of waits.
        api_names: by the ids in `calls`.
    """
    kind_of_name = {name: synchronization_kind(text) for name, text in api_names.items()}
    start, correlation = columns["start"].values, columns["correlationId"].values
    order = np.argsort(start, kind="stable")
    start, end = start[order], (start + columns["length"].values)[order]
    correlation = correlation[order]
    kind = np.zeros(len(start), np.int64)
    if calls is not None:
        call = _calls_of(calls, correlation, start)
        known = np.flatnonzero(call >= 0)
        names, which = numbered(calls.packed_name.at(call[known]))
        kinds = [kind_of_name.get(name, SynchronizationKind.UNKNOWN) for name in names.tolist()]
        kind[known] = np.array(kinds, np.int64)[which]
    stream, event, recording = (
        _ids(columns[name].values[order]) for name in ("streamId", "eventId", "eventSyncId")
    )
    device = columns["deviceId"].values[order]
    return Synchronizations(start, end, stream, correlation, kind, event, recording, device)


def read_event_records(database: Database) -> dict[int, dict[str, Column]]:
    """Return the columns of each process's recordings of CUDA events, for `event_records_of`."""
    return dict(_by_process(database, schema.EVENT_RECORD, "globalPid"))


def event_records_of(columns: Mapping[str, Column], calls: ApiCalls | None) -> EventRecords:
    """Return the recordings of CUDA events in a process.

    Args:
        columns: as they were read; the export has no times of recordings.
        calls: API calls of the process, for the times.
    """
    correlation = columns["correlationId"].values
    called_ns = np.full(len(correlation), NULL, np.int64)
    if calls is not None:
        call = _calls_of(calls, correlation)
        known = np.flatnonzero(call >= 0)
        called_ns[known] = calls.start_ns[call[known]]
    order = np.lexsort((correlation, called_ns))
    stream, event, recording = (
        _ids(columns[name].values[order]) for name in ("streamId", "eventId", "eventSyncId")
    )
    device = columns["deviceId"].values[order]
    return EventRecords(called_ns[order], stream, event, recording, correlation[order], device)


def _ids(values: Int64) -> Int64:
    """Return ids of streams or events with NULL for none, int64[n]."""
    ids: Int64 = np.where(values == schema.NO_ID, NULL, values)
    return ids


def _calls_of(calls: ApiCalls, correlation: Int64, start_ns: Int64 | None = None) -> Int64:
    """Return the index of the call of each row, int64[n], -1 if the export does not have it.

    Args:
        calls: of the process.
        correlation: int64[n].
        start_ns: int64[n]; of several calls with the same id, the last one that began by then.
    """
    ids = calls.correlation
    if len(ids) == 0:
        return np.full(len(correlation), -1, np.int64)
    call = np.searchsorted(ids, correlation)
    call[call == len(ids)] = 0
    call[ids[call] != correlation] = -1
    while start_ns is not None:
        later = np.minimum(call + 1, len(ids) - 1)
        moves = (call >= 0) & (later > call) & (ids[later] == correlation)
        moves &= calls.start_ns[later] <= start_ns
        if not moves.any():
            break
        call[moves] = later[moves]
    return call


def read_launch_stalls(database: Database) -> dict[int, LaunchStalls]:
    """Return CUPTI's records of a full command buffer of each process."""
    if not database.has(schema.DRIVER_OVERHEAD.name, "overheadType"):
        return {}
    rows = database.rows(schema.OVERHEAD_TYPES, {"id": int, "name": str, "label": str})
    # Nsight renumbers CUPTI's kinds: use its own enumeration, if there is one.
    kinds = [
        row["id"]
        for row in rows
        if "COMMAND_BUFFER_FULL" in f"{row['name']} {row['label']}".upper().replace(" ", "_")
    ] or [schema.COMMAND_BUFFER_FULL]
    stalls = {}
    for process, columns in _by_process(database, schema.DRIVER_OVERHEAD, "globalTid"):
        kind, start = columns["overheadType"].values, columns["start"].values
        chosen = np.flatnonzero(is_in(kind, np.array(kinds, np.int64)))
        order = chosen[np.argsort(start[chosen], kind="stable")]
        end = start + columns["length"].values
        others = (columns[name].values[order] for name in ("globalTid", "correlationId"))
        stalls[process] = LaunchStalls(start[order], end[order], *others)
    return stalls


def _by_process(
    database: Database, table: schema.Table, owner: str
) -> Iterator[tuple[int, dict[str, Column]]]:
    """Yield a table's columns by process; rows without start, owner or correlation are unusable.

    A table of moments without a time has no start.

    Args:
        database: the export.
        table: to read.
        owner: the column of the thread or process.

    Yields:
        A process with its columns, `length` in the place of `end`; 0 if the capture ended before
        the call did.
    """
    if table.name not in database.columns:
        return
    database.require(table.name, table.required)
    present = database.columns[table.name]
    columns = [name for name in (*table.required, *table.optional) if name in present]
    expect_rows(database, [table.name])
    parts = RowsByProcess()
    for chunk in read_columns(database, table.name, columns):
        needed = [chunk[name] for name in ("start", owner, "correlationId") if name in chunk]
        kept = chunk
        if any(column.min(initial=0) == NULL for column in needed):
            usable = np.logical_and.reduce([column != NULL for column in needed])
            kept = {name: column[usable] for name, column in chunk.items()}
        if len(kept[owner]) == 0:
            continue
        if "start" in kept:
            end = np.maximum(kept["start"], kept.pop("end"))
            check_times(database, table.name, kept["start"], end)
            kept["length"] = end - kept["start"]
        of_row = schema.process_of_thread(kept[owner])
        parts.add(kept, ((int(of_row[rows][0]), rows) for rows in pieces(of_row)))
        check_few_processes(database, table.name, len(parts))
    for process, present_columns in parts.finished():
        missing = pack(np.full(len(present_columns[owner]), NULL, np.int64))
        yield process, {**dict.fromkeys(table.optional, missing), **present_columns}
