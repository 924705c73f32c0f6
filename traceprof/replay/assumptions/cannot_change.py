"""Why something cannot be assumed of a run, and what to record so that it can."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from traceprof.trace.model.parts import Part

if TYPE_CHECKING:
    from traceprof.execution.open_analysis import OpenAnalysis
    from traceprof.replay.graph.run_graph import RunGraph


@dataclass(frozen=True)
class CannotChange:
    """Why something cannot be assumed of a run.

    Attributes:
        why: in a few words.
        how_to_collect: what to record so that it can; None where no recording of it would help.
    """

    why: str
    how_to_collect: str | None = None


def without_event_records(
    analysis: OpenAnalysis, graph: RunGraph, told: str
) -> CannotChange | None:
    """Return why something that event records tell is not known of a run; None where it is.

    Args:
        analysis: of the run.
        graph: of it.
        told: what they tell.
    """
    if graph.has_event_records:
        return None
    how = analysis.run.ranks[0].trace.how_to_collect(Part.EVENT_RECORDS)
    return CannotChange(f"{told} is told by event records, and there are none", how)
