"""Names in the NVTX events of an Nsight export: of ranges, threads and domains."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from traceprof import labels
from traceprof.patterns import lazy
from traceprof.trace.grouping import distinct_values, pieces
from traceprof.trace.model.limits import MAX_RANK, whole_number
from traceprof.trace.model.ranges import NamedRanges
from traceprof.trace.model.special_values import NULL, OPEN_END
from traceprof.trace.nsight import schema
from traceprof.trace.nsight.nvtx.events import RANGES, Events

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Mapping

    from traceprof.intervals import Int64
    from traceprof.trace.sqlite.database import Database

# Libraries create these when they are loaded, used or not.
_OF_LIBRARIES = {
    "NCCL", "MPI", "cuBLAS", "cuBLASLt", "cuDNN", "cuFFT", "cuSOLVER", "cuSPARSE", "CCCL", "STDPAR",
    "DALI", "TensorRT", "UCX", "NVSHMEM",
}  # fmt: skip
_MPI_RANK = lazy(r"MPI Rank (\d{1,9})")
_RANGES = f"eventType IN ({schema.NVTX_PUSH_POP}, {schema.NVTX_START_END})"


def ranges_named(
    events: Events, matching: re.Pattern[str], process: int | None = None, until: str = ""
) -> dict[int, NamedRanges]:
    """Return push/pop and start/end ranges by process (globalPid).

    Args:
        events: of the export.
        matching: searched for in each name.
        process: the only one that is asked for; None for all.
        until: names end where this begins.

    Raises:
        TraceFormatError: the file is damaged.
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
    """Return the ends of named ranges of a process, and the thread that ended each.

    Args:
        events: of the export.
        process: its globalPid.

    Returns:
        int64[n] in no order, int64[n]; those that never ended are left out.
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
    """Return the MPI ranks in the names of threads, by process.

    Args:
        thread_names: (globalTid, name) of each thread that NVTX named.
    """
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
    """Return the names of domains without any event in any process, except those of libraries.

    Args:
        events: of the export.
        domains: names by process and id.
    """
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
