"""Kernels that communication slows down, with less of it or none."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.analyses.kernels.beside_communication import beside_communication

if TYPE_CHECKING:
    from traceprof.intervals import Int64
    from traceprof.replay.graph.longest_path import Float64
    from traceprof.replay.graph.process_graph import Process
    from traceprof.replay.graph.weights import Durations
    from traceprof.run.opening import Rank


def without_slowdown(process: Process, durations: Durations) -> Durations:
    """Let kernels beside communication take what they take alone, where that is known."""
    return with_shorter_communication(process, durations, 0.0)


def with_shorter_communication(process: Process, durations: Durations, share: float) -> Durations:
    """Let kernels be slowed down only as long as communication still takes.

    Each stretch of communication begins when it did, and takes a share of its time: a kernel keeps
    as much of its slowdown as it has still communication beside it.
    """
    length = durations.length_ns.copy()
    work = process.work
    for index, rank in process.ranks:
        kernel, alone = alone_ns(rank)
        row = work.rows_of_kernels(index, rank)[kernel]
        kernel, alone, row = kernel[row >= 0], alone[row >= 0], row[row >= 0]
        slowed = length[row]
        kept = _still_beside(rank, kernel, share)
        length[row] = slowed - (1 - kept) * np.maximum(slowed - alone, 0)
    return replace(durations, length_ns=length)


def _still_beside(rank: Rank, kernel: Int64, share: float) -> Float64:
    """Return the share of the communication beside each kernel that is left, float64[n]."""
    kernels, whole = rank.operations.kernels, rank.communication
    start, end = kernels.start_ns[kernel], kernels.ends(kernel)
    shorter = np.rint(share * (whole.end_ns - whole.start_ns)).astype(np.int64)
    left = intervals.union(whole.start_ns, whole.start_ns + shorter)
    before = intervals.covered_within(whole, start, end)
    after = intervals.covered_within(left, start, end)
    return after / np.maximum(before, 1)


def alone_ns(rank: Rank) -> tuple[Int64, Float64]:
    """Return the kernels that ran beside communication, and the median of their like alone."""
    chosen = np.flatnonzero(~rank.is_communication_kernel)
    compared = beside_communication(rank, chosen).compared
    alone = np.empty(len(compared.overlapped))
    done = 0
    for _, alone_ns, overlapped, _ in compared:
        alone[done : done + len(overlapped)] = np.median(alone_ns)
        done += len(overlapped)
    return chosen[compared.overlapped], alone
