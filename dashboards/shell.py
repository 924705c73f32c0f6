"""The bar above every page: the choice of the page, of reports, ranks and time, and of colours."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import dash_ag_grid
from dash import MATCH, ClientsideFunction, Dash, Input, Output, State, dcc, html, page_container
from dash.development.base_component import Component
from dash.fingerprint import build_fingerprint
from dash_ag_grid import AgGrid

from dashboards.address import TIMELINE, Address
from dashboards.view import View, device_text, time_range
from dashboards.widgets.components import labelled, part_id
from traceprof.analyses import breakdown
from traceprof.analysis import Analysis
from traceprof.errors import one_line
from traceprof.intervals import BEYOND_NS
from traceprof.units import counted, duration, ranks_text
from traceprof.version import __version__

LOCATION = "_pages_location"
"""The id that Dash gives to the address of pages."""
PATHNAME, SEARCH = f"{LOCATION}.pathname", f"{LOCATION}.search"


def shell(*, is_ready: bool, has_scope: bool = True) -> Component:
    """Return the layout of the application: the bar, and room for a page.

    Without a scope there is nothing to choose.
    """
    loading = html.Div(  # filled by the browser
        [
            html.P("Reading the reports …"),
            html.Progress(max="1", value="0", id="progress"),
            html.P(id="rows", className="note"),
        ],
        className="loading",
        role="status",
    )
    return html.Div(
        [
            # What was made of it is of no interest: the address is what counts.
            dcc.Store(id="went"),
            dcc.Store(id="ready", data=is_ready),
            html.A("Skip to the page", href="#page", className="skip"),
            html.Header(
                [
                    html.Div(
                        [
                            html.Span("traceprof", className="brand"),
                            labelled(html.Nav(id="menu"), "pages"),
                            labelled(html.Button("◐", id="theme"), "switch between light and dark"),
                        ],
                        className="top",
                    ),
                    html.Div(_scope(), className="scope", id="choose", hidden=not has_scope),
                ],
                className="head",
            ),
            html.Div(None if is_ready else loading, id="waiting"),
            html.Div(id="changed", role="alert"),  # filled by assets/files.js
            labelled(html.Aside(id="notes", hidden=True), "notes"),  # filled by assets/notes.js
            dcc.Loading(
                html.Main(page_container, id="page", tabIndex="-1"),
                delay_show=300,
                overlay_style={"visibility": "visible", "opacity": 0.5},
                type="dot",
            ),
        ],
        className="shell",
    )


def _scope() -> list[Component]:
    """Return where reports, ranks and time are chosen, for every page; none chosen is all."""
    choosers = [
        labelled(
            html.Div(
                dcc.Dropdown(
                    id=f"choose-{what}", multi=True, options=[], placeholder=f"all {what}s"
                ),
                id=f"chooser-{what}",
                className="chooser",
                role="group",
            ),
            f"{what}s shown",
        )
        for what in ("report", "rank")
    ]
    share = html.Button(
        "Copy link",
        id="copy-link",
        className="plain",
        title="copy the address of this view with its token: anyone who has it can see the reports",
    )
    notes = html.Button(
        "Notes", id="notes-open", className="plain", title="keep this view, with a note (M)"
    )
    pictures = [
        labelled(
            html.Button(kind, id=f"save-{kind.lower()}", className="plain"),
            f"save a picture of this page as {kind}",
        )
        for kind in ("PNG", "SVG")
    ]
    return [*choosers, html.Div(_time("all of the time"), id="time"), notes, *pictures, share]


def time(view: View) -> list[Component]:
    """Return the bar's part on time: the chosen range, and what ignores it."""
    chosen, is_timeline = view.address.chosen, view.address.path == TIMELINE
    if not chosen.has_range:
        return _time("all of the time", can_keep=is_timeline)
    start, end = chosen.start_ns, chosen.end_ns
    first = view.clock.text(start) if start is not None else "the start"
    last = view.clock.text(end) if end is not None else "the end"
    length = f" ({duration(end - start)})" if start is not None and end is not None else ""
    note = "" if is_timeline else "findings are of all of the time"
    return _time(f"{first} to {last}{length}", note, can_clear=True, can_keep=is_timeline)


def caption(view: View, title: str) -> str:
    """Name the reports, ranks, time and version that a picture or a print of a page shows."""
    shown = {rank.report for rank in view.ranks} or range(len(view.analysis.run.traces))
    names = [view.report_name(report) for report in shown]
    reports = names[0] if len(names) == 1 else counted(len(names), "report")
    ranks = [ranks_text(view.numbers)] if view.numbers else []
    version = f"traceprof {__version__}"
    return " · ".join([f"{title} of {reports}", *ranks, *_steps(view), version])


