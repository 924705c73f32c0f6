"""The overview: where each rank's time went, what that costs, what could not be judged."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from dash import dcc, html

from dashboards import address as addresses
from dashboards.view import View, device_text
from dashboards.widgets.components import UNKNOWN, card, missing, nothing, numbers, page
from dashboards.widgets.finding_card import finding_card
from dashboards.widgets.palette import PARTS
from traceprof.analyses import breakdown
from traceprof.errors import one_line
from traceprof.findings import Severity, by_id, worst_of
from traceprof.trace.model.parts import Part
from traceprof.units import duration, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dash.development.base_component import Component

    from dashboards.address import Address
    from traceprof.analyses.breakdown import BreakdownResult, Measures
    from traceprof.analysis import Analysis

PATH = addresses.OVERVIEW
TITLE = "Overview"


def layout(analysis: Analysis, address: Address) -> Component:
    """Return the page."""
    view = View(analysis, address)
    results: tuple[BreakdownResult, ...] = view.of(breakdown)
    return page(
        TITLE,
        "Where each GPU's time went, and what would give the most of it back.",
        _summary(view, results),
        _breakdown(view, results),
        _findings(view),
        missing(view.missing()),
        _notes(view),
    )


def preview(analysis: Analysis, address: Address) -> Component | None:
    """Return what of the page is known while the reports are still read; None for nothing."""
    view = View(analysis, address)
    results: tuple[BreakdownResult, ...] = view.of(breakdown)
    if not results:
        return None
    missing_ranks = len(view.ranks) - len(results)
    return page(
        TITLE,
        "Where each GPU's time went. Steps and findings follow.",
        _breakdown(view, results),
        html.P(f"{_counted(missing_ranks, 'rank')} to come …", className="note")
        if missing_ranks
        else None,
    )


def _summary(view: View, results: Sequence[BreakdownResult]) -> list[Component]:
    if not results:
        return []
    wholes = [result.whole for result in results]
    longest = max(whole.window_ns for whole in wholes)
    steps = [step.measures.window_ns for result in results for step in result.steps]
    worst = worst_of(view.findings) if view.findings else None
    shares = [whole.fraction("compute_ns") for whole in wholes]
    pairs = [
        ("ranks", str(len(results)), f"in {_counted(len(view.analysis.run.traces), 'report')}"),
        ("window", duration(longest), "first GPU operation to last, the longest of the ranks"),
        ("compute", percent(sum(shares) / len(shares)), "of the window, the ranks' mean"),
        (
            "median step",
            duration(int(median(steps))) if steps else UNKNOWN,
            f"of {len(steps)}, over all ranks" if steps else "no training step was found",
        ),
        (
            "findings",
            str(len(by_id(view.findings))),
            f"the worst is {worst.severity}" if worst else "nothing costs 1 % of the window",
        ),
    ]
    return [numbers(*pairs)]


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


# -- where the time went --------------------------------------------------------------------------


def _breakdown(view: View, results: Sequence[BreakdownResult]) -> Component:
    title = "Where the time went"
    if not results:
        return card(
            title,
            nothing(
                "No report holds a GPU operation: there is no time to break down.",
                view.analysis.run.how_to_collect(Part.GPU_OPERATIONS),
            ),
        )
    several = len(view.analysis.run.traces) > 1
    heads = ["rank", "GPU", *(["report"] if several else []), ""]
    parts = [f"{name} (%)" for _, name, _ in PARTS]
    table = html.Table(
        [
            html.Thead(
                html.Tr(
                    [
                        *(html.Th(head, scope="col") for head in heads),
                        *(
                            html.Th(head, scope="col", className="number")
                            for head in ("window (ms)", *parts, "comm. hidden (%)")
                        ),
                    ]
                )
            ),
            html.Tbody([_row(view, result, several=several) for result in results]),
        ],
        className="breakdown",
    )
    legend = html.Ul(
        [
            html.Li([html.Span(className="swatch", style={"background": color}), name])
            for _, name, color in PARTS
        ],
        className="legend",
    )
    return card(
        title,
        html.Div(table, className="scroll"),
        note=legend,
    )


def _row(view: View, result: BreakdownResult, *, several: bool) -> Component:
    whole, rank = result.whole, view.rank(result.rank)
    timeline = view.address.to(addresses.TIMELINE, rank=(rank.rank,), report=())
    hidden = whole.hidden_fraction
    cells: list[Component] = [
        html.Th(dcc.Link(f"rank {rank.rank}", href=timeline.href()), scope="row"),
        html.Td(device_text(rank.device, rank.gpu), className="name"),
    ]
    if several:
        cells.append(html.Td(view.report_name(rank.report), className="name"))
    cells.append(html.Td(_bar(whole), className="bar-cell"))
    shares = (whole.fraction(measure) for measure, _, _ in PARTS)
    texts = (
        f"{whole.window_ns / 1e6:.3f}",
        *(f"{100 * share:.1f}" for share in shares),
        UNKNOWN if hidden is None else f"{100 * hidden:.1f}",
    )
    return html.Tr([*cells, *(html.Td(text, className="number") for text in texts)])


def _bar(measures: Measures) -> Component:
    """Return the identity as a bar: the parts of the window, each as wide as its share."""
    return html.Div(
        [
            html.Span(
                style={"width": f"{100 * measures.fraction(measure):.4f}%", "background": color},
                title=f"{name}: {duration(getattr(measures, measure))},"
                f" {percent(measures.fraction(measure))}",
            )
            for measure, name, color in PARTS
        ],
        className="bar",
    )


# -- findings -------------------------------------------------------------------------------------


def _findings(view: View) -> Component | None:
    if not view.of(breakdown):
        return None
    groups = by_id(view.findings)
    if not groups:
        return card(
            "Findings",
            nothing(
                "No finding reaches 1 % of the window: less cannot be distinguished from"
                " differences between two runs."
            ),
        )
    severities = [worst_of(group).severity for group in groups]
    counts = ", ".join(
        f"{severities.count(severity)} {severity}"
        for severity in reversed(Severity)
        if severity in severities
    )
    cards = [finding_card(group, view.address, view.clock) for group in groups]
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
