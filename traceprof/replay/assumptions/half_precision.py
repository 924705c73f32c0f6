"""Autocast: multiplications of FP32 numbers in half precision, as fast as tensor cores can be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from traceprof.analyses.full_precision_matmul import half_precision_shares
from traceprof.replay.assumptions.run_change import CannotChange

if TYPE_CHECKING:
    from traceprof.execution.open_reports import OpenAnalysis
    from traceprof.replay.graph.process_graph import Process
    from traceprof.replay.graph.weights import Durations


def with_half_precision(process: Process, durations: Durations) -> Durations:
    """Let kernels take the least share of their time that autocast can leave."""
    work = process.work
    length = durations.length_ns.copy()
    for index, rank in process.ranks:
        shares = half_precision_shares(rank) or {}
        names = rank.operations.kernels.name_of_signature
        of_name = np.array([shares.get(id_, 1.0) for id_ in names.tolist()])
        rows = np.flatnonzero((work.rank == index) & (work.group == 0))
        if len(rows):
            signature = rank.operations.kernels.packed_signature.at(work.place[rows])
            length[rows] *= of_name[signature]
    return replace(durations, length_ns=length)


def not_in_full_precision(analysis: OpenAnalysis) -> CannotChange | None:
    """Return why half precision cannot be assumed; None if it can of a rank."""
    shares = [half_precision_shares(rank) for rank in analysis.run.ranks]
    if any(shares):
        return None
    if all(of_rank is None for of_rank in shares):
        return CannotChange("whether the GPUs have tensor cores is not in the report")
    return CannotChange("no kernel is known to multiply matrices of FP32 numbers")
