"""The graph of a run: its processes, the matched operations of their ranks, and its replay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

import numpy as np

from traceprof.analyses import breakdown, launch_queue
from traceprof.analyses.breakdown import BreakdownResult
from traceprof.communication.messages import BETWEEN_TWO
from traceprof.execution.open_reports import OpenAnalysis
from traceprof.host.launch_stalls import find_stalls
from traceprof.intervals import Float64, Int64, Mask
from traceprof.progress import UNHEARD, Progress
from traceprof.ranks.waits import GroupWaits
from traceprof.replay.graph.longest_path import EdgeLevels, GraphEdges, WeightSets, schedule, solve
from traceprof.replay.graph.process_graph import FIRST_NODE
from traceprof.replay.graph.process_part import (
    Kept,
    Matched,
    ProcessFacts,
    ProcessPart,
    process_part,
)
from traceprof.replay.graph.steps import RankSteps, Sample
from traceprof.replay.graph.weights import RemainingWork, Variant
from traceprof.run.opening import Rank
from traceprof.run.steady_steps import StepUse, kinds_of_steps
from traceprof.structs import Record, by_key
from traceprof.trace.grouping import distinct_values, is_in, median_of
from traceprof.trace.model.special_values import UNKNOWN

# If clocks may be off by more than this share of a step, only operations count for which a rank
# waited longer than that: to leave out shorter waits is the smaller error.
_MAX_UNCERTAINTY = 0.01


class SynchronizingGroup(Record, frozen=True):
    """A group of ranks that wait for each other."""

    waits: GroupWaits  # of all their operations
    together: Mask  # bool[operations], operations in which the ranks wait
    members: list[int]  # their indices among the ranks of the run


def synchronizing_groups(analysis: OpenAnalysis) -> list[SynchronizingGroup]:
    """Return the groups whose ranks wait for each other, each with its waiting operations."""
    ranks = analysis.measured.ranks
    starts = [
        [step.measures.window_start_ns for step in result.steps]
        for result in analysis.measured.of(breakdown)
    ]
    lengths = [float(median_of(np.diff(of_rank))) for of_rank in starts if len(of_rank) > 1]
    step = int(median_of(lengths)) if lengths else ranks.window_ns
    index = {rank.rank: place for place, rank in enumerate(analysis.run.ranks)}
    groups = []
    for waits in ranks.waits:
        if len(waits) == 0 or waits.group.is_mpi:  # the replay takes these as the host's own time
            continue
        group, uncertainty = waits.group, waits.uncertainty_ns.max()
        together = waits.is_known & (group.leaves_together | group.is_one_of(BETWEEN_TWO))
        together &= group.is_whole
        if uncertainty > _MAX_UNCERTAINTY * step:
            together &= waits.wait_ns.max(axis=1) > uncertainty
        if together.any():
            members = [index[ranks.ranks[member]] for member in group.members]
            groups.append(SynchronizingGroup(waits, together, members))
    return groups


def _matched_places(
    analysis: OpenAnalysis, groups: Sequence[SynchronizingGroup], sample: Sample | None
) -> list[Int64]:
    """Return the operations of a sample in which ranks wait for each other, as `Group.place`."""
    places = []
    for group in groups:
        waits, together = group.waits, group.together
        place, called = waits.group.place[together], waits.called_ns[together]
        if sample is not None:
            spans = [sample.span_of(analysis.run.ranks[member]) for member in group.members]
            begin, end = np.array(spans, np.int64).T
            inside = (called != UNKNOWN) & (called >= begin) & (called < end)
            place = place[inside.all(axis=1)]
        places.append(place)
    return places


def _transfer_weights(
    matched: Sequence[Matched], scales: Sequence[Mapping[int, WeightSets]]
) -> list[WeightSets]:
    """Return the weights of the edges of matched operations: of arrivals, and of transfers.

    `scales`: by group of ranks and by column, the factors on the transfers.
    """
    weights: list[WeightSets] = []
    for operations, of_columns in zip(matched, scales, strict=True):
        last_start_ns = operations.start_ns.max(axis=1, keepdims=True)
        transfer = (operations.end_ns - last_start_ns).astype(np.float64)
        by_column = [of_columns[column] for column in range(transfer.shape[1])]
        scaled = (
            (transfer * np.stack([factors.of(number) for factors in by_column], axis=1)).ravel()
            for number in range(by_column[0].num)
        )
        nothing = np.zeros(transfer.size)
        weights.append(WeightSets.of_columns(nothing, [nothing] * by_column[0].num))
        weights.append(WeightSets.of_columns(transfer.ravel(), scaled))
    return weights


Item = TypeVar("Item")
MapItems: TypeAlias = "Callable[..., Iterable[ProcessPart]]"
"""Makes the parts of processes, in one process or several; the results are the same.

