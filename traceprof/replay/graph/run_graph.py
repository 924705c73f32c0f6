"""The graph of a run: its processes, and the matched operations of their ranks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
from msgspec.structs import replace

from traceprof.analyses import breakdown, launch_queue, overlap_slowdown
from traceprof.analyses.kernels.beside_communication import keep_rates
from traceprof.host.launch_stalls import find_stalls
from traceprof.progress import UNHEARD
from traceprof.replay.graph.graph_edges import GraphEdges
from traceprof.replay.graph.longest_path import schedule
from traceprof.replay.graph.matched import Matched, group_members, matched_places, transfer_weights
from traceprof.replay.graph.process_part import FIRST_NODE, process_part, weighed
from traceprof.replay.graph.weight_sets import WeightSets
from traceprof.run.steady_steps import StepUse
from traceprof.structs import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from traceprof.execution.open_reports import OpenAnalysis
    from traceprof.host.launch_stalls import Stalls
    from traceprof.intervals import Int64
    from traceprof.progress import Progress
    from traceprof.replay.graph.longest_path import EdgeLevels
    from traceprof.replay.graph.process_facts import ProcessFacts
    from traceprof.replay.graph.process_part import PackedProcess, ProcessPart
    from traceprof.replay.graph.rank_steps import RankSteps
    from traceprof.replay.graph.remaining_work import RemainingWork
    from traceprof.replay.graph.sample import Sample
    from traceprof.replay.graph.weights import Weighing
    from traceprof.run.opening import Rank


Item = TypeVar("Item")
Made = TypeVar("Made")


class MapItems(Protocol):
    """Does work on each item of a list, in one process or several; the results are the same."""

    def __call__(
        self,
        work: Callable[[Item], Made],
        items: Sequence[Item],
        prepare: Callable[[], None],
        num_operations: int,
        /,
    ) -> Iterable[Made]:
        """Return what `work` makes of each item, each perhaps only when it is taken.

        Args:
            work: makes the same in every process.
            items: the items.
            prepare: called in another process before its work.
            num_operations: how many GPU operations the work is about.
        """


def in_this_process(
    work: Callable[[Item], Made], items: Sequence[Item], *_: object
) -> Iterator[Made]:
    """Do all work in this process, one item at a time: the simplest `MapItems`."""
    return map(work, items)


class RunGraph(Record, frozen=True):
    """The graph of a run with sets of weights.

    Attributes:
        edges: all of them, without what they are about, by process; then those between processes.
        plan: the order in which edges are taken.
        weights: one set for each variant.
        steps: of each rank.
        facts: of each process.
        matched: by group of ranks, the operations in which its ranks wait for each other.
        remaining: the work of each process that remains in each step, by variant.
        kept: what is needed to weigh the edges of each process again; empty if not asked for.
    """

    edges: GraphEdges
    plan: EdgeLevels
    weights: WeightSets
    steps: tuple[RankSteps, ...]
    facts: tuple[ProcessFacts, ...]
    matched: tuple[Matched, ...]
    remaining: tuple[RemainingWork, ...] = ()
    kept: tuple[PackedProcess, ...] = ()

    @property
    def has_event_records(self) -> bool:
        """Whether the reports of all processes hold event records."""
        return all(facts.has_event_records for facts in self.facts)


def run_graph(
    analysis: OpenAnalysis,
    variants: Sequence[Weighing],
    sample: Sample | None = None,
    *,
    keeps_processes: bool = False,
    map_items: MapItems = in_this_process,
    progress: Progress = UNHEARD,
) -> RunGraph:
    """Return the graph of a run whose reports are open.

    Processes are read one after the other. The memory that remains grows with the number of waits,
    not with the number of operations.

    Args:
        analysis: of the run; all its ranks have a GPU and API calls.
        variants: the ways to weigh it.
        sample: the steps to replay; all where not given.
        keeps_processes: whether it will be weighed again; then memory grows with the number of
            operations.
        map_items: reads the processes of the run, each an item.
        progress: receives the number of processes that are prepared.

    Raises:
        CircularError: calls or operations seem to wait for each other.
    """
    owners: dict[tuple[int, int], list[tuple[int, Rank]]] = {}
    for index, rank in enumerate(analysis.run.ranks):
        owners.setdefault((rank.report, rank.process), []).append((index, rank))
    is_alone = analysis.run.has_report_per_process
    if is_alone:
        for trace in analysis.run.traces:
            trace.unload()
    places = matched_places(analysis, sample)
    matched = tuple(Matched(*(np.zeros_like(place) for _ in range(3))) for place in places)
    members = group_members(analysis)

    def part_of(process: tuple[int, list[tuple[int, Rank]]]) -> ProcessPart:
        number, ranks = process
        shift = clock_shift(analysis, ranks[0][1])
        stalls, left_out = stalls_of(analysis, ranks[0][1]), steps_left_out(analysis, ranks[0][1])
        _keep_rates(analysis, ranks)
        part = process_part(
            ranks, shift, stalls, number, places, members, variants, sample, left_out,
            is_kept=keeps_processes,
        )  # fmt: skip
        if is_alone:
            ranks[0][1].trace.unload()
        progress.advance(1)
        return part

    node = 1
    edges: list[GraphEdges] = []
    steps_by_rank: list[RankSteps] = []
    weights, facts, kept, remaining = [], [], [], []
    scales: list[dict[int, WeightSets]] = [{} for _ in places]
    num_operations = sum(len(rank.operations) for rank in analysis.run.ranks)
    processes = list(enumerate(owners.values()))
    progress.expect(len(processes))
    parts = map_items(part_of, processes, partial(_reopen, analysis), num_operations)
    for ranks, unmoved in zip(owners.values(), _let_go(parts), strict=True):
        part = unmoved.moved(node - FIRST_NODE)
        facts.append(part.facts)
        node = part.facts.end_node
        edges.append(part.edges)
        weights.append(part.weights)
        remaining.append(part.remaining)
        steps_by_rank += part.steps
        for (group, column), own, scale in zip(part.places, part.matched, part.scales, strict=True):
            matched[group].start_ns[:, column] = own.start_ns
            matched[group].end_ns[:, column] = own.end_ns
            matched[group].node[:, column] = own.node
            scales[group][column] = scale
        if part.kept is not None:
            kept.append(replace(part.kept, ranks=ranks))
    for of_group in matched:
        edges.append(of_group.edges(node))
        node += len(of_group.node)
    joined = WeightSets.joined([*weights, *transfer_weights(matched, scales)])
    of_run = GraphEdges.joined(edges)
    del weights, scales, edges, part, unmoved  # which are as large
    plan = schedule(node, of_run.source, of_run.target)
    return RunGraph(
        of_run, plan, joined, tuple(steps_by_rank), tuple(facts), matched, tuple(remaining),
        tuple(kept),
    )  # fmt: skip


def _let_go(parts: Iterable[Made]) -> Iterator[Made]:
    """Yield parts of which none stays in memory because of a list."""
    if not isinstance(parts, list):
        yield from parts
        return
    parts.reverse()
    while parts:
        yield parts.pop()


def _reopen(analysis: OpenAnalysis) -> None:
    for trace in analysis.run.traces:
        trace.reopen()


def reweighed(graph: RunGraph, variants: Sequence[Weighing]) -> RunGraph:
    """Return a graph with other weights.

    Args:
        graph: with its processes kept.
        variants: the ways to weigh it.
    """
    scales: list[dict[int, WeightSets]] = [{} for _ in graph.matched]
    weights, remaining = [], []
    for packed, steps in zip(graph.kept, graph.remaining, strict=True):
        part = packed.unpacked
        of_part, part_scales, of_steps = weighed(
            part.process, part.edges, part.operations, variants, steps
        )
        weights.append(of_part)
        remaining.append(of_steps)
        for (group, column), scale in zip(part.places, part_scales, strict=True):
            scales[group][column] = scale
    joined = WeightSets.joined([*weights, *transfer_weights(graph.matched, scales)])
    return replace(graph, weights=joined, remaining=tuple(remaining))


def steps_left_out(analysis: OpenAnalysis, rank: Rank) -> Int64:
    """Return the numbers of a rank's steps that are not steady, int64[n]."""
    results = (result for result in analysis.measured.of(breakdown) if result.rank == rank.rank)
    steps = next((result.steps for result in results), ())
    apart = [step.number for step in steps if step.use not in (StepUse.STEADY, None)]
    return np.array(apart, np.int64)


