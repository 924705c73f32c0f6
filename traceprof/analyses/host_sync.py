"""Calls inside training steps that wait for the GPU, and the idle time that they cost."""

from __future__ import annotations

import re
from typing import Annotated

import numpy as np

from traceprof import findings as f
from traceprof import intervals
from traceprof.analyses.remedies import DIRECTIVES, PIN, READ_LATE, TAKE_OUT
from traceprof.analyses.results import CostResult, facts_of
from traceprof.host import idle_causes as causes
from traceprof.host.host_waits import (
    ThreadCalls,
    by_thread,
    may_copy_from_pageable,
    synchronizing_calls,
    with_operators,
)
from traceprof.host.places import places, places_of_calls
from traceprof.host.thread_evidence import calls_of_kind
from traceprof.intervals import Int64, Mask
from traceprof.run.program import Program
from traceprof.run.rank import Rank, Window
from traceprof.run.steady_steps import covered_in_mean, only_step, steady_steps
from traceprof.trace.grouping import is_in
from traceprof.trace.model.host import ApiCalls
from traceprof.trace.model.kinds import ApiCallKind, CopyKind
from traceprof.units import duration, times

ID = "host-sync"


class HostSyncMetrics(f.Metrics):
    """Numbers of `host-sync`."""

    num_syncs: Annotated[
        f.Count,
        "the number of waits; a copy and the synchronization right after it"
        " count as one, and so do a call and the driver's call inside it",
    ]
    blocked_ns: Annotated[
        f.Ns,
        "time inside these calls, summed over threads. It is not a cost in itself: an idle host"
        " waits for a busy GPU",
    ]
    api: Annotated[str | None, "the call that takes most of that time"]
    api_blocked_ns: Annotated[f.Ns, "the time in that call"]
    blocked_per_step_ns: Annotated[
        f.Ns | None, "time inside these calls in the mean steady step, null where no step was found"
    ]
    in_steps: Annotated[
        int, f.one_of(0, 1), "1 if only calls inside steps were counted; 0 if no step is marked"
    ]
    coverage: Annotated[
        f.Fraction, "the share of the GPU's idle time before operations with a known launch"
    ]


FINDINGS = {ID: f.FindingKind(HostSyncMetrics, removed_by=("no-sync",), part_of="gpu-idle")}


class HostSyncResult(CostResult, frozen=True):
    """The synchronizations of one rank's process in a window."""

    metrics: HostSyncMetrics  # the numbers of its finding
    idle_ns: int  # GPU idle time that would not be there without these calls
    program: Program
    costliest_api: str | None = None  # the call that the GPU idles for most, None if it never does
    most_ns: int = 0  # what the mean steady step would gain at most, or all without steps
    has_pageable: bool = True  # whether data may be copied to the GPU from pageable memory
    num_reads: int = 0  # number of copies to the host in the window
    num_scaler_reads: int = 0  # number of reads of them that are a GradScaler's own
    place: str | None = None  # the range around most of the idle time's calls
    unknown: causes.UnknownCause | None = None  # why none of this can be known, else None


def run(rank: Rank, window: Window) -> HostSyncResult:
    """Add up the synchronizing calls that start in the window, and the idle time they cause."""
    unknown, calls = causes.why_unknown(rank), rank.calls
    in_steps = int(rank.step_ranges is not None)
    if calls is None or unknown is not None:
        nothing = HostSyncMetrics(0, 0, None, 0, None, in_steps, 0.0)
        return HostSyncResult(
            **facts_of(rank, window),
            metrics=nothing,
            idle_ns=0,
            program=rank.program,
            unknown=unknown,
        )
    # What calls that allocate or free cost is a cause of its own.
    allocates = calls_of_kind(rank, calls, ApiCallKind.ALLOCATE)
    waits = _in_steps(rank, calls, synchronizing_calls(rank, calls) & ~allocates)
    chosen = _judged(rank, calls, waits, window)
    threads = by_thread(calls, chosen)
    rows = np.flatnonzero(chosen)
    blocked = causes.by_api(rank, calls, rows, calls.packed_length.at(rows))
    api = next(iter(blocked), None)
    # A wait before the window may cost time inside it, and so may a copy from pageable memory that
    # is Async by name.
    with_cost = _in_steps(rank, calls, causes.may_idle_after(rank, calls))
    idle = causes.wait_idle(rank, window, with_cost).by_outermost(calls, np.flatnonzero(with_cost))
    all_waits, copies = chosen | with_cost, rank.operations.copies
    reads = is_in(copies.kind, (CopyKind.DEVICE_TO_HOST, CopyKind.ARRAY_TO_HOST))
    metrics = HostSyncMetrics(
        num_syncs=int(chosen.sum()) - _num_reads_synchronized(rank, calls, threads),
        blocked_ns=sum(thread.covered.measure_ns for thread in threads.values()),
        api=api,
        api_blocked_ns=blocked[api] if api is not None else 0,
        blocked_per_step_ns=_per_step_ns(rank, calls, window, rows),
        in_steps=in_steps,
        coverage=causes.idle_causes(rank).coverage(window),
    )
    return HostSyncResult(
        **facts_of(rank, window),
        metrics=metrics,
        idle_ns=causes.idle_causes(rank).sync_ns_without(window, np.flatnonzero(with_cost)),
        evidence=_evidence(rank, calls, idle),
        costliest_api=next(iter(causes.by_api(rank, calls, idle.call, idle.idle_ns)), None),
        most_ns=covered_in_mean(rank, window, with_operators(rank, calls, all_waits)),
        program=rank.program,
        has_pageable=may_copy_from_pageable(rank, window),
        num_reads=int((reads & window.holds_start(copies.start_ns)).sum()),
        only_step=only_step(
            rank, window, causes.idle_causes(rank).of(causes.IdleCause.SYNC), is_idle=True
        ),
        num_scaler_reads=_num_scaler_reads(rank, calls, window),
        place=places(rank).most_of(places_of_calls(rank, idle.call), idle.idle_ns),
    )


