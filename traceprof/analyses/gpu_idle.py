"""Why the GPU did nothing: the host launched late, synchronized, waited for data, or none of it.

`traceprof.host.idle_gaps` defines the causes; the four of them add up to the idle time exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.analyses.results import RankResult
from traceprof.findings import (
    MAX_EVIDENCE,
    Evidence,
    Finding,
    Kind,
    Metric,
    Metrics,
    MetricValue,
    NotApplicable,
    bullets,
    severity_of_cost,
)
from traceprof.host.idle_gaps import LAUNCH_LATENCY_NS, IdleGaps, UnknownCause, idle_gaps
from traceprof.host.synchronization import data_loading
from traceprof.trace.model.parts import HowToCollect, Part
from traceprof.units import duration

if TYPE_CHECKING:
    from traceprof.run.opening import Rank, Window

IDS: tuple[str, ...] = ("gpu-idle",)
REQUIRES: tuple[Part, ...] = (Part.GPU_OPERATIONS,)
METRICS: Metrics = {
    "gpu-idle": {
        "idle_ns": Metric(
            Kind.NS,
            "the sum of the four causes, exactly, and the impact. Where the report has no API"
            " calls, or the clocks of host and GPU disagree in it, the four are null",
        ),
        "launch_bound_ns": Metric(
            Kind.NS,
            "the thread had not launched the operation yet, and neither synchronized nor loaded"
            " data",
            is_nullable=True,
        ),
        "sync_ns": Metric(
            Kind.NS,
            "the thread was inside a synchronizing call, or such a call had used up its lead just"
            " before. At most the call's own duration counts: without the wait, the host would have"
            " come so much earlier. Synchronizing are cudaStreamSynchronize and its like,"
            " cudaMemcpy, copies to pageable memory, and allocating and freeing memory",
            is_nullable=True,
        ),
        "data_loading_ns": Metric(
            Kind.NS,
            "the thread was inside an NVTX range that names data loading (`dataloader next`,"
            " `load_batch`, `next(…)`, …). 0 without such ranges: then data loading counts as"
            " launch-bound",
            is_nullable=True,
        ),
        "other_ns": Metric(
            Kind.NS,
            "the operation had been launched before the gap began, or more than"
            f" {LAUNCH_LATENCY_NS // 1000} µs before it started: it waited for an event, a copy or"
            " another rank. Also gaps whose next operation has no launch in the capture",
            is_nullable=True,
        ),
        "per_step_ns": Metric(
            Kind.NS,
            "idle time of the median training step, null where no step was found",
            is_nullable=True,
        ),
        "coverage": Metric(
            Kind.FRACTION, "the share of the idle time whose next operation has a known launch"
        ),
    }
}

# By share of the idle time: a cause below it gets no advice of its own.
_MINOR = 0.2
LAUNCH_BOUND, SYNC, DATA_LOADING, OTHER = "launch-bound", "sync", "data loading", "other"
CAUSES = (LAUNCH_BOUND, SYNC, DATA_LOADING, OTHER)


@dataclass(frozen=True, slots=True)
class GpuIdleResult(RankResult):
    """The idle time of one rank in a window.

    Attributes:
        window_ns: the window's length.
        idle_ns: how long the GPU did nothing.
        parts_ns: by cause, in the order of `CAUSES`; None where the causes cannot be known.
        coverage: share of the idle time whose next operation has a known launch, 0 to 1.
        per_step_ns: idle time of the median step in the window; None without steps.
        sync_api: the synchronizing call to which most idle time is laid, None for none.
        names_data_loading: whether a range of the process names data loading.
        evidence: the longest gaps, longest first.
        unknown: why the causes cannot be known, else None.
        how_to_collect: what the trace may lack, should it be needed.
    """

    window_ns: int
    idle_ns: int
    parts_ns: tuple[int, int, int, int] | None
    coverage: float
    per_step_ns: int | None
    sync_api: str | None
    names_data_loading: bool
    evidence: tuple[Evidence, ...]
    unknown: UnknownCause | None
    how_to_collect: HowToCollect


def run(rank: Rank, window: Window) -> GpuIdleResult:
    """Measure the idle time of a rank by cause."""
    gaps = idle_gaps(rank, window)
    unknown = gaps if isinstance(gaps, UnknownCause) else None
    idle = intervals.complement(rank.busy, window.start_ns, window.end_ns)
    idle_ns, parts, coverage, sync_api = idle.measure_ns, None, 0.0, None
    if isinstance(gaps, IdleGaps):
        parts = gaps.parts_ns
        coverage = gaps.coverage
        sync_api = _dominant_api(rank, gaps)
        evidence = _explained(rank, gaps)
    else:
        evidence = _unexplained(rank, idle)
    return GpuIdleResult(
        rank=rank.rank,
        how_to_collect=rank.trace.how_to_collect,
        window_ns=window.length_ns,
        idle_ns=idle_ns,
        parts_ns=parts,
        coverage=coverage,
        per_step_ns=_median_of_steps(rank, window),
        sync_api=sync_api,
        names_data_loading=bool(data_loading(rank)),
        evidence=evidence,
        unknown=unknown,
    )


def findings(result: GpuIdleResult) -> list[Finding | NotApplicable]:
    """Judge the idle time by its share of the window, and advise on its largest causes."""
    fraction = result.idle_ns / result.window_ns if result.window_ns else 0.0
    severity = severity_of_cost(fraction)
    if severity is None:
        return []
    if result.idle_ns == result.window_ns:
        return [
            NotApplicable(
                "gpu-idle",
                "no GPU operation ran in the window",
                "choose a window in which the rank works",
                result.rank,
            )
        ]
    launch_bound, sync, loading, other = result.parts_ns or (None, None, None, None)
    metrics: dict[str, MetricValue] = {
        "idle_ns": result.idle_ns,
        "launch_bound_ns": launch_bound,
        "sync_ns": sync,
        "data_loading_ns": loading,
        "other_ns": other,
        "per_step_ns": result.per_step_ns,
        "coverage": result.coverage,
    }
    title = (
        f"The GPU did nothing for {duration(result.idle_ns)} of {duration(result.window_ns)}"
        f"{_because(result)}"
    )
    return [
        Finding(
            "gpu-idle",
            severity,
            result.rank,
            title,
            result.idle_ns,
            fraction,
            metrics,
            result.evidence,
            _advice(result),
        )
    ]


# -- numbers --------------------------------------------------------------------------------------


def _dominant_api(rank: Rank, gaps: IdleGaps) -> str | None:
    laid = gaps.sync_call >= 0
    if rank.calls is None or not gaps.sync_ns[laid].sum():
        return None
    names, which = np.unique(rank.calls.packed_name.at(gaps.sync_call[laid]), return_inverse=True)
    cost = np.bincount(which, weights=gaps.sync_ns[laid])
    return rank.trace.api_names.get(int(names[cost.argmax()]))


def _median_of_steps(rank: Rank, window: Window) -> int | None:
    steps = rank.steps
    if steps is None:
        return None
    steps = steps.chosen((steps.start_ns >= window.start_ns) & (steps.end_ns <= window.end_ns))
    if not len(steps):
        return None
    busy = intervals.covered_within(rank.busy, steps.start_ns, steps.end_ns)
    return int(np.median(steps.end_ns - steps.start_ns - busy))


def _explained(rank: Rank, gaps: IdleGaps) -> tuple[Evidence, ...]:
    evidence = []
    for gap in intervals.largest(gaps.length_ns, MAX_EVIDENCE).tolist():
        start, end = int(gaps.start_ns[gap]), int(gaps.end_ns[gap])
        cause = _cause(rank, gaps, gap)
        evidence.append(Evidence(start, end, f"{cause}, {_between(rank, start, end)}".rstrip(", ")))
    return tuple(evidence)


def _cause(rank: Rank, gaps: IdleGaps, gap: int) -> str:
    """Name the largest part of a gap, and the call behind it."""
    if not gaps.has_launch[gap]:
        return f"{OTHER}: launch not in the capture"
    late = int(np.searchsorted(gaps.late, gap))
    if late == len(gaps.late) or gaps.late[late] != gap:
        return OTHER
    start, end = int(gaps.start_ns[gap]), int(gaps.end_ns[gap])
    parts = [int(part[late]) for part in (gaps.launch_bound_ns, gaps.sync_ns, gaps.data_loading_ns)]
    parts.append(end - start - sum(parts))
    cause = CAUSES[parts.index(max(parts))]
    call = int(gaps.sync_call[late])
    if cause == SYNC and call >= 0 and rank.calls is not None:
        name = rank.trace.api_names.get(rank.calls.name_id(call))
        return f"{cause}: {name or 'unnamed call'}"
    if cause == LAUNCH_BOUND:
        return cause + _inside(rank, start, end, int(gaps.launch[late]))
    return cause


def _inside(rank: Rank, start: int, end: int, launch: int) -> str:
    """Name the API call in which the launching thread spent most of a gap, if there is one."""
    calls = rank.calls
    if calls is None:
        return ""
    thread = calls.packed_thread.kept
    own = np.flatnonzero((calls.start_ns < end) & (thread == thread[launch]))
    inside = np.minimum(calls.ends(own), end) - np.maximum(calls.start_ns[own], start)
    if 2 * inside.max(initial=0) < end - start:
        return ""
    name = calls.name_id(int(own[inside.argmax()]))
    return f": {rank.trace.api_names.get(name, 'unnamed call')}"


def _unexplained(rank: Rank, idle: intervals.Intervals) -> tuple[Evidence, ...]:
    order = intervals.largest(idle.length_ns, MAX_EVIDENCE)
    longest = zip(idle.start_ns[order].tolist(), idle.end_ns[order].tolist(), strict=True)
    return tuple(
        Evidence(start, end, _between(rank, start, end) or "no operation") for start, end in longest
    )


def _between(rank: Rank, start: int, end: int) -> str:
    before, after = rank.name_ending_at(start), rank.name_at(end)
    return f"{f'after {before}' if before else ''} {f'before {after}' if after else ''}".strip()


# -- judgement ------------------------------------------------------------------------------------


def _because(result: GpuIdleResult) -> str:
    if result.parts_ns is None:
        return "; cause unknown"
    largest = max(result.parts_ns)
    reasons = {
        LAUNCH_BOUND: "because the host had not launched the next operation yet",
        SYNC: f"because the host synchronized ({result.sync_api or 'several calls'})",
        DATA_LOADING: "because the host was loading data",
        OTHER: "for other reasons (the next operation was launched already, or its launch is"
        " not in the capture)",
    }
    reason = reasons[CAUSES[result.parts_ns.index(largest)]]
    return f", {duration(largest)} of it {reason}"


def _advice(result: GpuIdleResult) -> tuple[str, ...]:
    if result.unknown is not None:
        unknown = result.unknown
        return (f"Cause unknown: {unknown.reason}; {unknown.how_to_collect}", *_UNKNOWN_ADVICE)
    parts = dict(zip(CAUSES, result.parts_ns or (0, 0, 0, 0), strict=True))
    worth = [cause for cause in CAUSES if parts[cause] >= _MINOR * result.idle_ns]
    worth.sort(key=lambda cause: -parts[cause])
    lines = [line for cause in worth for line in _of_cause(cause, result.how_to_collect)]
    if LAUNCH_BOUND in worth and not result.names_data_loading:
        lines.append(_NAME_DATA_LOADING)
    return tuple(lines)


def _by_cause() -> str:
    return "\n\n".join(f"{cause}:\n\n{bullets(_of_cause(cause))}" for cause in CAUSES)


def _of_cause(cause: str, how_to_collect: HowToCollect | None = None) -> list[str]:
    """Return the advice on a cause; without a trace, what no format needs to be known for."""
    lines = list(_ADVICE[cause])
    if cause == LAUNCH_BOUND:
        how = how_to_collect and how_to_collect(Part.HOST_CODE)
        lines.append(f"{_LOOK_AT_THE_HOST}: {how}" if how else _LOOK_AT_THE_HOST)
    if cause == OTHER:
        how = how_to_collect and how_to_collect(Part.EVENT_RECORDS)
        records = f"; {how} records the events" if how else ""
        lines.insert(0, f"{_LOOK_AT_THE_TIMELINE}{records})")
    return lines


_ADVICE: dict[str, tuple[str, ...]] = {
    LAUNCH_BOUND: (
        (
            "Launch many kernels at once with CUDA graphs: torch.compile(mode='reduce-overhead')"
            " (PyTorch 2.0) or torch.cuda.make_graphed_callables (1.10)"
        ),
        (
            "Launch fewer, larger kernels: torch.compile fuses them, fused=True (Adam, AdamW: 2.0;"
            " SGD: 2.3) updates all parameters at once, and a larger batch gives each more to do"
        ),
    ),
    SYNC: (
        (
            "Take .item(), .cpu(), print(tensor), nonzero() and boolean masks out of the step, or"
            " do them every N steps; torch.cuda.set_sync_debug_mode('warn') (PyTorch 1.10) names"
            " the lines"
        ),
        (
            "Read results late: copy to pinned memory with non_blocking=True, and wait for the"
            " event of the step before"
        ),
        (
            "cudaMalloc and cudaFree in steps: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
            " (PyTorch 2.1), no torch.cuda.empty_cache(); in CUDA, cudaMallocAsync (11.2)"
        ),
    ),
    DATA_LOADING: (
        (
            "Let more processes load: DataLoader(num_workers=…, prefetch_factor=4,"
            " persistent_workers=True)"
        ),
        (
            "Overlap the copy of the next batch: pin_memory=True and .to(device, non_blocking=True)"
            " on a stream of its own"
        ),
        (
            "Make loading cheaper: decode and augment on the GPU (NVIDIA DALI), store preprocessed"
            " samples, read from local disks"
        ),
    ),
    OTHER: ("Many gaps of a microsecond between short kernels: fuse them, or launch a CUDA graph",),
}
_LOOK_AT_THE_HOST = (
    "Where single gaps are long, look at what the launching thread did in them (Python,"
    " logging, checkpoints, MPI)"
)
_LOOK_AT_THE_TIMELINE = (
    "The next operation was launched already: look for what it waited for on the timeline"
    " (an event of another stream, a copy, another rank"
)
_NAME_DATA_LOADING = (
    "No range names data loading, which counts as launch-bound then: record with"
    " python -m instrument, or put torch.cuda.nvtx.range('dataloader next') around next(loader)"
)
_UNKNOWN_ADVICE = (
    (
        "Look at the evidence on the timeline: what ran before and after each gap tells whether"
        " the host was late (many small kernels), synchronized (.item(), .cpu(),"
        " cudaStreamSynchronize) or waited for data"
    ),
)

PAGE = {"advice": _by_cause()}
