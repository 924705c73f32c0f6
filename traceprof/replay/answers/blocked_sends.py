"""Sends that waited behind others on their stream although both sides were ready."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.replay.assumptions.run_change import CannotChange, missing_event_records
from traceprof.replay.assumptions.sends import ready_ns, sends_of
from traceprof.replay.graph.longest_path import solve
from traceprof.structs import Record
from traceprof.trace.grouping import median_of

if TYPE_CHECKING:
    from traceprof.execution.open_reports import OpenAnalysis
    from traceprof.replay.assumptions.sends import SendName
    from traceprof.replay.graph.run_graph import RunGraph

MAX_NAMED = 20
"""The number of blocked sends that are listed."""
_MIN_BLOCKED = 0.001  # of a step


class BlockedSend(Record, frozen=True):
    """A send that waited behind another one of its stream although both sides were ready.

    Attributes:
        rank: whose stream.
        blocked: the send.
        behind: what it waited for.
        stage: the rank that received its data that much later.
        blocked_ns: in the median step.
    """

    rank: int
    blocked: SendName
    behind: SendName
    stage: int
    blocked_ns: int


def blocked_sends(
    analysis: OpenAnalysis, graph: RunGraph
) -> tuple[BlockedSend, ...] | CannotChange:
    """Return the sends that waited behind others that need not come first, worst first.

    Args:
        analysis: of the run.
        graph: of the whole run; its first weights are as measured.

    Returns:
        At most `MAX_NAMED` of them, or why they are not known.
    """
    sends = sends_of(analysis, graph)
    if sends is None:
        return ()
    unknown = missing_event_records(analysis, graph, "when sends were ready")
    if unknown is not None:
        return unknown
    times = solve(graph.plan, graph.weights.chosen((0,)))[:, 0]
    ready = ready_ns(sends, graph.edges, graph.weights.of(0), times)
    start = times[sends.node]
    blocked = start - np.maximum(ready, start[sends.partner])
    blocked = np.where(sends.follows, np.maximum(blocked, 0), 0)
    numbers = [rank.rank for rank in analysis.run.ranks]
    step = float(
        median_of(np.concatenate([np.diff(rank_steps.limits_ns) for rank_steps in graph.steps]))
    )
    by_name: dict[tuple[int, SendName, SendName], list[float]] = {}
    for row in np.flatnonzero(blocked > _MIN_BLOCKED * step).tolist():
        key = numbers[sends.rank[row]], sends.name[row], sends.name[row - 1]
        by_name.setdefault(key, []).append(float(blocked[row]))
    num_steps = max(len(rank_steps.number) for rank_steps in graph.steps)
    rows = [
        BlockedSend(rank, name, behind, name.peer, round(_median(values, num_steps)))
        for (rank, name, behind), values in by_name.items()
    ]
    rows = [row for row in rows if row.blocked_ns > _MIN_BLOCKED * step]
    return tuple(sorted(rows, key=lambda row: (-row.blocked_ns, row.rank, row.blocked))[:MAX_NAMED])


def _median(values: list[float], num_steps: int) -> float:
    """Return the median over steps, in those without a value 0."""
    return float(median_of(values + [0.0] * max(num_steps - len(values), 0)))
