"""Times in a graph without circles: each node is as late as the latest of its predecessors allows.

A node's time is the maximum over its incoming edges of the source's time plus the edge's weight.
Several sets of weights are solved at once. Nodes are taken level by level, those of a level
together; so the work in Python is as long as the graph is deep, not as it is large.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values

if TYPE_CHECKING:
    from traceprof.intervals import Float64, Int32
    from traceprof.replay.graph.weight_sets import WeightSets

NEVER = -np.inf
"""The weight of an edge that holds nothing back."""
ROOT = 0
"""The node that stands for the beginning, at time 0."""


class CircularError(ValueError):
    """The graph has a circle."""


class EdgeLevels(Record, frozen=True):
    """Edges by the level of the node that they lead to, then by that node.

    Attributes:
        num_nodes: how many nodes there are; the first one is the root.
        order: int32[e], the edges in this order.
        source: int32[e], the nodes where edges begin, as they were given: there are many.
        target: int32[t], the nodes that edges lead to, in this order, each once.
        first_edge: int32[t + 1], where the edges of each of them begin.
        level_start: int32[l + 1], where the targets of each level begin.
    """

    num_nodes: int
    order: Int32
    source: Int32
    target: Int32
    first_edge: Int32
    level_start: Int32


def schedule(num_nodes: int, source: Int32, target: Int32) -> EdgeLevels:
    """Return in which order edges are taken.

    Args:
        num_nodes: how many nodes there are; nothing leads to the root, and all others have an edge.
        source: int32[e], the nodes where edges begin.
        target: int32[e], where they lead to.

    Raises:
        CircularError: there is a circle.
    """
    level = _levels(num_nodes, source, target)
    order = np.lexsort((target, level[target])).astype(np.int32)
    targets = target[order]
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = targets[1:] != targets[:-1]
    first_edge = np.flatnonzero(is_first)
    distinct = targets[first_edge]
    changes = np.flatnonzero(np.diff(level[distinct])) + 1
    return EdgeLevels(
        num_nodes=num_nodes,
        order=order,
        source=source,
        target=distinct,
        first_edge=np.append(first_edge, len(order)).astype(np.int32),
        level_start=np.concatenate(([0], changes, [len(distinct)])).astype(np.int32),
    )


def solve(plan: EdgeLevels, sets: WeightSets) -> Float64:
    """Return the time of each node.

    Args:
        plan: the order of the edges.
        sets: k sets of weights, in the order that the edges were given in.

    Returns:
        float64[nodes, k].
    """
    # One set of many edges is not kept twice.
    column = sets.of(0) if sets.num == 1 else None
    weights = sets.columns(plan.order) if column is None else column[:, np.newaxis]
    times = np.zeros((plan.num_nodes, sets.num))
    source, target, first_edge, order = plan.source, plan.target, plan.first_edge, plan.order
    edges_of_level = first_edge[plan.level_start].tolist()
    levels = plan.level_start.tolist()
    for level in range(len(levels) - 1):
        low, high = edges_of_level[level], edges_of_level[level + 1]
        start, stop = levels[level], levels[level + 1]
        arriving = times[source[order[low:high]]]
        arriving += weights[low:high] if column is None else weights[order[low:high]]
        if high - low == stop - start:
            times[target[start:stop]] = arriving
        else:
            times[target[start:stop]] = np.maximum.reduceat(
                arriving, first_edge[start:stop] - low, axis=0
            )
    return times


def binding_edges(plan: EdgeLevels, weights: Float64, times: Float64, node: int) -> list[int]:
    """Return the critical edges of a node, from the root to it.

    Args:
        plan: the order of the edges.
        weights: float64[e], one set.
        times: float64[nodes], solved with it.
        node: where the way ends.

    Returns:
        Indices of edges as they were given.
    """
    place = np.full(plan.num_nodes, -1, np.int64)
    place[plan.target] = np.arange(len(plan.target))
    way = []
    while node != ROOT:
        at = int(place[node])
        edges = plan.order[plan.first_edge[at] : plan.first_edge[at + 1]]
        sources = plan.source[edges]
        latest = int(np.argmax(times[sources] + weights[edges]))
        way.append(int(edges[latest]))
        node = int(sources[latest])
    return way[::-1]


def _levels(num_nodes: int, source: Int32, target: Int32) -> Int32:
    """Return the longest number of edges from the root to each node, int32[nodes]."""
    by_source = np.argsort(source, kind="stable").astype(np.int32)
    leads_to = target[by_source]
    first = np.append(0, np.cumsum(np.bincount(source, minlength=num_nodes)))
    del by_source
    missing = np.bincount(target, minlength=num_nodes)
    level = np.zeros(num_nodes, np.int32)
    ready = np.flatnonzero(missing == 0)
    depth = done = 0
    while len(ready):
        done += len(ready)
        level[ready] = depth
        counts = first[ready + 1] - first[ready]
        total = int(counts.sum())
        if total == 0:
            break
        offset = np.repeat(first[ready] - np.cumsum(counts) + counts, counts)
        reached = leads_to[offset + np.arange(total)]
        if len(reached) < num_nodes // 8:
            np.subtract.at(missing, reached, 1)
            ready = distinct_values(reached[missing[reached] == 0])
        else:
            times = np.bincount(reached, minlength=num_nodes)
            missing -= times
            ready = np.flatnonzero((missing == 0) & (times > 0))
        depth += 1
    if done < num_nodes:
        raise CircularError(f"{num_nodes - done} nodes wait for each other")
    return level
