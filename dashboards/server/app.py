"""The Dash application: a bar that chooses page, reports and ranks, and the page below it."""

from __future__ import annotations

import gzip
import logging
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dash import Dash, Input, Output, State, dcc, html, no_update
from flask import request
from flask_compress import Compress
from werkzeug.exceptions import BadRequest

from dashboards import shell
from dashboards.address import Address, parse
from dashboards.pages import compare, kernels, overview, what_if
from dashboards.pages.registry import PAGES, page_at
from dashboards.questions import WhatIfQuestion, questions_about
from dashboards.server import guard
from dashboards.server.guard import Access
from dashboards.server.modules import serve_modules
from dashboards.server.notes import Notes, serve_notes
from dashboards.server.state import ANEW, FILES, PROGRESS, ReportFiles
from dashboards.timeline import server as timeline_server
from dashboards.view import View
from dashboards.widgets.components import nothing, page
from traceprof.errors import TraceprofError, one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from dash.development.base_component import Component
    from flask import Flask, Response

    from dashboards.server.state import AnalysisProgress
    from traceprof.analysis import Analysis

_OF_REQUESTS = {
    "COMPRESS_MIMETYPES": ["application/json", "text/html"],
    "COMPRESS_ALGORITHM": ["zstd", "gzip"],
    "COMPRESS_LEVEL": 4,
    "COMPRESS_MIN_SIZE": 2000,
}
_TEXTS = {
    "application/javascript", "text/javascript", "text/css", "image/svg+xml",
    "application/json", "application/source-map",
}  # fmt: skip
_MIN_BYTES = 1000
_LEVEL = 9  # all of the first page take 80 ms, once


def compress(server: Flask, programs: tuple[str, ...]) -> None:
    """Compress the replies of a server.

    Args:
        server: the server.
        programs: beginnings of the paths of files that do not change while the server runs.
    """
    known: dict[tuple[str, str | None], bytes] = {}

    def compress_program(response: Response) -> Response:
        accepts = request.accept_encodings["gzip"] > 0
        if not request.path.startswith(programs) or response.mimetype not in _TEXTS:
            return response
        response.vary.add("Accept-Encoding")
        if not accepts or response.status_code != 200 or response.headers.get("Content-Encoding"):
            return response
        key = request.path, response.get_etag()[0]
        if key not in known:
            response.direct_passthrough = False
            data = response.get_data()
            known[key] = gzip.compress(data, _LEVEL, mtime=0) if len(data) >= _MIN_BYTES else b""
        if known[key]:
            response.close()  # the file
            response.direct_passthrough = False
            response.set_data(known[key])
            response.headers["Content-Encoding"] = "gzip"
        return response

    server.config.update(_OF_REQUESTS)
    Compress(server)
    server.after_request(compress_program)  # before what was registered earlier


_MENU = [(module.PATH, module.TITLE) for module in PAGES]
_log = logging.getLogger("traceprof.dashboard")
_INDEX = (Path(__file__).parents[1] / "index.html").read_text(encoding="utf-8")


def create_app(
    analysis: Analysis | None,
    *,
    progress: AnalysisProgress | None = None,
    access: Access | None = None,
    files: ReportFiles | None = None,
    read_anew: Callable[[], None] | None = None,
    notes: Notes | None = None,
) -> Dash:
    """Return the application, which serves all its files itself.

    Args:
        analysis: to show; None while it is being made: the application then shows its progress. A
            page that a browser has loaded from one application continues with the other.
        progress: of the analysis.
        access: the access rules; by default, everybody on this machine has access.
        files: of the reports; by default, their current state.
        read_anew: starts a new reading of the reports; None if that is impossible.
        notes: of the readers; by default, they are kept until the server ends.
    """
    app = Dash(
        "dashboards",  # where its assets are
        title="traceprof",
        update_title="",
        serve_locally=True,
        index_string=_INDEX,
        assets_ignore=r"\.js$",  # served as modules; theme.js stands in the head
        suppress_callback_exceptions=True,  # pages have components of their own
        add_log_handler=False,
    )
    app.layout = shell.shell(is_ready=analysis is not None)
    _show_pages(app, analysis, progress)
    _show_answers(app, analysis)
    shell.run_in_browser(app, serve_modules(app.server))
    app.server.add_url_rule(PROGRESS, "progress", view_func=lambda: _progress(progress))
    # Dash registers its scripts at the first request; a second one beside it would get a 404.
    with app.server.test_request_context():
        app.server.preprocess_request()
    guard.protect(app, access or Access())
    compress(app.server, guard.PROGRAMS)
    if analysis is not None:
        timeline_server.register(app.server, analysis)
    paths = [] if analysis is None else [trace.path for trace in analysis.run.traces]
    _watch_files(app, files or ReportFiles(paths), read_anew)
    clock = None if analysis is None else View(analysis, Address()).clock
    serve_notes(app.server, notes or Notes(), clock)
    return app


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


