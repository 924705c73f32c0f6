"""The timeline: what each rank's host threads and streams did, drawn by `assets/timeline/`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dash import html
from dash.development.base_component import Component

from dashboards import address as addresses
from dashboards.clock import Clock
from dashboards.timeline import events
from dashboards.view import View, device_text
from dashboards.widgets import charts
from dashboards.widgets.components import sorted_worst_first
from traceprof.analysis import Analysis
from traceprof.ranks.lateness import is_habit
from traceprof.run.opening import Rank
from traceprof.structs import by_key

PATH = addresses.TIMELINE
TITLE = "Timeline"

COLORS = {
    **charts.CATEGORIES,
    events.COMPUTE: charts.COMPUTE,
    events.COMMUNICATION: charts.COMMUNICATION,
    events.COPY: charts.COPY,
    events.HOST: charts.HOST,
    events.NVTX: charts.NVTX,
    events.MARKS: charts.MARK,
    events.STEPS: charts.IDLE,
    events.COUNTER: charts.SELECTED,
    events.OPERATORS: charts.GREY,
    events.STALLS: charts.STALLED,
    events.PLACE: charts.NVTX,
    events.PYTHON: charts.GREY,
    events.STACK: charts.GREY,
}


def layout(view: View) -> Component:
    """Return the page: an element that becomes the timeline of the ranks chosen."""
    shown = {rank.rank: rank for rank in view.ranks}
    # A finding's evidence may be of a rank that was not chosen.
    shown |= {number: view.rank(number) for number in view.address.rank}
    late_ns, habitual = _late_ns(view.analysis)
    in_order = sorted(shown, key=lambda number: (-habitual.get(number, 0), number))
    numbers = sorted_worst_first(in_order, lambda number: late_ns.get(number, 0))
    # All ranks are offered; where none is chosen, the first is open, and as many of the next as
    # there is room for.
    opened = [*view.address.rank] or numbers[:1]
    more = [] if view.address.rank else numbers[1:]
    labels = {number: _label(view, shown[number]) for number in numbers}
    clock = view.clock
    of_all = len(view.analysis.run.traces) > 1
    own = f"time in {view.report_name(0)}" if of_all else "time in the report"
    origin = "time since the first GPU operation" if clock.base_ns else own
    attributes: dict[str, Any] = {
        "data-ranks": json.dumps(numbers),
        "data-labels": json.dumps(labels),
        "data-opened": json.dumps(opened),
        "data-more": json.dumps(more),
        "data-colors": json.dumps(COLORS),
        "data-base": str(clock.base_ns),
        "data-run": _run_span(view.analysis, clock),
        "data-clocks": json.dumps(_clocks(clock, numbers)),
        "data-time": origin,
    }
    return html.Div(
        [
            html.H1(TITLE, className="unseen"),
            # Another address makes another element, which starts from what that address says.
            html.Div(id="timeline", key=view.address.href(), **attributes),
        ]
    )


def _run_span(analysis: Analysis, clock: Clock) -> str:
    """Return the first start and the last end of the GPU operations of all ranks, ns."""
    clocks = [(clock.rank(row.rank), row.whole) for row in analysis.result.breakdown]
    starts = [own.at(whole.window_start_ns) for own, whole in clocks]
    ends = [own.at(whole.window_end_ns) for own, whole in clocks]
    return f"{min(starts, default=clock.base_ns)},{max(ends, default=clock.base_ns)}"


def _late_ns(analysis: Analysis) -> tuple[dict[int, int], dict[int, int]]:
    """Return the others' waits for ranks that came last, by number: for all, and usual ones."""
    compared = analysis.ranks
    late = [late for late in compared.lateness if late.num_last]
    usual = [one for one in late if is_habit(one.num_last, one.num_operations, len(compared.ranks))]
    late_ns, usual_ns = (
        {compared.ranks[one.member]: one.total_ns for one in some} for some in (late, usual)
    )
    return late_ns, usual_ns


def _clocks(clock: Clock, numbers: Sequence[int]) -> dict[str, Any]:
    """Return the uncertainty of the ranks' clocks, and panels of those that do not compare."""
    panels = by_key(numbers, lambda number: clock.rank(number).panel)
    return {
        "uncertainty": {
            number: clock.rank(number).uncertainty_ns
            for number in numbers
            if clock.rank(number).uncertainty_ns
        },
        "panels": [
            {"ranks": ranks, "why": clock.rank(ranks[0]).said if panel else ""}
            for panel, ranks in sorted(panels.items())
        ],
    }


def _label(view: View, rank: Rank) -> str:
    parts = [f"rank {rank.rank}", device_text(rank.device, rank.gpu)]
    if len(view.analysis.run.traces) > 1:
        parts.append(view.report_name(rank.report))
    return " · ".join(parts)
