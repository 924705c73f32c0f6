"""Edges, sets of their weights, and the longest path to each node of a dependency graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from traceprof import intervals
from traceprof.intervals import Float64, Int32, Int64
from traceprof.structs import Record
from traceprof.trace.columns import Rows
from traceprof.trace.grouping import distinct_values

UNCONSTRAINED = -np.inf
"""The weight of an edge that delays nothing."""
ROOT = 0
"""The node that stands for the beginning, at time 0."""


class CannotReplayError(ValueError):
    """The graph cannot be replayed; the message says why."""


class CircularError(CannotReplayError):
    """The graph has a cycle."""


class EdgeLevels(Record, frozen=True):
    """Edges by the level of the node that they lead to, then by that node."""

    num_nodes: int  # how many nodes there are; the first one is the root
    order: Int32  # int32[e], the edges in this order
    source: Int32  # int32[e], the nodes where edges begin, as they were given: there are many
    target: Int32  # int32[t], the nodes that edges lead to, in this order, each once
    first_edge: Int32  # int32[t + 1], where the edges of each of them begin
    level_start: Int32  # int32[l + 1], where the targets of each level begin


def schedule(num_nodes: int, source: Int32, target: Int32) -> EdgeLevels:
    """Return the order in which edges are relaxed; one at least leads to each node but the root.

    Raises:
        CircularError: there is a cycle.
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
    """Return the time of each node with each of k sets of weights, float64[nodes, k]."""
    weights = np.empty((len(sets.full), sets.num))
    for number in range(sets.num):
        weights[:, number] = sets.of(number)[plan.order]
    times = np.zeros((plan.num_nodes, sets.num))
    source, target, first_edge, order = plan.source, plan.target, plan.first_edge, plan.order
    edges_of_level = first_edge[plan.level_start].tolist()
    levels = plan.level_start.tolist()
    for level in range(len(levels) - 1):
        low, high = edges_of_level[level], edges_of_level[level + 1]
        start, stop = levels[level], levels[level + 1]
        arriving = times[source[order[low:high]]]
        arriving += weights[low:high]
        if high - low == stop - start:
            times[target[start:stop]] = arriving
        else:
            times[target[start:stop]] = np.maximum.reduceat(
                arriving, first_edge[start:stop] - low, axis=0
            )
    return times


def binding_edges(plan: EdgeLevels, weights: Float64, times: Float64, node: int) -> list[int]:
    """Return the critical edges from the root to a node, given one set of weights, solved."""
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
    missing = np.bincount(target, minlength=num_nodes)
    level = np.zeros(num_nodes, np.int32)
    ready = np.flatnonzero(missing == 0)
    depth = done = 0
    while len(ready):
        done += len(ready)
        level[ready] = depth
        reached = leads_to[intervals.pairs(first[ready], first[ready + 1])[1]]
        if len(reached) == 0:
            break
        if len(reached) < num_nodes // 8:
            np.subtract.at(missing, reached, 1)
            ready = distinct_values(reached[missing[reached] == 0])
        else:
            times = np.bincount(reached, minlength=num_nodes)
            missing -= times
            ready = np.flatnonzero((missing == 0) & (times > 0))
        depth += 1
    if done < num_nodes:
        num = num_nodes - done
        why = f"calls and operations seem to wait for each other ({num} nodes wait for each other)"
        raise CircularError(why)
    return level


class EdgeKind(IntEnum):
    """Reasons why a node cannot come earlier."""

    CAPTURE = 0  # begin of the capture: nothing before it is known
    PROGRAM_ORDER = 1  # the thread's own time since its last segment
    HAND_OVER = 2  # another thread's call
    CALLS = 3  # duration of a segment of calls
    SYNCHRONIZATION = 4  # a synchronizing call or blocking copy
    FULL_QUEUE = 5  # a full launch queue
    LOCK = 6  # another thread's call, inside the driver
    LAUNCH = 7  # the first operation of a segment has been launched
    LAUNCHES = 8  # one of the operations of a segment has been launched
    STREAM_ORDER = 9  # the operation before on the stream
    EVENT = 10  # an operation of another stream
    OPERATIONS = 11  # duration of a segment of operations
    ARRIVAL = 12  # a member of a collective has come
    TRANSFER = 13  # the data of a collective have moved
    INDEPENDENT_BEGIN = 14  # independent communication: what delayed the one before it
    INDEPENDENT_END = 15  # its consumers wait for earlier work of its communicator
    STREAM_END = 16  # its consumers wait for all earlier work of its stream
    SILENCE = 17  # the thread's own time since its last segment, which may hide a wait
    HIDDEN_WAIT = 18  # that hidden wait
    NOT_HANDED_OVER = 19  # the thread's own time, where it no longer waits for another thread
    INDEPENDENT_ORDER = 20  # the last one before it that it has to wait for on any stream
    INDEPENDENT_UNKNOWN = 21  # as `INDEPENDENT_END`, where communicators are not known


