"""The stages of a recorded pipeline: their order, and what their passes take alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import labels
from traceprof.analyses import overlap_slowdown
from traceprof.analyses.kernels.beside_communication import slowed_kernels
from traceprof.replay.answers.schedules import Pipeline, Stage
from traceprof.replay.assumptions.sends import edges_of_graph
from traceprof.replay.graph.process_graph import EdgeKind

if TYPE_CHECKING:
    from traceprof.execution.open_analysis import OpenAnalysis
    from traceprof.intervals import Int64
    from traceprof.replay.assumptions.sends import Sends
    from traceprof.replay.graph.run_graph import RunGraph
    from traceprof.run.opening import Rank

_SENDS = 1  # as `SendName.direction` has it


def pipeline_of(analysis: OpenAnalysis, graph: RunGraph, sends: Sends) -> Pipeline | None:
    """Return the pipeline of a run; None without one, or without ranges of its passes.

    Each stage has one rank, and sends to the next one and the one before.

    Args:
        analysis: of the run.
        graph: of it.
        sends: of it.
    """
    order = _stages(analysis, sends)
    if order is None:
        return None
    place = np.full(len(analysis.run.ranks), -1, np.int64)
    place[order] = np.arange(len(order))
    numbers = {rank.rank: index for index, rank in enumerate(analysis.run.ranks)}
    peer = place[np.array([numbers[int(one)] for one in sends.peer.tolist()])]
    is_forward = peer > place[sends.rank]
    is_send = sends.direction == _SENDS
    edges = edges_of_graph(graph)
    moved = np.full(graph.plan.num_nodes, np.nan)
    transfers = np.flatnonzero(edges.kind == EdgeKind.TRANSFER)
    moved[edges.target[transfers]] = graph.weights.of(0)[transfers]
    of_send = moved[sends.node + 1]
    first = is_send & is_forward & (sends.rank == order[0])
    per_step = np.unique(sends.step[first], return_counts=True)[1]
    stages = [_stage(analysis.run.ranks[index]) for index in order]
    if len(per_step) == 0 or not (is_send & ~is_forward).any():
        return None
    known = [stage for stage in stages if stage is not None]
    if len(known) < len(stages):
        return None
    return Pipeline(
        stages=tuple(known),
        num_micro_batches=int(np.median(per_step)),
        activations_ns=float(np.median(of_send[is_send & is_forward])),
        gradients_ns=float(np.median(of_send[is_send & ~is_forward])),
        slowdown=_slowdown(analysis),
    )


def _stages(analysis: OpenAnalysis, sends: Sends) -> list[int] | None:
    """Return the ranks in order of their stages, as indices; None where they make no line."""
    numbers = {rank.rank: index for index, rank in enumerate(analysis.run.ranks)}
    peers: dict[int, set[int]] = {}
    for rank, peer in zip(sends.rank.tolist(), sends.peer.tolist(), strict=True):
        peers.setdefault(rank, set()).add(numbers[peer])
    ends = [rank for rank, others in peers.items() if len(others) == 1]
    if len(ends) != 2 or any(len(others) > 2 for others in peers.values()):
        return None
    # The first stage begins a step: it sends before it receives anything.
    begins = [rank for rank in ends if _sends_first(sends, rank)]
    if len(begins) != 1:
        return None
    order = begins
    while len(order) < len(peers):
        following = peers[order[-1]] - set(order)
        if not following:
            return None
        order.append(following.pop())
    return order


def _sends_first(sends: Sends, rank: int) -> bool:
    of_rank = np.flatnonzero(
        (sends.rank == rank) & (sends.step == sends.step[sends.rank == rank][0])
    )
    first = {
        direction: [row for row in of_rank.tolist() if sends.direction[row] == direction]
        for direction in (_SENDS, 2)
    }
    if not first[_SENDS] or not first[2]:
        return False
    start = [int(sends.start_ns[rows].min()) for rows in (first[_SENDS], first[2])]
    return start[0] < start[1]


def _stage(rank: Rank) -> Stage | None:
    """Return what a forward and a backward of a rank take without communication beside them."""
    ranges, calls = rank.trace.label_ranges.get(rank.process), rank.calls
    if ranges is None or calls is None:
        return None
    kernels = rank.operations.kernels
    length = kernels.packed_length.at(np.arange(len(kernels))).astype(np.float64)
    slowed = slowed_kernels(rank)
    length[slowed.kernel] -= slowed.rate * slowed.beside_ns
    length[rank.is_communication_kernel] = 0.0
    launched_by = rank.launched_by[0]
    launch = np.where(launched_by >= 0, calls.start_ns[launched_by], -1)
    order = np.argsort(launch, kind="stable")
    spent = np.concatenate(([0.0], np.cumsum(length[order])))
    took = []
    for operation in (labels.FORWARD, labels.BACKWARD):
        kinds = [index for index, kind in enumerate(ranges.kinds) if kind.operation == operation]
        chosen = np.isin(ranges.kind, np.array(kinds, np.int64))
        low, high = _within(launch[order], ranges.start_ns[chosen], ranges.end_ns[chosen])
        of_pass = spent[high] - spent[low]
        if not (of_pass > 0).any():
            return None
        took.append(float(np.median(of_pass[of_pass > 0])))
    return Stage(*took)


def _within(launch: Int64, start: Int64, end: Int64) -> tuple[Int64, Int64]:
    low: Int64 = np.searchsorted(launch, start, side="left")
    high: Int64 = np.searchsorted(launch, end, side="left")
    return low, high


def _slowdown(analysis: OpenAnalysis) -> float:
    """Return how many times as long kernels take beside communication; 1 where none were seen."""
    known = [
        result.comparison.slowdown
        for result in analysis.measured.of(overlap_slowdown)
        if result.comparison.slowdown is not None
    ]
    return max(float(np.median(known)), 1.0) if known else 1.0