def findings(result: HostSyncResult) -> list[f.Finding | f.NotApplicable]:
    """Judge the idle time that synchronizing cost; waiting for a busy GPU costs nothing."""
    if result.unknown is not None:
        unknown = result.unknown
        return [f.NotApplicable(ID, unknown.reason, unknown.how_to_collect, result.rank)]
    metrics = result.metrics
    where = " in training steps" if metrics.in_steps else ""
    idle = f"the GPU was idle for {duration(result.idle_ns)} because of it"
    inside = f"mostly in {metrics.api}" if metrics.num_syncs > 1 else f"in {metrics.api}"
    title = f"The host synchronized {times(metrics.num_syncs)}{where}, {inside}: {idle}"
    if metrics.api is None:  # the waits began earlier, or are copies that are Async by name
        title = f"The host had waited in {result.costliest_api}{where}: {idle}"
    elif result.costliest_api not in {None, metrics.api}:
        title += f", mostly after {result.costliest_api}"
    return result.finding(
        ID,
        title,
        result.idle_ns,
        metrics,
        _advice(result),
        saving=f.Saving.at_most(result.most_ns),
        place=result.place,
    )


def _in_steps(rank: Rank, calls: ApiCalls, waits: Mask) -> Mask:
    """Return which calls start in a step's range, bool[calls]; all of them where no step is known.

    What lies inside another one is a part of that call.
    """
    index = np.flatnonzero(waits)
    if rank.step_ranges is not None:
        ranges = rank.step_ranges
        steps = intervals.union(ranges.start_ns, np.minimum(ranges.end_ns, intervals.BEYOND_NS))
        index = index[intervals.holder(steps.start_ns, steps.end_ns, calls.start_ns[index]) >= 0]
    chosen = np.zeros(len(calls), np.bool_)
    chosen[index] = True
    return chosen


def _judged(rank: Rank, calls: ApiCalls, waits: Mask, window: Window) -> Mask:
    """Return which waits count, bool[calls]: one for each that was recorded twice.

    Those that start in the window, on threads that launch the rank's work.
    """
    index = np.flatnonzero(waits)
    start = calls.start_ns[index]
    # A call at the very end of a window is after it: operations end a window, calls do not.
    counts = (start >= window.start_ns) & (start < window.end_ns)
    launches = np.concatenate(
        [calls_of_group[calls_of_group >= 0] for calls_of_group in rank.launched_by]
    )
    counts &= is_in(calls.packed_thread.at(index), calls.packed_thread.counted(launches)[0])
    index = index[counts]
    chosen = np.zeros(len(calls), np.bool_)
    chosen[causes.outermost(calls, index)] = True
    return chosen


_SCALER_KERNEL = re.compile(r"(?i)non_?finite|amp_(?:foreach|update|unscale)")
_MAX_SCALER_BYTES = 8


def _num_scaler_reads(rank: Rank, calls: ApiCalls, window: Window) -> int:
    """Return how many reads are those by which a GradScaler learns whether to skip a step.

    It reads a number or two right after the kernels that unscale gradients and look for infinities.
    """
    copies, (of_kernels, of_copies, *_) = rank.operations.copies, rank.launched_by
    known = np.flatnonzero(of_kernels >= 0)
    ids = [key for key, name in rank.kernel_names.items() if _SCALER_KERNEL.search(name)]
    if not ids or not len(known):
        return 0
    reads = (copies.kind == CopyKind.DEVICE_TO_HOST) & (copies.bytes <= _MAX_SCALER_BYTES)
    reads = np.flatnonzero(reads & (of_copies >= 0) & window.holds_start(copies.start_ns))
    launched = calls.start_ns[of_kernels[known]]
    order = np.argsort(launched, kind="stable")
    place = np.searchsorted(launched[order], calls.start_ns[of_copies[reads]]) - 1
    before = known[order[np.maximum(place, 0)]]
    is_own = rank.operations.kernels.are_named(ids)[before] & (place >= 0)
    return int(is_own.sum())


