"""Host calls of an Nsight export: API calls, synchronizations, blocked launches."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial

import numpy as np

from traceprof.intervals import Int64, Mask
from traceprof.trace.columns import Column, pack, pack_ahead
from traceprof.trace.grouping import is_in, median_of, numbered
from traceprof.trace.model import host as model
from traceprof.trace.model.kinds import SynchronizationKind, synchronization_kind
from traceprof.trace.model.special_values import NULL, OPEN_END
from traceprof.trace.nsight import schema
from traceprof.trace.nsight.rows import (
    RowsByKey,
    check_times,
    of_processes,
    read_rows,
    read_strings,
    read_thread_names,
)
from traceprof.trace.sqlite.database import Database
from traceprof.trace.sqlite.read_columns import expect_rows, read_columns


def read_api_calls(database: Database) -> Iterator[tuple[int, model.ApiCalls]]:
    """Yield each process and its CUDA API calls."""
    for process, columns in by_process(database, schema.API_CALL, "globalTid"):
        yield process, _in_order(columns)


def _in_order(columns: dict[str, Column]) -> model.ApiCalls:
    start = columns.pop("start").values
    others = [columns[name] for name in ("globalTid", "nameId", "returnValue")]
    length = columns["length"]
    correlation = columns.pop("correlationId").values
    if not (correlation[1:] > correlation[:-1]).all():
        order = np.lexsort((-length.values, start, correlation))
        order = order[~_is_around_itself(order, start, correlation, length, others[0])]
        start, correlation = start.take(order), correlation.take(order)
        length, *others = (column.taken(order) for column in (length, *others))
    return model.ApiCalls(pack(start), length, pack_ahead(correlation), *others)


def _is_around_itself(
    order: Int64, start: Int64, correlation: Int64, length: Column, thread: Column
) -> Mask:
    """Rows that hold a call a second time, bool[n]: with --cudabacktrace, around CUPTI's record.

    A thread is in one call with an id at a time: the outer row is no call of its own.
    """
    outer, inner = order[:-1], order[1:]
    is_outer = np.zeros(len(order), bool)
    rows = np.flatnonzero(correlation[outer] == correlation[inner])
    outer, inner = outer[rows], inner[rows]
    end = start[outer] + length.values[outer]
    nests = (thread.values[outer] == thread.values[inner]) & (start[inner] < end)
    is_outer[rows] = nests & (start[inner] + length.values[inner] <= end)
    return is_outer


def synchronizations_of(
    columns: Mapping[str, Column], calls: model.ApiCalls | None, api_names: Mapping[int, str]
) -> model.Synchronizations:
    """Synchronizations of a process; names of its API calls show the kinds of waits."""
    kind_of_name = {name: synchronization_kind(text) for name, text in api_names.items()}
    start, correlation = columns["start"].values, columns["correlationId"].values
    order = np.argsort(start, kind="stable")
    start, end = start[order], (start + columns["length"].values)[order]
    correlation = correlation[order]
    kind = np.zeros(len(start), np.int64)
    if calls is not None:
        call = calls.with_ids(correlation, lambda: start)
        known = np.flatnonzero(call >= 0)
        names, which = numbered(calls.packed_name.at(call[known]))
        kinds = [kind_of_name.get(name, SynchronizationKind.UNKNOWN) for name in names.tolist()]
        kind[known] = np.array(kinds, np.int64)[which]
    stream, event, recording = (
        _ids(columns[name].values[order]) for name in ("streamId", "eventId", "eventSyncId")
    )
    device = columns["deviceId"].values[order]
    return model.Synchronizations(start, end, stream, correlation, kind, event, recording, device)


def event_records_of(
    columns: Mapping[str, Column], calls: model.ApiCalls | None
) -> model.EventRecords:
    """Recordings of CUDA events in a process.

    The export has no times of recordings: those of the API calls stand for them.
    """
    correlation = columns["correlationId"].values
    called_ns = np.full(len(correlation), NULL, np.int64)
    if calls is not None:
        called_ns = np.append(calls.start_ns, NULL)[calls.with_ids(correlation)]
    order = np.lexsort((correlation, called_ns))
    stream, event, recording = (
        _ids(columns[name].values[order]) for name in ("streamId", "eventId", "eventSyncId")
    )
    device = columns["deviceId"].values[order]
    return model.EventRecords(
        called_ns[order], stream, event, recording, correlation[order], device
    )


def _ids(values: Int64) -> Int64:
    return np.where(values == schema.NO_ID, NULL, values)


def read_launch_stalls(database: Database) -> dict[int, model.LaunchStalls]:
    """Return CUPTI's records of a full command buffer of each process."""
    if not database.has(schema.DRIVER_OVERHEAD.name, "overheadType"):
        return {}
    rows = database.rows(schema.OVERHEAD_TYPES, {"id": int, "name": str, "label": str})
    # Nsight renumbers CUPTI's kinds: use its own enumeration, if there is one.
    kinds = [
        row["id"]
        for row in rows
        if "COMMAND_BUFFER_FULL" in f"{row['name']} {row['label']}".upper().replace(" ", "_")
    ] or [schema.COMMAND_BUFFER_FULL]
    stalls = {}
    for process, columns in by_process(database, schema.DRIVER_OVERHEAD, "globalTid"):
        kind, start = columns["overheadType"].values, columns["start"].values
        chosen = np.flatnonzero(is_in(kind, np.array(kinds, np.int64)))
        order = chosen[np.argsort(start[chosen], kind="stable")]
        end = start + columns["length"].values
        others = (columns[name].values[order] for name in ("globalTid", "correlationId"))
        stalls[process] = model.LaunchStalls(start[order], end[order], *others)
    return stalls


