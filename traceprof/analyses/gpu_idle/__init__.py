"""Idle time of the GPU by cause; `traceprof.host.idle_causes` defines the causes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import numpy as np

from traceprof import findings as f
from traceprof import intervals
from traceprof.analyses.gpu_idle.advice import (
    HostFacts,
    advice,
    because,
    page_advice,
    unknown_advice,
)
from traceprof.analyses.results import CostResult, facts_of
from traceprof.errors import one_line
from traceprof.host import stalls
from traceprof.host.host_code import MAX_BETWEEN_MARKERS_NS
from traceprof.host.host_waits import may_copy_from_pageable
from traceprof.host.idle_causes import (
    IdleCause,
    IdleCauses,
    IdleDetail,
    UnknownCause,
    details,
    idle_causes,
    why_unknown,
)
from traceprof.host.idle_gaps import MAX_TURNAROUND_NS, MIN_MEASURED
from traceprof.host.places import over_half, places
from traceprof.host.thread_evidence import call_counts
from traceprof.kernel_names import readable
from traceprof.run.rank import Rank, Window
from traceprof.run.steady_steps import covered_in_mean, covered_per_step, only_step, steady_steps
from traceprof.trace.grouping import distinct_values
from traceprof.trace.model.parts import Part
from traceprof.trace.model.trace import KINETO_FORMAT
from traceprof.units import counted, duration, percent, times

BY_CAUSE: Mapping[IdleCause, str] = {
    IdleCause.SYNC: "no-sync",
    IdleCause.DATA_LOADING: "no-data-loading",
    IdleCause.STALLED: "no-host-stall",
}
FASTEST_LAUNCHES = "launch=0"
"""A limit that no change reaches."""
MIN_SHARE = 0.15
"""Of the idle time: a smaller cause is not mentioned, and nothing is assumed of it."""
_NOT_RECURRING = {IdleCause.SETUP, IdleCause.TURNAROUND, IdleCause.UNKNOWN}
"""Causes whose advice is for what happens once, or for any gap."""
_MIN_CURED = 0.5  # of the idle time that is not the GPU's own


def removing(_: object, results: Sequence[GpuIdleResult]) -> tuple[str, ...]:
    """Return the assumptions that remove most idle time; a limit only if launching does."""
    spent = {cause: sum(result.in_step[cause] for result in results) for cause in IdleCause}
    whole = sum(spent.values())
    curable = whole - spent[IdleCause.TURNAROUND]
    cured = [cause for cause in BY_CAUSE if spent[cause] >= MIN_SHARE * whole > 0]
    if sum(spent[cause] for cause in cured) >= _MIN_CURED * curable > 0:
        return tuple(BY_CAUSE[cause] for cause in cured)
    # Fewer kernels also have fewer gaps of the GPU's own, which launches without cost leave.
    is_named = spent[IdleCause.TURNAROUND] >= MIN_SHARE * whole
    if spent[IdleCause.LAUNCH_BOUND] >= _MIN_CURED * curable > 0 and not is_named:
        return (FASTEST_LAUNCHES,)
    return ()


ID = "gpu-idle"


class GpuIdleMetrics(f.Metrics):
    """Numbers of `gpu-idle`: of each cause, `{cause}_ns`."""

    idle_ns: Annotated[f.Ns, "the sum of the twelve causes, exactly, and the impact"]
    launch_bound_ns: Annotated[
        f.Ns,
        "the thread that launched the next operation was launching: it was in CUDA calls, or its"
        f" calls and range ends were less than {MAX_BETWEEN_MARKERS_NS / 1e6} ms apart: the GPU is"
        " faster than the host can launch; or the launch came before the gap, but too late",
    ]
    turnaround_ns: Annotated[
        f.Ns,
        "the next operation had been launched before the gap began: the first"
        f" {MAX_TURNAROUND_NS // 1000} µs of such a gap are the GPU's own time between operations,"
        " less what a launch that came too late adds",
    ]
    queued_ns: Annotated[
        f.Ns,
        "the next operation had been launched, its stream was free, and it did not start for over"
        f" {MAX_TURNAROUND_NS // 1000} µs: it waited for something else than the host, such as an"
        " event of another device or rank, a copy, or a function on the host",
    ]
    sync_ns: Annotated[
        f.Ns,
        "idle time that would not exist if the host had not waited for the GPU"
        " (synchronize calls, blocking copies): launching after such a wait,"
        " until the host has caught up the time that the wait took",
    ]
    data_loading_ns: Annotated[
        f.Ns,
        "the thread was in a range that names data loading; or it slept, and the gap ends with a"
        " copy from the host at a step's boundary or by a thread that only copies",
    ]
    mpi_ns: Annotated[f.Ns, "the thread was in MPI, Gloo or UCX calls"]
    setup_ns: Annotated[
        f.Ns,
        "the thread created contexts, streams, events, graphs or communicators, captured graphs,"
        " loaded modules and functions, compiled, registered memory, or was in a range of warm-up",
    ]
    allocation_ns: Annotated[f.Ns, "the thread allocated or freed memory"]
    stalled_ns: Annotated[
        f.Ns,
        "the thread was in a call, an operator or a gap between these beyond its usual time, over"
        f" {stalls.MIN_FACTOR} times as long: it was most likely off its core, or waited for a"
        " lock",
    ]
    waiting_ns: Annotated[f.Ns, "the thread was asleep otherwise"]
    host_code_ns: Annotated[
        f.Ns,
        "the thread ran something other than CUDA calls (operators, Python"
        " functions, garbage collection, a checkpoint), or it was on a CPU",
    ]
    unknown_ns: Annotated[
        f.Ns,
        "the cause cannot be determined: the launch is not known, or nothing is known about the"
        " thread",
    ]
    lost_ns: Annotated[
        f.Ns,
        "no part of `idle_ns`: the time in which nothing is recorded, and an operation that the"
        " recording lacks may have run",
    ]
    others_ns: Annotated[
        f.Ns | None,
        "the part in which the GPU worked for other ranks of the report, whatever the cause; null"
        " where none runs on the same GPU",
    ]
    per_step_ns: Annotated[
        f.Ns | None, "idle time in the mean steady step; null where no step was found"
    ]
    step_cause: Annotated[
        str | None,
        f.one_of(*(cause.value for cause in IdleCause)),
        "what makes most of `per_step_ns`, where what makes most of `idle_ns` is no considerable"
        " part of it; else null",
    ]
    host_in: Annotated[
        str | None,
        "what the host was in during the largest cause, or `step_cause` where that is known: the"
        " innermost range, operator or call that makes much of it; null without one",
    ]
    coverage: Annotated[
        f.Fraction,
        "the share of the idle time before operations with a known launch, or before pages of"
        " unified memory that the host accesses",
    ]


FINDINGS = {ID: f.FindingKind(GpuIdleMetrics, part="idle", removed_by=removing)}

_MAX_NAME = 64
_HOST_PARTS = (Part.THREAD_SWITCHES, Part.SYSTEM_CALLS, Part.SAMPLES, Part.EVENT_RECORDS)
CAUSES = {cause: cause.value.replace("_", " ") for cause in IdleCause} | {
    IdleCause.LAUNCH_BOUND: "launch-bound",
    IdleCause.TURNAROUND: "turn-around",
    IdleCause.MPI: "MPI",
    IdleCause.SETUP: "set-up",
}
"""Names of the causes for users."""


class GpuIdleResult(CostResult, frozen=True):
    """The idle time of one rank in a window."""

    metrics: GpuIdleMetrics  # the numbers of its finding
    # the unknown time in two parts: no launch is known, and nothing is known of the host
    unknown_ns: tuple[int, int]
    # the idle time of the mean steady step by cause; of all if no step is known
    in_step: Mapping[IdleCause, int]
    # ranges, calls and functions of the host, for the causes that matter
    details: Mapping[IdleCause, tuple[IdleDetail, ...]]
    why_unknown: UnknownCause | None  # the reason why not all causes can be known, else None
    facts: HostFacts  # by which advice is chosen
    place: str | None  # the range in which the host was for most of the largest cause

    @property
    def by_cause(self) -> dict[IdleCause, int]:
        """The idle time by cause; the sum is `metrics.idle_ns`."""
        return {cause: getattr(self.metrics, f"{cause.value}_ns") for cause in IdleCause}

    @property
    def main_causes(self) -> list[IdleCause]:
        """The causes that matter, largest first."""
        by_cause = self.by_cause
        by_size = sorted(IdleCause, key=lambda cause: -by_cause[cause])
        return _that_matter(by_size, by_cause, self.metrics.idle_ns)

    @property
    def other_in_step(self) -> IdleCause | None:
        """What makes most of the mean steady step's idle time, if the first cause does not."""
        cause = self.metrics.step_cause
        return None if cause is None else IdleCause(cause)


