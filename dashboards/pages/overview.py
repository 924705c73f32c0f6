"""The overview: the length of a step and its reasons, the parts of the time, what is unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dash import html

from dashboards import address as addresses
from dashboards.view import View
from dashboards.widgets.breakdown_table import TITLE as BREAKDOWN
from dashboards.widgets.breakdown_table import breakdown_card
from dashboards.widgets.components import card, folded, missing, nothing, page
from dashboards.widgets.finding_card import finding_card
from dashboards.widgets.headline import attribution_card, headline_card
from dashboards.widgets.worst import MAX_DRAWN
from traceprof.analyses import breakdown
from traceprof.errors import one_line
from traceprof.findings import Severity, by_id, worst_of
from traceprof.trace.model.parts import Part
from traceprof.units import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dash.development.base_component import Component

    from dashboards.address import Address
    from traceprof.analyses.breakdown import BreakdownResult
    from traceprof.analysis import Analysis

PATH = addresses.OVERVIEW
TITLE = "Overview"


def layout(analysis: Analysis, address: Address) -> Component:
    """Return the page."""
    view = View(analysis, address)
    results: tuple[BreakdownResult, ...] = view.of(breakdown)
    return page(
        TITLE,
        "",
        headline_card(view, address.to(addresses.WHAT_IF).href()),
        _breakdown(view, results),
        attribution_card(view),
        _findings(view),
        missing(view.missing()),
        _notes(view),
    )


def preview(analysis: Analysis, address: Address) -> Component | None:
    """Return the known part of the page while reports are still read; None if nothing is."""
    view = View(analysis, address)
    results: tuple[BreakdownResult, ...] = view.of(breakdown)
    if not results:
        return None
    missing_ranks = len(view.ranks) - len(results)
    return page(
        TITLE,
        "Where each GPU's time went. Steps and findings follow.",
        _breakdown(view, results),
        html.P(f"{counted(missing_ranks, 'rank')} to come …", className="note")
        if missing_ranks
        else None,
    )


def _breakdown(view: View, results: Sequence[BreakdownResult]) -> Component:
    if results:
        return breakdown_card(view, results)
    if view.address.chosen.has_range:
        return card(BREAKDOWN, nothing("The ranks chosen did nothing in the time chosen."))
    return card(
        BREAKDOWN,
        nothing(
            "No report holds a GPU operation: there is no time to break down.",
            view.analysis.run.how_to_collect(Part.GPU_OPERATIONS),
        ),
    )


# -- findings -------------------------------------------------------------------------------------


def _findings(view: View) -> Component | None:
    groups = by_id(view.findings)
    if not groups:  # the headline says so
        return None
    judged = str(breakdown.judged_kind(view.analysis.of(breakdown)))
    severities = [worst_of(group).severity for group in groups]
    counts = ", ".join(
        f"{severities.count(severity)} {severity}"
        for severity in reversed(Severity)
        if severity in severities
    )
    cards = [finding_card(group, view.address, view.clock, judged, view.unit) for group in groups]
    if len(view.ranks) > MAX_DRAWN and len(cards) > 1:
        names = ", ".join(group[0].id for group in groups)
        summary = f"Where to see each, and what to do: {names}"
        cards = [html.Div(folded(summary, *cards), className="card")]
    return html.Section(
        [html.Header([html.H2("Findings"), html.P(counts, className="note")]), *cards],
        className="findings",
    )


def _notes(view: View) -> Component | None:
    reports = {rank.report for rank in view.ranks}
    several = len(view.analysis.run.traces) > 1
    notes = [
        html.Li([html.Strong(f"{view.report_name(report)}: ") if several else "", one_line(note)])
        for report, note in view.analysis.notes
        if report in reports or not view.analysis.run.ranks
    ]
    notes += [html.Li(f"left out: {failure.error}") for failure in view.analysis.result.failed]
    return card("About the data", html.Ul(notes, className="notes")) if notes else None
