"""The Dash application: a bar that chooses page, reports and ranks, and the page below it.

Pages are Dash's own (`dash.register_page`). Dash keeps them for the process, so what a page shows
is taken from the application that answers: each has the analysis of its own.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import dash
from dash import Dash, Input, Output, State, ctx, dcc, html, no_update
from dash._callback_context import context_value
from dash.development.base_component import Component
from flask import Response, abort, current_app
from flask_compress import Compress

from dashboards import shell
from dashboards.address import Address, parse
from dashboards.pages import compare, kernels, overview, query, what_if
from dashboards.pages import watched as watched_page
from dashboards.pages.registry import PAGES, Page, page_at
from dashboards.server import guard
from dashboards.server.guard import Access
from dashboards.server.notes import Notes, serve_notes
from dashboards.server.state import ANEW, FILES, PROGRESS, AnalysisProgress, ReportFiles
from dashboards.timeline import server as timeline_server
from dashboards.view import View
from dashboards.widgets.components import nothing, page
from dashboards.widgets.findings import DRAWING, DRAWING_WIDTH
from traceprof.analysis import Analysis
from traceprof.errors import TraceprofError, UsageError, one_line
from traceprof.reports.drawings import timeline
from traceprof.reports.html import svg
from traceprof.trace.model.parts import Part

if TYPE_CHECKING:
    from flask import Flask


_log = logging.getLogger("traceprof.dashboard")
_FOLDER = Path(__file__).parents[1]
_WITHOUT_RANKS = (overview, compare)  # pages that say what a run without ranks holds
_MAX_AGE_S = 365 * 24 * 3600  # of files whose address changes with their content
# Of an application.
_ANALYSIS, _WATCHED = "TRACEPROF_ANALYSIS", "TRACEPROF_WATCHED"


def create_app(
    analysis: Analysis | None,
    *,
    progress: AnalysisProgress | None = None,
    access: Access | None = None,
    files: ReportFiles | None = None,
    read_anew: Callable[[], None] | None = None,
    notes: Notes | None = None,
    watched: Path | None = None,
) -> Dash:
    """Return the application, which serves all its files itself.

    Without an analysis it shows the progress of one; a page that a browser has loaded from one
    application continues with the other. By default, everybody on this machine has access, the
    reports' files are as they are now, nothing can be read anew, and notes are kept in memory.
    Of a file of `instrument.watch`, all addresses show its page.
    """
    app = Dash(
        "dashboards",  # where its assets are
        title="traceprof",
        update_title="",
        serve_locally=True,
        assets_url_path=assets_path(),
        index_string=(_FOLDER / "index.html").read_text("utf-8").replace("ASSETS", assets_path()),
        assets_ignore=r"\.js$",  # modules, which main.js imports; theme.js stands in the head
        suppress_callback_exceptions=True,  # pages have components of their own
        add_log_handler=False,
        use_pages=True,
        pages_folder="",
        routing_callback_inputs={"ready": Input("ready", "data")},
    )
    server: Flask = app.server
    server.config |= {
        _ANALYSIS: analysis,
        _WATCHED: watched,
        "SEND_FILE_MAX_AGE_DEFAULT": _MAX_AGE_S,
        "COMPRESS_MIN_SIZE": 1000,
    }
    _register_pages()
    app.layout = shell.shell(
        is_ready=analysis is not None or watched is not None, has_scope=watched is None
    )
    _register_bar(app)
    for module in (kernels, what_if, compare, query):
        _register_answers(app, module)
    shell.run_in_browser(app, f"/{assets_path()}/main.js")
    server.add_url_rule(PROGRESS, "progress", view_func=lambda: _progress(progress))
    # Dash registers its scripts at the first request; a second one beside it would get a 404.
    with server.test_request_context():
        server.preprocess_request()
    guard.protect(app, access or Access())
    Compress(server)
    server.after_request(_whole)  # before what was registered earlier
    if analysis is not None:
        timeline_server.register(server, analysis)
        server.add_url_rule(f"{DRAWING}/<int:number>", "drawing", partial(_drawing, analysis))
    paths = [] if analysis is None else [trace.path for trace in analysis.run.traces]
    _watch_files(app, files or ReportFiles(paths), read_anew)
    clock = None if analysis is None else View(analysis, Address()).clock
    serve_notes(server, notes or Notes(), clock)
    return app


@cache
def assets_path() -> str:
    """Return where our files are served: the address changes when one of them does.

    So a browser may keep them. Otherwise every visit would ask for each of some fifty modules
    whether it has changed, one level of imports after the other.
    """
    content = hashlib.sha256()
    folder = _FOLDER / "assets"
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    return f"assets-{content.hexdigest()[:16]}"


def _register_pages() -> None:
    if dash.page_registry:  # by another application of this process
        return
    context_value.set({})  # Dash sets it in the thread only that imports Dash
    for order, module in enumerate(PAGES):
        dash.register_page(  # type: ignore[no-untyped-call]
            module.TITLE,
            path=module.PATH,
            order=order,
            title=partial(_title, module),
            layout=_shown,
        )
    dash.register_page(  # type: ignore[no-untyped-call]
        "not_found_404", path="/404", title="traceprof", layout=_shown
    )


def _title(module: Page) -> str:
    if current_app.config[_WATCHED] is not None:
        return f"{watched_page.TITLE} · traceprof"
    is_reading = current_app.config[_ANALYSIS] is None
    return f"{'reading' if is_reading else module.TITLE} · traceprof"


def _shown(**_: object) -> Component | None:
    analysis = current_app.config[_ANALYSIS]
    watched: Path | None = current_app.config[_WATCHED]
    try:
        if watched is not None:
            return watched_page.layout(watched)
        address = _address()
        if analysis is not None:
            return _page(View(analysis, address))
    except TraceprofError as error:
        if watched is not None:
            return page(watched_page.TITLE, "", nothing(f"{error.what}: {error.why}."))
        if analysis is not None:  # else it is said when all is known
            back = html.P(dcc.Link("Go to the overview", href="/"))
            return page("There is no such view", f"{error.what}: {error.why}.", back)
    return None


def _address() -> Address:
    asked = {**ctx.inputs, **ctx.states}
    return parse(asked[shell.PATHNAME], asked[shell.SEARCH] or "")


def _page(view: View) -> Component:
    """Return a page; what goes wrong with one must not take the others along."""
    module, run = page_at(view.address.path), view.analysis.run
    if not run.ranks and module not in _WITHOUT_RANKS:
        how = run.how_to_collect(Part.GPU_OPERATIONS)
        return page(module.TITLE, "", nothing("No report holds GPU work.", how))
    if not view.ranks and run.ranks:
        return page(module.TITLE, "", nothing("None of the ranks chosen is in the reports chosen."))
    try:
        caption = html.P(shell.caption(view, module.TITLE), className="caption note")
        return html.Div([module.layout(view), caption])
    except TraceprofError:
        raise
    except Exception:  # noqa: BLE001  (said in the page and in the log)
        _log.exception("cannot draw %s", one_line(view.address.href()))
        why = (
            "This page cannot be drawn: an internal error, which the terminal that runs"
            " traceprof shows. The other pages are not affected."
        )
        return page(module.TITLE, "", nothing(why))


def _register_bar(app: Dash) -> None:
    @app.callback(
        Output("choose-report", "options"),
        Output("choose-rank", "options"),
        Output("chooser-report", "hidden"),
        Input("ready", "data"),
    )
    def offer(_ready: object) -> tuple[Any, Any, Any]:
        analysis = current_app.config[_ANALYSIS]
        if analysis is None:
            return no_update, no_update, no_update
        reports, ranks = shell.choices(analysis)
        return reports, ranks, len(reports) < 2

    @app.callback(
        Output("menu", "children"),
        Output("time", "children"),
        Input(shell.LOCATION, "pathname"),
        Input(shell.LOCATION, "search"),
        Input("ready", "data"),
    )
    def bar(*_: object) -> tuple[Any, Any]:
        analysis = current_app.config[_ANALYSIS]
        if analysis is None:
            return no_update, no_update
        address = Address()
        with suppress(UsageError):  # which the page says
            address = _address()
        menu = shell.menu([(module.PATH, module.TITLE) for module in PAGES], address)
        return menu, shell.time(View(analysis, address))


def _register_answers(app: Dash, module: ModuleType) -> None:
    """Show a page's slow answers as soon as they are there."""

    @app.callback(
        Output(f"{module.ANSWERS}-answers", "children"),
        Output(f"{module.ANSWERS}-poll", "disabled"),
        Input(f"{module.ANSWERS}-poll", "n_intervals"),
        State(shell.LOCATION, "pathname"),
        State(shell.LOCATION, "search"),
        prevent_initial_call=True,
    )
    def show(*_: object) -> tuple[Any, bool]:
        analysis = current_app.config[_ANALYSIS]
        if analysis is None:
            return no_update, False
        with suppress(TraceprofError):
            address = _address()
            if address.path == module.PATH:
                shown, is_over = module.answers(View(analysis, address))
                return (no_update if shown is None else shown), is_over
        return no_update, True  # the reader went on


