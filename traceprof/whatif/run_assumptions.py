"""The assumptions about how ranks meet, by the names that they are written by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.whatif.bucket_cap import with_bucket_cap
from traceprof.whatif.no_straggler import without_stragglers
from traceprof.whatif.run_changes import CannotChange
from traceprof.whatif.send_order import best, ready_first

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from traceprof.execution.open_analysis import OpenAnalysis
    from traceprof.whatif.run_changes import RunChange
    from traceprof.whatif.run_graph import RunGraph

    Make = Callable[[OpenAnalysis, RunGraph, str], RunChange | CannotChange]

_MAKERS: dict[str, Make] = {
    "bucket-cap-mb": with_bucket_cap,
    "send-order": lambda analysis, graph, value: (
        ready_first(analysis, graph) if value == "ready-first" else best(analysis, graph)
    ),
    "no-straggler": lambda analysis, graph, _: without_stragglers(analysis, graph),
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
    changes = []
    for text in texts:
        name, _, value = text.partition("=")
        change = _MAKERS[name](analysis, graph, value)
        if isinstance(change, CannotChange):
            return change
        changes.append(change)
    if sum(change.num_new_nodes > 0 for change in changes) > 1:
        return CannotChange("buckets cannot have two sizes")
    return changes
