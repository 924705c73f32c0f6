"""The first launches of each rank: from the first rows of tables, without reading the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.trace.grouping import groups
from traceprof.trace.model.operations import RankKey
from traceprof.trace.model.special_values import NULL
from traceprof.trace.nsight import schema
from traceprof.trace.sqlite.read_columns import read_columns

if TYPE_CHECKING:
    from traceprof.intervals import Int64
    from traceprof.trace.sqlite.database import Database

_OF_CALL = ("start", "globalTid", "correlationId")
_OF_OPERATION = ("start", "globalPid", "deviceId", "correlationId")


def first_launches(database: Database) -> dict[RankKey, Int64]:
    """Return how long after their calls the first operations of each rank began, int64[n] each.

    Operations and calls are those in the first rows of their tables.
    """
    called: dict[int, tuple[Int64, Int64]] = {}
    since: dict[RankKey, Int64] = {}
    start, thread, ids = _first_rows(database, schema.API_CALL.name, _OF_CALL)
    process = schema.process_of_thread(thread)
    for rows in groups(process):
        order = np.lexsort((start[rows], ids[rows]))
        called[int(process[rows][0])] = ids[rows][order], start[rows][order]
    for table in schema.GPU_OPERATIONS:
        start, process, device, ids = _first_rows(database, table.name, _OF_OPERATION)
        for rows in groups(process, device):
            key = RankKey(int(process[rows][0]), int(device[rows][0]))
            known, called_ns = called.get(key.process, (ids[:0], ids[:0]))
            call = np.searchsorted(known, ids[rows])
            is_known = np.append(known, NULL)[call] == ids[rows]
            after = start[rows][is_known] - called_ns[call[is_known]]
            since[key] = np.concatenate((since.get(key, after[:0]), after))
    return since


def _first_rows(database: Database, table: str, columns: tuple[str, ...]) -> list[Int64]:
    """Return columns of a table's first rows, tens of thousands, of those that have all values."""
    if not database.has(table, *columns):
        return [np.empty(0, np.int64) for _ in columns]
    nothing = dict.fromkeys(columns, np.empty(0, np.int64))
    chunk = next(read_columns(database, table, columns), nothing)
    is_whole = np.logical_and.reduce([chunk[name] != NULL for name in columns])
    return [chunk[name][is_whole] for name in columns]
