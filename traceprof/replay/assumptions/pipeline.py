"""The stages of a recorded pipeline: their order, and what their passes take alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.analyses import overlap_slowdown
from traceprof.analyses.kernels.beside_communication import slowed_kernels
from traceprof.ranks.passes import BACKWARD, FORWARD
from traceprof.replay.assumptions.schedules import Pipeline, Stage
from traceprof.replay.assumptions.sends import edges_of_graph
from traceprof.replay.graph.process_graph import EdgeKind

if TYPE_CHECKING:
    from traceprof.execution.open_analysis import OpenAnalysis
    from traceprof.ranks.passes import RankPasses
    from traceprof.replay.assumptions.sends import Sends
    from traceprof.replay.graph.run_graph import RunGraph
    from traceprof.run.opening import Mask, Rank

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
    passes = {one.rank: one for one in analysis.measured.passes}
    ranks = [analysis.run.ranks[index] for index in order]
    stages = [_stage(rank, passes[rank.rank]) for rank in ranks]
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
        sends_apart=not _share_streams(sends, is_send, is_forward),
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


def _share_streams(sends: Sends, is_send: Mask, is_forward: Mask) -> bool:
    """Return whether a send to the next stage and one to the stage before follow each other."""
    both = sends.follows[1:] & is_send[1:] & is_send[:-1]
    return bool((both & (is_forward[1:] != is_forward[:-1])).any())


def _stage(rank: Rank, passes: RankPasses) -> Stage | None:
    """Return what a forward and a backward of a rank take without communication beside them."""
    if not len(passes) or rank.calls is None:
        return None
    kernels, launched_by = rank.operations.kernels, rank.launched_by[0]
    length = kernels.packed_length.at(np.arange(len(kernels))).astype(np.float64)
    slowed = slowed_kernels(rank)
    length[slowed.kernel] -= slowed.rate * slowed.beside_ns
    length[rank.is_communication_kernel | (launched_by < 0)] = 0.0
    place = np.searchsorted(passes.launched_ns, rank.calls.start_ns[launched_by], side="right") - 1
    inside = place >= 0
    spent = np.bincount(place[inside], length[inside], len(passes))
    took = []
    for kind in (FORWARD, BACKWARD):
        of_kind = spent[(passes.kind == kind) & (spent > 0)]
        if not len(of_kind):
            return None
        took.append(float(np.median(of_kind)))
    return Stage(*took)


def _slowdown(analysis: OpenAnalysis) -> float:
    """Return how many times as long kernels take beside communication; 1 where none were seen."""
    known = [
        result.comparison.slowdown
        for result in analysis.measured.of(overlap_slowdown)
        if result.comparison.slowdown is not None
    ]
    return max(float(np.median(known)), 1.0) if known else 1.0
