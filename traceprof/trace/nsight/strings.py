"""The strings of an Nsight export, to which other tables refer by their ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.trace.nsight import schema

if TYPE_CHECKING:
    from collections.abc import Iterable

    from traceprof.trace.sqlite.database import Database

_IDS_PER_QUERY = 500  # SQLite before 3.32 takes at most 999 arguments


def read_strings(database: Database, ids: Iterable[int]) -> dict[int, str]:
    """Return the strings with these ids that the export has.

    Raises:
        TraceFormatError: the file is damaged.
    """
    wanted = sorted(ids)
    strings: dict[int, str] = {}
    columns = {"id": int, "value": str}
    for first in range(0, len(wanted), _IDS_PER_QUERY):
        some = wanted[first : first + _IDS_PER_QUERY]
        condition = f"id IN ({', '.join('?' * len(some))})"
        for row in database.rows(schema.STRINGS, columns, condition, some):
            if row["value"] is not None:
                strings[row["id"]] = row["value"]
    return strings


def refers_to(database: Database, table: str, column: str, text: str) -> bool:
    """Return whether a row of a table refers to a string that contains a text.

    Raises:
        TraceFormatError: the file is damaged.
    """
    found = database.rows(schema.STRINGS, {"id": int}, "instr(value, ?)", [text])
    ids = ", ".join(str(row["id"]) for row in found if row["id"] is not None)
    return bool(ids and database.rows(table, {column: int}, f"{column} IN ({ids}) LIMIT 1"))
