"""Changes of edges between ranks: of late ranks, orders of sends, and gradient buckets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from traceprof import intervals
from traceprof.analyses import straggler
from traceprof.analyses.gradient_buckets import MIN_OF_LONGEST
from traceprof.communication.messages import BETWEEN_TWO, DISTINCT_SIZES, MAX_LATENCY_NS, messages
from traceprof.execution.open_reports import OpenAnalysis
from traceprof.intervals import NO_NUMBERS, Float64, Int32, Int64, Mask
from traceprof.replay.graph.longest_path import (
    ROOT,
    UNCONSTRAINED,
    EdgeKind,
    GraphEdges,
    WeightSets,
    schedule,
    solve,
)
from traceprof.replay.graph.run_graph import RunGraph, replayed_steps, synchronizing_groups
from traceprof.replay.results import Refusal
from traceprof.structs import Record
from traceprof.trace.grouping import is_in, median_of
from traceprof.trace.model.parts import Part

_NO_WEIGHTS = np.empty(0)


class RunChange(Record, frozen=True):
    """A change of the graph of a run."""

    edges: Int64  # int64[n], indices of edges that hold their target back by another time
    weights: Float64  # float64[n], ns: how long; minus infinity for not at all
    source: Int64 = NO_NUMBERS  # int64[m], nodes where edges begin that were not there
    target: Int64 = NO_NUMBERS  # int64[m], where they lead to
    added: Float64 = _NO_WEIGHTS  # float64[m], how long they hold back, ns
    left_out: frozenset[int] = frozenset()  # numbers of ranks whose steps do not count
    otherwise: tuple[RunChange, ...] = ()  # readings that widen the interval


def _removed(edges: Int64) -> RunChange:
    return RunChange(edges, np.full(len(edges), UNCONSTRAINED))


def missing_event_records(
    analysis: OpenAnalysis, graph: RunGraph, needed_for: str
) -> Refusal | None:
    """Return why something is not known without event records; None if the run has them."""
    if graph.has_event_records:
        return None
    how = analysis.run.ranks[0].trace.how_to_collect(Part.EVENT_RECORDS)
    return Refusal(f"{needed_for} is not known without event records", how)


def changed(graph: RunGraph, columns: Sequence[int], changes: Sequence[RunChange]) -> RunGraph:
    """Return some variants of a graph after changes; the last change of an edge counts.

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

    with_added = full if len(added) == 0 else np.concatenate((full, added))  # else kept twice
    weights = WeightSets.of_columns(with_added, of_variants())
    left_out = frozenset().union(*(change.left_out for change in changes))
    steps_by_rank = tuple(
        replace(rank_steps, counts=rank_steps.rank not in left_out) for rank_steps in graph.steps
    )
    if len(source) == 0:
        return replace(graph, weights=weights, steps=steps_by_rank)
    # What holds nothing back must not close a circle either: it comes from the beginning instead.
    kind = np.full(len(source), EdgeKind.STREAM_ORDER, np.uint8)
    new = GraphEdges(kind, source.astype(np.int32), target.astype(np.int32))
    from_root = np.where(is_removed, ROOT, graph.edges.source).astype(np.int32)
    edges = GraphEdges.joined([replace(graph.edges, source=from_root), new])
    plan = schedule(graph.plan.num_nodes, edges.source, edges.target)
    return replace(graph, edges=edges, plan=plan, weights=weights, steps=steps_by_rank)


def changed_steps(graph: RunGraph, columns: Sequence[int], changes: Sequence[RunChange]) -> Float64:
    """Return the lengths of steps after changes, by end, float64[s, columns], ns.

    Not a number if only ranks that are left out have the step. Raises as `changed` does.
    """
    return replayed_steps(changed(graph, columns, changes))[1]


