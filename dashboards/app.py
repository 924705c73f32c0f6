"""The Dash application: a bar that chooses page, reports and ranks, and the page below it."""

from __future__ import annotations

import logging
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from dash import ClientsideFunction, Dash, Input, Output, dcc, html, no_update
from werkzeug.exceptions import BadRequest

from dashboards import guard, timeline_server
from dashboards.address import Address, parse
from dashboards.components import labelled, nothing, page
from dashboards.pages import overview
from dashboards.view import View, device_text
from traceprof.errors import TraceprofError, one_line

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from dashboards.waiting import Waiting
    from traceprof.analysis import Analysis


class Page(Protocol):
    """The shape of every module in `dashboards.pages`.

    Attributes:
        PATH: its path in an address.
        TITLE: its name in the menu.
    """

    PATH: str
    TITLE: str

    def layout(self, analysis: Analysis, address: Address) -> Component:
        """Return what the page shows at an address.

        Raises:
            UsageError: the address asks for what the analysis does not have.
        """


PAGES: tuple[Page, ...] = (
    overview,
    *(
        [cast("Page", import_module("dashboards.pages.timeline"))]
        if find_spec("dashboards.pages.timeline")  # until it is there
        else []
    ),
)

_log = logging.getLogger("traceprof.dashboard")
_INDEX = (Path(__file__).parent / "index.html").read_text(encoding="utf-8")
_POLL_MS = 200


def create_app(
    analysis: Analysis | None,
    *,
    waiting: Waiting | None = None,
    access: guard.Access | None = None,
) -> Dash:
    """Return the application; everything it needs is served by itself.

    Args:
        analysis: what it shows; None while it is being made: then it shows how far that is. What a
            browser has loaded of the one application goes on with the other.
        waiting: how far that is.
        access: who may see it; whoever reaches a loopback address where not given.
    """
    app = Dash(
        __name__,
        title="traceprof",
        update_title="",
        serve_locally=True,
        index_string=_INDEX,
        assets_ignore=r"theme\.js",  # it stands in the page's head, before anything is drawn
        suppress_callback_exceptions=True,  # pages bring their own components
        add_log_handler=False,
        enable_mcp=False,
    )
    app.layout = _shell(analysis)
    _callbacks(app, analysis, waiting)
    guard.protect(app, access or guard.Access())
    if analysis is not None:
        timeline_server.register(app.server, analysis)
    return app


# -- the bar --------------------------------------------------------------------------------------


def _shell(analysis: Analysis | None) -> Component:
    return html.Div(
        [
            dcc.Location(id="address", refresh="callback-nav"),
            # What was made of it is of no interest: the address is what counts.
            dcc.Store(id="went"),
            dcc.Store(id="title"),
            dcc.Store(id="ready", data=analysis is not None),
            dcc.Interval(id="poll", interval=_POLL_MS, disabled=analysis is not None),
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
            html.Div(_loading(0, 0) if analysis is None else None, id="waiting"),
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


def _menu(address: Address) -> list[Component]:
    return [
        dcc.Link(
            each.TITLE,
            href=address.to(each.PATH).href(),
            className="active" if address.path == each.PATH else "",
        )
        for each in PAGES
    ]


def _loading(done: int, expected: int) -> Component:
    """Return what stands in for a page while the reports are read."""
    return html.Div(
        [
            html.P("Reading the reports …"),
            html.Progress(max=str(max(expected, 1)), value=str(done), id="progress"),
            html.P(f"{done:,} of {expected:,} rows" if expected else "", className="note"),
        ],
        className="loading",
        role="status",
    )


# -- callbacks ------------------------------------------------------------------------------------


def _callbacks(app: Dash, analysis: Analysis | None, waiting: Waiting | None) -> None:
    """Register the callbacks, the same with and without an analysis."""

    @app.callback(
        Output("page", "children"),
        Output("menu", "children"),
        Output("choose-report", "value"),
        Output("choose-rank", "value"),
        Output("title", "data"),
        Input("address", "pathname"),
        Input("address", "search"),
        Input("ready", "data"),
    )
    def show(pathname: Any, search: Any, _ready: Any) -> tuple[Any, ...]:  # noqa: ANN401
        if analysis is None:
            return no_update, no_update, no_update, no_update, "reading"
        if not isinstance(pathname, str) or not isinstance(search, (str, type(None))):
            raise BadRequest("an address is text")
        address = Address()
        try:
            address = parse(pathname, search or "")
            shown = _page(analysis, address)
        except TraceprofError as error:
            shown = _refused(error)
        title = next((each.TITLE for each in PAGES if address.path == each.PATH), "")
        return shown, _menu(address), [*address.report], [*address.rank], title

    @app.callback(
        Output("choose-report", "options"),
        Output("choose-rank", "options"),
        Output("chooser-report", "hidden"),
        Input("ready", "data"),
    )
    def offer(_ready: Any) -> tuple[Any, ...]:  # noqa: ANN401
        if analysis is None:
            return [], [], True
        reports, ranks = _choices(analysis)
        return reports, ranks, len(reports) < 2

    @app.callback(
        Output("waiting", "children"),
        Output("ready", "data"),
        Output("poll", "disabled"),
        Input("poll", "n_intervals"),
        prevent_initial_call=True,
    )
    def wait(_number: Any) -> tuple[Any, ...]:  # noqa: ANN401
        if analysis is not None or waiting is None or waiting.wait(_POLL_MS / 1e3):
            return None, True, True
        return _loading(*waiting.so_far()), no_update, no_update

    for name, inputs in (
        ("choose", [Input("choose-report", "value"), Input("choose-rank", "value")]),
        ("entitle", [Input("title", "data")]),
        ("switch_theme", [Input("theme", "n_clicks")]),
    ):
        app.clientside_callback(  # type: ignore[no-untyped-call]
            ClientsideFunction("shell", name),
            Output("went", "data", allow_duplicate=True),
            *inputs,
            prevent_initial_call=True,
        )


def _page(analysis: Analysis, address: Address) -> Component:
    """Return a page; what goes wrong with one must not take the others along."""
    module = next(each for each in PAGES if address.path == each.PATH)
    if not View(analysis, address).ranks and analysis.run.ranks:
        return page(module.TITLE, "", nothing("None of the ranks chosen is in the reports chosen."))
    try:
        return module.layout(analysis, address)
    except TraceprofError:
        raise
    except Exception:  # noqa: BLE001  (said in the page and in the log)
        _log.exception("cannot draw %s", one_line(address.href()))
        return page(
            module.TITLE,
            "",
            nothing(
                "This page cannot be drawn: an internal error, which the terminal that runs"
                " traceprof shows. The other pages are not affected."
            ),
        )


def _refused(error: TraceprofError) -> Component:
    back = dcc.Link("Go to the overview", href="/")
    return page("There is no such view", f"{error.what}: {error.why}.", html.P(back))


def _choices(analysis: Analysis) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    run = analysis.run
    reports = [
        {"value": index, "label": one_line(trace.path.name), "title": one_line(trace.path)}
        for index, trace in enumerate(run.traces)
    ]
    several = len(reports) > 1
    ranks = []
    for rank in run.ranks:
        where = device_text(rank.device, rank.gpu)
        if several:
            where += f" · {reports[rank.report]['label']}"
        ranks.append({"value": rank.rank, "label": f"rank {rank.rank} · {where}"})
    return reports, ranks
