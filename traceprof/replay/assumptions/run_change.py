"""Changes of edges between ranks: a graph with other edges, nodes or weights."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from msgspec import field
from msgspec.structs import replace

from traceprof.analyses import straggler
from traceprof.replay.graph.longest_path import (
    UNCONSTRAINED,
    EdgeKind,
    GraphEdges,
    WeightSets,
    schedule,
)
from traceprof.replay.graph.matched import group_members
from traceprof.replay.graph.run_graph import replayed_steps
from traceprof.structs import Record
from traceprof.trace.grouping import is_in
from traceprof.trace.model.parts import Part

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceprof.execution.open_reports import OpenAnalysis
    from traceprof.intervals import Float64, Int64
    from traceprof.replay.graph.run_graph import RunGraph
    from traceprof.replay.results import StreamOrder

_NOTHING = np.empty(0, np.int64)
_NO_WEIGHTS = np.empty(0)


class RunChange(Record, frozen=True):
    """A change of the graph of a run."""

    # int64[n], indices of edges that hold their target back by another time
    edges: Int64 = field(default_factory=lambda: _NOTHING)
    # float64[n], ns: how long; minus infinity for not at all
    weights: Float64 = field(default_factory=lambda: _NO_WEIGHTS)
    # int64[m], nodes where edges begin that were not there
    source: Int64 = field(default_factory=lambda: _NOTHING)
    target: Int64 = field(default_factory=lambda: _NOTHING)  # int64[m], where they lead to
    # float64[m], how long they hold back, ns
    added: Float64 = field(default_factory=lambda: _NO_WEIGHTS)
    # how many nodes there are more than in the graph, numbered after its own
    num_new_nodes: int = 0
    left_out: frozenset[int] = frozenset()  # numbers of ranks whose steps do not count
    orders: tuple[StreamOrder, ...] = ()  # of the sends on those streams where it is another one
    # other ways to read the assumption, which make the answer's interval wider
    otherwise: tuple[RunChange, ...] = ()


class CannotChange(Record, frozen=True):
    """The reason for which something cannot be assumed of a run."""

    why: str  # in a few words
    # what to record so that it can; None if no recording would help
    how_to_collect: str | None = None


def missing_event_records(
    analysis: OpenAnalysis, graph: RunGraph, needed_for: str
) -> CannotChange | None:
    """Return why something is not known without event records; None if the run has them."""
    if graph.has_event_records:
        return None
    how = analysis.run.ranks[0].trace.how_to_collect(Part.EVENT_RECORDS)
    return CannotChange(f"{needed_for} is not known without event records", how)


def changed(graph: RunGraph, columns: Sequence[int], changes: Sequence[RunChange]) -> RunGraph:
    """Return some variants of a graph with all of some changes.

    If several change the weight of an edge, the last one counts.

    Raises:
        CircularError: with the edges that are added, something would wait for itself.
    """
    source, target, added = (
        np.concatenate([getattr(change, name) for change in changes])
        for name in ("source", "target", "added")
    )
    full = graph.weights.full
    is_removed = np.ones(len(full), np.bool_)

    def of_variants() -> Iterator[Float64]:
        for number in columns:
            column = graph.weights.of(number)
            if column is full or len(added):
                column = np.concatenate((column, added))
            for change in changes:
                column[change.edges] = change.weights
            np.logical_and(is_removed, column[: len(is_removed)] == UNCONSTRAINED, out=is_removed)
            yield column
            del column  # as large as the next one

    with_added = full if len(added) == 0 else np.concatenate((full, added))  # else kept twice
    weights = WeightSets.of_columns(chain([with_added], of_variants()))
    weights = weights.chosen(range(1, weights.num))
    left_out = frozenset().union(*(change.left_out for change in changes))
    steps_by_rank = tuple(
        replace(rank_steps, counts=rank_steps.rank not in left_out) for rank_steps in graph.steps
    )
    if len(source) == 0:
        return replace(graph, weights=weights, steps=steps_by_rank)
    # What holds nothing back must not close a circle either: it comes from the beginning instead.
    kind = np.full(len(source), EdgeKind.STREAM_ORDER, np.uint8)
    new = GraphEdges(kind, source.astype(np.int32), target.astype(np.int32))
    edges = GraphEdges.joined([graph.edges.from_root(is_removed), new])
    num_nodes = graph.plan.num_nodes + sum(change.num_new_nodes for change in changes)
    plan = schedule(num_nodes, edges.source, edges.target)
    return replace(graph, edges=edges, plan=plan, weights=weights, steps=steps_by_rank)


def changed_steps(graph: RunGraph, columns: Sequence[int], changes: Sequence[RunChange]) -> Float64:
    """Return how long steps take with all of some changes, by end, ns, float64[s, columns].

    Steps that only ranks have that are left out are not a number.

    Raises:
        CircularError: with the edges that are added, something would wait for itself.
    """
    return replayed_steps(changed(graph, columns, changes))[1]


def without_stragglers(analysis: OpenAnalysis, graph: RunGraph) -> RunChange | CannotChange:
    """Let the other ranks go on without waiting for those that are late, and count only them.

    A late rank is taken to be as fast as the one that came before it: its own steps are those of
    the others then.
    """
    ranks = analysis.measured.ranks
    members = group_members(analysis)
    if not members:
        return CannotChange("no ranks were seen to wait for each other on one clock")
    late = [lag.member for lag in straggler.run(analysis.measured).stragglers]
    index = {rank.rank: place for place, rank in enumerate(analysis.run.ranks)}
    indices = [index[ranks.ranks[member]] for member in late]
    is_late = [
        np.tile(is_in(np.array(of_group), indices), len(matched.node))
        for of_group, matched in zip(members, graph.matched, strict=True)
    ]
    edges = np.flatnonzero(graph.edges.kind == EdgeKind.ARRIVAL)[np.concatenate(is_late)]
    return RunChange(
        edges=edges,
        weights=np.full(len(edges), UNCONSTRAINED),
        left_out=frozenset(ranks.ranks[member] for member in late),
    )