def run(rank: Rank, window: Window) -> GpuIdleResult:
    """Measure the idle time of a rank by cause."""
    causes = idle_causes(rank)
    idle = intervals.complement(rank.not_idle, window.start_ns, window.end_ns)
    by_cause = causes.within(window)
    idle_ns = idle.measure_ns
    # Before its first operation and after its last one nothing is known of a rank.
    outside_ns = idle_ns - sum(by_cause.values())
    by_cause[IdleCause.UNKNOWN] += outside_ns
    low, high = window.start_ns, window.end_ns
    unlaunched = intervals.clip(causes.unlaunched, low, high).measure_ns + outside_ns
    silent = by_cause[IdleCause.UNKNOWN] - unlaunched
    in_step = {cause: covered_in_mean(rank, window, causes.of(cause)) for cause in IdleCause}
    matter = _that_matter(IdleCause, by_cause, idle_ns)
    in_all, in_most = (max(IdleCause, key=of.__getitem__) for of in (by_cause, in_step))
    is_other = in_step[in_all] < MIN_SHARE * sum(in_step.values())
    named = {cause: details(rank, window, cause) for cause in {*matter, in_all, in_most}}
    main = in_most if is_other else in_all
    metrics = GpuIdleMetrics(
        idle_ns=idle_ns,
        **{f"{cause.value}_ns": by_cause[cause] for cause in IdleCause},
        lost_ns=intervals.clip(rank.lost, low, high).measure_ns,
        others_ns=_others_ns(rank, idle),
        per_step_ns=covered_per_step(rank, window, idle),
        step_cause=in_most.value if is_other else None,
        host_in=next(reversed(_worth(named[main], by_cause[main])), None),
        coverage=causes.coverage(window),
    )
    return GpuIdleResult(
        **facts_of(rank, window),
        metrics=metrics,
        unknown_ns=(unlaunched, silent),
        in_step=in_step,
        details=named,
        evidence=_evidence(rank, idle, causes, in_all),
        why_unknown=why_unknown(rank),
        facts=HostFacts(
            program=rank.program,
            is_of_profiler=rank.trace.format == KINETO_FORMAT,
            has_pageable=may_copy_from_pageable(rank, window),
            held=frozenset(part for part in _HOST_PARTS if rank.trace.holds(part)),
            how_to_collect=rank.trace.how_to_collect,
            calls=call_counts(rank, window),
            num_steps=len(steady_steps(rank, window).judged),
            reads_pages=2 * causes.host_code_before_pages_ns(window)
            > by_cause[IdleCause.HOST_CODE],
            launches_graphs=2 * rank.num_graph_nodes > len(rank.operations.kernels),
            only_steps={
                cause: step
                for cause in {*matter, in_most} - _NOT_RECURRING
                if (step := only_step(rank, window, causes.of(cause), is_idle=True)) is not None
            },
        ),
        place=_place(rank, window, in_all),
    )


