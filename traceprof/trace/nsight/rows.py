"""Common parts of readers of event tables: checks, and rows by rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np

from traceprof.intervals import NO_NUMBERS, Int64, Mask
from traceprof.trace.columns import Column, ColumnBuilder, Rows
from traceprof.trace.grouping import distinct_values, groups
from traceprof.trace.model.special_values import NULL, are_times
from traceprof.trace.nsight import schema
from traceprof.trace.sqlite.database import Database
from traceprof.trace.sqlite.read_columns import expect_rows, read_columns

# A report is of one machine, with a few processes per GPU. Without a limit, random ids would make
# every operation a rank.
_MAX_PROCESSES = 1024


def check_times(database: Database, table: str, start: Int64, end: Int64) -> None:
    """Raise a TraceFormatError if times are beyond any clock."""
    if not are_times(start, end):
        raise database.damaged(f"{table} holds times beyond any clock")


def check_few_processes(database: Database, table: str, num_processes: int) -> None:
    """Raise a TraceFormatError if there are more processes than a machine runs."""
    if num_processes > _MAX_PROCESSES:
        raise database.damaged(f"{table} names more than {_MAX_PROCESSES} processes")


def read_rows(
    database: Database,
    table: str,
    needed: Sequence[str],
    optional: Sequence[str] = (),
    is_wanted: Callable[[Mapping[str, Int64]], Mask] | None = None,
) -> dict[str, Int64]:
    """Read the wanted rows of a table that have all needed values; int64[n] each.

    An optional column that the table lacks is NULL; a table that lacks a needed one has no rows.
    """
    parts = {name: [NO_NUMBERS] for name in (*needed, *optional)}
    if database.has(table, *needed):
        expect_rows(database, [table])
        held = [name for name in parts if database.has(table, name)]
        for chunk in read_columns(database, table, held):
            chosen = np.logical_and.reduce([chunk[name] != NULL for name in needed])
            if is_wanted is not None:
                chosen &= is_wanted(chunk)
            unknown = np.full(len(chosen), NULL)
            for name, of_chunks in parts.items():
                of_chunks.append(chunk.get(name, unknown)[chosen])
    return {name: np.concatenate(of_chunks) for name, of_chunks in parts.items()}


SomeRows = TypeVar("SomeRows", bound=Rows)


class RowsByKey:
    """The rows of each rank or process of a table, collected chunk by chunk."""

    def __init__(self, database: Database, table: str) -> None:
        self._database, self._table = database, table
        self._columns: dict[tuple[int, ...], dict[str, ColumnBuilder]] = {}

    def add(self, columns: Mapping[str, Int64], *keys: Int64) -> None:
        """Add rows of a chunk, int64[n] each; all chunks have the same columns.

        Raises TraceFormatError: they have more keys than a machine runs processes.
        """
        for rows in groups(*keys):
            key = tuple(int(of_rows[rows][0]) for of_rows in keys)
            builders = self._columns.get(key)
            if builders is None:
                builders = self._columns[key] = {name: ColumnBuilder() for name in columns}
            for name, values in columns.items():
                builders[name].append(values[rows])
        check_few_processes(self._database, self._table, len(self._columns))

    def finished(self) -> Iterator[tuple[tuple[int, ...], dict[str, Column]]]:
        """Yield the columns of each key, in order, and release them."""
        for key in sorted(self._columns):
            columns = self._columns.pop(key)
            yield key, {name: column.finish() for name, column in columns.items()}


def of_processes(rows: SomeRows, thread: Int64) -> dict[int, SomeRows]:
    """Return the rows of each process (globalPid), given the thread (globalTid) of each row."""
    process = schema.process_of_thread(thread)
    return {key: rows.chosen(process == key) for key in distinct_values(process).tolist()}


_IDS_PER_QUERY = 500  # SQLite before 3.32 takes at most 999 arguments


def portions(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield ids in portions that SQLite accepts."""
    for first in range(0, len(ids), _IDS_PER_QUERY):
        yield ids[first : first + _IDS_PER_QUERY]


def read_strings(database: Database, ids: Iterable[int]) -> dict[int, str]:
    """Strings with these ids that the export has."""
    wanted = sorted(ids)
    strings: dict[int, str] = {}
    columns = {"id": int, "value": str}
    for some in portions(wanted):
        condition = f"id IN ({', '.join('?' * len(some))})"
        for row in database.rows(schema.STRINGS, columns, condition, some):
            if row["value"] is not None:
                strings[row["id"]] = row["value"]
    return strings


def read_thread_names(database: Database) -> list[tuple[int, str]]:
    """Threads (globalTid) and their names from the system; a thread may have several."""
    rows = database.rows(schema.THREAD_NAMES, {"globalTid": int, "nameId": int})
    texts = read_strings(database, {row["nameId"] for row in rows if row["nameId"] is not None})
    return [
        (row["globalTid"], texts.get(row["nameId"], ""))
        for row in rows
        if row["globalTid"] is not None
    ]


def refers_to(database: Database, table: str, column: str, text: str) -> bool:
    """Whether a row of a table refers to a string that contains a text."""
    found = database.rows(schema.STRINGS, {"id": int}, "instr(value, ?)", [text])
    ids = ", ".join(str(row["id"]) for row in found if row["id"] is not None)
    return bool(ids and database.rows(table, {column: int}, f"{column} IN ({ids}) LIMIT 1"))
