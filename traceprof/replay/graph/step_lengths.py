"""Replays a run: with what was measured, or with what is assumed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.replay.graph.longest_path import solve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.intervals import Int64
    from traceprof.replay.graph.longest_path import Float64
    from traceprof.replay.graph.marks import Marks
    from traceprof.replay.graph.run_graph import RunGraph

_AT_ONCE = 6  # sets of weights: the times of as many fit into a processor's cache, by level


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
    for first in range(0, len(numbers), _AT_ONCE):
        times = solve(graph.plan, graph.weights.chosen(numbers[first : first + _AT_ONCE]))
        lengths = [np.diff(_with_others(times, mark, mark.nodes), axis=0) for mark in graph.marks]
        steps.append(by_number(graph.marks, lengths))
        ends = [
            _with_others(times, mark, np.append(mark.nodes[:1], mark.last)) for mark in graph.marks
        ]
        lengths = [np.diff(np.maximum.accumulate(end, axis=0), axis=0) for end in ends]
        by_end.append(by_number(graph.marks, lengths))
    return np.concatenate(steps, axis=1)[:, place], np.concatenate(by_end, axis=1)[:, place]


def _with_others(times: Float64, mark: Marks, nodes: Int64) -> Float64:
    """Return the times of nodes; the last one is no earlier than the end of any other stream."""
    chosen = times[nodes]
    if len(mark.others):
        chosen[-1] = np.maximum(chosen[-1], times[mark.others].max(axis=0))
    return chosen


def measured_steps(graph: RunGraph) -> Float64:
    """Return how long each step took, the mean over the ranks that have it, ns, float64[s]."""
    lengths = [np.diff(mark.limits_ns)[:, np.newaxis].astype(np.float64) for mark in graph.marks]
    steps: Float64 = by_number(graph.marks, lengths)[:, 0]
    return steps


def by_number(marks: Sequence[Marks], values: Sequence[Float64]) -> Float64:
    """Return the mean over ranks of what belongs to the same step.

    Args:
        marks: of the ranks.
        values: float64[s, k] of each.

    Returns:
        float64[steps, k]; where numbers are used twice, steps go by their order.
    """
    numbers = [mark.number for mark in marks]
    if any(len(np.unique(number)) < len(number) for number in numbers):
        numbers = [np.arange(len(number)) for number in numbers]
    steps, place = np.unique(np.concatenate(numbers), return_inverse=True)
    sums = np.zeros((len(steps), values[0].shape[1]))
    np.add.at(sums, place, np.concatenate(values))
    means: Float64 = sums / np.bincount(place, minlength=len(steps))[:, np.newaxis]
    return means