def _steps(view: View) -> list[str]:
    """Name the chosen time, and the steps in it of the first rank that has some."""
    scope = view.address.chosen
    if not scope.has_range:
        return []
    ends = (scope.start_ns, scope.end_ns)
    time = " to ".join(view.clock.text(end) for end in ends if end is not None)
    for result in view.analysis.of(breakdown):
        start, end = time_range(scope, view.clock.rank(result.rank))
        low, high = -BEYOND_NS if start is None else start, BEYOND_NS if end is None else end
        inside = [
            step.number
            for step in result.steps
            if step.measures.window_start_ns < high and step.measures.window_end_ns > low
        ]
        if inside and result.rank in view.numbers:
            last = f" to {inside[-1]}" if inside[1:] else ""
            return [time, f"step{'s' * bool(last)} {inside[0]}{last}"]
    return [time]


def _time(
    text: str, note: str = "", *, can_clear: bool = False, can_keep: bool = False
) -> list[Component]:
    clear = html.Button("×", id="clear-time", hidden=not can_clear)
    chip = html.Div(
        [html.Span(text, id="chosen-time"), labelled(clear, "show all of the time")],
        className="chip",
        title="drag on an axis of time to choose a range for all pages",
    )
    keep = html.Button(
        "Choose the time in view", id="keep-time", hidden=not can_keep, className="plain"
    )
    return [labelled(chip, "time shown"), keep, html.Span(note, id="scope-note", className="note")]


def menu(pages: Iterable[tuple[str, str]], address: Address) -> list[Component]:
    """Return links to the pages, given by path and title, with the ranks chosen by an address."""
    return [
        dcc.Link(
            title, href=address.to(path).href(), className="active" if address.path == path else ""
        )
        for path, title in pages
    ]


def choices(analysis: Analysis) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the reports and ranks to choose from, in the form of Dash's dropdowns."""
    run = analysis.run
    reports = [
        {"value": index, "label": one_line(trace.path.name), "title": one_line(trace.path)}
        for index, trace in enumerate(run.traces)
    ]
    several = len(reports) > 1
    ranks = []
    for rank in sorted(run.ranks, key=lambda rank: rank.rank):
        where = device_text(rank.device, rank.gpu)
        if several:
            where += f" · {reports[rank.report]['label']}"
        ranks.append({"value": rank.rank, "label": f"rank {rank.rank} · {where}"})
    return reports, ranks


_REACTIONS: dict[str, list[Input | State]] = {
    "query": [Input("query-run", "n_clicks"), State("query-text", "value")],
    "ask": [
        Input("what-if-ask", "n_clicks"),
        Input("what-if-others", "n_submit"),
        State("what-if-ticked", "value"),
        State("what-if-others", "value"),
    ],
    "choose": [Input("choose-report", "value"), Input("choose-rank", "value")],
    "markCurrent": [Input("menu", "children")],
    "watch": [Input("ready", "data")],
}
"""Functions of `assets/shell.js`, by the inputs at which they are called."""


def run_in_browser(app: Dash, main: str) -> None:
    """Register the functions of `assets/shell.js`, which work without the server.

    Dash looks its functions up when it starts, and modules load asynchronously: so Dash is started
    once the one at the address `main` is loaded. Of its scripts, AG Grid's is left to that module.
    """
    script = Path(dash_ag_grid.__file__).with_name("dash_ag_grid.min.js")
    AgGrid._js_dist[0]["dynamic"] = True  # noqa: SLF001  (served, but no page begins with it)
    modified = int(script.stat().st_mtime)
    name = build_fingerprint(script.name, dash_ag_grid.__version__, modified)  # type: ignore[no-untyped-call]
    grid = f"/_dash-component-suites/dash_ag_grid/{name}"
    start = app.renderer
    app.renderer = f'import("{main}").then((our) => {{ our.loadGridLate("{grid}"); {start} }});'
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("shell", "save"),
        Output(part_id("table", MATCH), "exportDataAsCsv"),
        Input(part_id("save", MATCH), "n_clicks"),
        prevent_initial_call=True,
    )
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("shell", "chosen"),
        Output("choose-report", "value"),
        Output("choose-rank", "value"),
        Input(LOCATION, "search"),
        # A dropdown drops a value that it does not offer.
        Input("choose-report", "options"),
        Input("choose-rank", "options"),
    )
    for name, inputs in _REACTIONS.items():
        app.clientside_callback(  # type: ignore[no-untyped-call]
            ClientsideFunction("shell", name),
            Output("went", "data", allow_duplicate=True),
            *inputs,
            prevent_initial_call="initial_duplicate" if name == "watch" else True,
        )
