"""The assumptions about how ranks meet, by the names that they are written by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.replay.assumptions.bucket_cap import with_bucket_cap
from traceprof.replay.assumptions.cannot_change import CannotChange
from traceprof.replay.assumptions.no_straggler import without_stragglers
from traceprof.replay.assumptions.send_order import best, ready_first

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from traceprof.execution.open_analysis import OpenAnalysis
    from traceprof.replay.assumptions.run_changes import RunChange
    from traceprof.replay.graph.run_graph import RunGraph

    Make = Callable[[OpenAnalysis, RunGraph, str], RunChange | CannotChange]

_MAKERS: dict[str, Make] = {
    "bucket-cap-mb": with_bucket_cap,
    "send-order": lambda analysis, graph, value: (
        ready_first(analysis, graph) if value == "ready-first" else best(analysis, graph)
    ),
    "no-straggler": lambda analysis, graph, _: without_stragglers(analysis, graph),
}

_TWICE = {
    "bucket-cap-mb": "buckets cannot have two sizes",
    "send-order": "sends cannot have two orders",
}


def run_changes(
    analysis: OpenAnalysis, graph: RunGraph, texts: Sequence[str]
) -> list[RunChange] | CannotChange:
    """Return what assumptions about how ranks meet change in a graph.

    Args:
        analysis: of the run.
        graph: of the run.
        texts: the assumptions as written: `no-straggler`.
    """
    names = [text.partition("=")[0] for text in set(texts)]
    twice = next((why for name, why in _TWICE.items() if names.count(name) > 1), None)
    if twice is not None:
        return CannotChange(twice)
    changes = []
    for text in dict.fromkeys(texts):
        name, _, value = text.partition("=")
        change = _MAKERS[name](analysis, graph, value)
        if isinstance(change, CannotChange):
            return change
        changes.append(change)
    return changes
