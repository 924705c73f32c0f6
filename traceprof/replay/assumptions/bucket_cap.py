"""Gradient buckets of another size: their contents, and when they are ready."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from traceprof.analyses.gradient_buckets import MIN_OF_LONGEST
from traceprof.communication.messages import DISTINCT_SIZES, MAX_LATENCY_NS, messages
from traceprof.replay.assumptions.run_change import CannotChange, RunChange, missing_event_records
from traceprof.replay.graph.longest_path import UNCONSTRAINED, EdgeKind, solve
from traceprof.replay.graph.matched import group_members, synchronizing_groups
from traceprof.structs import Record
from traceprof.trace.grouping import is_in, median_of

if TYPE_CHECKING:
    from traceprof.execution.open_reports import OpenAnalysis
    from traceprof.intervals import Float64, Int64
    from traceprof.replay.graph.run_graph import RunGraph

_MIB = 1 << 20
# The time that NCCL needs for a message of any size, if buckets of one size do not show it.
_LATENCIES_NS = (7_000.0, 20_000.0)
# A bucket is closed by the gradient that fills it, so that it is larger than it has to be: by up to
# so much, where that is not seen.
_MAX_OVERFULL = 1.5
_CUT, _EVEN, _WHOLE = range(3)


class _Buckets(Record, frozen=True):
    """The n gradient buckets of a run, by step, then as they were launched; by r ranks."""

    bytes: Int64  # int64[n]
    first: Int64  # int64[s], where each step's begin
    start: Int64  # int64[n, r], the nodes at which they begin
    transfer: Int64  # int64[n, r], the edges by which they are over
    transfer_ns: Float64  # float64[n], how long their data moved


def with_bucket_cap(
    analysis: OpenAnalysis, graph: RunGraph, cap_mib: float
) -> RunChange | CannotChange:
    """Let gradients be reduced in buckets of another size.

    Gradients become ready in the order in which they were reduced, as evenly between two buckets
    as bytes are. A bucket is closed when it holds as much as it may.
    """
    unknown = missing_event_records(analysis, graph, "when gradients were ready")
    if unknown is not None:
        return unknown
    buckets = _buckets(analysis, graph)
    if buckets is None:
        return CannotChange("no gradient buckets were seen that all ranks reduce, of known size")
    plan = _Plan(graph, buckets)
    cap = cap_mib * _MIB
    latencies = _latencies(buckets)
    # Where buckets grow, the ones that were are put together; where they shrink, they are cut.
    grows = cap >= float(median_of(buckets.bytes))
    middle = sum(latencies) / len(latencies)
    usual = (1 + _MAX_OVERFULL) / 2
    likely = (cap, _WHOLE) if grows else (usual * cap, _EVEN)
    extremes = ((cap, _CUT), likely if grows else (_MAX_OVERFULL * cap, _EVEN))
    return replace(
        plan.change(*likely, middle),
        otherwise=tuple(
            plan.change(*extreme, latency) for latency in latencies for extreme in extremes
        ),
    )


def _buckets(analysis: OpenAnalysis, graph: RunGraph) -> _Buckets | None:
    """Return the buckets of the group that reduces most; None if there are none."""
    transfers = np.flatnonzero(graph.edges.kind == EdgeKind.TRANSFER)
    best: tuple[int, _Buckets] | None = None
    done = 0
    groups = zip(
        synchronizing_groups(analysis), group_members(analysis), graph.matched, strict=True
    )
    for (waits, together), members, matched in groups:
        num, width = matched.node.shape
        edge = transfers[done : done + num * width].reshape(num, width)
        done += num * width
        rank = analysis.run.ranks[members[0]]
        size = messages(rank).bytes[waits.group.place[together, 0]]
        reduces = waits.group.is_one_of(("AllReduce",))[together] & (size > 0)
        if not reduces.any():
            continue
        is_bucket = reduces & (size * MIN_OF_LONGEST >= size[reduces].max())
        rows = np.flatnonzero(is_bucket)
        rows = rows[np.argsort(matched.node[rows, 0], kind="stable")]
        rank_steps = next(rank_steps for rank_steps in graph.steps if rank_steps.rank == rank.rank)
        step = np.searchsorted(rank_steps.limits_ns, matched.start_ns[rows, 0], side="right")
        first = np.flatnonzero(np.append(True, step[1:] != step[:-1]))
        transfer_ns = median_of(graph.weights.of(0)[edge[rows]], axis=1)
        buckets = _Buckets(size[rows], first, matched.node[rows], edge[rows], transfer_ns)
        total = int(size[rows].sum())
        if best is None or total > best[0]:
            best = total, buckets
    return None if best is None else best[1]


class _Plan:
    """Makes the buckets of a run anew."""

    def __init__(self, graph: RunGraph, buckets: _Buckets) -> None:
        self._graph, self._edges, self._buckets = graph, graph.edges, buckets
        self._weights = graph.weights.of(0)
        times = solve(graph.plan, graph.weights.chosen((0,)))[:, 0]
        self._by_edge = times[graph.edges.source] + self._weights
        self._sorted = np.argsort(graph.edges.target, kind="stable")
        self._of_target = graph.edges.target[self._sorted]

    def change(self, cap: float, how: int, latency_ns: float) -> RunChange:
        """Return the graph's change where a bucket is closed from `cap` bytes on.

        `_CUT`: each is exactly full but for the last; `_EVEN`: all are as full; `_WHOLE`: those
        that were are put together.
        """
        buckets, node = self._buckets, self._graph.plan.num_nodes
        begin = node
        ns_per_byte = _ns_per_byte(buckets, latency_ns)
        source: list[Int64] = []
        target: list[Int64] = []
        added: list[Float64] = []
        stops = np.append(buckets.first[1:], len(buckets.bytes))
        for low, high in zip(buckets.first.tolist(), stops.tolist(), strict=True):  # by step
            sizes = buckets.bytes[low:high]
            ends = np.cumsum(sizes)
            closed = _closed_at(sizes, cap, how)
            for number, stop in enumerate(closed.tolist()):
                last = int(np.searchsorted(ends, stop, side="left"))
                left = float(ends[last] - stop) / float(sizes[last])
                for edge, weight in self._held_by(low, low + last, left):
                    source.append(self._edges.source[edge : edge + 1].astype(np.int64))
                    target.append(np.array([node]))
                    added.append(np.array([weight]))
                if number:
                    source.append(np.array([node - 1]))
                    target.append(np.array([node]))
                    added.append(np.zeros(1))
                size = stop - (int(closed[number - 1]) if number else 0)
                took = latency_ns + ns_per_byte * size
                source.append(np.array([node]))
                target.append(np.array([node + 1]))
                added.append(np.array([took]))
                begins = int(closed[number - 1]) if number else 0
                inside = np.flatnonzero((ends > begins) & (ends <= stop)) + low
                over = buckets.start[inside].ravel() + 1
                source.append(np.full(len(over), node + 1))
                target.append(over)
                added.append(np.zeros(len(over)))
                node += 2
        gone = buckets.transfer.ravel()
        return RunChange(
            edges=gone,
            weights=np.full(len(gone), UNCONSTRAINED),
            source=np.concatenate(source),
            target=np.concatenate(target),
            added=np.concatenate(added),
            num_new_nodes=node - begin,
        )

    def _held_by(self, first: int, bucket: int, left: float) -> list[tuple[int, float]]:
        """Return the edges that a part of a bucket waits for, and their weights.

        `first`: the step's first bucket; `left`: the share of this one's bytes that come later.
        """
        held = []
        starts = self._buckets.start
        for column in range(starts.shape[1]):
            for edge in self._into(int(starts[bucket, column])):
                kind = int(self._edges.kind[edge])
                weight = float(self._weights[edge])
                if kind == EdgeKind.STREAM_ORDER:
                    # What is on the stream before the step's first bucket, and in between.
                    is_bucket = is_in(self._edges.source[edge], starts + 1)
                    if bucket == first and not is_bucket:
                        held.append((edge, weight))
                    continue
                earlier = left * self._gap_ns(first, bucket, column, kind) if left else 0.0
                held.append((edge, weight - earlier))
        return held

    def _gap_ns(self, first: int, bucket: int, column: int, kind: int) -> float:
        """Return the time between two buckets becoming ready, by one kind of edge."""
        starts, size = self._buckets.start, self._buckets.bytes
        scale = 1.0
        if bucket == first:  # what came before is not known: as fast as the next one
            if bucket + 1 >= len(size) or bucket + 1 in self._buckets.first:
                return 0.0
            bucket, scale = bucket + 1, float(size[bucket]) / float(size[bucket + 1])
        ready = [
            max(
                (
                    float(self._by_edge[edge])
                    for edge in self._into(int(starts[row, column]))
                    if int(self._edges.kind[edge]) == kind
                ),
                default=np.nan,
            )
            for row in (bucket - 1, bucket)
        ]
        gap = (ready[1] - ready[0]) * scale
        return max(gap, 0.0) if np.isfinite(gap) else 0.0

    def _into(self, node: int) -> list[int]:
        low, high = np.searchsorted(self._of_target, [node, node + 1])
        edges = self._sorted[low:high]
        held: list[int] = edges[self._weights[edges] > UNCONSTRAINED].tolist()
        return held


def _closed_at(sizes: Int64, cap: float, how: int) -> Int64:
    """Return the bytes of a step up to the end of each new bucket, int64[k]."""
    ends = np.cumsum(sizes)
    total = int(ends[-1])
    if how == _CUT:
        return np.append(np.arange(cap, total, cap).astype(np.int64), total)
    if how == _EVEN:
        num = max(int(total // cap), 1)
        return np.arange(1, num + 1) * total // num
    closed, since = [], 0
    for end in ends.tolist():  # as many as there are buckets in a step
        if end - since >= cap or end == total:
            closed.append(end)
            since = end
    return np.array(closed, np.int64)


def _latencies(buckets: _Buckets) -> tuple[float, ...]:
    """Return the possible latencies of a reduction, ns: one value if sizes determine it."""
    sizes, of_size = np.unique(buckets.bytes, return_inverse=True)
    of_size = of_size.reshape(-1)
    if len(sizes) < 2 or sizes[-1] < DISTINCT_SIZES * sizes[0]:
        return _LATENCIES_NS
    took = [median_of(buckets.transfer_ns[of_size == place]) for place in range(len(sizes))]
    latency = float(np.polyfit(sizes.astype(np.float64), np.array(took), 1)[1])
    return (min(max(latency, 0.0), MAX_LATENCY_NS),)


def _ns_per_byte(buckets: _Buckets, latency_ns: float) -> float:
    """Return the time per byte beyond the latency."""
    moved = np.maximum(buckets.transfer_ns - latency_ns, 0.0)
    return float(median_of(moved / buckets.bytes))
