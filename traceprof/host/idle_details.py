"""Calls, ranges and functions of the host during GPU idle time, by name."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.host import evidence_names as names
from traceprof.host.host_code import (
    code_of_threads,
    code_within,
    host_ranges,
    line_text,
    rows_named,
)
from traceprof.host.idle_causes import IdleCause, by_api, idle_causes, wait_idle
from traceprof.host.idle_gaps import kind_of, starting_at
from traceprof.host.places import PlaceKind, places
from traceprof.host.stalls import host_stalls
from traceprof.host.thread_evidence import host_evidence
from traceprof.intervals import BEYOND_NS, Intervals
from traceprof.kernel_names import function_name
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, is_in

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Iterator

    from traceprof.host.thread_evidence import HostEvidence
    from traceprof.intervals import Int64, Mask
    from traceprof.run.rank import Rank, Window
    from traceprof.trace.model.host import ApiCalls, ThreadSpans

MAX_DETAILS = 3
_FIRST = "first launches of kernels"
_PYTHON = {
    IdleCause.DATA_LOADING: names.PYTHON_LOADING,
    IdleCause.SETUP: names.PYTHON_SETUP,
    IdleCause.WAITING: names.PYTHON_SLEEP,
}
_OWN = (PlaceKind.CHECKPOINT, PlaceKind.COLLECTION, PlaceKind.EVALUATION, PlaceKind.LOGGING)
_Named = tuple["Int64", "Int64", "list[str]"]  # starts, ends and names


class IdleDetail(Record, frozen=True):
    """A call, range or function, and the idle time of a cause during which the host was in it."""

    name: str
    ns: int


def details(rank: Rank, window: Window, cause: IdleCause) -> tuple[IdleDetail, ...]:
    """Host activity during the idle time of a cause, longest first.

    Nested ranges count in full. Host code is named by ranges of garbage collection and checkpoints,
    else by operators and lines of Python, else by the innermost functions of CPU samples, whose
    share of the samples is taken as their share of the time.
    """
    if cause is IdleCause.TURNAROUND:  # it is the GPU's own time
        return ()
    evidence = host_evidence(rank)
    idle = intervals.clip(idle_causes(rank).of(cause), window.start_ns, window.end_ns)
    if evidence is None or not len(idle):
        return ()
    if cause is IdleCause.SYNC:
        waits = wait_idle(rank, window)
        return _longest(by_api(rank, evidence.calls, waits.call, waits.idle_ns))
    if cause is IdleCause.QUEUED:
        return _queued(rank, evidence.calls, idle)
    if cause in {IdleCause.HOST_CODE, IdleCause.LAUNCH_BOUND}:
        return _code(rank, cause, idle)
    spent: dict[str, int] = {}
    for start, end, of_each in _named(rank, evidence, cause):
        covered = intervals.covered_within(idle, start, end)
        for row in np.flatnonzero(covered).tolist():
            spent[of_each[row]] = spent.get(of_each[row], 0) + int(covered[row])
    return _longest(spent)


def _named(rank: Rank, evidence: HostEvidence, cause: IdleCause) -> Iterator[_Named]:
    activity, threads = evidence.activity, idle_causes(rank).threads
    launching = distinct_values(threads.thread)
    if cause in {IdleCause.WAITING, IdleCause.DATA_LOADING}:
        yield _spans(activity.system_calls, launching)
    launching = distinct_values(np.append(launching, threads.stand_in))
    if cause in _PYTHON:
        yield _python(rank, launching, _PYTHON[cause])
    if cause is IdleCause.MPI:
        yield _spans(activity.mpi_calls, launching)
        yield _ranges(rank, launching, names.MPI_RANGE)
    if cause is IdleCause.DATA_LOADING:
        yield _ranges(rank, launching, names.DATA_LOADING)
    if cause is IdleCause.STALLED:
        stalls = host_stalls(rank)
        rows = np.flatnonzero(is_in(stalls.thread[stalls.piece], launching))
        of_each = [stalls.names[row] for row in stalls.piece[rows].tolist()]
        yield stalls.begin_ns[rows], stalls.stop_ns[rows], of_each
    if cause is IdleCause.ALLOCATION:
        yield _calls(rank, evidence, evidence.is_allocation)
    if cause is IdleCause.SETUP:
        start, end, of_each = _calls(rank, evidence, evidence.is_setup)
        yield start, end, [name if names.SETUP_CALL.match(name) else _FIRST for name in of_each]
        yield _ranges(rank, launching, names.SETUP_RANGE)
        yield _spans(activity.library_calls, launching, names.SETUP_RANGE)
        yield _spans(activity.driver_work, launching, names.SETUP_WORK)


def _queued(rank: Rank, calls: ApiCalls, idle: Intervals) -> tuple[IdleDetail, ...]:
    """Operations that were launched and did not start, then what the launching host sat in."""
    gaps = idle_causes(rank).gaps.gaps
    # Of several parts of a gap, all are the same operation's.
    ended, of_part = np.unique(np.searchsorted(gaps.end_ns, idle.end_ns), return_inverse=True)
    place, call = starting_at(rank, calls, gaps.end_ns[ended])
    stream, place = kind_of(rank, place)[0][of_part], place[of_part]
    spent: Counter[str] = Counter()
    first = 0
    for number, group in enumerate(rank.operations.groups):
        is_inside = (place >= first) & (place < first + len(group))
        for on in distinct_values(stream[is_inside]).tolist():
            rows = np.flatnonzero(is_inside & (stream == on))
            times = rank.time_by_operation(number, place[rows] - first, idle.length_ns[rows])
            spent.update({f"{name} on stream {on}": ns for name, ns in times.items()})
        first += len(group)
    threads: list[int] = distinct_values(calls.packed_thread.at(call[call >= 0])).tolist()
    sat = dict(code_within(rank.trace, rank.process, threads, idle))
    if not any(sat.values()):
        rows = np.flatnonzero(calls.packed_thread.isin(tuple(threads)))
        covered = intervals.covered_within(idle, calls.start_ns[rows], calls.ends(rows))
        sat = by_api(rank, calls, rows, covered)
    host = (IdleDetail(f"the host in {detail.name}", detail.ns) for detail in _longest(sat)[:1])
    return (*_longest(spent)[: MAX_DETAILS - 1], *host)


def _code(rank: Rank, cause: IdleCause, idle: Intervals) -> tuple[IdleDetail, ...]:
    threads = idle_causes(rank).threads
    launching = distinct_values(np.append(threads.thread, threads.stand_in))
    threads_of: list[int] = launching.tolist()
    spent = {**code_within(rank.trace, rank.process, threads_of, idle)}
    if cause is IdleCause.HOST_CODE:
        known = places(rank)
        is_own = dict(zip(known.names, (kind in _OWN for kind in known.kinds), strict=True))
        # Of the time in operators only work of its own kind is told by ranges, too.
        silent = intervals.subtract(idle, code_of_threads(rank.trace, rank.process, threads_of))
        for part, counts in ((idle, True), (silent, False)):
            for name, ns in known.within(threads_of, part).items():
                if is_own[name] is counts:
                    spent[name] = max(spent.get(name, 0), ns)
    if cause is IdleCause.HOST_CODE and not any(spent.values()):
        return _functions(rank, idle)
    return _longest(spent)


def _functions(rank: Rank, idle: Intervals) -> tuple[IdleDetail, ...]:
    samples, threads = rank.trace.samples(rank.process), idle_causes(rank).threads
    place = np.searchsorted(idle.start_ns, samples.time_ns, side="right") - 1
    inside = (place >= 0) & (samples.time_ns < idle.end_ns[place])
    inside &= is_in(samples.thread, distinct_values(threads.thread))
    functions, number = np.unique(samples.function[inside], return_counts=True)
    per_sample = idle.measure_ns / max(int(number.sum()), 1)
    spent: dict[str, int] = {}
    for function, count in zip(functions.tolist(), number.tolist(), strict=True):
        name = samples.names[function]
        if ("<" in name or "(" in name) and "operator" not in name:  # a function of C++
            name = function_name(name)
        spent[name] = spent.get(name, 0) + round(count * per_sample)
    return _longest(spent)


def _calls(rank: Rank, evidence: HostEvidence, chosen: Mask) -> _Named:
    calls, rows = evidence.calls, np.flatnonzero(chosen)
    api_names = rank.trace.api_names
    of_each = [api_names.get(key, "unnamed call") for key in calls.packed_name.at(rows).tolist()]
    return calls.start_ns[rows], calls.ends(rows), of_each


def _python(rank: Rank, threads: Int64, matching: re.Pattern[str]) -> _Named:
    functions = rank.trace.python_functions(rank.process)
    if functions is None:
        return _as_named([], [], [])
    rows = rows_named(functions, threads, matching)
    of_each = [line_text(functions.names[key]) for key in functions.packed_name.at(rows).tolist()]
    return _as_named(functions.start_ns[rows], functions.ends(rows), of_each)


def _ranges(rank: Rank, threads: Int64, matching: re.Pattern[str]) -> _Named:
    ranges = host_ranges(rank.trace).named.get(rank.process)
    if ranges is None:
        return _as_named([], [], [])
    rows = np.flatnonzero(is_in(ranges.end_thread, threads)).tolist()
    rows = [row for row in rows if matching.search(ranges.names[row])]
    of_each = [ranges.names[row] for row in rows]
    return _as_named(ranges.start_ns[rows], ranges.end_ns[rows], of_each)


def _spans(spans: ThreadSpans, threads: Int64, matching: re.Pattern[str] | None = None) -> _Named:
    matches = [matching is None or bool(matching.search(name)) for name in spans.names]
    chosen = is_in(spans.thread, threads) & np.array(matches, np.bool_)[spans.name]
    of_each = [spans.names[name] or "unnamed call" for name in spans.name[chosen].tolist()]
    return _as_named(spans.start_ns[chosen], spans.end_ns[chosen], of_each)


def _as_named(start: Int64 | list[int], end: Int64 | list[int], of_each: list[str]) -> _Named:
    starts, ends = np.asarray(start, np.int64), np.asarray(end, np.int64)
    return starts, np.minimum(ends, BEYOND_NS), of_each


def _longest(spent: dict[str, int]) -> tuple[IdleDetail, ...]:
    ordered: Iterable[tuple[str, int]] = sorted(spent.items(), key=lambda item: (-item[1], item[0]))
    return tuple(IdleDetail(name, ns) for name, ns in ordered if ns and name)[:MAX_DETAILS]