def _num_reads_synchronized(rank: Rank, calls: ApiCalls, threads: dict[int, ThreadCalls]) -> int:
    """Count copies whose thread then synchronizes, as its next call: PyTorch's blocking copy.

    Calls that lie within the copy's, of the driver, are no next call.
    """
    copies = rank.trace.calls_named(calls, lambda name: "emcpy" in name)
    waits = calls_of_kind(rank, calls, ApiCallKind.SYNCHRONIZE)
    number = 0
    for thread, of_thread in threads.items():
        pairs = copies[of_thread.call[:-1]] & waits[of_thread.call[1:]]
        if not pairs.any():
            continue
        own = np.flatnonzero(calls.thread == thread)
        own = own[np.argsort(rank.host_order[own], kind="stable")]
        place = np.searchsorted(rank.host_order[own], rank.host_order[of_thread.call])
        copy, wait = place[:-1][pairs], place[1:][pairs]
        # When the copy is over, and all calls between it and the wait.
        over_ns = np.maximum.reduceat(calls.ends(own), np.stack((copy, wait), axis=1).ravel())[::2]
        number += int(((wait > copy) & (over_ns <= of_thread.end_ns[:-1][pairs])).sum())
    return number


def _per_step_ns(rank: Rank, calls: ApiCalls, window: Window, chosen: Int64) -> int | None:
    ranges, steady = rank.host_steps, steady_steps(rank, window).step
    if ranges is None or rank.steps is None or not len(steady):
        return None
    source = rank.steps.source[steady]
    order = np.argsort(calls.start_ns[chosen], kind="stable")
    start = calls.start_ns[chosen][order]
    spent = np.cumsum(np.append(0, calls.packed_length.at(chosen)[order]))
    first = np.searchsorted(start, ranges.start_ns[source], side="left")
    stop = np.searchsorted(start, ranges.end_ns[source], side="left")
    return round(float((spent[stop] - spent[first]).mean()))


def _evidence(rank: Rank, calls: ApiCalls, costs: causes.WaitIdle) -> tuple[f.Evidence, ...]:
    evidence = []
    for place in intervals.largest(costs.idle_ns, f.MAX_EVIDENCE).tolist():
        index = int(costs.call[place])
        start, end = int(calls.start_ns[index]), int(calls.ends(slice(index, index + 1))[0])
        api = rank.trace.api_names[calls.name_id(index)]
        cost_text = duration(int(costs.idle_ns[place]))
        evidence.append(f.Evidence(start, end, f"{api}: the GPU then idles for {cost_text}"))
    return tuple(evidence)


_MIN_READS = 0.5  # of the waits: where fewer results are read, most waits are for no result


def _advice(result: HostSyncResult) -> tuple[str, ...]:
    if result.program.is_pytorch:
        lines = [TAKE_OUT, _SUM, READ_LATE, *([PIN] if result.has_pageable else [])]
        lines.insert(0 if _EXPLICIT.search(result.metrics.api or "") else len(lines), _TIME)
        if result.num_scaler_reads:
            lines.insert(0, _SCALER)
        if result.num_scaler_reads >= _MIN_SCALER * result.metrics.num_syncs:
            lines = [_SCALER]  # nothing else waits that could go
        return tuple(lines)
    api = result.metrics.api or ""
    waits_for_all = "DeviceSynchronize" in api
    reads_nothing = "emcpy" not in api and result.num_reads < _MIN_READS * result.metrics.num_syncs
    lines = [_READ_LATER, _STREAM_ORDER]
    if waits_for_all or reads_nothing:
        lines.reverse()
    of_program = (DIRECTIVES,) if result.program.uses_directives else ()
    return (*of_program, *lines, *((_MPI,) if result.program.uses_mpi else ()))


_MIN_SCALER = 0.9  # of the waits
_EXPLICIT = re.compile("(?:Device|Event|Ctx)Synchronize")  # no read of PyTorch's makes such calls
_SCALER = (
    "GradScaler reads once a step whether gradients are finite, and that cannot be taken out of the"
    " loop: a fused optimizer (fused=True: Adam, AdamW, PyTorch 2.0; SGD 2.3) decides on the GPU"
    " instead, and autocast(dtype=torch.bfloat16) needs no scaler"
)
_SUM = (
    "Keep losses and metrics on the GPU and read them every N steps: sum them into a tensor, and"
    " call .item() when you log"
)
_TIME = (
    "Take torch.cuda.synchronize() and Event.synchronize() out of the step: time with"
    " torch.cuda.Event(enable_timing=True), and read the times later"
)
_READ_LATER = (
    "Read results one iteration later: cudaMemcpyAsync to pinned memory, an event after"
    " it, and cudaEventSynchronize when the value is needed"
)
_STREAM_ORDER = (
    "Take synchronizing calls between kernels out: kernels of one stream run in order without them,"
    " and streams wait for each other by cudaEventRecord and cudaStreamWaitEvent"
)
_MPI = (
    "MPI with GPU buffers only needs the work that made the data to be finished: wait for that"
    " stream or event, not for the device, and launch independent work before"
)

PAGE = {
    "advice": f.bullets(
        (
            _SCALER,
            TAKE_OUT,
            _SUM,
            READ_LATE,
            PIN,
            _TIME,
            _READ_LATER,
            _STREAM_ORDER,
            DIRECTIVES,
            _MPI,
        )
    )
}
