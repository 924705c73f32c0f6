"""All NVTX ranges and marks of an Nsight export as columns: there can be millions."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from traceprof import labels
from traceprof.patterns import lazy
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, is_in, pieces
from traceprof.trace.model.ranges import Marks, NamedRanges, RangeTable, Texts
from traceprof.trace.model.special_values import MAX_RANK, NULL, OPEN_END, whole_number
from traceprof.trace.nsight import schema
from traceprof.trace.nsight.nvtx_events import RANGES, Events, label_texts, numbered_labels
from traceprof.trace.nsight.rows import (
    RowsByProcess,
    check_few_processes,
    check_times,
    read_strings,
)
from traceprof.trace.sqlite.numbering import NumberedTexts
from traceprof.trace.sqlite.read_columns import expect_rows, read_columns

if TYPE_CHECKING:
    import re
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
        """Take the columns of each process; `names` numbers their names, `known` by number."""
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
    """The NVTX ranges and marks of an export, by process (globalPid)."""

    ranges: RangeTables  # push/pop and start/end ranges
    marks: Mapping[int, Marks]  # named moments


def read_nvtx_tables(database: Database) -> NvtxTables:
    """NVTX ranges and marks of all processes."""
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
            parts.add(kept, of_row)
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
        """Number of each row's name, int64[n]; an empty text is none."""
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
        payload = columns.get(schema.NVTX_INTEGER)
        if payload is None or not self._takes_number.any():
            return np.empty(0, np.int64), np.empty(0, np.int64)
        return numbered_labels(self._takes_number, number, payload.values)

    def known(self, database: Database, by_process: Sequence[Mapping[str, Column]]) -> Texts:
        """Names by number, with the numbered labels of each process's columns."""
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
    time, thread = (columns.pop(name).values for name in ("start", "globalTid"))
    name = names.of(columns, len(time))
    order = np.argsort(time, kind="stable")
    return Marks(time[order], name[order], thread[order], known)


# Libraries create these when they are loaded, used or not.
_OF_LIBRARIES = {
    "NCCL",
    "MPI",
    "cuBLAS",
    "cuBLASLt",
    "cuDNN",
    "cuFFT",
    "cuSOLVER",
    "cuSPARSE",
    "CCCL",
    "STDPAR",
    "DALI",
    "TensorRT",
    "UCX",
    "NVSHMEM",
}
_MPI_RANK = lazy(r"MPI Rank (\d{1,9})")
_RANGES = f"eventType IN ({schema.NVTX_PUSH_POP}, {schema.NVTX_START_END})"


def ranges_named(
    events: Events,
    matching: re.Pattern[str],
    process: int | None = None,
    until: re.Pattern[str] | None = None,
) -> dict[int, NamedRanges]:
    """Push/pop and start/end ranges by process (globalPid) with a match in their names.

    Names end where `until` begins.
    """
    rows, number, names = events.matching(matching, process, until)
    columns = events.columns
    start, end, thread = columns.starts.at(rows), events.known_ends(rows), columns.thread(rows)
    end_thread = columns.end_thread(rows)
    rank = {name: place for place, name in enumerate(sorted({*names}))}
    of_name = np.array([rank[name] for name in names], np.int64)[number]
    order = np.lexsort((thread, of_name, end, start))
    process_of, in_order = schema.process_of_thread(thread[order]), np.array([*rank], object)
    ranges = {}
    for number in distinct_values(process_of).tolist():
        indices = order[process_of == number]
        ranges[number] = NamedRanges(
            start[indices],
            end[indices],
            in_order[of_name[indices]].tolist(),
            thread[indices],
            end_thread[indices],
        )
    return ranges


def range_ends(events: Events, process: int) -> tuple[Int64, Int64]:
    """Ends of named ranges of a process, in no order, and the thread that ended each.

    Ranges that never ended are left out.
    """
    columns = events.columns
    rows = events.named_ranges.of_process(process)
    end = events.known_ends(rows)
    is_over = end != OPEN_END
    rows, end = rows[is_over], end[is_over]
    return np.maximum(end, columns.starts.at(rows)), columns.end_thread(rows)