def by_process(
    database: Database, table: schema.Table, owner: str
) -> Iterator[tuple[int, dict[str, Column]]]:
    """Columns of a table by process; rows without start, owner or correlation are unusable.

    A table of moments without a time has no start. The columns have `length` in the place of `end`;
    0 if the capture ended before the call did.
    """
    if table.name not in database.columns:
        return
    database.require(table.name, table.required)
    present = database.columns[table.name]
    columns = [name for name in (*table.required, *table.optional) if name in present]
    expect_rows(database, [table.name])
    parts = RowsByKey(database, table.name)
    for chunk in read_columns(database, table.name, columns):
        needed = [chunk[name] for name in ("start", owner, "correlationId") if name in chunk]
        usable = np.logical_and.reduce([column != NULL for column in needed])
        kept = {name: column[usable] for name, column in chunk.items()}
        if "start" in kept:
            end = np.maximum(kept["start"], kept.pop("end"))
            check_times(database, table.name, kept["start"], end)
            kept["length"] = end - kept["start"]
        parts.add(kept, schema.process_of_thread(kept[owner]))
    for (process,), present_columns in parts.finished():
        missing = pack(np.full(len(present_columns[owner]), NULL, np.int64))
        yield process, {**dict.fromkeys(table.optional, missing), **present_columns}


_MPI = re.compile(r"(?:MPI|UCP|UCX)_\w*EVENTS\Z")
_SWITCH = ("start", "isSchedIn", "globalTid")
_OF_MPI = 1  # among the kinds of spans in `HostActivity`
_JIT = "JIT"
"""The name for compilation, whose rows have no name."""
_WORKER = "pt_data_worker"  # the name of a `DataLoader`'s, since PyTorch 2.6
_NO_PROGRAM = re.compile(r"cuda|CUPTI |\[NSys|\*\d?Comms")
"""Names of threads that the driver and the profiler start in a process."""


def read_host_activity(database: Database, threads: Int64) -> dict[int, model.HostActivity]:
    """Activity outside of CUDA of some threads (globalTid), by process (globalPid)."""
    switches = _read_switches(database, partial(np.isin, test_elements=threads))
    mpi = [(table, schema.MPI_NAME) for table in sorted(database.columns) if _MPI.match(table)]
    spans = [
        read_spans(database, tables, threads)
        for tables in (
            [(schema.OS_CALLS, schema.SPAN_NAME)],
            mpi,
            [(table, schema.SPAN_NAME) for table in schema.LIBRARY_CALLS],
            [(schema.DRIVER_OVERHEAD.name, schema.SPAN_NAME), (schema.JIT, None)],
        )
    ]
    if not spans[_OF_MPI]:
        spans[_OF_MPI] = _sampled_mpi(database, threads)
    processes = set(switches).union(*spans)
    return {
        process: model.HostActivity(
            switches.get(process, model.NO_SWITCHES),
            *(of_kind.get(process, model.NO_SPANS) for of_kind in spans),
        )
        for process in sorted(processes)
    }


