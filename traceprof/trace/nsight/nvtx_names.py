"""NVTX ranges and thread names of an Nsight export."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.trace.model.ranges import NamedRanges
from traceprof.trace.nsight import schema
from traceprof.trace.nsight.nvtx_events import events_of

if TYPE_CHECKING:
    import re

    from traceprof.trace.sqlite.database import Database

_RANGES = f"eventType IN ({schema.NVTX_PUSH_POP}, {schema.NVTX_START_END})"


def read_ranges(database: Database, matching: re.Pattern[str]) -> dict[int, NamedRanges]:
    """Return push/pop and start/end ranges by process (globalPid).

    Args:
        database: the export.
        matching: searched for in each name.

    Raises:
        TraceFormatError: the file is damaged.
    """
    events = events_of(database)
    if events is None:
        return {}
    rows, names = events.matching(matching)
    start, end, thread = events.start_ns[rows], events.ends(rows), events.thread.at(rows)
    rank = {name: place for place, name in enumerate(sorted({*names}))}
    of_name = np.array([rank[name] for name in names], np.int64)
    order = np.lexsort((thread, of_name, end, start))
    process = schema.process_of_thread(thread[order])
    found = {}
    for each in np.unique(process).tolist():
        own = order[process == each]
        found[each] = NamedRanges(
            start[own], end[own], [names[index] for index in own.tolist()], thread[own]
        )
    return found


def longest_names(database: Database, limit: int) -> list[str]:
    """Return the names of the longest ranges, longest first."""
    if not _has_events(database):
        return []
    rows = database.query(
        f"SELECT {name_sql(database)} AS name FROM {schema.NVTX.name} WHERE {_RANGES} "  # noqa: S608
        "GROUP BY 1 ORDER BY max(end - start) DESC LIMIT ?",
        schema.NVTX.name,
        {"name": str},
        [limit],
    )
    return [row["name"] for row in rows if row["name"]]


def thread_names(database: Database) -> list[tuple[int, str]]:
    """Return (globalTid, name) of each thread that NVTX named."""
    events = events_of(database)
    if events is None:
        return []
    rows = np.flatnonzero(events.kind.isin([schema.NVTX_THREAD_NAME]))
    return list(zip(events.thread.at(rows).tolist(), events.names(rows), strict=True))


def _has_events(database: Database) -> bool:
    if schema.NVTX.name not in database.columns:
        return False
    database.require(schema.NVTX.name, schema.NVTX.required)
    return True


def name_sql(database: Database) -> str:
    """Return the SQL for an event's name: its own text, or a registered string."""
    own = "text" if database.has(schema.NVTX.name, "text") else "NULL"
    if not database.has(schema.NVTX.name, "textId"):
        return own
    return f"coalesce({own}, (SELECT value FROM {schema.STRINGS} WHERE id = textId))"  # noqa: S608
