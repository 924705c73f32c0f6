"""All NVTX ranges and marks of an Nsight export as columns: there can be millions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import labels
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, is_in, pieces
from traceprof.trace.model.marks import Marks
from traceprof.trace.model.ranges import RangeTable
from traceprof.trace.model.special_values import NULL, OPEN_END
from traceprof.trace.model.texts import Texts
from traceprof.trace.nsight import schema
from traceprof.trace.nsight.nvtx.events import label_texts, numbered_labels
from traceprof.trace.nsight.rows import RowsByProcess, check_few_processes, check_times
from traceprof.trace.nsight.strings import read_strings
from traceprof.trace.sqlite.numbered_texts import NumberedTexts
from traceprof.trace.sqlite.read_columns import expect_rows, read_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from traceprof.intervals import Int64
    from traceprof.trace.columns import Column
    from traceprof.trace.sqlite.database import Database

_LONGEST = 1000  # characters of a text
_UNNAMED = "(unnamed)"


class RangeTables:
    """The packed ranges of each process; a process's table is made on first use."""

    def __init__(
        self, by_process: Mapping[int, Mapping[str, Column]], names: _Names, known: Sequence[str]
    ) -> None:
        """Combine the columns of each process.

        Args:
            by_process: the columns of the export.
            names: numbers their names.
            known: the names by number.
        """
        self._by_process, self._names, self._known = by_process, names, known
        self._tables: dict[int, RangeTable] = {}

    @property
    def processes(self) -> list[int]:
        """The processes that have ranges, ascending."""
        return [*self._by_process]

    def of(self, process: int) -> RangeTable | None:
        """Return the ranges of a process, None if it has none: the same object until `release`."""
        if process not in self._by_process:
            return None
        if process not in self._tables:
            self._tables[process] = _table(self._by_process[process], self._names, self._known)
        return self._tables[process]

    def release(self) -> None:
        """Release the tables, which are made again on the next use."""
        self._tables.clear()


class NvtxTables(Record, frozen=True):
    """The NVTX ranges and marks of an export, by process (globalPid).

    Attributes:
        ranges: push/pop and start/end ranges.
        marks: named moments.
    """

    ranges: RangeTables
    marks: Mapping[int, Marks]


def read_nvtx_tables(database: Database) -> NvtxTables:
    """Return the NVTX ranges and marks of all processes.

    Raises:
        TraceFormatError: the file is damaged.
    """
    table = schema.NVTX
    if table.name not in database.columns:
        nothing = RangeTables({}, _Names(NumberedTexts(), np.empty(0, np.int64)), ())
        return NvtxTables(nothing, {})
    database.require(table.name, table.required)
    expect_rows(database, [table.name])
    texts = NumberedTexts()
    optional = ("textId", schema.NVTX_INTEGER)
    columns = [*table.required, *(name for name in optional if database.has(table.name, name))]
    numbered = {"text": texts} if database.has(table.name, "text") else {}
    range_parts, mark_parts = RowsByProcess(), RowsByProcess()
    for chunk in read_columns(database, table.name, columns, numbered):
        kind = chunk["eventType"]
        is_usable = (chunk["start"] != NULL) & (chunk["globalTid"] != NULL)
        is_range = is_in(kind, (schema.NVTX_PUSH_POP, schema.NVTX_START_END))
        for parts, chosen in (
            (range_parts, is_range & is_usable),
            (mark_parts, (kind == schema.NVTX_MARK) & is_usable),
        ):
            usable = np.flatnonzero(chosen)
            if len(usable) == 0:
                continue
            kept = {name: values[usable] for name, values in chunk.items()}
            is_open = kept["end"] == NULL
            kept["end"] = np.maximum(kept["start"], kept["end"])
            check_times(database, table.name, kept["start"], kept["end"])
            kept["end"][is_open] = OPEN_END
            of_row = schema.process_of_thread(kept["globalTid"])
            parts.add(kept, ((int(of_row[rows][0]), rows) for rows in pieces(of_row)))
            check_few_processes(database, table.name, len(parts))
    ranges, marks = dict(range_parts.finished()), dict(mark_parts.finished())
    ids = [
        columns["textId"].distinct
        for columns in (*ranges.values(), *marks.values())
        if "textId" in columns
    ]
    names = _Names(texts, distinct_values(np.concatenate(ids)) if ids else np.empty(0, np.int64))
    known = names.known(database, [*ranges.values(), *marks.values()])
    return NvtxTables(
        RangeTables(ranges, names, known),
        {process: _marks(columns, names, known) for process, columns in marks.items()},
    )