def _sampled_mpi(database: Database, threads: Int64) -> dict[int, model.ThreadSpans]:
    """Time of some threads (globalTid) inside of MPI as their samples show it, by process.

    Between two samples whose outermost function of MPI is the same, the thread was in that call,
    if they are at most twice as far apart as usual: nothing is known of a thread that slept.
    """
    if not _has_samples(database):
        return {}
    functions = "value GLOB 'MPI_[A-Z]*' OR value GLOB 'PMPI_[A-Z]*'"
    rows = database.rows(schema.STRINGS, {"id": int, "value": str}, functions)
    names = {row["id"]: row["value"].removeprefix("P") for row in rows if row["id"] is not None}
    if not names:
        return {}
    time, thread, symbol = _sampled(database, threads, np.array(sorted(names), np.int64))
    order = np.lexsort((time, thread))
    time, thread, symbol = time[order], thread[order], symbol[order]
    start = np.flatnonzero(np.diff(thread) == 0)  # another sample of the thread follows
    apart = time[start + 1] - time[start]
    inside = (symbol[start] == symbol[start + 1]) & (symbol[start] != NULL)
    inside &= apart <= 2 * median_of(apart)
    start = start[inside]
    end = start + 1
    ids, number = numbered(symbol[start])
    texts = tuple(names[key] for key in ids.tolist())
    order = np.lexsort((time[end], time[start]))
    start, end, number = start[order], end[order], number[order]
    spans = model.ThreadSpans(time[start], time[end], thread[start], number, texts)
    return of_processes(spans, spans.thread)


def _has_samples(database: Database) -> bool:
    return database.has(schema.CALL_CHAINS, "id", "symbol", "stackDepth") and database.has(
        schema.SAMPLES, "id", "start", "globalTid"
    )


def read_samples(database: Database, threads: Int64) -> dict[int, model.ThreadSamples]:
    """Samples of the functions of some threads (globalTid), by process (globalPid)."""
    if not _has_samples(database):
        return {}
    time, thread, symbol = _sampled(database, threads)
    known = symbol != NULL
    ids, function = numbered(symbol[known])
    names = _names(database, ids)
    order = np.argsort(time[known], kind="stable")
    time, thread = time[known][order], thread[known][order]
    return of_processes(model.ThreadSamples(time, thread, function[order], names), thread)


def _sampled(
    database: Database, threads: Int64, among: Int64 | None = None
) -> tuple[Int64, Int64, Int64]:
    """Times, threads and one symbol of samples, int64[n]; NULL if a sample has none.

    The symbol is the innermost one, or of some (`among`) the outermost.
    """
    samples = read_rows(
        database,
        schema.SAMPLES,
        ("id", "start", "globalTid"),
        is_wanted=lambda chunk: np.isin(chunk["globalTid"], threads),
    )
    sample, time, thread = samples.values()

    def is_wanted(chunk: Mapping[str, Int64]) -> Mask:
        return chunk["stackDepth"] == 0 if among is None else is_in(chunk["symbol"], among)

    rows = read_rows(database, schema.CALL_CHAINS, ("id",), ("symbol", "stackDepth"), is_wanted)
    of_sample, symbol, depth = rows.values()
    order = np.lexsort((-depth, of_sample))
    distinct, first = np.unique(of_sample[order], return_index=True)
    symbol = np.append(symbol[order][first], NULL)
    found = np.searchsorted(distinct, sample)
    found[np.append(distinct, NULL)[found] != sample] = len(distinct)
    return time, thread, symbol[found]


def _read_switches(
    database: Database, is_wanted: Callable[[Int64], Mask]
) -> dict[int, model.ThreadSwitches]:
    rows = read_rows(
        database, schema.SWITCHES, _SWITCH, is_wanted=lambda chunk: is_wanted(chunk["globalTid"])
    )
    time, is_on, thread = rows.values()
    check_times(database, schema.SWITCHES, time, time)
    order = np.lexsort((is_on != 0, time, thread))
    thread = thread[order]
    return of_processes(model.ThreadSwitches(time[order], thread, is_on[order] != 0), thread)


def others_ran(database: Database, times_ns: Int64, threads: Int64) -> Mask | None:
    """Times directly before which any thread but some (globalTid) was on a CPU, bool[n].

    Threads of any process count. None if the export has no thread switches.
    """
    if not database.has(schema.SWITCHES, *_SWITCH):
        return None
    expect_rows(database, [schema.SWITCHES])
    # Of each thread the last switch before each time: twice its time, and 1 if it went on the CPU.
    last: dict[int, Int64] = {}
    for chunk in read_columns(database, schema.SWITCHES, _SWITCH):
        time, is_on, thread = (chunk[name] for name in _SWITCH)
        rows = np.flatnonzero((time != NULL) & (is_on != NULL) & (thread != NULL))
        rows = rows[~np.isin(thread[rows], threads)]
        rows = rows[np.lexsort((is_on[rows], time[rows], thread[rows]))]
        for of_thread in np.split(rows, np.flatnonzero(np.diff(thread[rows])) + 1):
            if len(of_thread):
                switches = np.append(-1, 2 * time[of_thread] + (is_on[of_thread] != 0))
                known = switches[np.searchsorted(time[of_thread], times_ns)]
                number = int(thread[of_thread[0]])
                last[number] = np.maximum(last.get(number, known), known)
    ran = np.zeros(len(times_ns), np.bool_)
    for switch in last.values():
        is_recent = times_ns - switch // 2 <= model.WOKE_NS
        ran |= (switch >= 0) & ((switch % 2 == 1) | is_recent)
    return ran


