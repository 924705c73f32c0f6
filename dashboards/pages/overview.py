"""The overview: the verdict, what each finding brings, slow steps, where the time went."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from dash import dcc, html
from dash.development.base_component import Component

from dashboards import address as addresses
from dashboards.pages import ranks as ranks_page
from dashboards.view import View, device_text
from dashboards.widgets import components as ui
from dashboards.widgets.charts import PARTS
from dashboards.widgets.findings import PART_MEANINGS, findings_card, headline_card
from traceprof.analyses import breakdown
from traceprof.analyses.breakdown import BreakdownResult, Measures
from traceprof.errors import one_line
from traceprof.reports.time_text import outside_the_training, slow_steps_lines
from traceprof.structs import by_key
from traceprof.trace.model.parts import Part
from traceprof.units import duration, percent, ranks_text

PATH = addresses.OVERVIEW
TITLE = "Overview"


def layout(view: View) -> Component:
    """Return the page."""
    results: tuple[BreakdownResult, ...] = view.of(breakdown)
    return ui.page(
        TITLE,
        "",
        headline_card(view),
        findings_card(view),
        _slow_steps(view),
        breakdown_card(view, results),
        ui.missing(view.missing()),
        _notes(view),
    )


def _slow_steps(view: View) -> Component | None:
    lines = [] if view.address.chosen.has_range else slow_steps_lines(view.analysis.result)
    if not lines:
        return None
    link = dcc.Link("on the page of steps", href=view.address.to(addresses.STEPS).href())
    listed = html.Ul([html.Li(line) for line in lines], className="notes")
    return ui.card("Slow steps", listed, note=link)


def _notes(view: View) -> Component | None:
    reports = {rank.report for rank in view.ranks}
    several = len(view.analysis.run.traces) > 1
    notes = [
        html.Li([html.Strong(f"{view.report_name(report)}: ") if several else "", one_line(note)])
        for report, note in view.analysis.notes
        if report in reports or not view.analysis.run.ranks
    ]
    notes += [html.Li(f"left out: {failure.error}") for failure in view.analysis.result.failed]
    return ui.card("About the data", html.Ul(notes, className="notes")) if notes else None


_BREAKDOWN = "Where the time went"
MAX_ROWS = 8
"""Ranks that have a row of their own at once."""
_MAX_OUTLIERS = 3
_MAX_MACHINES = 2  # of many ranks, that are not folded
_MIN_AWAY = 0.02  # of the window, and three times the ranks' middle deviation
_LOST = PARTS[1:]  # which are no compute


class Outlier(NamedTuple):
    """A rank that stands out."""

    rank: int  # its number
    part: str  # the name of the part of its time
    share: float  # of that part in the judged time, 0 to 1
    middle: float  # the median of all ranks


def breakdown_card(view: View, results: Sequence[BreakdownResult]) -> Component:
    """Return the parts of the time of ranks, or why there are none."""
    has_range = view.address.chosen.has_range
    if not results and has_range:
        return ui.card(_BREAKDOWN, ui.nothing("The ranks chosen did nothing in the time chosen."))
    if not results:
        why = "No report holds a GPU operation: there is no time to break down."
        how = view.analysis.run.how_to_collect(Part.GPU_OPERATIONS)
        return ui.card(_BREAKDOWN, ui.nothing(why, how))
    lines = [] if has_range else outside_the_training(results)
    outside = [html.P(line, className="note") for line in lines]
    if len(results) <= MAX_ROWS:
        return ui.card(_BREAKDOWN, _legend(), _scrolled(_table(view, results)), *outside)
    every = dcc.Link(f"All {len(results)} ranks", href=view.address.to(ranks_page.PATH).href())
    return ui.card(
        _BREAKDOWN, _legend(), _machines(view, results), *_outliers(view, results), every, *outside
    )


def outliers(results: Sequence[BreakdownResult]) -> list[Outlier]:
    """Return the ranks with a part of their time far from the median, the farthest first.

    Far is over 2 % of the judged time, and over three times the median distance of the ranks.
    """
    ranks = []
    for measure, name, _ in _LOST:
        shares = [result.judged.fraction(measure) for result in results]
        middle = median(shares)
        away = max(_MIN_AWAY, 3 * 1.4826 * median(abs(share - middle) for share in shares))
        ranks += [
            Outlier(result.rank, name, share, middle)
            for result, share in zip(results, shares, strict=True)
            if abs(share - middle) > away
        ]
    return sorted(ranks, key=lambda outlier: (-abs(outlier.share - outlier.middle), outlier.rank))


def _lost(measures: Measures) -> float:
    return sum(measures.fraction(measure) for measure, *_ in _LOST)


def _legend() -> Component:
    return ui.legend(
        (color, html.Span(name, title=PART_MEANINGS[measure])) for measure, name, color in PARTS
    )


def _scrolled(table: Component) -> Component:
    return html.Div(table, className="scroll")


def _machines(view: View, results: Sequence[BreakdownResult]) -> Component:
    by_machine = by_key(results, lambda result: view.machines[result.rank])
    groups = sorted(
        by_machine.items(), key=lambda item: -median(_lost(result.judged) for result in item[1])
    )
    head = ui.heads("machine", "ranks", "", *(f"{name} (%)" for _, name, _ in PARTS), "worst rank")
    rows = [_machine(view, name, group) for name, group in groups]
    table = html.Table([head, html.Tbody(rows)], className="machines")
    about = "medians over the ranks of each, the one that loses most first"
    if len(results) > ui.MAX_DRAWN and len(groups) > _MAX_MACHINES:
        return ui.folded(f"{len(groups)} machines: {about}", _scrolled(table))
    return html.Div([html.P(f"Machines: {about}.", className="note"), _scrolled(table)])


def _machine(view: View, name: str, results: Sequence[BreakdownResult]) -> Component:
    shares = [median(result.judged.fraction(part) for result in results) for part, *_ in PARTS]
    worst = max(results, key=lambda result: (_lost(result.judged), -result.rank))
    link = dcc.Link(f"rank {worst.rank}", href=view.rank_address(worst.rank).href())
    return ui.row(
        name,
        html.Td(f"{len(results)}: {ranks_text([result.rank for result in results])}"),
        html.Td(_bar(shares), className="bar-cell"),
        *(ui.number(f"{100 * share:.1f}") for share in shares),
        html.Td([link, f", {percent(_lost(worst.judged))} lost"]),
    )


def _outliers(view: View, results: Sequence[BreakdownResult]) -> list[Component]:
    ranks = outliers(results)
    if not ranks:
        return [html.P("No rank stands out: each is near the middle in every part.")]
    entries = [
        html.Li(
            [
                dcc.Link(f"rank {outlier.rank}", href=view.rank_address(outlier.rank).href()),
                f" ({view.machines[outlier.rank]}): {percent(outlier.share)} {outlier.part}",
                f", against {percent(outlier.middle)} in the middle",
            ]
        )
        for outlier in ranks[:_MAX_OUTLIERS]
    ]
    rest = len(ranks) - len(entries)
    if rest > 0:
        entries.append(html.Li(f"{rest} more"))
    return [html.H4("Ranks that stand out"), html.Ul(entries, className="notes")]


def _table(view: View, results: Sequence[BreakdownResult]) -> Component:
    several = len(view.analysis.run.traces) > 1
    kind = breakdown.judged_kind(results)
    head = ui.heads(
        *("rank", "GPU", *(["report"] if several else []), ""),
        *(f"{kind} (ms)", *(f"{name} (%)" for _, name, _ in PARTS), "comm. hidden (%)"),
    )
    rows = [_rank_row(view, result, several=several) for result in results]
    return html.Table([head, html.Tbody(rows)], className="breakdown")


def _rank_row(view: View, result: BreakdownResult, *, several: bool) -> Component:
    judged, rank = result.judged, view.rank(result.rank)
    hidden = judged.hidden_fraction
    link = dcc.Link(f"rank {rank.rank}", href=view.rank_address(rank.rank).href())
    cells = [html.Td(device_text(rank.device, rank.gpu), className="name")]
    if several:
        cells.append(html.Td(view.report_name(rank.report), className="name"))
    shares = [judged.fraction(measure) for measure, *_ in PARTS]
    lengths = [getattr(judged, measure) for measure, *_ in PARTS]
    cells.append(html.Td(_bar(shares, lengths), className="bar-cell"))
    texts = (
        f"{judged.window_ns / 1e6:.3f}",
        *(f"{100 * share:.1f}" for share in shares),
        ui.UNKNOWN if hidden is None else f"{100 * hidden:.1f}",
    )
    return ui.row(link, *cells, *map(ui.number, texts))


def _bar(shares: Sequence[float], lengths_ns: Sequence[int] = ()) -> Component:
    long = [f"{duration(length)}, " for length in lengths_ns] or [""] * len(shares)
    return ui.bar(
        (share, color, f"{name}: {length}{percent(share)}")
        for share, length, (_, name, color) in zip(shares, long, PARTS, strict=True)
    )
