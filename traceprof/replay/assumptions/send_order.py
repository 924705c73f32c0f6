"""Another order of the sends on a stream: as they become ready."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from traceprof.replay.assumptions.run_change import (
    CannotChange,
    RunChange,
    StreamOrder,
    changed,
    missing_event_records,
)
from traceprof.replay.assumptions.sends import ready_ns, sends_of
from traceprof.replay.graph.longest_path import NEVER, CircularError, solve
from traceprof.replay.graph.process_graph import EdgeKind
from traceprof.replay.graph.step_lengths import replayed_steps
from traceprof.structs import Record
from traceprof.trace.grouping import is_in, median_of

if TYPE_CHECKING:
    from traceprof.execution.open_reports import OpenAnalysis
    from traceprof.intervals import Float64, Int64
    from traceprof.replay.assumptions.sends import SendName, Sends
    from traceprof.replay.graph.graph_edges import GraphEdges
    from traceprof.replay.graph.run_graph import RunGraph

# Orders by readiness change what is ready when: they settle in two or three rounds, or never.
_MAX_ROUNDS = 8


def order_of_readiness(analysis: OpenAnalysis, graph: RunGraph) -> RunChange | CannotChange:
    """Let each stream run the send first that both sides are ready for first.

    Args:
        analysis: of the run.
        graph: of the whole run.
    """
    orders = _Orders.of(analysis, graph)
    return orders if isinstance(orders, CannotChange) else orders.change(orders.by_readiness())


class _Orders(Record, frozen=True):
    """The sends of a run, and their order.

    Attributes:
        graph: of the run, with one set of weights.
        edges: of it.
        sends: of the run.
        units: rows that follow each other on a stream in one step, as launched.
        measured: the order of each stream, as it was.
        pattern_of: for each unit, the stream whose order it has; -1 for one that is another.
    """

    graph: RunGraph
    edges: GraphEdges
    sends: Sends
    units: tuple[Int64, ...]
    measured: tuple[StreamOrder, ...]
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
        return _Orders(measured_graph, graph.edges, sends, units, measured, pattern_of)

    def change(self, sequence: Int64) -> RunChange:
        """Return what another order changes in the graph.

        Args:
            sequence: int64[n], rows in the new order; units stay where they are.
        """
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
        source.append(self.edges.source[sends.edge[before]].astype(np.int64))
        target.append(node[sequence[before]])
        added.append(np.full(len(before), sends.turn_around_ns))
        is_stream = self.edges.kind == EdgeKind.STREAM
        last = ends[sequence[ends] != ends]
        after = np.flatnonzero(is_stream & is_in(self.edges.source, node[last] + 1))
        of_last = last[np.searchsorted(node[last] + 1, self.edges.source[after])]
        source.append(node[sequence[of_last]] + 1)
        target.append(self.edges.target[after].astype(np.int64))
        added.append(self.graph.weights.of(0)[after])
        waits = self._inherited(old)
        source.append(waits[0])
        target.append(waits[1])
        added.append(waits[2])
        edges = sends.edge[joined]
        return RunChange(
            edges=edges,
            weights=np.full(len(edges), NEVER),
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
        edges, sends = self.edges, self.sends
        is_wait = np.flatnonzero(edges.kind == EdgeKind.STREAM_WAIT)
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
            edges=sends.edge[sends.follows], weights=np.full(int(sends.follows.sum()), NEVER)
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