def without_stragglers(analysis: OpenAnalysis, graph: RunGraph) -> RunChange | Refusal:
    """Remove the waits for ranks that are late: these become as fast as the others."""
    groups = synchronizing_groups(analysis)
    if not groups:
        return Refusal("no ranks were seen to wait for each other on one clock")
    ranks = analysis.measured.ranks.ranks
    late = {ranks[lag.member] for lag in straggler.run(analysis.measured).stragglers}
    is_late = np.array([rank.rank in late for rank in analysis.run.ranks])
    of_edges = [
        np.tile(is_late[group.members], len(matched.node))
        for group, matched in zip(groups, graph.matched, strict=True)
    ]
    edges = np.flatnonzero(graph.edges.kind == EdgeKind.ARRIVAL)[np.concatenate(of_edges)]
    return replace(_removed(edges), left_out=frozenset(late))


_USUAL_TURN_AROUND_NS = 1_500.0  # where no send follows another one closely


class _Sends(Record, frozen=True):
    """Both sides of all matched sends of a run, n of them, by stream and then as launched."""

    node: Int64  # int64[n], where each begins in the graph
    partner: Int64  # int64[n], the other side: indices into these
    follows: Mask  # bool[n], whether it comes right after the one before it here, on their stream
    edge: Int64  # int64[n], of the graph, by which it waits for what is before it on its stream; -1
    unit: Int64  # int64[n], a number that sends which follow each other in one step share
    # from the end of a send to the start of the next one, where nothing else delays that
    turn_around_ns: float


def order_of_readiness(analysis: OpenAnalysis, graph: RunGraph) -> RunChange | Refusal:
    """Let each stream run the send first that both sides are ready for first, in every step."""
    sends = _sends_of(analysis, graph)
    if sends is None:
        return Refusal("no two sends or receives follow each other on a stream")
    unknown = missing_event_records(analysis, graph, "when sends were ready")
    if unknown is not None:
        return unknown
    graph = replace(graph, weights=graph.weights.chosen((0,)))
    rows = np.arange(len(sends.node))
    tried = changed(graph, (0,), [_removed(sends.edge[sends.follows])])
    times = solve(tried.plan, tried.weights)[:, 0]
    ready = _ready_ns(sends.node, tried.edges, tried.weights.of(0), times)
    sequence = np.lexsort((rows, np.maximum(ready, ready[sends.partner]), sends.unit))
    return in_order(graph, sends, sequence)


def _sends_of(analysis: OpenAnalysis, graph: RunGraph) -> _Sends | None:
    """Return the sends of a run; None unless two follow each other on a stream."""
    nodes, meetings, steps, num = [], [], [], 0
    limits_ns = {rank_steps.rank: rank_steps.limits_ns for rank_steps in graph.steps}
    for group, matched in zip(synchronizing_groups(analysis), graph.matched, strict=True):
        if len(group.members) != 2:
            continue
        rows = np.flatnonzero(group.waits.group.is_one_of(BETWEEN_TWO)[group.together])
        for column, member in enumerate(group.members):
            start_ns = matched.start_ns[rows, column]
            limits = limits_ns[analysis.run.ranks[member].rank]
            nodes.append(matched.node[rows, column])
            meetings.append(num + np.arange(len(rows)))
            steps.append(np.searchsorted(limits, start_ns, side="right"))
        num += len(rows)
    if num == 0:
        return None
    order = np.argsort(np.concatenate(nodes), kind="stable")  # of streams, then of launches
    node, meeting, step = (np.concatenate(some)[order] for some in (nodes, meetings, steps))
    edge = _stream_edges(graph, node)
    before = np.where(edge >= 0, graph.edges.source[edge], -1)
    follows = np.append(False, before[1:] == node[:-1] + 1)
    if not follows.any():
        return None
    by_meeting = np.argsort(meeting, kind="stable")
    partner = np.empty(len(node), np.int64)
    partner[by_meeting[::2]], partner[by_meeting[1::2]] = by_meeting[1::2], by_meeting[::2]
    weights = graph.weights.of(0)[edge[follows]]
    near = weights[np.isfinite(weights)]
    return _Sends(
        node,
        partner,
        follows,
        edge,
        np.cumsum(~(follows & np.append(False, step[1:] == step[:-1]))) - 1,
        float(median_of(near)) if len(near) else _USUAL_TURN_AROUND_NS,
    )