def read_spans(
    database: Database, tables: Iterable[tuple[str, str | None]], threads: Int64 | None
) -> dict[int, model.ThreadSpans]:
    """Spans of some threads (None for all), by process; `tables`: with the column of names."""
    parts: list[tuple[Int64, ...]] = []
    jit = NULL + 1  # no id of a string

    def is_wanted(chunk: Mapping[str, Int64]) -> Mask:
        thread = chunk["globalTid"]
        return np.ones(len(thread), np.bool_) if threads is None else np.isin(thread, threads)

    for table, name in tables:
        optional = ["end", *([] if name is None else [name])]
        rows = read_rows(database, table, ("start", "globalTid"), optional, is_wanted)
        start, end = rows["start"], np.maximum(rows["start"], rows["end"])
        check_times(database, table, start, end)
        end = np.where(rows["end"] == NULL, OPEN_END, end)
        ids = np.full(len(start), jit) if name is None else rows[name]
        parts.append((start, end, rows["globalTid"], ids))
    if not parts:
        return {}
    start, end, thread, ids = (np.concatenate(column) for column in zip(*parts, strict=True))
    distinct, number = numbered(ids)
    names = _names(database, distinct, {jit: _JIT})
    order = np.lexsort((end, start))
    thread = thread[order]
    spans = model.ThreadSpans(start[order], end[order], thread, number[order], names)
    return of_processes(spans, thread)


def _names(database: Database, ids: Int64, others: dict[int, str] | None = None) -> tuple[str, ...]:
    """Strings of ids, empty for unknown ids."""
    known = read_strings(database, [key for key in ids.tolist() if key != NULL])
    known |= others or {}
    return tuple(known.get(key, "") for key in ids.tolist())


def quiet_switches(database: Database, process: int, calling: Int64) -> model.ThreadSwitches:
    """Switches of a program's threads other than those `calling` CUDA (globalTid)."""
    others = [thread for thread, text in read_thread_names(database) if _NO_PROGRAM.match(text)]
    left_out = np.append(calling, np.array(others, np.int64))

    def is_quiet(thread: Int64) -> Mask:
        return (schema.process_of_thread(thread) == process) & ~np.isin(thread, left_out)

    return _read_switches(database, is_quiet).get(process, model.NO_SWITCHES)


def worker_threads(database: Database, process: int, with_gpu: Collection[int]) -> Int64:
    """Threads of the workers of a process (globalPid): see `Trace.workers_ran`."""
    named = [
        (text, thread, schema.process_of_thread(thread))
        for thread, text in read_thread_names(database)
        if text
    ]
    alike = {text for text, _, owner in named if owner == process}
    others = {
        thread
        for text, thread, owner in named
        if (text in alike or text.startswith(_WORKER))
        and owner != process
        and owner not in with_gpu
    }
    return np.array(sorted(others), np.int64)


def time_on_cpu(database: Database, threads: Int64, start_ns: int, end_ns: int) -> Int64:
    """Time that the busiest thread (globalTid) of each process was on a CPU, int64[n], in ns.

    Time counts from a switch to a CPU to the next one away from it: lost time does not count.
    """
    if not len(threads):
        return threads
    busiest: dict[int, int] = {}
    for process, switches in _read_switches(
        database, partial(np.isin, test_elements=threads)
    ).items():
        time, is_on, thread = switches.time_ns, switches.is_on, switches.thread
        runs = np.flatnonzero(is_on[:-1] & ~is_on[1:] & (thread[1:] == thread[:-1]))
        begin, end = (np.clip(time[rows], start_ns, end_ns) for rows in (runs, runs + 1))
        _, number = numbered(thread[runs])
        busiest[process] = int(np.bincount(number, end - begin).max(initial=0))
    return np.array([*busiest.values()], np.int64)