def stalls_of(analysis: OpenAnalysis, rank: Rank) -> Stalls:
    """Return the launches of a rank's process that a full queue blocked, as they were measured."""
    known = {result.rank: result.of_process for result in analysis.measured.of(launch_queue)}
    return known[rank.rank] if rank.rank in known else find_stalls(rank)


def _keep_rates(analysis: OpenAnalysis, ranks: Sequence[tuple[int, Rank]]) -> None:
    """Keep by how much communication makes kernels of ranks longer, as it was measured."""
    known = {result.rank: result.rates for result in analysis.measured.of(overlap_slowdown)}
    for _, rank in ranks:
        if (rates := known.get(rank.rank)) is not None:
            keep_rates(rank, rates)


def lacks_calls(rank: Rank, *, may_unload: bool) -> bool:
    """Return whether a rank has no API calls; they are read, and perhaps unloaded again."""
    has_calls = rank.has_calls
    if may_unload:
        rank.release()
        rank.trace.unload()
    return not has_calls


def clock_shift(analysis: OpenAnalysis, rank: Rank) -> int:
    """Return the offset from times of a rank's report to the run's clock."""
    begin = np.array([rank.window.start_ns], np.int64)
    return int(analysis.measured.ranks.clocks.to_run(rank.report, begin)[0] - begin[0])
