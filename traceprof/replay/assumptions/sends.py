"""Sends and receives that follow each other on a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.communication.messages import BETWEEN_TWO, messages
from traceprof.replay.graph.longest_path import NEVER
from traceprof.replay.graph.matched import group_members, synchronizing_groups
from traceprof.replay.graph.process_graph import EdgeKind
from traceprof.structs import Record
from traceprof.trace.grouping import median_of

if TYPE_CHECKING:
    from traceprof.execution.open_reports import OpenAnalysis
    from traceprof.intervals import Float64, Int64, Mask
    from traceprof.replay.graph.graph_edges import GraphEdges
    from traceprof.replay.graph.run_graph import RunGraph

_DIRECTIONS = {1: "send to", 2: "receive from", 3: "exchange with"}
_USUAL_TURN_AROUND_NS = 1_500.0  # where no send follows another one closely


class SendName(Record, frozen=True, order=True):
    """A send or receive that recurs in every step.

    Attributes:
        direction: 1 sends, 2 receives, 3 both.
        peer: the other rank.
        micro_batch: how many of the same direction and peer precede it in the step.
    """

    direction: int
    peer: int
    micro_batch: int

    @property
    def way(self) -> str:
        """The direction and the peer: `send to 1`."""
        return f"{_DIRECTIONS.get(self.direction, 'exchange with')} {self.peer}"

    def __str__(self) -> str:
        """Return it as text."""
        return f"{self.way} (micro-batch {self.micro_batch})"


class Sends(Record, frozen=True):
    """Both sides of all matched sends of a run, n of them, by stream and then as launched.

    Attributes:
        node: int64[n], where each begins in the graph.
        rank: int64[n], indices of the run's ranks.
        step: int64[n], in which step of its rank each began.
        start_ns: int64[n], when each began.
        direction: int64[n], 1 sends, 2 receives, 3 both; -1 if unknown.
        peer: int64[n], numbers of the other ranks.
        partner: int64[n], the other side: indices into these.
        follows: bool[n], whether it comes right after the one before it here, on their stream.
        edge: int64[n], of the graph, by which it waits for what is before it on its stream; -1.
        unit: int64[n], numbers those that follow each other in one step.
        name: of each.
        turn_around_ns: from the end of one to the start of the next, where only that holds it.
    """

    node: Int64
    rank: Int64
    step: Int64
    start_ns: Int64
    direction: Int64
    peer: Int64
    partner: Int64
    follows: Mask
    edge: Int64
    unit: Int64
    name: tuple[SendName, ...]
    turn_around_ns: float

    def __len__(self) -> int:
        return len(self.node)


def sends_of(analysis: OpenAnalysis, graph: RunGraph) -> Sends | None:
    """Return the sends of a run; None unless two follow each other on a stream.

    Args:
        analysis: of the run.
        graph: of the whole run.
    """
    columns = _sides(analysis, graph)
    if columns is None:
        return None
    node, rank, peer, direction, meeting, start = columns
    order = np.argsort(node, kind="stable")  # nodes are in order of streams, then of launches
    node, rank, peer, direction, meeting, start = (
        column[order] for column in (node, rank, peer, direction, meeting, start)
    )
    edges = graph.edges
    of_stream = np.flatnonzero(edges.kind == EdgeKind.STREAM)
    row = np.searchsorted(node, edges.target[of_stream])
    fits = row < len(node)
    fits[fits] = node[row[fits]] == edges.target[of_stream[fits]]
    edge, before = np.full(len(node), -1, np.int64), np.full(len(node), -1, np.int64)
    edge[row[fits]] = of_stream[fits]
    before[row[fits]] = edges.source[of_stream[fits]]
    follows = np.zeros(len(node), np.bool_)
    follows[1:] = before[1:] == node[:-1] + 1
    if not follows.any():
        return None
    step = np.zeros(len(node), np.int64)
    index = {member.rank: place for place, member in enumerate(analysis.run.ranks)}
    for rank_steps in graph.steps:
        of_rank = rank == index[rank_steps.rank]
        step[of_rank] = np.searchsorted(rank_steps.limits_ns, start[of_rank], side="right")
    same = follows & np.append(False, step[1:] == step[:-1])
    by_meeting = np.argsort(meeting, kind="stable")
    partner = np.empty(len(node), np.int64)
    partner[by_meeting[::2]], partner[by_meeting[1::2]] = by_meeting[1::2], by_meeting[::2]
    weights = graph.weights.of(0)[edge[follows]]
    near = weights[np.isfinite(weights)]
    return Sends(
        node, rank, step, start, direction, peer, partner, follows, edge, np.cumsum(~same) - 1,
        _names(rank, step, direction, peer),
        float(median_of(near)) if len(near) else _USUAL_TURN_AROUND_NS,
    )  # fmt: skip


def ready_ns(sends: Sends, edges: GraphEdges, weights: Float64, times: Float64) -> Float64:
    """Return when each send could begin on its own side if its stream were free, float64[n].

    Args:
        sends: of the run.
        edges: of its graph.
        weights: float64[e], one variant.
        times: float64[nodes], solved with it.
    """
    row = np.searchsorted(sends.node, edges.target)
    holds = row < len(sends)
    holds[holds] = sends.node[row[holds]] == edges.target[holds]
    holds &= (edges.kind != EdgeKind.STREAM) & (weights > NEVER)
    ready = np.full(len(sends), NEVER)
    np.maximum.at(ready, row[holds], times[edges.source[holds]] + weights[holds])
    return ready


def _sides(analysis: OpenAnalysis, graph: RunGraph) -> tuple[Int64, ...] | None:
    """Return node, rank, peer, direction, meeting, start of both sides of sends; None for none."""
    parts: list[tuple[Int64, ...]] = []
    num = 0
    groups = zip(
        synchronizing_groups(analysis), group_members(analysis), graph.matched, strict=True
    )
    for (waits, together), members, matched in groups:
        if len(members) != 2:
            continue
        chosen = waits.group.is_one_of(BETWEEN_TWO)[together]
        rows = np.flatnonzero(chosen)
        for column, member in enumerate(members):
            rank = analysis.run.ranks[member]
            place = waits.group.place[together, column][rows]
            other = analysis.run.ranks[members[1 - column]].rank
            parts.append(
                (
                    matched.node[rows, column],
                    np.full(len(rows), member),
                    np.full(len(rows), other),
                    messages(rank).direction[place],
                    num + np.arange(len(rows)),
                    matched.start_ns[rows, column],
                )
            )
        num += len(rows)
    if num == 0:
        return None
    return tuple(np.concatenate(columns) for columns in zip(*parts, strict=True))


def _names(rank: Int64, step: Int64, direction: Int64, peer: Int64) -> tuple[SendName, ...]:
    """Return the names of sends, which are in order of launch on their stream."""
    keys = np.stack((rank, step, direction, peer))
    number = np.unique(keys, axis=1, return_inverse=True)[1].reshape(-1)
    order = np.argsort(number, kind="stable")
    first = np.searchsorted(number[order], number[order])
    count = np.empty(len(number), np.int64)
    count[order] = np.arange(len(number)) - first
    rows = zip(direction.tolist(), peer.tolist(), count.tolist(), strict=True)
    return tuple(SendName(*row) for row in rows)
