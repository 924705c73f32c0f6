"""Kernels that communication slows down, with less communication or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from msgspec.structs import replace

from traceprof import intervals
from traceprof.analyses import overlap_slowdown
from traceprof.analyses.kernels.beside_communication import slowed_kernels
from traceprof.replay.graph.columns import COMMUNICATION, COMPUTE
from traceprof.replay.graph.hidden_host_waits import names_of
from traceprof.trace.grouping import distinct_values, median_of

if TYPE_CHECKING:
    from traceprof.execution.open_reports import OpenAnalysis
    from traceprof.intervals import Float64, Int64
    from traceprof.replay.graph.process_graph import Process
    from traceprof.replay.graph.weights import Durations
    from traceprof.run.opening import Rank

    Reading = Literal["rate", "least", "most"]
    """Which attribute of `SlowedKernels` is taken for the rate."""

_ELSEWHERE = (
    "kernels that were never alone at their place are assumed to lose as much as their like"
)
_UNKNOWN = (
    "kernels whose like never ran alone are assumed to lose all their time beside communication"
)
_ALONE, _BESIDE = 0.05, 0.5  # of its time that communication has compute beside it
_MIN_SEEN = 3


def unlike_kernels(analysis: OpenAnalysis) -> str:
    """Return what is assumed of kernels that were not alone at their place; nothing without any."""
    results = analysis.measured.of(overlap_slowdown)
    parts = (
        _ELSEWHERE if any(result.num_elsewhere for result in results) else "",
        _UNKNOWN if any(result.num_unknown for result in results) else "",
    )
    return "; ".join(filter(None, parts))


def without_slowdown(process: Process, durations: Durations) -> Durations:
    """Let kernels lose nothing to communication, of the most that each may have lost."""
    return with_shorter_communication(process, durations, 0.0, "most")


def with_shorter_communication(
    process: Process, durations: Durations, share: float, reading: Reading = "rate"
) -> Durations:
    """Let kernels be slowed down only as long as communication still takes.

    Each stretch of communication begins when it did, and takes a share of its time: a kernel keeps
    its slowdown while communication still runs beside it.
    """
    work, before = process.work, durations.unslowed_ns
    before = np.zeros(len(work)) if before is None else before
    lost = _slowed_ns(process, reading, share)
    unslowed = np.where(np.abs(lost) > np.abs(before), lost, before)
    # What is faster for another reason loses as much less.
    left = np.maximum(work.length_ns - unslowed, 0.0)
    length = durations.length_ns * (left / np.maximum(work.length_ns - before, 1.0))
    return replace(durations, length_ns=length, unslowed_ns=unslowed)


def still_slowed_ns(process: Process, durations: Durations) -> Float64:
    """Return how much longer communication makes each operation, float64[operations]."""
    slowed = np.maximum(_slowed_ns(process, "rate"), 0.0)
    return (
        slowed if durations.unslowed_ns is None else np.maximum(slowed - durations.unslowed_ns, 0)
    )


def slowed_by_compute_ns(process: Process) -> Float64:
    """Return how much longer compute makes communication of one rank, float64[operations].

    Known where kernels of one name ran alone, and mostly beside compute, several times each; their
    sizes may differ.
    """
    work, lost = process.work, np.zeros(len(process.work))
    names = names_of(process.ranks, work)
    for index, _ in process.ranks:
        rows = np.flatnonzero((work.rank == index) & (work.kind == COMMUNICATION))
        length = work.length_ns[rows].astype(np.float64)
        computing = (work.rank == index) & (work.kind == COMPUTE)
        busy = intervals.union(work.start_ns[computing], work.end_ns[computing])
        covered = intervals.covered_within(busy, work.start_ns[rows], work.end_ns[rows])
        beside = covered / np.maximum(length, 1)
        for name in distinct_values(names[rows]).tolist():
            of_name = names[rows] == name
            alone, most = (of_name & which for which in (beside < _ALONE, beside > _BESIDE))
            if min(alone.sum(), most.sum()) >= _MIN_SEEN:
                rate = 1 - median_of(length[alone]) / median_of(length[most])
                lost[rows[of_name]] = (max(rate, 0.0) * beside * length)[of_name]
    return lost


def _slowed_ns(process: Process, reading: Reading, share: float = 0.0) -> Float64:
    """Return by how much operations are longer than beside a share of the communication."""
    lost_ns = np.zeros(len(process.work))
    for index, rank in process.ranks:
        slowed = slowed_kernels(rank)
        row = process.work.rows_of_kernels(index, rank)[slowed.kernel]
        known = row >= 0
        lost = getattr(slowed, reading) * slowed.beside_ns
        if share:
            lost *= 1 - _still_beside(rank, slowed.kernel, share)
        lost_ns[row[known]] = lost[known]
    return lost_ns


def _still_beside(rank: Rank, kernel: Int64, share: float) -> Float64:
    """Return the share of the communication beside each kernel that is left, float64[n]."""
    kernels, whole = rank.operations.kernels, rank.communication
    start, end = kernels.start_ns[kernel], kernels.ends(kernel)
    shorter = np.rint(share * (whole.end_ns - whole.start_ns)).astype(np.int64)
    left = intervals.union(whole.start_ns, whole.start_ns + shorter)
    before = intervals.covered_within(whole, start, end)
    after = intervals.covered_within(left, start, end)
    return after / np.maximum(before, 1)
