"""Kernels that wait for pages of unified memory: these move when a kernel accesses them."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from traceprof import findings as f
from traceprof import intervals
from traceprof.analyses.kernels.kernel_table import kernel_evidence
from traceprof.analyses.results import CostResult, facts_of
from traceprof.host.idle_gaps import PREFETCH
from traceprof.intervals import Int64, Intervals
from traceprof.run.rank import Rank, Window
from traceprof.trace.model.kinds import CopyKind
from traceprof.units import counted, duration, size_text

_COPIES = 1  # in `Rank.launched_by`


def page_moves(rank: Rank) -> tuple[Int64, Int64]:
    """Return the moves of pages to the GPU that only a kernel can have caused, and all of them.

    Pages that a program prefetches move when the GPU comes to it: from its first call that
    prefetches on, the cause of a move is not known.

    Returns:
        Indices of copies, int64[n] and int64[m].
    """
    copies = rank.operations.copies
    moves = np.flatnonzero(copies.kind == CopyKind.UNIFIED_HOST_TO_DEVICE)
    moves = moves[rank.launched_by[_COPIES][moves] < 0]
    calls = rank.calls
    if not len(moves) or calls is None:
        return moves, moves
    prefetching = calls.start_ns[rank.trace.calls_named(calls, PREFETCH.match)]
    if not len(prefetching):
        return moves, moves
    return moves[copies.start_ns[moves] < prefetching.min()], moves


def waits_for_pages(rank: Rank, moves: Int64) -> Intervals:
    """Return when kernels computed while these pages (indices of copies) moved."""
    copies = rank.operations.copies
    moving = intervals.union(copies.start_ns[moves], copies.ends(moves))
    return intervals.intersect(moving, rank.compute)


ID = "unified-memory"


class UnifiedMemoryMetrics(f.Metrics):
    """Numbers of `unified-memory`."""

    moving_ns: Annotated[f.Ns, "the time in which kernels ran while pages that they need moved"]
    kernel_ns: Annotated[f.Ns, "the time in which these kernels ran"]
    num_kernels: Annotated[f.Count, "the number of these kernels"]
    num_moves: Annotated[f.Count, "the number of moves to the GPU while they ran"]
    bytes: Annotated[f.Count, "the bytes of these moves"]
    coverage: Annotated[
        f.Fraction,
        "the share of the moves of pages to the GPU before the program's first call that"
        " prefetches: the cause of later ones is not known",
    ]


FINDINGS = {ID: f.FindingKind(UnifiedMemoryMetrics, changes_kernels=True)}


class UnifiedMemoryResult(CostResult, frozen=True):
    """The kernels of one rank that wait for pages, in a window."""

    metrics: UnifiedMemoryMetrics  # the numbers of the finding


def run(rank: Rank, window: Window) -> UnifiedMemoryResult:
    """Measure how long kernels ran while pages of unified memory moved to the GPU."""
    moves, all_moves = page_moves(rank)
    waits = window.clip(waits_for_pages(rank, moves))
    kernel, waited = _waiting(rank, waits)
    kernels, copies = rank.operations.kernels, rank.operations.copies
    ran = window.clip(intervals.union(kernels.start_ns[kernel], kernels.ends(kernel)))
    start = copies.start_ns[moves]
    texts = {
        int(kernel[place]): f": pages moved for {duration(int(waited[place]))} of it"
        for place in intervals.largest(waited, f.MAX_EVIDENCE)
    }
    beside = moves[intervals.covered_within(waits, start, copies.ends(moves)) > 0]
    return UnifiedMemoryResult(
        **facts_of(rank, window, ran),
        metrics=UnifiedMemoryMetrics(
            moving_ns=waits.measure_ns,
            kernel_ns=ran.measure_ns,
            num_kernels=len(kernel),
            num_moves=len(beside),
            bytes=intervals.total(copies.bytes[beside]),
            coverage=f.share(len(moves), len(all_moves)) if len(all_moves) else 1.0,
        ),
        evidence=kernel_evidence(rank, window, texts),
    )


def findings(result: UnifiedMemoryResult) -> list[f.Finding | f.NotApplicable]:
    """Judge the time in which kernels waited for pages."""
    metrics = result.metrics
    title = (
        f"{counted(metrics.num_kernels, 'kernel')} waited for pages of unified memory, which moved"
        f" to the GPU when they were accessed: {size_text(metrics.bytes)} in"
        f" {counted(metrics.num_moves, 'move')}, which took {duration(metrics.moving_ns)} of"
        f" {duration(metrics.kernel_ns)}"
    )
    saving = f.Saving.of_step(metrics.kernel_ns, result.share_per_step)
    saving = saving or f.Saving.at_most(metrics.kernel_ns)
    return result.finding(ID, title, metrics.moving_ns, metrics, _ADVICE, saving=saving)


def _waiting(rank: Rank, waits: intervals.Intervals) -> tuple[Int64, Int64]:
    kernels = rank.operations.kernels
    if not len(waits):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    computes = np.flatnonzero(~rank.is_communication_kernel)
    start, end = kernels.start_ns[computes], kernels.ends(computes)
    waited = intervals.covered_within(waits, start, end)
    has_waited = waited > 0
    return computes[has_waited], waited[has_waited]


_ADVICE = (
    (
        "Move the pages before the kernel needs them: cudaMemPrefetchAsync(pointer, bytes, device,"
        " stream) before its launch, and back to the host before the host reads them"
    ),
    (
        "Fill the memory on the GPU, by a kernel, where the host need not do it: then the pages are"
        " there"
    ),
    (
        "Memory that one side uses for long: cudaMalloc, and cudaMemcpyAsync from pinned memory; or"
        " cudaMemAdvise, with ReadMostly for what is only read, else PreferredLocation"
    ),
)
PAGE = {"advice": f.bullets(_ADVICE)}
