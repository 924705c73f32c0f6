"""Sends and receives on a stream: which wait behind others, and their order by readiness."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from traceprof.communication.messages import BETWEEN_TWO, messages
from traceprof.replay.assumptions.run_change import (
    CannotChange,
    RunChange,
    changed,
    missing_event_records,
)
from traceprof.replay.graph.longest_path import UNCONSTRAINED, CircularError, EdgeKind, solve
from traceprof.replay.graph.matched import group_members, synchronizing_groups
from traceprof.replay.graph.run_graph import replayed_steps
from traceprof.replay.results import BlockedSend, SendName, StreamOrder
from traceprof.structs import Record
from traceprof.trace.grouping import is_in, median_of

if TYPE_CHECKING:
    from traceprof.execution.open_reports import OpenAnalysis
    from traceprof.intervals import Float64, Int64, Mask
    from traceprof.replay.graph.longest_path import GraphEdges
    from traceprof.replay.graph.run_graph import RunGraph

_USUAL_TURN_AROUND_NS = 1_500.0  # where no send follows another one closely


class Sends(Record, frozen=True):
    """Both sides of all matched sends of a run, n of them, by stream and then as launched."""

    node: Int64  # int64[n], where each begins in the graph
    rank: Int64  # int64[n], indices of the run's ranks
    partner: Int64  # int64[n], the other side: indices into these
    follows: Mask  # bool[n], whether it comes right after the one before it here, on their stream
    edge: Int64  # int64[n], of the graph, by which it waits for what is before it on its stream; -1
    unit: Int64  # int64[n], numbers those that follow each other in one step
    name: tuple[SendName, ...]  # of each
    turn_around_ns: float  # from the end of one to the start of the next, where only that holds it

    def __len__(self) -> int:
        return len(self.node)


def sends_of(analysis: OpenAnalysis, graph: RunGraph) -> Sends | None:
    """Return the sends of a run; None unless two follow each other on a stream."""
    columns = _sides(analysis, graph)
    if columns is None:
        return None
    node, rank, peer, direction, meeting, start = columns
    order = np.argsort(node, kind="stable")  # nodes are in order of streams, then of launches
    node, rank, peer, direction, meeting, start = (
        column[order] for column in (node, rank, peer, direction, meeting, start)
    )
    edges = graph.edges
    of_stream = np.flatnonzero(edges.kind == EdgeKind.STREAM_ORDER)
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
        node,
        rank,
        partner,
        follows,
        edge,
        np.cumsum(~same) - 1,
        _names(rank, step, direction, peer),
        float(median_of(near)) if len(near) else _USUAL_TURN_AROUND_NS,
    )


def ready_ns(sends: Sends, edges: GraphEdges, weights: Float64, times: Float64) -> Float64:
    """Return when each send could begin on its own side if its stream were free, float64[n].

    `times`: float64[nodes], solved with these weights.
    """
    row = np.searchsorted(sends.node, edges.target)
    holds = row < len(sends)
    holds[holds] = sends.node[row[holds]] == edges.target[holds]
    holds &= (edges.kind != EdgeKind.STREAM_ORDER) & (weights > UNCONSTRAINED)
    ready = np.full(len(sends), UNCONSTRAINED)
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


# Orders by readiness change what is ready when: they settle in two or three rounds, or never.
_MAX_ROUNDS = 8


def order_of_readiness(analysis: OpenAnalysis, graph: RunGraph) -> RunChange | CannotChange:
    """Let each stream run the send first that both sides are ready for first."""
    orders = _Orders.of(analysis, graph)
    return orders if isinstance(orders, CannotChange) else orders.change(orders.by_readiness())


class _Orders(Record, frozen=True):
    """The sends of a run, and their order."""

    graph: RunGraph  # of the run, with one set of weights
    sends: Sends  # of the run
    units: tuple[Int64, ...]  # rows that follow each other on a stream in one step, as launched
    measured: tuple[StreamOrder, ...]  # the order of each stream, as it was
    # for each unit, the stream whose order it has; -1 for one that is another
    pattern_of: tuple[int, ...]

    @staticmethod
    def of(analysis: OpenAnalysis, graph: RunGraph) -> _Orders | CannotChange:
        """Look at the sends of a run."""
        sends = sends_of(analysis, graph)
        if sends is None:
            return CannotChange("no two sends or receives follow each other on a stream")
        unknown = missing_event_records(analysis, graph, "when sends were ready")
        if unknown is not None:
            return unknown
        first = np.flatnonzero(np.append(True, np.diff(sends.unit) != 0))
        units = tuple(np.split(np.arange(len(sends)), first[1:]))
        numbers = [rank.rank for rank in analysis.run.ranks]
        counts: dict[StreamOrder, int] = {}
        orders = []
        for rows in units:
            names = tuple(sends.name[row] for row in rows.tolist())
            order = StreamOrder(numbers[int(sends.rank[rows[0]])], names)
            orders.append(order)
            counts[order] = counts.get(order, 0) + (len(rows) > 1)
        # Streams do the same in every step, except for the first and the last.
        typical = max(counts.values())
        measured = tuple(order for order, count in counts.items() if 2 * count > typical)
        place = {order: index for index, order in enumerate(measured)}
        measured_graph = replace(graph, weights=graph.weights.chosen((0,)))
        pattern_of = tuple(place.get(order, -1) for order in orders)
        return _Orders(measured_graph, sends, units, measured, pattern_of)

    def change(self, sequence: Int64) -> RunChange:
        """Return what changes in the graph if the rows come in this order, within their units."""
        sends = self.sends
        node, old = sends.node, np.arange(len(sends))
        joined = np.flatnonzero(sends.follows)
        begins = np.flatnonzero(~sends.follows)
        ends = np.append(begins[1:], len(sends)) - 1
        source = [node[sequence[joined - 1]] + 1]
        target = [node[sequence[joined]]]
        added = [np.full(len(joined), sends.turn_around_ns)]
        # What came before the first one still does, and what came after the last one.
        before = begins[(sends.edge[begins] >= 0) & (sequence[begins] != begins)]
        source.append(self.graph.edges.source[sends.edge[before]].astype(np.int64))
        target.append(node[sequence[before]])
        added.append(np.full(len(before), sends.turn_around_ns))
        is_stream = self.graph.edges.kind == EdgeKind.STREAM_ORDER
        last = ends[sequence[ends] != ends]
        after = np.flatnonzero(is_stream & is_in(self.graph.edges.source, node[last] + 1))
        of_last = last[np.searchsorted(node[last] + 1, self.graph.edges.source[after])]
        source.append(node[sequence[of_last]] + 1)
        target.append(self.graph.edges.target[after].astype(np.int64))
        added.append(self.graph.weights.of(0)[after])
        waits = self._inherited(old)
        source.append(waits[0])
        target.append(waits[1])
        added.append(waits[2])
        edges = sends.edge[joined]
        return RunChange(
            edges=edges,
            weights=np.full(len(edges), UNCONSTRAINED),
            source=np.concatenate(source),
            target=np.concatenate(target),
            added=np.concatenate(added),
            orders=tuple(
                order
                for order, was in zip(self.typical(sequence), self.measured, strict=True)
                if order != was
            ),
        )

    def _inherited(self, rows: Int64) -> tuple[Int64, Int64, Float64]:
        """Return the waits of sends that have none of their own: those of the one before."""
        edges, sends = self.graph.edges, self.sends
        is_wait = np.flatnonzero(edges.kind == EdgeKind.EVENT)
        row = np.searchsorted(sends.node, edges.target[is_wait])
        fits = row < len(sends)
        fits[fits] = sends.node[row[fits]] == edges.target[is_wait[fits]]
        order = np.argsort(row[fits], kind="stable")
        of_row, edge = row[fits][order], is_wait[fits][order]
        has = np.zeros(len(sends), np.bool_)
        has[of_row] = True
        begins = np.maximum.accumulate(np.where(sends.follows, 0, rows))
        giver = np.maximum.accumulate(np.where(has, rows, -1))
        heirs = np.flatnonzero(~has & (giver >= begins))
        low = np.searchsorted(of_row, giver[heirs], side="left")
        count = np.searchsorted(of_row, giver[heirs], side="right") - low
        at = np.repeat(low - np.cumsum(count) + count, count) + np.arange(int(count.sum()))
        weights = self.graph.weights.of(0)[edge[at]]
        source = edges.source[edge[at]].astype(np.int64)
        return source, sends.node[np.repeat(heirs, count)], weights

    def by_readiness(self) -> Int64:
        """Return the rows in the order in which both sides are ready, for every step by itself."""
        sends = self.sends
        free = RunChange(
            edges=sends.edge[sends.follows],
            weights=np.full(int(sends.follows.sum()), UNCONSTRAINED),
        )
        graph = changed(self.graph, (0,), [free])
        best_sequence, best_ns = np.arange(len(sends)), np.inf
        sequences: set[bytes] = set()
        for _ in range(_MAX_ROUNDS):
            edges, weights = graph.edges, graph.weights.of(0)
            times = solve(graph.plan, graph.weights)[:, 0]
            ready = ready_ns(sends, edges, weights, times)
            ready = np.maximum(ready, ready[sends.partner])
            sequence = np.lexsort((np.arange(len(sends)), ready, sends.unit))
            if sequence.tobytes() in sequences:
                break
            sequences.add(sequence.tobytes())
            try:
                graph = changed(self.graph, (0,), [self.change(sequence)])
            except CircularError:
                break
            step_ns = float(median_of(replayed_steps(graph)[1][:, 0]))
            if step_ns < best_ns:
                best_sequence, best_ns = sequence, step_ns
        return best_sequence

    def typical(self, sequence: Int64) -> tuple[StreamOrder, ...]:
        """Return the order of each stream, as most of the steps have it."""
        counts: list[dict[tuple[SendName, ...], int]] = [{} for _ in self.measured]
        done = 0
        for rows, pattern in zip(self.units, self.pattern_of, strict=True):
            chosen = sequence[done : done + len(rows)]
            done += len(rows)
            if pattern >= 0:
                names = tuple(self.sends.name[row] for row in chosen.tolist())
                counts[pattern][names] = counts[pattern].get(names, 0) + 1
        return tuple(
            StreamOrder(measured.rank, max(count, key=lambda names: count[names]))
            for measured, count in zip(self.measured, counts, strict=True)
        )


MAX_NAMED = 20
"""The number of blocked sends that are listed."""
_MIN_BLOCKED = 0.001  # of a step


def blocked_sends(
    analysis: OpenAnalysis, graph: RunGraph
) -> tuple[BlockedSend, ...] | CannotChange:
    """Return the sends that waited behind others that need not come first, worst first.

    At most `MAX_NAMED`, or why they are not known. The graph's first weights are as measured.
    """
    sends = sends_of(analysis, graph)
    if sends is None:
        return ()
    unknown = missing_event_records(analysis, graph, "when sends were ready")
    if unknown is not None:
        return unknown
    times = solve(graph.plan, graph.weights.chosen((0,)))[:, 0]
    ready = ready_ns(sends, graph.edges, graph.weights.of(0), times)
    start = times[sends.node]
    blocked = start - np.maximum(ready, start[sends.partner])
    blocked = np.where(sends.follows, np.maximum(blocked, 0), 0)
    numbers = [rank.rank for rank in analysis.run.ranks]
    step = float(
        median_of(np.concatenate([np.diff(rank_steps.limits_ns) for rank_steps in graph.steps]))
    )
    by_name: dict[tuple[int, SendName, SendName], list[float]] = {}
    for row in np.flatnonzero(blocked > _MIN_BLOCKED * step).tolist():
        key = numbers[sends.rank[row]], sends.name[row], sends.name[row - 1]
        by_name.setdefault(key, []).append(float(blocked[row]))
    num_steps = max(len(rank_steps.number) for rank_steps in graph.steps)
    rows = [
        BlockedSend(rank, name, behind, name.peer, round(_median(values, num_steps)))
        for (rank, name, behind), values in by_name.items()
    ]
    rows = [row for row in rows if row.blocked_ns > _MIN_BLOCKED * step]
    return tuple(sorted(rows, key=lambda row: (-row.blocked_ns, row.rank, row.blocked))[:MAX_NAMED])


def _median(values: list[float], num_steps: int) -> float:
    """Return the median over steps, in those without a value 0."""
    return float(median_of(values + [0.0] * max(num_steps - len(values), 0)))