def findings(result: GpuIdleResult) -> list[f.Finding | f.NotApplicable]:
    """Judge the idle time by its share of the window, and advise on its largest causes."""
    metrics = result.metrics
    window_ns, idle_ns = result.window_ns, metrics.idle_ns
    if f.severity_of_cost(f.share(idle_ns, window_ns)) is None:
        return []
    if idle_ns == window_ns:
        how = "choose a window in which the rank works"
        return [f.NotApplicable(ID, "no GPU operation ran in the time judged", how, result.rank)]
    # On the host nothing can be done about the GPU's own time, nor about that of other ranks.
    gone_ns = metrics.turnaround_ns + (metrics.others_ns or 0)
    curable = f.share(max(idle_ns - gone_ns, 0), window_ns)
    saving = None
    if metrics.others_ns is not None and metrics.per_step_ns is not None:
        share_per_step = metrics.per_step_ns / idle_ns
        saving = f.Saving.of_step(idle_ns - metrics.others_ns, share_per_step)
    severity = f.severity_of_cost(curable) or f.Severity.INFO
    return result.finding(
        ID,
        _title(result),
        idle_ns,
        metrics,
        tuple(_advice(result)),
        saving=saving,
        place=result.place,
        severity=severity,
    )


def _others_ns(rank: Rank, idle: intervals.Intervals) -> int | None:
    """Return how long the GPU worked for other ranks of the report; None if it has none."""
    if rank.gpu_id is None:
        return None
    trace = rank.trace
    others = [
        group
        for key, operations in trace.operations.items()
        if key.process != rank.process and trace.gpu_id(key) == rank.gpu_id
        for group in operations.groups
    ]
    if not others:
        return None
    busy = intervals.merge(*(intervals.union(group.start_ns, group.end_ns) for group in others))
    return intervals.intersect(idle, busy).measure_ns