def in_order(graph: RunGraph, sends: _Sends, sequence: Int64) -> RunChange:
    """Return what changes in a graph if sends come in this order, int64[n], within their units."""
    node, edges, weights = sends.node, graph.edges, graph.weights.of(0)
    joined, begins = np.flatnonzero(sends.follows), np.flatnonzero(~sends.follows)
    ends = np.append(begins[1:], len(node)) - 1
    # What came before the first one still does, and what came after the last one.
    before = begins[(sends.edge[begins] >= 0) & (sequence[begins] != begins)]
    last = ends[sequence[ends] != ends]
    is_stream = edges.kind == EdgeKind.STREAM_ORDER
    after = np.flatnonzero(is_stream & is_in(edges.source, node[last] + 1))
    of_last = last[np.searchsorted(node[last] + 1, edges.source[after])]
    heirs, inherited = _inherited(graph, sends)
    return replace(
        _removed(sends.edge[joined]),
        source=np.concatenate(
            (
                node[sequence[joined - 1]] + 1,
                edges.source[sends.edge[before]],
                node[sequence[of_last]] + 1,
                edges.source[inherited],
            )
        ),
        target=np.concatenate(
            (node[sequence[joined]], node[sequence[before]], edges.target[after], node[heirs])
        ),
        added=np.concatenate(
            (
                np.full(len(joined) + len(before), sends.turn_around_ns),
                weights[after],
                weights[inherited],
            )
        ),
    )


def _inherited(graph: RunGraph, sends: _Sends) -> tuple[Int64, Int64]:
    """Return sends without a wait of their own, and the edges of the waits of the one before."""
    of_events = np.flatnonzero(graph.edges.kind == EdgeKind.EVENT)
    row, of_events = _rows_of(sends.node, graph.edges.target, of_events)
    order, rows = np.argsort(row, kind="stable"), np.arange(len(sends.node))
    row, edge, has = row[order], of_events[order], np.zeros(len(rows), np.bool_)
    has[row] = True
    begins = np.maximum.accumulate(np.where(sends.follows, 0, rows))
    giver = np.maximum.accumulate(np.where(has, rows, -1))
    heirs = np.flatnonzero(~has & (giver >= begins))
    low, high = (np.searchsorted(row, giver[heirs], side) for side in ("left", "right"))
    heir, at = intervals.pairs(low, high)
    return heirs[heir], edge[at]


def _rows_of(node: Int64, target: Int32, edge: Int64) -> tuple[Int64, Int64]:
    """Return the edges that lead to some nodes, which ascend, and the rows of these nodes first."""
    row = np.searchsorted(node, target[edge])
    leads = np.append(node, -1)[row] == target[edge]
    return row[leads], edge[leads]


def _stream_edges(graph: RunGraph, node: Int64) -> Int64:
    """Return the edge by which each of some nodes follows on its stream, int64[n]; -1 for none."""
    of_stream = np.flatnonzero(graph.edges.kind == EdgeKind.STREAM_ORDER)
    row, of_stream = _rows_of(node, graph.edges.target, of_stream)
    edge = np.full(len(node), -1, np.int64)
    edge[row] = of_stream
    return edge


def _ready_ns(node: Int64, edges: GraphEdges, weights: Float64, times: Float64) -> Float64:
    """Return when operations could begin if their streams were free; `node`: where, ascending."""
    holds = (edges.kind != EdgeKind.STREAM_ORDER) & (weights > UNCONSTRAINED)
    row, edge = _rows_of(node, edges.target, np.flatnonzero(holds))
    ready = np.full(len(node), UNCONSTRAINED)
    np.maximum.at(ready, row, times[edges.source[edge]] + weights[edge])
    return ready


