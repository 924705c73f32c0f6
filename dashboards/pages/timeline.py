"""The timeline: what each rank's host threads and streams did, drawn by `assets/timeline/`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dash import html

from dashboards import address as addresses
from dashboards.time_axis import Clock
from dashboards.timeline import model as timeline_model
from dashboards.view import View, device_text
from dashboards.widgets import palette
from dashboards.widgets.components import nothing, page
from traceprof.trace.model.parts import Part

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from dashboards.address import Address
    from traceprof.analysis import Analysis
    from traceprof.run.opening import Rank

PATH = addresses.TIMELINE
TITLE = "Timeline"

COLORS = {
    timeline_model.COMPUTE: palette.COMPUTE,
    timeline_model.COMMUNICATION: palette.COMMUNICATION,
    timeline_model.COPY: palette.COPY,
    timeline_model.HOST: palette.HOST,
    timeline_model.NVTX: palette.NVTX,
    timeline_model.MARKS: palette.MARK,
    timeline_model.STEPS: palette.IDLE,
    timeline_model.COUNTER: palette.SELECTED,
}


def layout(analysis: Analysis, address: Address) -> Component:
    """Return the page: an element that becomes the timeline of the ranks chosen."""
    view = View(analysis, address)
    if not view.ranks:
        return page(
            TITLE,
            "",
            nothing(
                "No report holds GPU work: there is no rank to show.",
                view.analysis.run.how_to_collect(Part.GPU_OPERATIONS),
            ),
        )
    shown = {rank.rank: rank for rank in view.ranks}
    # A finding's evidence may be of a rank that was not chosen.
    shown |= {number: view.rank(number) for number in address.rank}
    numbers = sorted(shown)
    # All ranks are offered; of none chosen in particular the first is open.
    opened = [*address.rank] or numbers[:1]
    labels = {number: _label(view, shown[number]) for number in numbers}
    base = Clock.of(analysis).base_ns
    of_each = len(analysis.run.traces) > 1  # which begin when they like
    own = "time in each rank's own report" if of_each else "time in the report"
    said = "time since the first GPU operation" if base else own
    attributes: dict[str, Any] = {
        "data-ranks": json.dumps(numbers),
        "data-labels": json.dumps(labels),
        "data-opened": json.dumps(opened),
        "data-colors": json.dumps(COLORS),
        "data-base": str(base),
        "data-time": said,
    }
    return html.Div(
        [
            html.H1(TITLE, className="timeline-title"),
            # Another address makes another element, which starts from what that address says.
            html.Div(id="timeline", key=address.href(), **attributes),
        ]
    )


def _label(view: View, rank: Rank) -> str:
    parts = [f"rank {rank.rank}", device_text(rank.device, rank.gpu)]
    if len(view.analysis.run.traces) > 1:
        parts.append(view.report_name(rank.report))
    return " · ".join(parts)
