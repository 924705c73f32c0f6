"""Uneven kernels that take the same time on all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from traceprof.analyses import breakdown
from traceprof.analyses.kernels.matched_kernels import matched_kernels, shared_steps
from traceprof.analyses.kernels.placed_kernels import placed_kernels
from traceprof.replay.assumptions.run_change import CannotChange
from traceprof.run.rank import Window

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from traceprof.execution.open_analysis import OpenAnalysis
    from traceprof.intervals import Int64
    from traceprof.replay.graph.process_graph import Process
    from traceprof.replay.graph.weights import Durations

    EqualLengths = Mapping[int, tuple[Int64, npt.NDArray[np.float64]]]
    """By index of the rank in the run: indices of its kernels, and what they take."""


def equal_lengths(analysis: OpenAnalysis) -> tuple[EqualLengths]:
    """Return what kernels take where they are as long as on the other ranks.

    A rank that is always the longest is as fast as the others at the mean, also where its kernels
    could not be compared. If the longest rank changes, all ranks take the mean of all.

    Args:
        analysis: of the run.
    """
    uneven, measured = analysis.measured.uneven, analysis.measured
    if uneven is None or not_uneven(analysis) is not None:
        return ({},)
    judged = {result.rank: result.judged for result in measured.of(breakdown)}
    ranks = {rank.rank: (index, rank) for index, rank in enumerate(analysis.run.ranks)}
    placed, kernels, indices = [], [], []
    for one in measured.placed:
        index, rank = ranks[one.rank]
        begin, length = judged[one.rank].window_start_ns, judged[one.rank].window_ns
        of_rank, rows = placed_kernels(rank, Window(begin, begin + length))
        placed.append(of_rank)
        kernels.append(rows)
        indices.append(index)
    lengths = [one.length_ns.values.astype(np.float64) for one in placed]
    if uneven.is_constant:
        lengths[uneven.member] /= uneven.slower
    for matched in matched_kernels(placed, shared_steps(placed, measured.ranks.clocks)):
        for place, of_rank_ns in enumerate(lengths):
            if uneven.is_constant and place != uneven.member:
                continue
            at = np.flatnonzero(matched.rank == place)
            equal, own = matched.mean_ns[at], matched.length_ns[at]
            if uneven.is_constant:
                num = matched.num_ranks[at]
                equal = (num * equal - own) / (num - 1)
            of_rank_ns[matched.row[at]] = equal
    return (dict(zip(indices, zip(kernels, lengths, strict=True), strict=True)),)


def with_equal_kernels(process: Process, durations: Durations, equal: EqualLengths) -> Durations:
    """Let kernels take these times."""
    length = durations.length_ns.copy()
    for index, rank in process.ranks:
        if index in equal:
            kernel, ns = equal[index]
            row = process.work.rows_of_kernels(index, rank)[kernel]
            length[row[row >= 0]] = ns[row >= 0]
    return replace(durations, length_ns=length)


def not_uneven(analysis: OpenAnalysis) -> CannotChange | None:
    """Return why kernels cannot be made equal; None where they are uneven.

    Args:
        analysis: of the run.
    """
    uneven = analysis.measured.uneven
    if uneven is None:
        return CannotChange("no kernel is at the same place of a step on two ranks")
    if not uneven.is_uneven:
        return CannotChange("no rank's kernels take longer than those of the others beyond noise")
    return None
