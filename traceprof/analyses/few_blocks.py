"""Kernels with blocks for at most half of the multiprocessors: the others do nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from traceprof import findings as f
from traceprof import hardware, intervals
from traceprof.analyses.kernels.kernel_table import kernel_evidence
from traceprof.analyses.kernels.placed_kernels import blocks_by_signature
from traceprof.analyses.results import CostResult, facts_of
from traceprof.analyses.unified_memory import page_moves, waits_for_pages
from traceprof.intervals import Int64, Intervals, Mask
from traceprof.run.rank import Rank, Window
from traceprof.structs import Record
from traceprof.units import counted, duration, percent

ID = "few-blocks"
MIN_KERNEL_NS = 10_000
"""Shorter kernels take about as long with more blocks: their latency is most of their time."""
_FEWEST_SMS = 14  # of a GPU that trains: with an unknown number, fewer blocks are too few


class FewBlocksMetrics(f.Metrics):
    """Numbers of `few-blocks`."""

    kernel_ns: Annotated[
        f.Ns,
        "the time in which only such kernels ran, and all of them together had fewer"
        " blocks than the GPU has multiprocessors (SMs)",
    ]
    fraction: Annotated[
        f.Fraction, "`kernel_ns` as a share of the time in which any kernel computed"
    ]
    num_kernels: Annotated[f.Count, "the number of such kernels"]
    num_sms: Annotated[f.Count | None, "the number of SMs of the GPU; null if unknown"]
    num_blocks: Annotated[f.Count, "the blocks of the kernels whose unused SMs cost most"]
    block_size: Annotated[f.Count, "the threads of each of their blocks"]
    coverage: Annotated[f.Fraction, "the share of compute time in kernels with a known grid"]


FINDINGS = {
    ID: f.FindingKind(
        FewBlocksMetrics, changes_kernels=True, only_compute=True, needs=f.Sight.OPERATIONS
    )
}


class FewBlocksResult(CostResult, frozen=True):
    """The kernels of one rank with few blocks, in a window."""

    metrics: FewBlocksMetrics  # the numbers of the finding
    unused_ns: int  # that time, each nanosecond by the share of the SMs without a block


def run(rank: Rank, window: Window) -> FewBlocksResult:
    """Measure the time in which kernels had blocks for at most half of the SMs."""
    known = hardware.board(rank.gpu)
    num_sms = rank.trace.num_sms(rank.key) or (known.num_sms if known else None)
    enough = num_sms or _FEWEST_SMS
    few = _few_kernels(rank, window, enough)
    used, unused_ns, costliest = intervals.empty(), 0, few.signature[:0]
    if f.severity_of_cost(f.share(int(few.cost_ns.sum()), window.length_ns)) is not None:
        used, unused_ns = _unused(rank, few, enough)
        costs = np.bincount(few.signature, few.cost_ns).astype(np.int64)
        costliest = intervals.largest(costs, f.MAX_EVIDENCE)
        costliest = costliest[costs[costliest] > 0]
    compute_ns = window.clip(rank.compute).measure_ns
    first = few.signature == costliest[0] if len(costliest) else few.is_long
    size = rank.trace.signatures.shape[costliest[:1], 3:]
    return FewBlocksResult(
        **facts_of(rank, window, used),
        metrics=FewBlocksMetrics(
            kernel_ns=used.measure_ns,
            fraction=f.share(used.measure_ns, compute_ns),
            num_kernels=int(few.is_long.sum()),
            num_sms=num_sms,
            num_blocks=int(few.blocks[first].max(initial=0)),
            block_size=int(np.maximum(size, 1).prod()) if len(size) else 0,
            coverage=_coverage(rank, window, compute_ns),
        ),
        unused_ns=unused_ns,
        evidence=_evidence(rank, window, few, costliest.tolist()),
    )


def findings(result: FewBlocksResult) -> list[f.Finding | f.NotApplicable]:
    """Judge the time of SMs without a block."""
    metrics = result.metrics
    if f.severity_of_cost(f.share(result.unused_ns, result.window_ns)) is None:
        return []
    if metrics.num_sms is None:
        reason = "the number of multiprocessors of the GPU is not known"
        how = (
            "look it up in the data sheet of the GPU: blocks that are fewer leave some without work"
        )
        return [f.NotApplicable(ID, reason, how, result.rank)]
    kernels = counted(metrics.num_kernels, "kernel")
    unused = percent(f.share(result.unused_ns, metrics.kernel_ns))
    title = (
        f"{kernels} with blocks for at most half of the {metrics.num_sms} multiprocessors ran for"
        f" {duration(metrics.kernel_ns)}, {percent(metrics.fraction)} of the compute time: {unused}"
        " of the multiprocessors had nothing to do"
    )
    saving = f.Saving.of_step(metrics.kernel_ns, result.share_per_step)
    saving = saving or f.Saving.at_most(metrics.kernel_ns)
    advice = _PYTORCH if result.is_pytorch else _CUDA
    return result.finding(ID, title, result.unused_ns, metrics, advice, saving=saving)


class _Few(Record, frozen=True):
    """The n kernels of a rank with few blocks that compute in a window."""

    kernel: Int64  # int64[n], indices of kernels
    start_ns: Int64  # int64[n], within the window
    end_ns: Int64  # int64[n], within the window
    signature: Int64  # int64[n]
    blocks: Int64  # int64[n]
    is_long: Mask  # bool[n], whether more blocks would make each shorter
    # int64[n], how long each runs, by the share of the SMs for which it has no block; 0 for short
    # ones
    cost_ns: Int64


def _few_kernels(rank: Rank, window: Window, enough: int) -> _Few:
    kernels = rank.operations.kernels
    blocks = blocks_by_signature(rank)
    rows = np.flatnonzero(_has_few(rank, blocks, enough))
    start, end = kernels.start_ns[rows], kernels.ends(rows)
    is_inside = (end > window.start_ns) & (start < window.end_ns)
    rows, start, end = rows[is_inside], start[is_inside], end[is_inside]
    is_long = end - start >= MIN_KERNEL_NS
    start, end = np.maximum(start, window.start_ns), np.minimum(end, window.end_ns)
    signature = kernels.packed_signature.at(rows)
    cost = (end - start) * (enough - blocks[signature]) // enough
    return _Few(rows, start, end, signature, blocks[signature], is_long, np.where(is_long, cost, 0))


def _has_few(rank: Rank, blocks: Int64, enough: int) -> Mask:
    of_signature = (blocks > 0) & (2 * blocks <= enough)
    few: Mask = of_signature.take(rank.operations.kernels.packed_signature.kept)
    return few & ~rank.is_communication_kernel


def _coverage(rank: Rank, window: Window, compute_ns: int) -> float:
    is_unknown = blocks_by_signature(rank) == 0
    kernels = rank.operations.kernels
    rows = np.flatnonzero(is_unknown.take(kernels.packed_signature.kept))
    rows = rows[~rank.is_communication_kernel[rows]]
    unknown = intervals.union(kernels.start_ns[rows], kernels.ends(rows))
    unknown_ns = window.clip(unknown).measure_ns
    return 1 - f.share(unknown_ns, compute_ns)


def _unused(rank: Rank, few: _Few, enough: int) -> tuple[Intervals, int]:
    """Return when only few blocks ran, with a long kernel, and how much of it SMs had none, ns."""
    kernels, graphs = rank.operations.kernels, rank.operations.graphs
    others = ~_has_few(rank, blocks_by_signature(rank), enough) & ~rank.is_communication_kernel
    full = intervals.union(
        np.concatenate([kernels.start_ns[others], graphs.start_ns]),
        np.concatenate([kernels.end_ns[others], graphs.end_ns]),
    )
    long = intervals.union(few.start_ns[few.is_long], few.end_ns[few.is_long])
    waiting = waits_for_pages(rank, page_moves(rank)[1])
    alone = intervals.subtract(intervals.subtract(long, full), waiting)
    times = np.concatenate([few.start_ns, few.end_ns])
    order = np.argsort(times, kind="stable")
    blocks = np.cumsum(np.concatenate([few.blocks, -few.blocks])[order])[:-1]
    start, end = times[order][:-1], times[order][1:]
    is_few = (blocks < enough) & (end > start)
    start, end, blocks = start[is_few], end[is_few], blocks[is_few]
    covered = intervals.covered_within(alone, start, end)
    used = intervals.intersect(alone, intervals.union(start, end))
    return used, intervals.total(covered * (enough - blocks)) // enough


def _evidence(
    rank: Rank, window: Window, few: _Few, signatures: Sequence[int]
) -> tuple[f.Evidence, ...]:
    texts = {}
    for signature in signatures:
        rows = np.flatnonzero((few.signature == signature) & few.is_long)
        length = few.end_ns[rows] - few.start_ns[rows]
        longest = rows[np.argmax(length)]  # only long kernels cost anything
        size = int(np.maximum(rank.trace.signatures.shape[signature, 3:], 1).prod())
        grid = f", {counted(int(few.blocks[longest]), 'block')} of {counted(size, 'thread')}"
        others = "" if len(rows) == 1 else f", {len(rows)} times: {duration(int(length.sum()))}"
        texts[int(few.kernel[longest])] = grid + others
    return kernel_evidence(rank, window, texts)


_CUDA = (
    (
        "Launch several blocks for each multiprocessor, each with a part of the work;"
        " cudaOccupancyMaxPotentialBlockSize proposes the grid and the threads of a block"
    ),
    (
        "A sum, or another result of all elements: each block reduces its part, and atomicAdd or a"
        " second kernel (cub::DeviceReduce) joins them"
    ),
    "Kernels that do not depend on each other can run at once, on streams of their own",
)
_PYTORCH = (
    "Give each kernel more work: a larger batch, several samples or sequences in one call",
    (
        "One kernel for many small ones: torch.compile (PyTorch 2.0), torch.bmm and"
        " torch._foreach_… in the place of loops"
    ),
)
PAGE = {
    "min_us": str(MIN_KERNEL_NS // 1000),
    "advice": f.bullets(_CUDA),
    "pytorch": f.bullets(_PYTORCH),
}
