"""The Dash application: an overview of where the time went and of the findings by cost."""

from __future__ import annotations

import socket
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from dash import Dash, dcc, html

from dashboards import figures
from traceprof.errors import UsageError, one_line
from traceprof.units import duration, percent

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from traceprof.analysis import Analysis
    from traceprof.findings import Finding, NotApplicable

HOST = "127.0.0.1"


def create_app(analysis: Analysis) -> Dash:
    """Return the application for an analysis; everything it needs is served by itself."""
    app = Dash(__name__, title="traceprof", serve_locally=True, update_title="")
    app.layout = html.Main(
        [
            html.H1("traceprof"),
            html.Ul([html.Li(one_line(trace.path)) for trace in analysis.run.traces]),
            *_time(analysis),
            html.H2("Findings"),
            *_findings(analysis.findings),
            *_missing(analysis.not_applicable),
            *_notes(analysis),
        ]
    )
    if find_spec("dashboards.timeline_server"):  # until it is there
        import_module("dashboards.timeline_server").register(app.server, analysis)
    return app


def serve(analysis: Analysis, port: int) -> None:
    """Serve the application on 127.0.0.1 until it is interrupted.

    Raises:
        UsageError: the port is taken.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise UsageError(
                f"cannot serve on {HOST}:{port}",
                error.strerror or str(error),
                "choose another with --port",
            ) from error
    create_app(analysis).run(host=HOST, port=str(port), debug=False)


def _time(analysis: Analysis) -> list[Component]:
    if not analysis.breakdown:
        return [html.P("No report holds a GPU operation: there is no time to break down.")]
    return [
        html.H2("Where the time went"),
        dcc.Graph(id="breakdown", figure=figures.breakdown(analysis)),
    ]


def _findings(findings: tuple[Finding, ...]) -> list[Component]:
    if not findings:
        return [html.P("No finding reaches 1 % of the window.")]
    return [
        html.Article(
            [
                html.H3(
                    [
                        html.Span(str(each.severity), className=f"severity {each.severity}"),
                        f" {each.id} · rank {each.rank}",
                    ]
                ),
                html.P(f"{each.title} ({percent(each.impact_fraction)} of the window)"),
                html.Ul(
                    [
                        html.Li(
                            f"at {evidence.start_ns / 1e9:.6f} s for"
                            f" {duration(evidence.end_ns - evidence.start_ns)}:"
                            f" {one_line(evidence.label)}"
                        )
                        for evidence in each.evidence
                    ],
                    className="evidence",
                ),
                html.Details(
                    [
                        html.Summary("What to do"),
                        html.Ul([html.Li(advice) for advice in each.advice]),
                    ]
                ),
            ]
        )
        for each in findings
    ]


def _missing(missing: tuple[NotApplicable, ...]) -> list[Component]:
    if not missing:
        return []
    return [
        html.H2("Could not be analysed"),
        html.Ul(
            [
                html.Li(
                    [
                        html.Strong(each.id),
                        f"{'' if each.rank is None else f' on rank {each.rank}'}: {each.reason}. ",
                        html.Em(each.how_to_collect),
                    ]
                )
                for each in missing
            ]
        ),
    ]


def _notes(analysis: Analysis) -> list[Component]:
    if not analysis.notes:
        return []
    return [
        html.H2("About the data"),
        html.Ul([html.Li(one_line(note)) for _, note in analysis.notes]),
    ]