Called with a function that returns a part, the list of what to call it with, what another process
calls before, and how many operations on GPUs the work is about.
"""


def in_this_process(
    part_of: Callable[[Item], ProcessPart], items: Sequence[Item], *_: object
) -> Iterable[ProcessPart]:
    """Make one part at a time: the simplest `MapItems`."""
    return map(part_of, items)


class RunGraph(Record, frozen=True):
    """The graph of a run with sets of weights."""

    edges: GraphEdges  # edges of all processes, then between them
    plan: EdgeLevels  # the order in which edges are taken
    weights: WeightSets  # one set for each variant
    steps: tuple[RankSteps, ...]  # of each rank
    facts: tuple[ProcessFacts, ...]  # of each process
    matched: tuple[Matched, ...]  # by group, the operations in which ranks wait for each other
    remaining: tuple[RemainingWork, ...] = ()  # work that is left of each process
    kept: tuple[Kept, ...] = ()  # the processes with their edges; empty if not asked for

    @property
    def has_event_records(self) -> bool:
        """Whether the reports of all processes hold event records."""
        return all(facts.has_event_records for facts in self.facts)


def run_graph(
    analysis: OpenAnalysis,
    variants: Sequence[Variant],
    sample: Sample | None = None,
    *,
    keeps_processes: bool = False,
    map_items: MapItems = in_this_process,
    progress: Progress = UNHEARD,
) -> RunGraph:
    """Return the graph of a run whose reports are open; without a sample, of all steps.

    Processes are read one after the other. The memory that remains grows with the number of waits,
    not of operations, unless `keeps_processes`. A `CircularError` says that calls wait for each
    other.
    """
    numbered = enumerate(analysis.run.ranks)
    owners = by_key(numbered, lambda item: (item[1].report, item[1].process))
    is_alone = analysis.run.has_report_per_process
    if is_alone:
        for trace in analysis.run.traces:
            trace.unload()
    groups = synchronizing_groups(analysis)
    places, members = _matched_places(analysis, groups, sample), [one.members for one in groups]
    matched = tuple(Matched(*(np.zeros_like(place) for _ in range(3))) for place in places)

    def part_of(ranks: list[tuple[int, Rank]]) -> ProcessPart:
        rank = ranks[0][1]
        known = {result.rank: result.of_process for result in analysis.measured.of(launch_queue)}
        stalls = known[rank.rank] if rank.rank in known else find_stalls(rank)
        left_out = [
            step.number
            for result in analysis.measured.of(breakdown)
            if result.rank == rank.rank
            for step in result.steps
            if step.use not in (StepUse.STEADY, None)
        ]
        part = process_part(
            ranks,
            clock_shift(analysis, rank),
            stalls,
            places,
            members,
            variants,
            sample,
            np.array(left_out, np.int64),
            is_kept=keeps_processes,
        )
        if is_alone:
            rank.trace.unload()
        progress.advance(1)
        return part

    node = 1
    edges: list[GraphEdges] = []
    steps_by_rank: list[RankSteps] = []
    weights, facts, kept, remaining = [], [], [], []
    scales: list[dict[int, WeightSets]] = [{} for _ in places]
    num_operations = sum(len(rank.operations) for rank in analysis.run.ranks)
    processes = list(owners.values())
    progress.expect(len(processes))
    parts = map_items(part_of, processes, partial(_reopen, analysis), num_operations)
    for part in (unmoved.moved(node - FIRST_NODE) for unmoved in parts):
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
            kept.append(part.kept)
    for of_group in matched:
        edges.append(of_group.edges(node))
        node += len(of_group.node)
    of_run = GraphEdges.joined(edges)
    return RunGraph(
        of_run,
        schedule(node, of_run.source, of_run.target),
        WeightSets.joined([*weights, *_transfer_weights(matched, scales)]),
        tuple(steps_by_rank),
        tuple(facts),
        matched,
        tuple(remaining),
        tuple(kept),
    )


def _reopen(analysis: OpenAnalysis) -> None:
    for trace in analysis.run.traces:
        trace.reopen()


def clock_shift(analysis: OpenAnalysis, rank: Rank) -> int:
    """Return the offset from times of a rank's report to the run's clock."""
    begin = np.array([rank.window.start_ns], np.int64)
    return int(analysis.measured.ranks.clocks.to_run(rank.report, begin)[0] - begin[0])


_AT_ONCE = 6  # sets of weights: the times of as many fit into a processor's cache, by level
_MAX_WEIGHTS = 1_000_000  # at once, if more than one set is: each takes eight bytes


def replayed_steps(graph: RunGraph) -> tuple[Float64, Float64, tuple[Float64, ...]]:
    """Return the length of each step by begin and by end, for each set of weights, ns.

    float64[s, k] each, means over the ranks that have the step; and those by begin of each rank.
    Where a host runs ahead, only the ends of their work show how fast steps follow each other.
    """
    steps, by_end, of_ranks = [], [], []
    numbers, place = graph.weights.distinct()
    at_once = min(max(_MAX_WEIGHTS // len(graph.weights.full), 1), _AT_ONCE)
    for first in range(0, len(numbers), at_once):
        times = solve(graph.plan, graph.weights.chosen(numbers[first : first + at_once]))
        lengths = [
            np.diff(_with_others(times, rank_steps, rank_steps.limits), axis=0)
            for rank_steps in graph.steps
        ]
        of_ranks.append(lengths)
        steps.append(by_number(graph.steps, lengths))
        ends = [
            _with_others(times, rank_steps, np.append(rank_steps.limits[:1], rank_steps.last))
            for rank_steps in graph.steps
        ]
        lengths = [np.diff(np.maximum.accumulate(end, axis=0), axis=0) for end in ends]
        by_end.append(by_number(graph.steps, lengths))
    return (
        np.concatenate(steps, axis=1)[:, place],
        np.concatenate(by_end, axis=1)[:, place],
        tuple(np.concatenate(some, axis=1)[:, place] for some in zip(*of_ranks, strict=True)),
    )


def _with_others(times: Float64, rank_steps: RankSteps, nodes: Int64) -> Float64:
    """Return the times of nodes; the last one is no earlier than the end of any other stream."""
    chosen = times[nodes]
    if len(rank_steps.others):
        chosen[-1] = np.maximum(chosen[-1], times[rank_steps.others].max(axis=0))
    return chosen


def measured_steps(graph: RunGraph) -> Float64:
    """Return the measured length of each step, mean over its ranks, ns, float64[s]."""
    lengths = [
        np.diff(rank_steps.limits_ns)[:, np.newaxis].astype(np.float64)
        for rank_steps in graph.steps
    ]
    return by_number(graph.steps, lengths)[:, 0]


def steady_shares(
    steps_by_rank: Sequence[RankSteps], slowest: BreakdownResult
) -> tuple[Float64, Float64]:
    """Return the weight of each step in the mean of the slowest rank's steady steps.

    By begin and by end, float64[s]: each sums to 1. Of a sample, each kind of steps counts as much
    as it does among all. By end, the time until the next step begins is part of the next one.
    """
    numbers = _numbers(steps_by_rank)
    steps = distinct_values(np.concatenate(numbers))
    rank_steps = next(
        (
            rank_steps
            for rank_steps in steps_by_rank
            if rank_steps.rank == slowest.rank and rank_steps.is_marked
        ),
        None,
    )
    known = [step for step in slowest.steps if step.is_training]
    share = np.zeros(len(steps))
    if rank_steps is None or not known:
        return np.full_like(share, 1 / len(steps)), np.full_like(share, 1 / len(steps))
    number = np.array([step.number for step in known], np.int64)
    number = np.arange(len(known)) if _come_again(steps_by_rank) else number
    is_steady = np.array([step.use is StepUse.STEADY for step in known])
    # What a phase ends with is launched in its last step, which is cut where the next one begins.
    is_other = np.array(
        [
            step.use in (StepUse.OPENING, StepUse.RARE, StepUse.PHASE)
            or (step.use is StepUse.CUT and step is not known[-1])
            for step in known
        ]
    )
    others = is_in(steps, number[is_other])
    lengths = np.array([step.measures.window_ns for step in known], np.int64)[is_steady]
    number = number[is_steady]
    for kind in kinds_of_steps(lengths):
        group = number[kind]
        inside = is_in(steps, group)
        if inside.any():
            share[inside] = len(group) / inside.sum()
    share = share if share.any() else np.ones_like(share)
    by_end = np.where(others, 0.0, np.append(0.0, share[:-1]))
    by_end = by_end if by_end.any() else share
    return share / share.sum(), by_end / by_end.sum()


def by_number(steps_by_rank: Sequence[RankSteps], values: Sequence[Float64]) -> Float64:
    """Return the mean over ranks of values of the same step, float64[steps, k].

    Not a number if no rank that counts has the step. `values`: float64[s, k] of each rank. Where
    numbers of steps are used twice, their order identifies steps.
    """
    steps, place = np.unique(np.concatenate(_numbers(steps_by_rank)), return_inverse=True)
    counts = np.repeat([rank_steps.counts for rank_steps in steps_by_rank], [*map(len, values)])
    sums = np.zeros((len(steps), values[0].shape[1]))
    np.add.at(sums, place[counts], np.concatenate(values)[counts])
    num = np.bincount(place[counts], minlength=len(steps))[:, np.newaxis]
    return np.divide(sums, num, out=np.full_like(sums, np.nan), where=num > 0)


def _numbers(steps_by_rank: Sequence[RankSteps]) -> list[Int64]:
    """Return the numbers of each rank's steps, or their order where a number is used twice."""
    numbers = [rank_steps.number for rank_steps in steps_by_rank]
    return [np.arange(len(number)) for number in numbers] if _come_again(steps_by_rank) else numbers


def _come_again(steps_by_rank: Sequence[RankSteps]) -> bool:
    return any(
        len(distinct_values(rank_steps.number)) < len(rank_steps.number)
        for rank_steps in steps_by_rank
    )
