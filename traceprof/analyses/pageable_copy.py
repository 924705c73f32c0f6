"""Copies from and to pageable host memory: slow, and the host waits for them."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from traceprof import findings as f
from traceprof import intervals
from traceprof.analyses.links.link_usage import exposed_copies
from traceprof.analyses.remedies import DATA_REGION, PIN, PREFETCH
from traceprof.analyses.results import CostResult, facts_of
from traceprof.host.host_waits import MAX_STAGED_BYTES, copies_for_kernels
from traceprof.intervals import Int64, Intervals, Mask
from traceprof.run.host_clock import clocks_disagree
from traceprof.run.rank import Rank, Window
from traceprof.trace.grouping import distinct_values, is_in
from traceprof.trace.model.kinds import HOST_MEMORY, MemoryKind, copy_label
from traceprof.trace.model.parts import Part
from traceprof.units import counted, duration

ID = "pageable-copy"


class PageableCopyMetrics(f.Metrics):
    """Numbers of `pageable-copy`."""

    bytes: Annotated[f.Count, "bytes copied"]
    num_copies: Annotated[f.Count, "the number of copies"]
    host_blocked_ns: Annotated[
        f.Ns | None, "the durations of their API calls; null if the capture has none"
    ]
    exposed_copy_ns: Annotated[
        f.Ns,
        "the part of the impact in which these copies ran, which `exposed-copy`"
        " counts as well; the rest is idle time",
    ]
    direction: Annotated[
        str, f.one_of("h2d", "d2h"), "`h2d` or `d2h`, whichever carried more bytes"
    ]
    gb_per_s: Annotated[f.Number | None, "the rate of pageable copies in that direction"]
    pinned_gb_per_s: Annotated[
        f.Number | None,
        f"the rate of copies of more than {MAX_STAGED_BYTES // 1024} KiB from or to pinned memory;"
        " null if there were none",
    ]
    coverage: Annotated[
        f.Fraction, "the share of such copies for which the report has the kind of memory"
    ]


FINDINGS = {
    ID: f.FindingKind(PageableCopyMetrics, part_of="exposed-copy", needs=f.Sight.OPERATIONS)
}


class PageableCopyResult(CostResult, frozen=True):
    """The copies between one rank's GPU and pageable host memory that start in a window."""

    metrics: PageableCopyMetrics  # the numbers of its finding
    # time in which the GPU did nothing but these copies, or nothing at all while the host was
    # inside their calls
    cost_ns: int
    copies_for_kernels: bool  # whether directives copy for most kernels
    is_unknown: bool  # whether there are large copies, but none whose kinds of memory are known


def run(rank: Rank, window: Window) -> PageableCopyResult:
    """Add up the pageable copies that start in the window."""
    copies = rank.operations.copies
    large = window.holds_start(copies.start_ns)
    large &= (copies.bytes > MAX_STAGED_BYTES) & ~rank.is_peer_copy
    known = large & copies.is_memory_known
    pageable = _directions(rank, MemoryKind.PAGEABLE)
    chosen = np.flatnonzero(known & (pageable["h2d"] | pageable["d2h"]))
    carried = {
        direction: intervals.total(copies.bytes[known & mask])
        for direction, mask in pageable.items()
    }
    direction = max(carried, key=lambda way: carried[way])
    pinned = _directions(rank, MemoryKind.PINNED)[direction]
    called = rank.launched_by[1][chosen]
    called = distinct_values(called[called >= 0])
    blocked = None
    if rank.calls is not None and (len(called) or not len(chosen)):
        blocked = int((rank.calls.end_ns[called] - rank.calls.start_ns[called]).sum())
    exposed = exposed_copies(rank, chosen, window)
    cost = _with_idle(rank, window, exposed, called)
    num_large, num_known = int(large.sum()), int(known.sum())
    metrics = PageableCopyMetrics(
        bytes=sum(carried.values()),
        num_copies=len(chosen),
        host_blocked_ns=blocked,
        exposed_copy_ns=exposed.measure_ns,
        direction=direction,
        gb_per_s=_gb_per_s(rank, known & pageable[direction]),
        pinned_gb_per_s=_gb_per_s(rank, known & pinned),
        coverage=num_known / num_large if num_large else 1.0,
    )
    return PageableCopyResult(
        **facts_of(rank, window, cost),
        metrics=metrics,
        cost_ns=cost.measure_ns,
        copies_for_kernels=copies_for_kernels(rank, window),
        is_unknown=num_large > 0 and not num_known,
        evidence=_evidence(rank, chosen),
    )