def _progress(progress: AnalysisProgress | None) -> dict[str, int | bool]:
    if progress is None:
        return {"is_over": True}
    done, expected = progress.so_far()
    return {"is_over": progress.wait(0), "done": done, "expected": expected}


def _drawing(analysis: Analysis, number: int) -> Response:
    findings = analysis.findings
    if number >= len(findings) or not findings[number].evidence:
        abort(404, "there is no such evidence")
    scene = View(analysis, Address()).scene(findings[number])
    return Response(svg(timeline(scene, DRAWING_WIDTH)), mimetype="image/svg+xml")


def _watch_files(app: Dash, files: ReportFiles, read_anew: Callable[[], None] | None) -> None:
    """Answer what became of the reports' files, and have them read anew."""

    def changes() -> dict[str, Any]:
        all_changes = files.changes()
        is_there = all(change.what != "no longer there" for change in all_changes)
        return {
            "changes": [change._asdict() for change in all_changes],
            "can_read_anew": read_anew is not None and is_there,
        }

    def read() -> tuple[dict[str, Any], int]:
        state = changes()
        if read_anew is None or not state["can_read_anew"]:
            return state, 409
        read_anew()
        return state, 202

    app.server.add_url_rule(FILES, "files", view_func=changes)
    app.server.add_url_rule(ANEW, "anew", view_func=read, methods=["POST"])


def _whole(response: Response) -> Response:
    """Read a file at once: of those that it streams, Flask-Compress closes none."""
    response.direct_passthrough = False
    response.make_sequence()
    return response
