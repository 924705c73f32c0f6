"""The rows of NVTX_EVENTS that NCCL's ranges are in."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from traceprof.trace import schema
from traceprof.trace.events import OPEN_END
from traceprof.trace.nvtx import name_sql

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from traceprof.trace.database import Database

# Start, end, thread, domain, name, payload in hexadecimal digits, payload as JSON.
Row: TypeAlias = "tuple[int, int, int, int, str, str | None, str | None]"


def read_rows(database: Database, names: AbstractSet[str]) -> list[Row]:
    """Return the push/pop ranges of NCCL, by thread, start and nesting.

    Args:
        database: the export.
        names: functions of NCCL that are asked for, beside those that make communicators.
    """
    table = schema.NVTX.name
    if table not in database.columns:
        return []
    condition = _condition(database, names)
    if not condition:
        return []
    domain = "ifnull(domainId, -1)" if database.has(table, "domainId") else "-1"
    with database.damage_reported():
        cursor = database.connection.execute(
            f"SELECT start, ifnull(end, {OPEN_END}), globalTid, {domain}, {name_sql(database)},"  # noqa: S608
            f" {', '.join(_payloads(database))} FROM {table} WHERE eventType ="
            f" {schema.NVTX_PUSH_POP} AND start IS NOT NULL AND globalTid IS NOT NULL"
            f" AND ({condition}) ORDER BY globalTid, start, end DESC, {database.rowid(table)}"
        )
        rows = cursor.fetchall()
    for index, name in enumerate(("start", "end", "globalTid", "domainId")):
        if not {type(row[index]) for row in rows} <= {int}:
            strange = next(row[index] for row in rows if type(row[index]) is not int)
            raise database.misplaced(table, name, strange)
    return [row for row in rows if isinstance(row[4], str) and _is_call(row[4], names)]


def _condition(database: Database, names: AbstractSet[str]) -> str:
    """Return the SQL condition that rows of interest meet; empty where there are none."""
    conditions = []
    if database.has(schema.NVTX.name, "textId"):
        strings = database.rows(
            schema.STRINGS, {"id": int, "value": str}, "value GLOB ?", ["nccl*"]
        )
        ids = [str(row["id"]) for row in strings if _is_call(row["value"], names)]
        conditions += [f"textId IN ({', '.join(ids)})"] if ids else []
    if database.has(schema.NVTX.name, "text"):
        conditions.append("text GLOB 'nccl[ABCGRS]*'")
    return " OR ".join(conditions)


def _payloads(database: Database) -> tuple[str, str]:
    """Return the SQL for a payload in hexadecimal digits and as JSON."""
    binary, text = "NULL", "NULL"
    if database.has(schema.NVTX.name, "binaryData"):
        # Exports hold it as bytes, or as text of hexadecimal digits.
        binary = "CASE typeof(binaryData) WHEN 'blob' THEN hex(binaryData) ELSE binaryData END"
    if database.has(schema.NVTX.name, "jsonText"):
        text = "jsonText"
    if database.has(schema.NVTX.name, "jsonTextId"):
        of_id = f"(SELECT value FROM {schema.STRINGS} WHERE id = jsonTextId)"  # noqa: S608
        text = f"coalesce({text}, {of_id})"
    return binary, text


def _is_call(name: str | None, names: AbstractSet[str]) -> bool:
    return name is not None and (name in names or name.startswith("ncclComm"))
