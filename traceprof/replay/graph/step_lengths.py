"""Replays a run: with what was measured, or with what is assumed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.replay.graph.longest_path import solve
from traceprof.run.steady_steps import StepUse, kinds_of_steps
from traceprof.trace.grouping import distinct_values, is_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.analyses.breakdown import BreakdownResult
    from traceprof.intervals import Float64, Int64
    from traceprof.replay.graph.rank_steps import RankSteps
    from traceprof.replay.graph.run_graph import RunGraph

_AT_ONCE = 6  # sets of weights: the times of as many fit into a processor's cache, by level
_MAX_WEIGHTS = 1_000_000  # at once, if more than one set is: each takes eight bytes


def replayed_steps(graph: RunGraph) -> tuple[Float64, Float64]:
    """Return how long each step takes by each set of weights, ns.

    Steps are separated by where they begin, as in reports; and by where their work is over. A host
    that runs ahead begins the next steps (a copy on a stream of its own) long before their work is
    done: then only the ends show how fast steps follow each other.

    Args:
        graph: of the run, weighed.

    Returns:
        By begin and by end, float64[s, k], the mean over the ranks that have the step.
    """
    steps, by_end = [], []
    numbers, place = graph.weights.distinct()
    at_once = min(max(_MAX_WEIGHTS // len(graph.weights.full), 1), _AT_ONCE)
    for first in range(0, len(numbers), at_once):
        times = solve(graph.plan, graph.weights.chosen(numbers[first : first + at_once]))
        lengths = [
            np.diff(_with_others(times, rank_steps, rank_steps.nodes), axis=0)
            for rank_steps in graph.steps
        ]
        steps.append(by_number(graph.steps, lengths))
        ends = [
            _with_others(times, rank_steps, np.append(rank_steps.nodes[:1], rank_steps.last))
            for rank_steps in graph.steps
        ]
        lengths = [np.diff(np.maximum.accumulate(end, axis=0), axis=0) for end in ends]
        by_end.append(by_number(graph.steps, lengths))
    return np.concatenate(steps, axis=1)[:, place], np.concatenate(by_end, axis=1)[:, place]


def _with_others(times: Float64, rank_steps: RankSteps, nodes: Int64) -> Float64:
    """Return the times of nodes; the last one is no earlier than the end of any other stream."""
    chosen = times[nodes]
    if len(rank_steps.others):
        chosen[-1] = np.maximum(chosen[-1], times[rank_steps.others].max(axis=0))
    return chosen


def measured_steps(graph: RunGraph) -> Float64:
    """Return how long each step took, the mean over the ranks that have it, ns, float64[s]."""
    lengths = [
        np.diff(rank_steps.limits_ns)[:, np.newaxis].astype(np.float64)
        for rank_steps in graph.steps
    ]
    steps: Float64 = by_number(graph.steps, lengths)[:, 0]
    return steps


def steady_shares(
    steps_by_rank: Sequence[RankSteps], slowest: BreakdownResult
) -> tuple[Float64, Float64]:
    """Return the weight of each step in the mean of the steady steps.

    Steps that are not steady count nothing. Of a sample, each kind of steps counts as much as it
    does among all of them. By end, the time until the next step begins is part of the next one,
    and the first one has no beginning.

    Args:
        steps_by_rank: of the ranks.
        slowest: the rank whose steady steps they are.

    Returns:
        By begin and by end, float64[s], which sum to 1 each.
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
            step.use in (StepUse.OPENING, StepUse.RARE)
            or (step.use is StepUse.CUT and step is not known[-1])
            for step in known
        ]
    )
    others = is_in(steps, number[is_other])
    lengths = np.array([step.measures.window_ns for step in known], np.int64)[is_steady]
    phase = np.array([step.phase for step in known], np.int64)[is_steady]
    number = number[is_steady]
    for kind in kinds_of_steps(lengths, phase):
        group = number[kind]
        inside = is_in(steps, group)
        if inside.any():
            share[inside] = len(group) / inside.sum()
    share = share if share.any() else np.ones_like(share)
    by_end = np.where(others, 0.0, np.append(0.0, share[:-1]))
    by_end = by_end if by_end.any() else share
    return share / share.sum(), by_end / by_end.sum()


def by_number(steps_by_rank: Sequence[RankSteps], values: Sequence[Float64]) -> Float64:
    """Return the mean over ranks of what belongs to the same step.

    Args:
        steps_by_rank: of the ranks.
        values: float64[s, k] of each.

    Returns:
        float64[steps, k]; where numbers are used twice, steps go by their order. Those of no rank
        whose steps count are not a number.
    """
    steps, place = np.unique(np.concatenate(_numbers(steps_by_rank)), return_inverse=True)
    counts = np.repeat([rank_steps.counts for rank_steps in steps_by_rank], [*map(len, values)])
    sums = np.zeros((len(steps), values[0].shape[1]))
    np.add.at(sums, place[counts], np.concatenate(values)[counts])
    num = np.bincount(place[counts], minlength=len(steps))[:, np.newaxis]
    return np.divide(sums, num, out=np.full_like(sums, np.nan), where=num > 0)


def _numbers(steps_by_rank: Sequence[RankSteps]) -> list[Int64]:
    """Return the numbers of the steps of each rank: their order where some are used twice."""
    numbers = [rank_steps.number for rank_steps in steps_by_rank]
    return [np.arange(len(number)) for number in numbers] if _come_again(steps_by_rank) else numbers


def _come_again(steps_by_rank: Sequence[RankSteps]) -> bool:
    return any(
        len(distinct_values(rank_steps.number)) < len(rank_steps.number)
        for rank_steps in steps_by_rank
    )