def findings(result: PageableCopyResult) -> list[f.Finding | f.NotApplicable]:
    """Judge the time that pageable copies kept the GPU from its work."""
    if result.is_unknown:
        why = "the report does not show which kinds of memory were copied from and to"
        return [f.NotApplicable(ID, why, result.how_to_collect(Part.COPY_MEMORY), result.rank)]
    metrics = result.metrics
    copies = counted(metrics.num_copies, "copy")
    end = "from" if metrics.direction == "h2d" else "to"
    rate = f" at {metrics.gb_per_s:.1f} GB/s" if metrics.gb_per_s else ""
    exposed = duration(metrics.exposed_copy_ns)
    too = f", {exposed} of it in exposed-copy, too" if metrics.exposed_copy_ns else ""
    title = (
        f"{copies} {end} pageable host memory ({metrics.bytes / 1e9:.2f} GB{rate}) kept the GPU"
        f" from its work for {duration(result.cost_ns)}{too}"
    )
    advice = _ADVICE if result.is_pytorch else _CUDA_ADVICE
    advice = (*((DATA_REGION,) if result.copies_for_kernels else ()), *advice)
    return result.finding(ID, title, result.cost_ns, metrics, advice)


def _directions(rank: Rank, host_memory: MemoryKind) -> dict[str, Mask]:
    source = rank.operations.copies.source_memory
    destination = rank.operations.copies.destination_memory
    return {
        "h2d": (source == host_memory) & ~is_in(destination, HOST_MEMORY),
        "d2h": (destination == host_memory) & ~is_in(source, HOST_MEMORY),
    }


def _gb_per_s(rank: Rank, chosen: Mask) -> float | None:
    copies = rank.operations.copies
    busy = intervals.union(copies.start_ns[chosen], copies.end_ns[chosen]).measure_ns
    return intervals.total(copies.bytes[chosen]) / busy if busy else None


def _with_idle(rank: Rank, window: Window, exposed: Intervals, called: Int64) -> Intervals:
    calls = rank.calls
    if calls is None or not len(called) or clocks_disagree(rank):
        return exposed
    idle = intervals.complement(rank.not_idle, window.start_ns, window.end_ns)
    inside = intervals.union(calls.start_ns[called], calls.end_ns[called])
    return intervals.merge(exposed, intervals.intersect(inside, idle))


def _evidence(rank: Rank, chosen: Int64) -> tuple[f.Evidence, ...]:
    copies = rank.operations.copies
    length = copies.end_ns[chosen] - copies.start_ns[chosen]
    return tuple(
        f.Evidence(
            int(copies.start_ns[index]),
            int(copies.end_ns[index]),
            f"{copy_label(int(copies.kind[index]))} copy,"
            f" {int(copies.bytes[index]) / 1e6:.1f} MB, pageable",
        )
        for index in chosen[intervals.largest(length, f.MAX_EVIDENCE)].tolist()
    )


_ADVICE = (
    PIN,
    PREFETCH,
    (
        "Pin buffers that are used again once: tensor.pin_memory(), cudaHostAlloc or"
        " cudaHostRegister; pinning anew for each copy costs more than it gains"
    ),
    "Keep what does not change on the GPU, create tensors there (device='cuda'), copy fewer bytes",
)

_CUDA_ADVICE = (
    (
        "Pin the host's side once, for all copies: cudaMallocHost, or cudaHostRegister for memory"
        " that is there already; pinning anew for each copy costs more than it gains"
    ),
    (
        "Then cudaMemcpyAsync on a second stream while kernels run, and cudaStreamWaitEvent before"
        " its use"
    ),
    "Keep what does not change on the GPU, and copy fewer bytes",
)
PAGE = {
    "min_kib": str(MAX_STAGED_BYTES // 1024),
    "advice": f.bullets(_ADVICE),
    "cuda_advice": f.bullets((*_CUDA_ADVICE, DATA_REGION)),
}
