"""All NVTX ranges of an Nsight export as columns: there can be millions."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from traceprof.trace import nvtx, schema
from traceprof.trace.columns import check_few_processes, check_times, groups
from traceprof.trace.model import RangeTable
from traceprof.trace.reader import NULL, expect_rows, read_columns, read_columns_and_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceprof.intervals import Int64
    from traceprof.trace.database import Database

    Columns = dict[str, Int64]

_NAME = "name"  # the number of the range's name, in place of `text` and `textId`
_UNNAMED = "(unnamed)"


def read_range_tables(database: Database) -> dict[int, RangeTable]:
    """Return push/pop and start/end ranges by process (globalPid).

    Raises:
        TraceFormatError: the file is damaged.
    """
    table = schema.NVTX
    if table.name not in database.columns:
        return {}
    database.require(table.name, table.required)
    expect_rows(database, [table.name])
    names = _Names()
    parts: dict[int, list[Columns]] = defaultdict(list)
    for chunk in _chunks(database, names):
        thread = chunk["globalTid"]
        is_range = np.isin(chunk["eventType"], (schema.NVTX_PUSH_POP, schema.NVTX_START_END))
        usable = is_range & (chunk["start"] != NULL) & (thread != NULL)
        kept = {name: values[usable] for name, values in chunk.items()}
        is_open = kept["end"] == NULL
        kept["end"] = np.maximum(kept["start"], kept["end"])
        check_times(database, table.name, kept["start"], kept["end"])
        kept["end"][is_open] = nvtx.OPEN_END
        of_row = schema.process_of_thread(kept["globalTid"])
        for rows in groups(of_row):
            parts[int(of_row[rows[0]])].append({name: each[rows] for name, each in kept.items()})
        check_few_processes(database, table.name, len(parts))
    texts = names.texts(database.strings(names.ids))
    return {process: _table(parts[process], texts) for process in sorted(parts)}


def read_thread_names(database: Database) -> dict[int, str]:
    """Return names of threads by globalTid: those that NVTX gave, else those of the system."""
    columns: dict[str, type[int | str]] = {"globalTid": int, "nameId": int}
    rows = database.rows(schema.THREAD_NAMES, columns)
    ids = sorted({row["nameId"] for row in rows if row["nameId"] is not None})
    strings = database.strings(ids)
    system = {row["globalTid"]: strings.get(row["nameId"]) for row in rows}
    return {
        thread: name
        for thread, name in {**system, **dict(nvtx.thread_names(database))}.items()
        if thread is not None and name
    }


class _Names:
    """Numbers names in the order in which they are met: texts, and ids of registered strings."""

    def __init__(self) -> None:
        self._numbers: dict[bytes | int, int] = {}

    def of_texts(self, texts: Sequence[bytes]) -> Int64:
        """Return the number of each text, int64[n]."""
        numbers = self._numbers
        return np.fromiter(
            (numbers.setdefault(text, len(numbers)) for text in texts), np.int64, len(texts)
        )

    def of_ids(self, ids: Int64) -> Int64:
        """Return the number of each id, int64[n]."""
        distinct, inverse = np.unique(ids, return_inverse=True)
        found = [self._numbers.setdefault(each, len(self._numbers)) for each in distinct.tolist()]
        return np.array(found, np.int64)[inverse.reshape(-1)]

    @property
    def ids(self) -> list[int]:
        """The ids that were met."""
        return [each for each in self._numbers if isinstance(each, int) and each != NULL]

    def texts(self, registered: dict[int, str]) -> list[str]:
        """Return the names by number."""
        return [
            (
                registered.get(each, _UNNAMED)
                if isinstance(each, int)
                else each.decode("utf-8", "replace")
            )
            for each in self._numbers
        ]


def _chunks(database: Database, names: _Names) -> Iterator[Columns]:
    """Yield the columns of the events, their names numbered."""
    table = schema.NVTX
    columns = [*table.required]
    has_ids = database.has(table.name, "textId")
    if has_ids:
        columns.append("textId")
    if not database.has(table.name, "text"):
        for chunk in read_columns(database, table.name, columns):
            ids = chunk.pop("textId", np.full(len(chunk["start"]), NULL, np.int64))
            yield {**chunk, _NAME: names.of_ids(ids)}
        return
    for chunk, texts in read_columns_and_text(database, table.name, columns, "text"):
        name = names.of_texts(texts)
        if has_ids:
            ids = chunk.pop("textId")
            unnamed = np.flatnonzero(np.array([not text for text in texts], bool))
            name[unnamed] = names.of_ids(ids[unnamed])
        yield {**chunk, _NAME: name}


def _table(parts: list[Columns], names: Sequence[str]) -> RangeTable:
    """Return one process's ranges in order."""
    start, end, name, thread, kind = (
        np.concatenate([part[column] for part in parts])
        for column in ("start", "end", _NAME, "globalTid", "eventType")
    )
    parts.clear()
    order = np.lexsort((-end, start))
    return RangeTable(
        start[order],
        end[order],
        name[order],
        thread[order],
        (kind == schema.NVTX_PUSH_POP)[order],
        names,
    )
