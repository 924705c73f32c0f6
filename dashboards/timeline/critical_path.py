"""The critical path of a step for the timeline: its parts, and their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dashboards.timeline.model import OPERATION
from traceprof.errors import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dashboards.timeline.store import Timelines
    from traceprof.analyses.breakdown import StepMeasures
    from traceprof.replay.answers.critical_path import StepPath, StepPathPart

MAX_PARTS = 5000  # that are drawn, the longest of all
_MAX_NAME = 200  # characters


def step_at(steps: Sequence[StepMeasures], time_ns: int) -> int | None:
    """Return the number of the step nearest to a time; None without steps."""

    def distance(step: StepMeasures) -> int:
        start = step.measures.window_start_ns
        return max(start - time_ns, time_ns - (start + step.measures.window_ns - 1), 0)

    return min(steps, key=distance).number if steps else None


def drawn(store: Timelines, path: StepPath) -> dict[str, Any]:
    """Return a critical path for the browser.

    Returns:
        `step`, `rank` and `length` (ns, as text) of the step; `kinds`: for each the time (ns, as
        text) of its parts together; `num_parts`; and `parts`, the longest in the order of time:
        `rank`, `kind`, `name`, `start` (ns, as text), `length` (ns) and `row`,
        the row of the timeline where it ran: None of what the host did, and of delays.
    """
    kinds: dict[str, int] = {}
    for part in path.parts:
        kinds[part.kind] = kinds.get(part.kind, 0) + part.end_ns - part.start_ns
    kept = list(path.parts)
    if len(kept) > MAX_PARTS:
        least = sorted((part.end_ns - part.start_ns for part in kept), reverse=True)[MAX_PARTS - 1]
        kept = [part for part in kept if part.end_ns - part.start_ns >= least][:MAX_PARTS]
    rows = {rank: _rows_by_stream(store, rank) for rank in {part.rank for part in kept}}
    return {
        "step": path.step,
        "rank": path.rank,
        "length": str(path.length_ns),
        "kinds": {kind: str(kinds[kind]) for kind in sorted(kinds, key=lambda kind: -kinds[kind])},
        "num_parts": len(path.parts),
        "parts": [
            {
                "rank": part.rank,
                "kind": part.kind,
                "name": one_line(part.name, _MAX_NAME),
                "start": str(store.clock(part.rank).at(part.start_ns)),
                "length": part.end_ns - part.start_ns,
                "row": _row(rows[part.rank], part),
            }
            for part in kept
        ],
    }


def _rows_by_stream(store: Timelines, rank: int) -> dict[str, str]:
    """Return the keys of the rows of a rank's GPU, by their labels."""
    tracks = store.gpu(rank).tracks
    return {
        track.label: f"{rank}.{index}"
        for index, track in enumerate(tracks)
        if track.source == OPERATION
    }


def _row(rows: dict[str, str], part: StepPathPart) -> str | None:
    if part.stream is None or part.kind in {"host", "delay"}:
        return None
    return rows.get(f"stream {part.stream} · {part.kind}")
