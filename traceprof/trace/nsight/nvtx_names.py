"""NVTX ranges and marks of an Nsight export, and names of threads and domains."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from traceprof import labels
from traceprof.patterns import lazy
from traceprof.trace.grouping import distinct_values, pieces
from traceprof.trace.model.ranges import Marks, NamedRanges, RangeTable
from traceprof.trace.model.special_values import MAX_RANK, NULL, OPEN_END, whole_number
from traceprof.trace.nsight import schema
from traceprof.trace.nsight.nvtx_events import RANGES
from traceprof.trace.nsight.rows import check_times, read_strings

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Mapping, Sequence

    from traceprof.intervals import Int64
    from traceprof.trace.nsight.nvtx_events import Events
    from traceprof.trace.sqlite.database import Database

_LONGEST = 1000  # characters of a name
_UNNAMED = "(unnamed)"


def range_table(events: Events, process: int) -> RangeTable | None:
    """Return all ranges of a process (globalPid), also unnamed ones; None without any."""
    rows, columns = events.of_process(process, events.is_range), events.columns
    if not len(rows):
        return None
    start, end = columns.starts.at(rows), events.ends(rows)
    is_open, end = end == OPEN_END, np.maximum(start, end)
    check_times(events.database, schema.NVTX.name, start, np.where(is_open, start, end))
    order = np.lexsort((-end, start))
    rows = rows[order]
    name, names = _numbered_names(events, rows)
    nests = columns.kind.at(rows) == schema.NVTX_PUSH_POP
    return RangeTable(start[order], end[order], name, columns.thread(rows), nests, names)


def marks_of(events: Events, process: int) -> Marks | None:
    """Return the marks of a process (globalPid); None without any."""
    columns = events.columns
    is_mark = columns.kind.isin([schema.NVTX_MARK]) & (columns.starts.values != NULL)
    rows = events.of_process(process, is_mark)
    if not len(rows):
        return None
    rows = rows[np.argsort(columns.starts.at(rows), kind="stable")]
    time = columns.starts.at(rows)
    check_times(events.database, schema.NVTX.name, time, time)
    name, names = _numbered_names(events, rows)
    return Marks(time, name, columns.thread(rows), names)


def _numbered_names(events: Events, rows: Int64) -> tuple[Int64, Sequence[str]]:
    """Names of rows as numbers, int64[m]; a text ends at the end of the C string."""
    number, names = events.numbered_names(rows)
    return number, [name.partition("\0")[0][:_LONGEST] or _UNNAMED for name in names]


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
    rows = events.of_process(process, events.is_named)
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
