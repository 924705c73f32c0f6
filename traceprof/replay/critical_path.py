"""The critical path: the calls and operations that determine the length of one or all steps."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from traceprof.analyses import breakdown
from traceprof.execution.open_reports import OpenAnalysis
from traceprof.replay.checked_replay import refused_periods
from traceprof.replay.graph.columns import COMMUNICATION, COMPUTE
from traceprof.replay.graph.longest_path import CannotReplayError, EdgeKind, binding_edges, solve
from traceprof.replay.graph.process_part import Kept
from traceprof.replay.graph.run_graph import RunGraph, clock_shift, run_graph
from traceprof.replay.graph.steps import RankSteps, sample_of
from traceprof.replay.graph.weights import Variant, Weigher, as_measured
from traceprof.replay.results import PartKind, PathPart, StepPath, StepPathPart
from traceprof.run.guard import optional
from traceprof.run.opening import Rank

# Until an operation is launched, the host works; what follows is microseconds.
_HOST = (
    EdgeKind.PROGRAM_ORDER,
    EdgeKind.CALLS,
    EdgeKind.HAND_OVER,
    EdgeKind.LOCK,
    EdgeKind.LAUNCH,
    EdgeKind.SILENCE,
    EdgeKind.HIDDEN_WAIT,
    EdgeKind.NOT_HANDED_OVER,
    EdgeKind.SYNCHRONIZATION,
    EdgeKind.FULL_QUEUE,  # calls return, or free memory once the GPU is through
)


_HOST_PART, _DELAY_PART = 3, 4  # after compute, communication and copies, as in `PathPart`


def critical_paths(graph: RunGraph) -> tuple[PathPart, ...]:
    """Return the time of the critical path in each process, within the steps.

    It leads to the end of the last step on the rank that ends last: the parts of all ranks sum to
    the length of the steps there. The graph's first weights are the measured ones.
    """
    times = solve(graph.plan, graph.weights.chosen((0,)))[:, 0]
    last = max(graph.steps, key=lambda rank_steps: times[rank_steps.limits[-1]])
    begin = float(times[last.limits[0]])
    way = binding_edges(graph.plan, graph.weights.of(0), times, int(last.limits[-1]))
    kinds, source, target = graph.edges.kind, graph.edges.source, graph.edges.target
    first = np.array([facts.host_node for facts in graph.facts])
    spent = np.zeros((len(first), _DELAY_PART + 1))
    for edge in way:  # as many as there are waits on the way
        length_ns = float(times[target[edge]]) - max(float(times[source[edge]]), begin)
        kind = EdgeKind(int(kinds[edge]))
        node = int(source[edge] if kind == EdgeKind.ARRIVAL else target[edge])
        process = int(np.searchsorted(first, node, side="right")) - 1
        facts = graph.facts[process]
        if length_ns <= 0 or node >= facts.end_node:
            continue
        if kind in {EdgeKind.OPERATIONS, EdgeKind.LAUNCHES}:
            by_kind = facts.by_kind_ns[(node - facts.gpu_node) // 2]
            total = float(by_kind.sum())
            work = min(length_ns, total)
            part = _HOST_PART if kind == EdgeKind.LAUNCHES else _DELAY_PART
            spent[process, part] += length_ns - work
            spent[process, : len(by_kind)] += work * by_kind / max(total, 1.0)
        elif kind == EdgeKind.TRANSFER:
            spent[process, COMMUNICATION] += length_ns
        else:
            spent[process, _HOST_PART if kind in _HOST else _DELAY_PART] += length_ns
    return tuple(
        PathPart(facts.ranks[0], *map(round, of_process))
        for facts, of_process in zip(graph.facts, spent.tolist(), strict=True)
    )


_MAX_STEP = np.iinfo(np.int64).max


@optional("critical-path", otherwise=lambda *_: None)
def step_path(
    analysis: OpenAnalysis, step: int | None = None, last: int | None = None
) -> StepPath | None:
    """Return the critical path of a training step, or of those up to `last`; without any, of all.

    None if ranks lack the steps, or if dependencies are unknown: without a GPU, or API calls.
    """
    ranks = analysis.run.ranks
    if not ranks or any(rank.device is None or not rank.calls for rank in ranks):
        return None
    sample = None
    if step is not None:
        last = step if last is None else last
        if max(abs(step), abs(last)) > _MAX_STEP or refused_periods(analysis) is not None:
            return None
        numbers = {rank.rank: np.array([step, last], np.int64) for rank in ranks}
        sample = sample_of(analysis.run, analysis.measured.of(breakdown), numbers)
        if sample is None or sample.compared != (step, last):
            return None
    try:
        graph = run_graph(analysis, [Variant()], sample, keeps_processes=True)
    except CannotReplayError:
        return None
    rank_steps = max(graph.steps, key=lambda steps: int(steps.limits_ns[-1] - steps.limits_ns[0]))
    shifts = {rank.report: clock_shift(analysis, rank) for rank in ranks}
    parts = _Walk(graph, rank_steps, shifts).parts()
    return StepPath(
        step, rank_steps.rank, sum(part.end_ns - part.start_ns for part in parts), parts
    )


class _Walk:
    """Follows the critical path from the end of a step back to its beginning."""

    def __init__(self, graph: RunGraph, rank_steps: RankSteps, shifts: Mapping[int, int]) -> None:
        """Solve the graph, whose processes are kept; `shifts`: by report, to the run's clock."""
        self._graph, self._shifts = graph, shifts
        times = solve(graph.plan, graph.weights.chosen((0,)))[:, 0]
        self._begin, self._end = (round(float(times[node])) for node in rank_steps.limits[[0, -1]])
        self._way = binding_edges(
            graph.plan, graph.weights.of(0), times, int(rank_steps.limits[-1])
        )
        self._times = times
        self._kept = graph.kept
        self._kinds = [(kept, one) for kept in self._kept for one in kept.edges]
        self._first_edge = np.cumsum([0, *(len(one.source) for _, one in self._kinds)])
        self._parts: list[StepPathPart] = []
        self._reached = self._end

    def parts(self) -> tuple[StepPathPart, ...]:
        for edge in reversed(self._way):
            if self._reached <= self._begin:
                break
            self._take(edge)
        return tuple(self._parts[::-1])

    def _take(self, edge: int) -> None:
        """Add the parts along an edge, latest first."""
        of_run = self._graph.edges
        begin = float(self._times[of_run.source[edge]])
        number = int(np.searchsorted(self._first_edge, edge, side="right")) - 1
        if number == len(self._kinds):  # between processes
            if of_run.kind[edge] == EdgeKind.TRANSFER:
                self._operation(*self._operation_at(int(of_run.target[edge])), begin)
            return
        kept, edges = self._kinds[number]
        place = edge - int(self._first_edge[number])
        at, other = int(edges.at[place]), int(edges.other[place])
        if edges.kind in {EdgeKind.OPERATIONS, EdgeKind.LAUNCHES}:
            self._segment(kept, at, begin, of_launches=edges.kind is EdgeKind.LAUNCHES)
        elif edges.kind is EdgeKind.CALLS:
            self._calls(kept, int(kept.process.first_call[at]), begin)
        elif edges.kind in {EdgeKind.LAUNCH, EdgeKind.STREAM_ORDER}:
            self._before(kept, at, begin, is_launch=edges.kind is EdgeKind.LAUNCH)
        elif edges.kind is EdgeKind.EVENT:
            self._before(kept, int(kept.process.stream_waits.consumer[at]), begin, is_launch=False)
        elif edges.kind in {EdgeKind.SYNCHRONIZATION, EdgeKind.FULL_QUEUE}:
            call = int(kept.process.host_waits.call[at])
            name = f"return from {_call_name(kept, call)}"
            self._put(kept.process.rank, "host", begin, name)
        else:
            words = {
                EdgeKind.PROGRAM_ORDER: "between calls",
                EdgeKind.SILENCE: "between calls",
                EdgeKind.HAND_OVER: f"hand-over after {_call_name(kept, other)}",
                EdgeKind.LOCK: f"behind {_call_name(kept, other)} of another thread",
                EdgeKind.CAPTURE: "before the capture, or not known",
            }
            self._put(kept.process.rank, "host", begin, words[edges.kind])

    def _put(
        self, rank: Rank, kind: PartKind, begin: float, name: str, stream: int | None = None
    ) -> None:
        """Add a part from `begin` to the earliest time reached so far."""
        start = max(round(begin), self._begin)
        if start >= self._reached:
            return
        shift = self._shifts[rank.report]
        part = StepPathPart(rank.rank, kind, start - shift, self._reached - shift, name, stream)
        self._parts.append(part)
        self._reached = start

    def _operation(self, kept: Kept, operation: int, begin: float) -> None:
        rank, work = _rank_of(kept, operation), kept.process.work
        kinds: dict[int, PartKind] = {COMPUTE: "compute", COMMUNICATION: "communication"}
        name = rank.operation_name(int(work.group[operation]), int(work.place[operation]))
        kind = kinds.get(int(work.kind[operation]), "copy")
        self._put(rank, kind, begin, name, int(work.stream[operation]))

    def _before(self, kept: Kept, operation: int, begin: float, *, is_launch: bool) -> None:
        """Add the parts before an operation starts: launch, and delay after the launch."""
        rank, work = _rank_of(kept, operation), kept.process.work
        name = rank.operation_name(int(work.group[operation]), int(work.place[operation]))
        launched = float(kept.process.latencies.launched_ns[operation]) if is_launch else begin
        self._put(
            rank, "delay", max(launched, begin), f"before {name}", int(work.stream[operation])
        )
        if is_launch:
            self._calls(kept, int(work.call[operation]), begin)

    def _calls(self, kept: Kept, call: int, begin: float) -> None:
        """Add the time of a call's thread from `begin` to the earliest time reached.

        The part is named after the longest call of that thread.
        """
        calls = kept.process.calls
        low, high = round(begin), self._reached
        inside = calls.is_outer & (calls.start_ns < high) & (calls.end_ns > low)
        inside &= calls.thread == calls.thread[call]
        rows = np.flatnonzero(inside)
        name = "between calls"
        if len(rows):
            spent = np.minimum(calls.end_ns[rows], high) - np.maximum(calls.start_ns[rows], low)
            name = _call_name(kept, int(rows[np.argmax(spent)]))
            if len(rows) > 1:
                name = f"{len(rows)} calls, the longest {name}"
        self._put(kept.process.rank, "host", begin, name)

    def _segment(self, kept: Kept, operation: int, begin: float, *, of_launches: bool) -> None:
        """Add the operations of a segment, from the one that waited for its launch, if any."""
        process = kept.process
        number = int(process.segment_of_operation[operation])
        ends = np.append(process.first_operation, len(process.work))
        rows = np.arange(ends[number], ends[number + 1])
        if of_launches:
            rows = rows[Weigher(process, as_measured(process)).held_by_launch(rows) :]
        for row in rows[::-1].tolist():
            self._operation(kept, row, max(float(process.work.start_ns[row]), begin))
            if row == rows[0]:
                break
            self._before(
                kept, row, max(float(process.work.end_ns[row - 1]), begin), is_launch=False
            )
        if of_launches:
            self._before(kept, int(rows[0]), begin, is_launch=True)

    def _operation_at(self, node: int) -> tuple[Kept, int]:
        """Return the process of a node, and the operation that ends there, alone in its segment."""
        for kept, facts in zip(self._kept, self._graph.facts, strict=True):
            if facts.host_node <= node < facts.end_node:
                return kept, int(kept.process.first_operation[(node - facts.gpu_node) // 2])
        raise AssertionError(f"node {node} is of no process")


def _rank_of(kept: Kept, operation: int) -> Rank:
    index = int(kept.process.work.rank[operation])
    return next(rank for number, rank in kept.process.ranks if number == index)


def _call_name(kept: Kept, call: int) -> str:
    process = kept.process
    return process.rank.trace.api_names[process.api_calls.name_id(int(process.calls.index[call]))]