def read_thread_names(database: Database, nvtx_names: Iterable[tuple[int, str]]) -> dict[int, str]:
    """Return names of threads by globalTid: from NVTX, else from the system."""
    columns: dict[str, type[int | str]] = {"globalTid": int, "nameId": int}
    rows = database.rows(schema.THREAD_NAMES, columns)
    ids = sorted({row["nameId"] for row in rows if row["nameId"] is not None})
    strings = read_strings(database, ids)
    system = {row["globalTid"]: strings.get(row["nameId"]) for row in rows}
    return {
        thread: name
        for thread, name in {**system, **dict(nvtx_names)}.items()
        if thread is not None and name
    }


class _Names:
    """Numbers for names: texts, registered strings, the name of unnamed ranges, numbered labels."""

    def __init__(self, texts: NumberedTexts, ids: Int64) -> None:
        self._texts, self._ids = texts, ids
        self._takes_number = np.zeros(0, np.bool_)  # by number of a name
        self._labels = np.empty(0, np.int64)  # their keys, ascending

    def of(self, columns: Mapping[str, Column], length: int) -> Int64:
        """Return the number of each row's name, int64[n]; an empty text is none."""
        num_texts = len(self._texts.known)
        number = np.full(length, num_texts + len(self._ids), np.int64)
        if "textId" in columns:
            has_id = columns["textId"].values != NULL
            number[has_id] = num_texts + columns["textId"].places_in(self._ids)[has_id]
        if "text" in columns:
            says = np.array([len(text) > 0 for text in self._texts.known] + [False], np.bool_)
            text = columns["text"].values
            number = np.where(says[text], text, number)
        rows, keys = self._numbered(number, columns)
        number[rows] = len(self._takes_number) + np.searchsorted(self._labels, keys)
        return number

    def _numbered(self, number: Int64, columns: Mapping[str, Column]) -> tuple[Int64, Int64]:
        """Return the rows of numbered labels, and the key of each."""
        payload = columns.get(schema.NVTX_INTEGER)
        if payload is None or not self._takes_number.any():
            return np.empty(0, np.int64), np.empty(0, np.int64)
        return numbered_labels(self._takes_number, number, payload.values)

    def known(self, database: Database, by_process: Sequence[Mapping[str, Column]]) -> Texts:
        """Return the names by number.

        Args:
            database: the export.
            by_process: the columns of each process, of which it has to know the numbered labels.
        """
        strings = read_strings(
            database, (text_id for text_id in self._ids.tolist() if text_id != NULL)
        )
        texts = (
            # A text ends at the end of the C string.
            text.partition("\0")[0] if isinstance(text, str) else text.decode("utf-8", "replace")
            for text in self._texts.known
        )
        registered = (strings.get(text_id, _UNNAMED) for text_id in self._ids.tolist())
        names = [*(text[:_LONGEST] for text in texts), *registered, _UNNAMED]
        takes_number = np.array([*map(labels.takes_number, names)], np.bool_)
        if takes_number.any():
            of_all = [self.of(columns, len(columns["start"])) for columns in by_process]
            self._takes_number = takes_number
            keys = map(self._numbered, of_all, by_process)
            self._labels = distinct_values(np.concatenate([of_one for _, of_one in keys]))
            names += label_texts(self._labels, names)
        return Texts(name.encode() for name in names)


def _table(columns: Mapping[str, Column], names: _Names, known: Sequence[str]) -> RangeTable:
    """Return one process's ranges in order."""
    start, end, thread, kind = (
        columns[name].values for name in ("start", "end", "globalTid", "eventType")
    )
    name = names.of(columns, len(start))
    order = np.lexsort((-end, start))
    return RangeTable(
        start[order],
        end[order],
        name[order],
        thread[order],
        (kind == schema.NVTX_PUSH_POP)[order],
        known,
    )


def _marks(columns: dict[str, Column], names: _Names, known: Sequence[str]) -> Marks:
    """Return one process's marks in order."""
    time, thread = (columns.pop(name).values for name in ("start", "globalTid"))
    name = names.of(columns, len(time))
    order = np.argsort(time, kind="stable")
    return Marks(time[order], name[order], thread[order], known)
