"""Ranks: a table with one row each, which can be sorted and saved."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from dash import dcc, html

from dashboards.figures.waits import MAX_APART, wait_matrix
from dashboards.view import MAX_NAME, View, device_text
from dashboards.widgets.components import card, nothing, page
from dashboards.widgets.palette import PARTS
from dashboards.widgets.plots import plots
from dashboards.widgets.tables import IDENTIFIER, Column, table
from dashboards.widgets.worst import MAX_DRAWN, sorted_worst_first, with_table
from traceprof.analyses import breakdown
from traceprof.analyses.steps.step_lengths import step_lengths
from traceprof.errors import one_line
from traceprof.findings import Severity
from traceprof.reports.html import pipeline_svg
from traceprof.reports.pipeline_drawing import pipeline_drawings
from traceprof.trace.model.parts import Part
from traceprof.units import ranks_text

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from dashboards.address import Address
    from traceprof.analyses.breakdown import BreakdownResult
    from traceprof.analysis import Analysis
    from traceprof.run.opening import Rank

PATH = "/ranks"
TITLE = "Ranks"

_TIME = (
    Column("rank", "rank", IDENTIFIER, 60),
    Column("report", "report", None, 150, may_be_cut=True),
    Column("gpu", "GPU", None, 150, may_be_cut=True),
    Column("window", "training (ms)", 3, 90, "what findings are about; all of a chosen time"),
    *(Column(measure, f"{name} (%)", 1, 80) for measure, name, _ in PARTS),
    Column("hidden", "comm. hidden (%)", 1, 80, "the share of communication that compute hides"),
    Column("step", "step (ms)", 3, 90),
    Column("findings", "findings", None, 150, "how many of each severity"),
)
_WORK = (
    Column("rank", "rank", IDENTIFIER, 60),
    Column("machine", "machine", None, 150),
    Column("pid", "process", IDENTIFIER, 80, "the operating system's id"),
    Column("communication", "communication (ms)", 3, 100),
    Column("kernels", "kernels", 0, 80, "compute kernels"),
    Column("communications", "communications", 0, 100, "kernels and peer copies"),
    Column("copies", "copies", 0, 80),
    Column("steps", "steps", 0, 70),
    Column("slowest", "slowest step (ms)", 3, 90),
)
_HIDDEN = tuple(replace(column, is_hidden=True) for column in _WORK[1:])


def layout(analysis: Analysis, address: Address) -> Component:
    """Return the page."""
    view = View(analysis, address)
    lead = "One row for each rank. Click a head to sort; drag its edge to widen a column."
    if not view.ranks:
        empty = nothing(
            "No report holds GPU work: there is no rank to show.",
            view.analysis.run.how_to_collect(Part.GPU_OPERATIONS),
        )
        return page(TITLE, lead, card("Ranks", empty))
    results: dict[int, BreakdownResult] = {result.rank: result for result in view.of(breakdown)}
    kind = breakdown.judged_kind([*results.values()]) if results else "training"
    ranks = sorted_worst_first(view.ranks, lambda rank: _lost(results.get(rank.rank)))
    rows = [_row(view, rank, results.get(rank.rank)) for rank in ranks]
    # What the second table shows is saved with the first.
    columns = [
        replace(
            column,
            head=f"{kind} (ms)" if column.field == "window" else column.head,
            is_hidden=column.field == "report" and len(view.analysis.run.traces) == 1,
        )
        for column in _TIME
    ]
    time = table("ranks", (*columns, *_HIDDEN), rows, "ranks.csv")
    return page(
        TITLE,
        lead,
        card("Where each rank's time went", time),
        card("What each rank did", with_table(table("ranks-work", _WORK, rows), len(rows))),
        *_pipelines(view),
        *_waits(view),
    )


def _lost(result: BreakdownResult | None) -> float:
    """Return the share of a rank's time in which it did not compute."""
    return 0.0 if result is None else 1 - result.judged.fraction("compute_ns")


def _pipelines(view: View) -> list[Component]:
    """Return the drawings of the pipelines that the ranks shown are stages of."""
    figures = [
        html.Figure(
            [
                html.Img(
                    src=f"data:image/svg+xml,{quote(pipeline_svg(drawing))}",
                    alt="the passes and waits of each stage of a pipeline",
                    width="100%",
                ),
                html.Figcaption(drawing.caption, className="note"),
            ]
        )
        for drawing in pipeline_drawings(view.analysis.measured, view.numbers)
    ]
    return [card("Pipeline", figures)] if figures else []


def _waits(view: View) -> list[Component]:
    """Return who waited for whom, where there are several ranks."""
    if len(view.ranks) < 2:
        return []
    title, compared = "Who waited for whom", view.analysis.ranks
    matrix = wait_matrix(compared, view.numbers)
    if matrix is None:
        members = [member for member, number in enumerate(compared.ranks) if number in view.numbers]
        is_unknown = any(compared.are_waits_unknown(member) for member in members)
        why = (
            "The ranks' clocks are not exact enough to show who waited."
            if is_unknown
            else "No rank shown waited for another one in a collective that was recorded on both."
        )
        return [card(title, nothing(why))]
    note = "in collectives, from a rank's arrival to that of the last one"
    charts: list[Component] = [
        plots("waits", matrix, "how long each rank waited for each other one")
    ]
    if len(view.ranks) <= MAX_DRAWN:
        return [card(title, charts, note=note)]
    machines: dict[str, list[int]] = {}
    for rank in view.ranks:
        machines.setdefault(view.machines[rank.rank], []).append(rank.rank)
    if len(machines) <= MAX_APART:
        note += f"; of {len(view.ranks)} ranks those that waited and were waited for most"
        return [card(title, charts, note=note)]
    links = [
        html.Li(
            dcc.Link(
                f"{one_line(machine, MAX_NAME)}: {ranks_text(numbers)}",
                href=view.address.to(PATH, rank=tuple(numbers)).href(),
            )
        )
        for machine, numbers in machines.items()
    ]
    opened = html.Details([html.Summary("Its ranks, of one machine"), html.Ul(links)])
    note += "; by machine; a click on a cell shows the ranks of both"
    if len(machines) > MAX_DRAWN:
        note += f"; of {len(machines)} those that waited and were waited for most"
    return [card(title, charts, opened, note=note)]


def _row(view: View, rank: Rank, result: BreakdownResult | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "rank": rank.rank,
        "report": view.report_name(rank.report),
        "gpu": one_line(device_text(rank.device, rank.gpu)),
        "machine": one_line(view.machines[rank.rank], MAX_NAME),
        "pid": rank.pid,
        "findings": _findings(view, rank.rank),
    }
    if result is None:
        return row
    whole = result.judged
    lengths = step_lengths(result)
    hidden = whole.hidden_fraction
    return row | {
        "window": whole.window_ns / 1e6,
        **{measure: 100 * whole.fraction(measure) for measure, *_ in PARTS},
        "hidden": None if hidden is None else 100 * hidden,
        "communication": whole.communication_ns / 1e6,
        "kernels": whole.num_kernels,
        "communications": whole.num_communication,
        "copies": whole.num_copies,
        "steps": 0 if lengths is None else lengths.num_steps,
        "step": None if lengths is None else lengths.mean_ns / 1e6,
        "slowest": None if lengths is None else lengths.slowest.measures.window_ns / 1e6,
    }


def _findings(view: View, rank: int) -> str:
    severities = [finding.severity for finding in view.analysis.findings if finding.rank == rank]
    counts = (
        f"{severities.count(severity)} {severity}"
        for severity in reversed(Severity)
        if severity in severities
    )
    return ", ".join(counts) or "none"