def _place(rank: Rank, window: Window, cause: IdleCause) -> str | None:
    causes = idle_causes(rank)
    idle = window.clip(causes.of(cause))
    threads = distinct_values(np.append(causes.threads.thread, causes.threads.stand_in)).tolist()
    return over_half(places(rank).within(threads, idle), idle.measure_ns)


def _that_matter(
    causes: Iterable[IdleCause], by_cause: Mapping[IdleCause, int], idle_ns: int
) -> list[IdleCause]:
    least = max(MIN_SHARE * idle_ns, 1)
    return [cause for cause in causes if by_cause[cause] >= least]


def _worth(rows: Iterable[IdleDetail], cause_ns: int) -> list[str]:
    return [row.name for row in rows if row.ns >= MIN_SHARE * cause_ns]


def _evidence(
    rank: Rank, idle: intervals.Intervals, causes: IdleCauses, main: IdleCause
) -> tuple[f.Evidence, ...]:
    """Return the longest gaps, those first that are mostly of the cause that the title names."""
    length = idle.length_ns
    of_main = intervals.covered_within(causes.of(main), idle.start_ns, idle.end_ns)
    # The shortest of these is worth more than the longest of the others.
    worth = length + np.where(2 * of_main >= length, int(length.max(initial=0)), 0)
    evidence = []
    for gap in intervals.largest(worth, f.MAX_EVIDENCE).tolist():
        start, end = int(idle.start_ns[gap]), int(idle.end_ns[gap])
        gap_window = Window(start, end)
        by_cause = causes.within(gap_window)
        largest = max(IdleCause, key=lambda cause: by_cause[cause])
        if not by_cause[largest]:
            largest = IdleCause.UNKNOWN
        rows = details(rank, gap_window, largest)
        what = f"{CAUSES[largest]}: {rows[0].name}" if rows else CAUSES[largest]
        names = ("after", rank.name_ending_at(start)), ("before", rank.name_at(end))
        between = " ".join(
            f"{where} {one_line(readable(name), _MAX_NAME)}" for where, name in names if name
        )
        label = f"{what}, {between}".rstrip(", ")
        evidence.append(f.Evidence(start, end, label))
    return tuple(evidence)