class Edges(Record, frozen=True):
    """Edges of one kind and one process; n of them."""

    kind: EdgeKind  # what they are
    source: Int64  # int64[n], nodes
    target: Int64  # int64[n], nodes
    # int64[n], what they are about: calls of host edges, operations of GPU edges, rows of
    # `HostWaits` or `OperationWaits`
    at: Int64
    other: Int64  # int64[n], the other thread's call of hand-overs, else as `at`


class GraphEdges(Rows, frozen=True):
    """The e edges of a graph, in the order of their weights."""

    kind: npt.NDArray[np.uint8]  # uint8[e], what holds their targets back: `EdgeKind`
    source: Int32  # int32[e], nodes
    target: Int32  # int32[e], nodes

    @staticmethod
    def of(kinds: Sequence[Edges]) -> GraphEdges:
        """Return the edges of several kinds, one kind after the other."""
        numbers = np.array([one.kind for one in kinds], np.uint8)
        source, target = (
            np.concatenate(
                [getattr(one, name) for one in kinds], dtype=np.int32, casting="same_kind"
            )
            for name in ("source", "target")
        )
        return GraphEdges(np.repeat(numbers, [len(one.source) for one in kinds]), source, target)

    def moved(self, by: int) -> GraphEdges:
        """Return them with node numbers moved by `by`; the root stays 0."""
        source = np.where(self.source == ROOT, ROOT, self.source + by).astype(np.int32)
        return replace(self, source=source, target=(self.target + by).astype(np.int32))


_MAX_BACK = 8  # the sets of one assumption: of these some are the same
_Difference: TypeAlias = "tuple[Int32, Float64]"  # edges, and their weights


class WeightSets(Record, frozen=True):
    """Sets of weights of e edges. An assumption changes few of them: the others are kept once."""

    full: Float64  # float64[e]
    other: tuple[_Difference, ...]  # of each set, what differs from these

    @property
    def num(self) -> int:
        """The number of sets."""
        return len(self.other)

    @staticmethod
    def of_columns(full: Float64, columns: Iterable[Float64]) -> WeightSets:
        """Keep only the weights of each set, float64[e], that differ from `full`."""
        others: list[_Difference] = []
        for column in columns:
            edge = np.flatnonzero(column != full).astype(np.int32)
            others.append(_or_known((edge, column[edge]), others))
        return WeightSets(np.ascontiguousarray(full), tuple(others))

    @staticmethod
    def joined(parts: Sequence[WeightSets]) -> WeightSets:
        """Put the sets of one list of edges behind those of another."""
        firsts = np.cumsum([0, *(len(part.full) for part in parts)], dtype=np.int32)
        others: list[_Difference] = []
        for number in range(parts[0].num):
            edges, weights = zip(*(part.other[number] for part in parts), strict=True)
            edge = np.concatenate([own + first for own, first in zip(edges, firsts, strict=False)])
            others.append(_or_known((edge, np.concatenate(weights)), others))
        return WeightSets(np.concatenate([part.full for part in parts]), tuple(others))

    def distinct(self) -> tuple[list[int], Int64]:
        """Return the numbers of different sets, and which of these each set is, int64[k]."""
        known: dict[int, int] = {}
        place = [known.setdefault(id(one), len(known)) for one in self.other]
        first = [place.index(number) for number in range(len(known))]
        return first, np.array(place, np.int64)

    def of(self, number: int) -> Float64:
        """Return one set, float64[e], which is not to be written to."""
        edge, weight = self.other[number]
        if not len(edge):
            return self.full
        column = self.full.copy()
        column[edge] = weight
        return column

    def chosen(self, numbers: Sequence[int]) -> WeightSets:
        """Return some of the sets."""
        return replace(self, other=tuple(self.other[number] for number in numbers))


def _or_known(change: _Difference, before: Sequence[_Difference]) -> _Difference:
    """Return an equal set among the last ones before, if there is one, so that it is kept once."""
    for known in before[-_MAX_BACK:]:
        if np.array_equal(known[0], change[0]) and np.array_equal(known[1], change[1]):
            return known
    return change