_MIB = 1 << 20
# The time that NCCL needs for a message of any size, if buckets of one size do not show it.
_LATENCIES_NS = (7_000.0, 20_000.0)
# A bucket is closed by the gradient that fills it: it is larger than it has to be by up to so much.
_MAX_OVERFULL = 1.5


class _Buckets(Record, frozen=True):
    """The n gradient buckets of a run on r ranks, by step, then as they were launched."""

    bytes: Int64  # int64[n]
    is_first: Mask  # bool[n], of their step
    start: Int64  # int64[n, r], the nodes at which they begin
    transfer: Int64  # int64[n, r], the edges by which they are over
    transfer_ns: Float64  # float64[n], how long their data moved


def with_bucket_cap(analysis: OpenAnalysis, graph: RunGraph, cap_mib: float) -> RunChange | Refusal:
    """Put gradient buckets together, or cut each into even parts that become ready evenly."""
    unknown = missing_event_records(analysis, graph, "when gradients were ready")
    if unknown is not None:
        return unknown
    buckets = _buckets(analysis, graph)
    if buckets is None:
        return Refusal("no gradient buckets were seen that all ranks reduce, of known size")
    cap, latencies = cap_mib * _MIB, _latencies(buckets)
    middle = sum(latencies) / len(latencies)
    if cap >= float(median_of(buckets.bytes)):
        likely = _merged(graph, buckets, cap, middle)
    else:
        likely = _cut(graph, buckets, cap * (1 + _MAX_OVERFULL) / 2, middle)
    otherwise: list[RunChange] = []
    if not all(opened_buckets(buckets.bytes, buckets.is_first, cap)):
        otherwise += [_merged(graph, buckets, cap, latency) for latency in latencies]
    if (buckets.bytes > cap).any():
        otherwise += [
            _cut(graph, buckets, cap * overfull, latency)
            for latency in latencies
            for overfull in (1, _MAX_OVERFULL)
        ]
    return replace(likely, otherwise=tuple(otherwise))


def _buckets(analysis: OpenAnalysis, graph: RunGraph) -> _Buckets | None:
    """Return the buckets of the group that reduces most; None if there are none."""
    transfers = np.flatnonzero(graph.edges.kind == EdgeKind.TRANSFER)
    most, best, done = 0, None, 0
    limits_ns = {rank_steps.rank: rank_steps.limits_ns for rank_steps in graph.steps}
    for synchronizing, matched in zip(synchronizing_groups(analysis), graph.matched, strict=True):
        group, together = synchronizing.waits.group, synchronizing.together
        edge = transfers[done : done + matched.node.size].reshape(matched.node.shape)
        done += matched.node.size
        rank = analysis.run.ranks[synchronizing.members[0]]
        size = messages(rank).bytes[group.place[together, 0]]
        reduces = group.is_one_of(("AllReduce",))[together] & (size > 0)
        rows = np.flatnonzero(reduces & (size * MIN_OF_LONGEST >= size[reduces].max(initial=0)))
        rows = rows[np.argsort(matched.node[rows, 0], kind="stable")]
        if size[rows].sum() <= most:
            continue
        most = int(size[rows].sum())
        start_ns = matched.start_ns[rows, 0]
        step = np.searchsorted(limits_ns[rank.rank], start_ns, side="right")
        best = _Buckets(
            size[rows],
            np.append(True, step[1:] != step[:-1]),
            matched.node[rows],
            edge[rows],
            median_of(graph.weights.of(0)[edge[rows]], axis=1),
        )
    return best