def _show_pages(app: Dash, analysis: Analysis | None, progress: AnalysisProgress | None) -> None:
    """Register what an address shows, the same with and without an analysis."""

    @app.callback(
        Output("page", "children"),
        Output("menu", "children"),
        # With their values: a dropdown drops a value that it does not offer yet.
        Output("choose-report", "options"),
        Output("choose-rank", "options"),
        Output("chooser-report", "hidden"),
        Output("choose-report", "value"),
        Output("choose-rank", "value"),
        Output("title", "data"),
        Output("chosen-time", "children"),
        Output("clear-time", "hidden"),
        Output("keep-time", "hidden"),
        Output("scope-note", "children"),
        Input("address", "pathname"),
        Input("address", "search"),
        Input("ready", "data"),
    )
    def show(pathname: Any, search: Any, _ready: Any) -> tuple[Any, ...]:  # noqa: ANN401
        if not isinstance(pathname, str) or not isinstance(search, (str, type(None))):
            raise BadRequest("an address is text")
        if analysis is None:
            return (
                _preview(progress, pathname, search or ""),
                *[no_update] * 6,
                "reading",
                *[no_update] * 4,
            )
        address = Address()
        chosen: tuple[Any, Any] = no_update, no_update
        try:
            address = parse(pathname, search or "")
            shown = _page(analysis, address)
            chosen = [*address.chosen.report], [*address.chosen.rank]
        except TraceprofError as error:  # what was chosen before stays so
            shown = _refused(error)
        title = next((module.TITLE for module in PAGES if address.path == module.PATH), "")
        reports, ranks = shell.choices(analysis)
        return (
            shown,
            shell.menu(_MENU, address),
            reports,
            ranks,
            len(reports) < 2,
            *chosen,
            title,
            *shell.chosen_time(View(analysis, address)),
        )


def _show_answers(app: Dash, analysis: Analysis | None) -> None:
    """Register what shows answers that take their time, as soon as they are there."""

    def what_if_answers(search: str) -> tuple[Any, bool]:
        assert analysis is not None  # noqa: S101  (checked by the caller)
        assumed = what_if.assumed_in(parse(what_if.PATH, search))
        question = questions_about(analysis).about(WhatIfQuestion(assumed))
        return what_if.answers(question), question.is_over

    def comparison(_search: str) -> tuple[Any, bool]:
        assert analysis is not None  # noqa: S101  (checked by the caller)
        question = questions_about(analysis).comparison()
        if question is None:
            return no_update, True
        return (compare.answers(question) if question.is_over else no_update), question.is_over

    def register(name: str, answered: Callable[[str], tuple[Any, bool]]) -> None:
        @app.callback(
            Output(f"{name}-answers", "children"),
            Output(f"{name}-poll", "disabled"),
            Input(f"{name}-poll", "n_intervals"),
            State("address", "search"),
            prevent_initial_call=True,
        )
        def show(_times: Any, search: Any) -> tuple[Any, bool]:  # noqa: ANN401
            if analysis is None or not isinstance(search, (str, type(None))):
                raise BadRequest("there is nothing to ask about")
            try:
                return answered(search or "")
            except TraceprofError:  # the reader went on
                return no_update, True

    def modules(search: str) -> tuple[Any, bool]:
        assert analysis is not None  # noqa: S101  (checked by the caller)
        view = View(analysis, parse(kernels.PATH, search))
        question = questions_about(analysis).comparison()
        is_over = question is None or question.is_over
        return (kernels.modules_card(view, question) if is_over else no_update), is_over

    register("modules", modules)
    register("what-if", what_if_answers)
    register("compare", comparison)


def _preview(progress: AnalysisProgress | None, pathname: str, search: str) -> Component | None:
    """Return what can be shown at an address while the analysis is made; None for nothing."""
    analysis = progress.preview if progress is not None else None
    if analysis is None:
        return None
    with suppress(TraceprofError):  # said when all is known
        address = parse(pathname, search)
        if address.path == overview.PATH:
            return overview.preview(analysis, address)
    return None


def _progress(progress: AnalysisProgress | None) -> dict[str, int | bool]:
    """Return how far the analysis is."""
    if progress is None:
        return {"is_over": True}
    is_over, num_previews = progress.wait(0), progress.num_previews
    done, expected = progress.so_far()
    return {"is_over": is_over, "done": done, "expected": expected, "previews": num_previews}


def _page(analysis: Analysis, address: Address) -> Component:
    """Return a page; what goes wrong with one must not take the others along."""
    module = page_at(address.path)
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
