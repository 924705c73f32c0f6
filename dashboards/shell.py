"""The bar above every page: it chooses the page, the reports and the ranks, and light or dark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dash import MATCH, ClientsideFunction, Dash, Input, Output, State, dcc, html

from dashboards.view import device_text
from dashboards.widgets.components import labelled, part_id
from traceprof.errors import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dash.development.base_component import Component

    from dashboards.address import Address
    from traceprof.analysis import Analysis


def shell(*, is_ready: bool) -> Component:
    """Return the layout of the application: the bar, and room for a page."""
    return html.Div(
        [
            dcc.Location(id="address", refresh="callback-nav"),
            # What was made of it is of no interest: the address is what counts.
            dcc.Store(id="went"),
            dcc.Store(id="title"),
            dcc.Store(id="ready", data=is_ready),
            html.A("Skip to the page", href="#page", className="skip"),
            html.Header(
                [
                    html.Span("traceprof", className="brand"),
                    labelled(html.Nav(id="menu"), "pages"),
                    html.Div(_choosers(), className="choose", id="choose"),
                    labelled(html.Button("◐", id="theme"), "switch between light and dark"),
                ],
                className="top",
            ),
            html.Div(None if is_ready else _loading(), id="waiting"),
            dcc.Loading(
                html.Main(id="page", tabIndex="-1"),
                delay_show=300,
                overlay_style={"visibility": "visible", "opacity": 0.5},
                type="dot",
            ),
        ],
        className="shell",
    )


def _choosers() -> list[Component]:
    """Return where reports and ranks are chosen, for every page; none chosen is all."""
    return [
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


def menu(pages: Iterable[tuple[str, str]], address: Address) -> list[Component]:
    """Return links to the pages, given by path and title, for the ranks that an address chooses."""
    return [
        dcc.Link(
            title,
            href=address.to(path).href(),
            className="active" if address.path == path else "",
        )
        for path, title in pages
    ]


def _loading() -> Component:
    """Return what stands in for a page while the reports are read; the browser fills it in."""
    return html.Div(
        [
            html.P("Reading the reports …"),
            html.Progress(max="1", value="0", id="progress"),
            html.P(id="rows", className="note"),
        ],
        className="loading",
        role="status",
    )


def choices(analysis: Analysis) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the reports and the ranks that can be chosen, as Dash's dropdowns take them."""
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


def run_in_browser(app: Dash) -> None:
    """Register what `assets/shell.js` does without asking the server.

    Dash looks its functions up as soon as it starts, and modules are loaded in their own time: so
    Dash starts once they are there.
    """
    start = app.renderer
    app.renderer = f'import("/assets/main.js").then(() => {{ {start} }});'
    for name, output, event in (
        ("follow", "went", "clickData"),
        ("zoom", "zoomed", "relayoutData"),
    ):
        app.clientside_callback(  # type: ignore[no-untyped-call]
            ClientsideFunction("shell", name),
            Output(part_id(output, MATCH), "data"),
            Input(part_id("chart", MATCH), event),
            State(part_id("chart", MATCH), "figure"),
            State(part_id("places", MATCH), "data"),
            prevent_initial_call=True,
        )
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("shell", "save"),
        Output(part_id("table", MATCH), "exportDataAsCsv"),
        Input(part_id("save", MATCH), "n_clicks"),
        prevent_initial_call=True,
    )
    for name, inputs in (
        ("choose", [Input("choose-report", "value"), Input("choose-rank", "value")]),
        ("entitle", [Input("title", "data")]),
        ("watch", [Input("ready", "data")]),
        ("switchTheme", [Input("theme", "n_clicks")]),
    ):
        app.clientside_callback(  # type: ignore[no-untyped-call]
            ClientsideFunction("shell", name),
            Output("went", "data", allow_duplicate=True),
            *inputs,
            prevent_initial_call="initial_duplicate" if name == "watch" else True,
        )