def _merged(graph: RunGraph, buckets: _Buckets, cap: float, latency_ns: float) -> RunChange:
    """Let consecutive buckets be one that is closed as soon as it holds `cap` bytes."""
    is_first = opened_buckets(buckets.bytes, buckets.is_first, cap)
    first = np.flatnonzero(is_first)
    last = np.append(first[1:], len(is_first)) - 1
    took = latency_ns + _ns_per_byte(buckets, latency_ns) * np.add.reduceat(buckets.bytes, first)
    group = np.cumsum(is_first) - 1
    rows = np.flatnonzero((last > first)[group])
    inner = rows[rows != first[group[rows]]]
    num, edges = buckets.start.shape[1], graph.edges
    of_stream = _of_streams(graph, buckets)
    moved = of_stream[first[last > first]].ravel()
    to_last = buckets.start[last[last > first]].ravel()[moved >= 0]
    moved, gone = moved[moved >= 0], of_stream[inner].ravel()
    return replace(
        _removed(np.concatenate((buckets.transfer[rows].ravel(), gone[gone >= 0]))),
        source=np.concatenate(
            (edges.source[buckets.transfer[last[group[rows]]].ravel()], edges.source[moved])
        ),
        target=np.concatenate((buckets.start[rows].ravel() + 1, to_last)),
        added=np.concatenate((np.repeat(took[group[rows]], num), graph.weights.of(0)[moved])),
    )


def opened_buckets(sizes: Int64, begins_step: Mask, cap: float) -> list[bool]:
    """Return which buckets are the first of a larger one; a step's first one always is."""
    is_first, held = [], 0
    for size, begins in zip(sizes.tolist(), begins_step.tolist(), strict=True):
        is_first.append(begins or held >= cap)
        held = size if is_first[-1] else held + size
    return is_first


def _cut(graph: RunGraph, buckets: _Buckets, cap: float, latency_ns: float) -> RunChange:
    """Let each bucket be cut into parts of `cap` bytes, reduced one after the other."""
    num = np.maximum(buckets.bytes / cap, 1)  # on average
    whole_ns = num * latency_ns + _ns_per_byte(buckets, latency_ns) * buckets.bytes
    # The first part was ready so much earlier that all could be over before the last one is.
    early_ns = (1 - 1 / num) * _gaps_ns(graph, buckets)
    last_ns = np.maximum(whole_ns / num, whole_ns - early_ns)
    of_stream, width = _of_streams(graph, buckets), buckets.start.shape[1]
    has = (of_stream >= 0).all(axis=1) & (num > 1)
    rows = np.flatnonzero(num > 1)
    before = np.repeat(of_stream[has], width, axis=1)  # all ranks wait for the last one
    return RunChange(
        edges=buckets.transfer[rows].ravel(),
        weights=np.repeat(last_ns[rows], width),
        source=graph.edges.source[before.ravel()].astype(np.int64),
        target=np.tile(buckets.start[has] + 1, width).ravel(),
        added=graph.weights.of(0)[before.ravel()] + np.repeat(whole_ns[has], width * width),
    )


def _of_streams(graph: RunGraph, buckets: _Buckets) -> Int64:
    """Return the edges by which buckets follow on their streams, int64[n, r]; -1 for none."""
    order = np.argsort(buckets.start, axis=None)
    edge = np.empty(buckets.start.size, np.int64)
    edge[order] = _stream_edges(graph, buckets.start.ravel()[order])
    return edge.reshape(buckets.start.shape)


def _gaps_ns(graph: RunGraph, buckets: _Buckets) -> Float64:
    """Return how long after the bucket before it each is ready on all ranks, float64[n], ns.

    The gradients of the first bucket of a step are assumed to come as fast as those of the second.
    """
    times = solve(graph.plan, graph.weights.chosen((0,)))[:, 0]
    order = np.argsort(buckets.start, axis=None)
    ready = np.empty(buckets.start.size)
    nodes = buckets.start.ravel()[order]
    ready[order] = _ready_ns(nodes, graph.edges, graph.weights.of(0), times)
    of_all = ready.reshape(buckets.start.shape).max(axis=1)
    gaps = np.append(0.0, np.maximum(np.diff(of_all), 0))
    gaps[~np.isfinite(gaps) | buckets.is_first] = 0.0
    firsts = np.flatnonzero(buckets.is_first[:-1] & ~buckets.is_first[1:])
    gaps[firsts] = gaps[firsts + 1] * buckets.bytes[firsts] / buckets.bytes[firsts + 1]
    return gaps


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
