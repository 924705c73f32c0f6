"""NVTX ranges and thread names of an Nsight export."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from traceprof.trace import schema
from traceprof.trace.model import NamedRanges

if TYPE_CHECKING:
    import re
    from collections.abc import Sequence

    from traceprof.trace.database import Database

OPEN_END = int(np.iinfo(np.int64).max)
"""The end of a range that was still open when the capture stopped."""

RANGES = f"eventType IN ({schema.NVTX_PUSH_POP}, {schema.NVTX_START_END})"
"""The SQL condition that rows of ranges meet."""


def read_ranges(
    database: Database, matching: re.Pattern[str], like: Sequence[str] = ()
) -> dict[int, NamedRanges]:
    """Return push/pop and start/end ranges by process (globalPid).

    Args:
        database: the export.
        matching: searched for in each name.
        like: SQL LIKE patterns, one of which fits every name that `matching` finds; without them
            every name is looked at.

    Raises:
        TraceFormatError: the file is damaged.
    """
    if not _has_events(database):
        return {}
    condition, arguments = _name_condition(database, matching, like)
    if not condition:
        return {}
    found = database.query(
        f"SELECT start, end, globalTid, {name_sql(database)} AS name FROM {schema.NVTX.name} "  # noqa: S608
        f"WHERE {RANGES} AND start IS NOT NULL AND globalTid IS NOT NULL AND ({condition})",
        schema.NVTX.name,
        {"start": int, "end": int, "globalTid": int, "name": str},
        arguments,
    )
    by_process: dict[int, list[tuple[int, int, str, int]]] = defaultdict(list)
    for row in found:
        if row["name"] is not None and matching.search(row["name"]):
            end = OPEN_END if row["end"] is None else row["end"]
            process = schema.process_of_thread(row["globalTid"])
            by_process[process].append((row["start"], end, row["name"], row["globalTid"]))
    return {process: _in_order(rows) for process, rows in by_process.items()}


def longest_names(database: Database, limit: int) -> list[str]:
    """Return the names of the longest ranges, longest first."""
    if not _has_events(database):
        return []
    rows = database.query(
        f"SELECT {name_sql(database)} AS name FROM {schema.NVTX.name} WHERE {RANGES} "  # noqa: S608
        "GROUP BY 1 ORDER BY max(end - start) DESC LIMIT ?",
        schema.NVTX.name,
        {"name": str},
        [limit],
    )
    return [row["name"] for row in rows if row["name"]]


def thread_names(database: Database) -> list[tuple[int, str]]:
    """Return (globalTid, name) of each thread that NVTX named."""
    if not _has_events(database):
        return []
    rows = database.query(
        f"SELECT globalTid, {name_sql(database)} AS name FROM {schema.NVTX.name} "  # noqa: S608
        f"WHERE eventType = {schema.NVTX_THREAD_NAME} AND globalTid IS NOT NULL",
        schema.NVTX.name,
        {"globalTid": int, "name": str},
    )
    return [(row["globalTid"], row["name"] or "") for row in rows]


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


def _name_condition(
    database: Database, matching: re.Pattern[str], like: Sequence[str]
) -> tuple[str, dict[str, Any]]:
    """Return an SQL condition that every matching name meets, and its arguments.

    Few of millions of ranges are steps; SQLite sorts them out without handing each to Python, but
    for the texts that a user's own expression must look at.
    """
    arguments: dict[str, Any] = {f"like{index}": each for index, each in enumerate(like)}
    conditions = []
    if database.has(schema.NVTX.name, "text"):
        if like:
            conditions += [f"text LIKE :{name}" for name in arguments]
        else:
            database.connection.create_function(
                "name_matches",
                1,
                lambda text: isinstance(text, str) and matching.search(text) is not None,
                deterministic=True,
            )
            conditions.append("name_matches(text)")
    if database.has(schema.NVTX.name, "textId"):
        where = " OR ".join(f"value LIKE :{name}" for name in arguments)
        ids = [
            str(row["id"])
            for row in database.rows(schema.STRINGS, {"id": int, "value": str}, where, arguments)
            if row["value"] is not None and matching.search(row["value"])
        ]
        if ids:
            conditions.append(f"textId IN ({', '.join(ids)})")
    return " OR ".join(conditions), arguments


def _in_order(rows: list[tuple[int, int, str, int]]) -> NamedRanges:
    rows.sort()
    return NamedRanges(
        np.array([row[0] for row in rows], np.int64),
        np.array([row[1] for row in rows], np.int64),
        [row[2] for row in rows],
        np.array([row[3] for row in rows], np.int64),
    )