def longest_names(database: Database, limit: int) -> list[str]:
    """Return the names of the longest ranges, longest first."""
    if not _has_events(database):
        return []
    name = name_sql(database)
    if database.has(schema.NVTX.name, schema.NVTX_INTEGER):
        steps = f"'{labels.STEP} ', '{labels.CUT} {labels.STEP} '"
        takes = f"{name} LIKE '%{labels.NUMBERED}' OR {name} IN ({steps})"
        name = f"{name} || CASE WHEN {takes} THEN coalesce({schema.NVTX_INTEGER}, '') ELSE '' END"
    rows = database.query(
        f"SELECT {name} AS name FROM {schema.NVTX.name} WHERE {_RANGES} "  # noqa: S608
        "GROUP BY 1 ORDER BY max(end - start) DESC LIMIT ?",
        schema.NVTX.name,
        {"name": str},
        [limit],
    )
    return [row["name"] for row in rows if row["name"]]


def thread_names(events: Events) -> list[tuple[int, str]]:
    """Return (globalTid, name) of each thread that NVTX named."""
    rows = np.flatnonzero(events.columns.kind.isin([schema.NVTX_THREAD_NAME]))
    return list(zip(events.columns.thread(rows).tolist(), events.names(rows), strict=True))


def mpi_ranks(thread_names: Iterable[tuple[int, str]]) -> dict[int, set[int]]:
    """MPI ranks by process, from names of threads (globalTid)."""
    ranks: dict[int, set[int]] = defaultdict(set)
    for thread, name in thread_names:
        match = _MPI_RANK.fullmatch(name)
        rank = whole_number(match[1]) if match else None
        if rank is not None and rank <= MAX_RANK:
            ranks[schema.process_of_thread(thread)].add(rank)
    return ranks


def _has_events(database: Database) -> bool:
    if schema.NVTX.name not in database.columns:
        return False
    database.require(schema.NVTX.name, schema.NVTX.required)
    return True


def name_sql(database: Database) -> str:
    """Return the SQL for an event's name: its own text, or a registered string."""
    text = "text" if database.has(schema.NVTX.name, "text") else "NULL"
    if not database.has(schema.NVTX.name, "textId"):
        return text
    return f"coalesce({text}, (SELECT value FROM {schema.STRINGS} WHERE id = textId))"  # noqa: S608


def domain_names(events: Events) -> dict[tuple[int, int], str]:
    """Return the names of NVTX domains by process and id."""
    columns = events.columns
    rows = np.flatnonzero(columns.kind.isin([schema.NVTX_DOMAIN]))
    process = schema.process_of_thread(columns.thread(rows)).tolist()
    domain = columns.domain.at(rows).tolist()
    return {
        (number, id_): name
        for number, id_, name in zip(process, domain, events.names(rows), strict=True)
        if id_ != NULL
    }


def silent_domains(events: Events, domains: Mapping[tuple[int, int], str]) -> list[str]:
    """Names of domains without any event in any process, except those of libraries."""
    by_program = {
        key: name
        for key, name in domains.items()
        if name not in _OF_LIBRARIES and name != labels.DOMAIN
    }
    if not by_program:
        return []
    columns = events.columns
    of_program = columns.domain.isin(number for _, number in by_program)
    rows = np.flatnonzero(of_program & columns.kind.isin([*RANGES, schema.NVTX_MARK]))
    process = schema.process_of_thread(columns.thread(rows))
    domain = columns.domain.at(rows)
    used = {(int(process[of_one][0]), int(domain[of_one][0])) for of_one in pieces(process, domain)}
    heard = {name for key, name in by_program.items() if key in used}
    return sorted({*by_program.values()} - heard)


def silence_note(name: str) -> str:
    """Return a note on a domain without records, with the likely reason and a remedy."""
    return (
        f"nothing was recorded of the NVTX domain {name!r}. If the program opens ranges in it with"
        " Python's package nvtx: from 0.2.12 on it writes none unless the profiler reports that it"
        " records the domain, which Nsight Systems 2023.4 does not; install nvtx==0.2.11, or record"
        " with a newer Nsight Systems"
    )