def _title(result: GpuIdleResult) -> str:
    idle, whole = duration(result.metrics.idle_ns), duration(result.window_ns)
    reads_pages = result.facts.reads_pages
    reasons = [
        f"{duration(result.by_cause[cause])} because"
        f" {because(cause, reads_pages=reads_pages)}{_inside(result, cause)}"
        for cause in result.main_causes
    ]
    other = result.other_in_step
    if other is not None:
        of_step = duration(sum(result.in_step.values()))
        reasons.append(
            f"but {duration(result.in_step[other])} of {of_step} in the mean step because"
            f" {because(other, reads_pages=reads_pages)}{_inside(result, other)}"
        )
    others_ns = result.metrics.others_ns
    if others_ns:
        whole += f" for this rank, and worked {duration(others_ns)} of it for others"
    return f"The GPU did nothing for {idle} of {whole}: {'; '.join(reasons)}"


def _inside(result: GpuIdleResult, cause: IdleCause) -> str:
    rows = result.details.get(cause, ())
    calls = result.facts.calls
    if cause is IdleCause.ALLOCATION and calls.is_uncached:
        num, launches = calls.num_allocations, calls.num_launches
        return f", {times(num)} for {counted(launches, 'launch')}: nothing is kept for later use"
    worth = _worth(rows, result.by_cause[cause])
    return f" ({', '.join(worth)})" if worth else ""


def _advice(result: GpuIdleResult) -> list[str]:
    lines: list[str] = []
    if result.why_unknown is not None:
        why = result.why_unknown
        lines.append(f"Record what shows the other causes: {why.how_to_collect}; {why.reason}")
    main = result.main_causes
    if result.other_in_step is not None:  # then what happened in other steps comes last
        main = sorted({result.other_in_step, *main}, key=lambda cause: -result.in_step[cause])
    unknown: list[str] = []
    if IdleCause.UNKNOWN in main and result.why_unknown is None:
        silent = _once(result, IdleCause.UNKNOWN)
        unknown = unknown_advice(*result.unknown_ns, result.facts, silent)
    longest = {cause: rows[0].name for cause, rows in result.details.items() if rows}
    # The class of the iterator may stand on any of the ranges around each other.
    loading = result.details.get(IdleCause.DATA_LOADING, ())
    longest[IdleCause.DATA_LOADING] = " ".join(row.name for row in loading)
    once = {cause: _once(result, cause) for cause in (IdleCause.WAITING, IdleCause.HOST_CODE)}
    known = advice(main, result.facts, longest, once)
    is_mostly_unknown = main[:1] == [IdleCause.UNKNOWN]
    return [*lines, *unknown, *known] if is_mostly_unknown else [*lines, *known, *unknown]


def _once(result: GpuIdleResult, cause: IdleCause) -> str:
    longest = result.evidence[0]
    between = _BETWEEN.search(longest.label)
    length = longest.end_ns - longest.start_ns
    is_of_cause = longest.label.startswith(CAUSES[cause])
    if between is None or not is_of_cause or 2 * length <= result.by_cause[cause]:
        return ""
    return f"{between[1]}, once for {duration(length)}"


_BETWEEN = re.compile(", ((?:after|before) .*)")


PAGE = {
    "advice": page_advice(),
    "measured": str(MIN_MEASURED),
    "stall_factor": str(stalls.MIN_FACTOR),
    "stall_excess": duration(stalls.MIN_EXCESS_NS),
    "stall_pending": str(stalls.MIN_PENDING),
    "stall_recurring": percent(stalls.MAX_RECURRING),
}
