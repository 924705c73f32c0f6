"""Ranks: a table with one row each, which can be sorted and saved."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import numpy as np
from dash import dcc, html
from dash.development.base_component import Component

from dashboards.view import MAX_NAME, View, device_text
from dashboards.widgets import components as ui
from dashboards.widgets.charts import BLUE, PARTS, plots
from dashboards.widgets.findings import by_severity
from dashboards.widgets.tables import IDENTIFIER, Column, fraction_of, fractions, record, table
from traceprof.analyses import breakdown, rank_work
from traceprof.analyses.breakdown import BreakdownResult
from traceprof.analyses.steps import step_lengths
from traceprof.analysis import Analysis
from traceprof.errors import one_line
from traceprof.intervals import Int64
from traceprof.ranks.comparison import RankComparison
from traceprof.reports.drawings import pipeline_drawings
from traceprof.reports.html import svg
from traceprof.run.opening import Rank
from traceprof.structs import by_key
from traceprof.units import duration, ranks_text

PATH = "/ranks"
TITLE = "Ranks"

_TIME = (
    Column("rank", "rank", IDENTIFIER, 60),
    Column("report", "report", None, 150, may_be_cut=True),
    Column("gpu", "GPU", None, 150, may_be_cut=True),
    Column("window_ns", "training (ms)", 3, 90, "what findings are about; all of a chosen time"),
    *(Column(fraction_of(measure), f"{name} (%)", 1, 80) for measure, name, _ in PARTS),
    Column("hidden_fraction", "comm. hidden (%)", 1, 80, "by compute"),
    Column("step_ns", "step (ms)", 3, 90),
    Column("findings", "findings", None, 150, "how many of each severity"),
)
_WORK = (
    Column("rank", "rank", IDENTIFIER, 60),
    Column("machine", "machine", None, 150),
    Column("pid", "process", IDENTIFIER, 80, "the operating system's id"),
    Column("communication_ns", "communication (ms)", 3, 100),
    Column("num_kernels", "kernels", 0, 80, "compute kernels"),
    Column("num_communication", "communications", 0, 100, "kernels and peer copies"),
    Column("num_copies", "copies", 0, 80),
    Column("num_steps", "steps", 0, 70),
    Column("slowest_ns", "slowest step (ms)", 3, 90),
)
_AGAINST = (
    Column("rank", "rank", IDENTIFIER, 60),
    Column("stage", "stage", None, 60, "of the pipeline"),
    Column("work_ns", "compute of a step (ms)", 3, 90, "all its kernels added, in the mean step"),
    Column("excess_ns", "beyond its peers (ms)", 3, 90, "of that, more than their median"),
    Column("noise_ns", "noise (ms)", 3, 80, "how much peers differ by themselves"),
    Column("share_last", "came last (%)", 1, 80, "of the operations that ranks wait in"),
    Column("late_ns", "late by (ms)", 3, 80, "median, where it came last"),
    Column("made_ns", "made wait (ms)", 3, 90, "in all"),
)
_HIDDEN = tuple(replace(column, is_hidden=True) for column in (*_AGAINST[1:], *_WORK[1:]))


def layout(view: View) -> Component:
    """Return the page."""
    results: dict[int, BreakdownResult] = {result.rank: result for result in view.of(breakdown)}
    kind = breakdown.judged_kind([*results.values()]) if results else "training"
    computed = {number: row.judged.fraction("compute_ns") for number, row in results.items()}
    ranks = ui.sorted_worst_first(view.ranks, lambda rank: 1 - computed.get(rank.rank, 1))
    others = _against_others(view.analysis)
    rows = [_row(view, rank, results.get(rank.rank)) | others.get(rank.rank, {}) for rank in ranks]
    # What the second table shows is saved with the first.
    columns = [
        replace(
            column,
            head=f"{kind} (ms)" if column.field == "window_ns" else column.head,
            is_hidden=column.field == "report" and len(view.analysis.run.traces) == 1,
        )
        for column in _TIME
    ]
    time = table("ranks", (*columns, *_HIDDEN), rows, "ranks.csv")
    against = ui.with_table(table("ranks-against", _AGAINST, rows), len(rows))
    against = ui.card("Against the other ranks", against, note="of the whole run")
    return ui.page(
        TITLE,
        "",
        ui.card("Where each rank's time went", time),
        against if others else None,
        ui.card("What each rank did", ui.with_table(table("ranks-work", _WORK, rows), len(rows))),
        *_pipelines(view),
        *_waits(view),
    )


def _pipelines(view: View) -> list[Component]:
    figures: list[Component] = []
    alt = "the passes and waits of each stage of a pipeline"
    for drawing in pipeline_drawings(view.analysis.measured, view.numbers):
        source = f"data:image/svg+xml,{quote(svg(drawing))}"
        caption = html.Figcaption(drawing.caption, className="note")
        figures.append(html.Figure([html.Img(src=source, alt=alt, width="100%"), caption]))
    return [ui.card("Pipeline", figures)] if figures else []


def _waits(view: View) -> list[Component]:
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
        return [ui.card(title, ui.nothing(why))]
    note, links = "in collectives, from a rank's arrival to that of the last one", []
    machines = by_key(view.machines, view.machines.__getitem__)
    drawn = f"{len(view.ranks)} ranks"
    if len(view.ranks) > ui.MAX_DRAWN and len(machines) > MAX_APART:
        note += "; by machine; a click on a cell shows the ranks of both"
        drawn = str(len(machines))
        for machine, numbers in machines.items():
            name = f"{one_line(machine, MAX_NAME)}: {ranks_text(numbers)}"
            href = view.address.to(PATH, rank=tuple(numbers)).href()
            links.append(html.Li(dcc.Link(name, href=href)))
    if (len(links) or len(view.ranks)) > ui.MAX_DRAWN:
        note += f"; of {drawn} those that waited and were waited for most"
    chart = plots("waits", matrix, "how long each rank waited for each other one")
    by_machine = ui.folded("Its ranks, of one machine", html.Ul(links)) if links else None
    return [ui.card(title, chart, by_machine, note=note)]


def _row(view: View, rank: Rank, result: BreakdownResult | None) -> dict[str, Any]:
    findings = by_severity(one for one in view.analysis.findings if one.rank == rank.rank)
    row: dict[str, Any] = {
        "rank": rank.rank,
        "report": view.report_name(rank.report),
        "gpu": one_line(device_text(rank.device, rank.gpu)),
        "machine": one_line(view.machines[rank.rank], MAX_NAME),
        "pid": rank.pid,
        "findings": findings or "none",
    }
    if result is None:
        return row
    lengths = step_lengths(result)
    return record(
        (*_TIME, *_WORK),
        result.judged,
        **row,
        **fractions(result.judged),
        num_steps=0 if lengths is None else lengths.num_steps,
        step_ns=None if lengths is None else lengths.mean_ns,
        slowest_ns=None if lengths is None else lengths.slowest.measures.window_ns,
    )


def _against_others(analysis: Analysis) -> dict[int, dict[str, Any]]:
    """Return what ranks compute beyond their peers, and how often they came last: by number.

    Always of the whole run, as the report says it.
    """
    compared = analysis.ranks
    rows: dict[int, dict[str, Any]] = {
        own.rank: {
            "work_ns": own.compute_ns,
            "excess_ns": own.excess_ns,
            "noise_ns": own.noise_ns,
            "stage": None if own.stage is None else str(own.stage),
        }
        for own in rank_work.run(analysis.measured).ranks
        if own.excess_ns is not None
    }
    for late in compared.lateness:
        late_ns = late.late_ns if late.num_last else None
        row = rows.setdefault(compared.ranks[late.member], {})
        row |= {"share_last": late.share_last, "late_ns": late_ns}
    made_ns = compared.matrix_ns.sum(axis=0).tolist()
    for member, number in enumerate(compared.ranks):
        if len(made_ns) > 1 and not compared.are_waits_unknown(member):
            rows.setdefault(number, {})["made_ns"] = made_ns[member]
    return rows


MAX_APART = 2
"""Machines whose many ranks are drawn by themselves, as the two of a cell are once it is opened."""
_MAX_TITLE = 24  # characters of a machine beside the matrix
_Name = dict[str, Any]  # of a row or column: title, name, and of a machine the ranks


def wait_matrix(comparison: RankComparison, shown: Collection[int]) -> dict[str, Any] | None:
    """Return the time that each rank waited in collectives for each other; None if none did.

    Ranks that neither waited nor were waited for are left out. Many ranks of over two machines
    are drawn by machine. Of many machines, or many ranks of two, those that waited and were
    waited for most are drawn.
    """
    order = sorted(
        (number, member) for member, number in enumerate(comparison.ranks) if number in shown
    )
    members = [member for _, member in order]
    waited = comparison.matrix_ns[np.ix_(members, members)]
    if not waited.any():
        return None
    names: list[_Name] = [
        {
            "title": f"rank {number}",
            "name": f"rank {number} ({one_line(comparison.machines[member], MAX_NAME)})",
        }
        for number, member in order
    ]
    machine_of, machines = _by_machine(comparison, order)
    if len(order) > ui.MAX_DRAWN and len(machines) > MAX_APART:
        names = machines
        by_rank, waited = waited, np.zeros((len(machines), len(machines)), np.int64)
        np.add.at(waited, np.ix_(machine_of, machine_of), by_rank)
    # Those that waited most, and those that were waited for most.
    rows, columns = (
        sorted(at for at in np.argsort(-sums, kind="stable")[: ui.MAX_DRAWN].tolist() if sums[at])
        for sums in (waited.sum(axis=1), waited.sum(axis=0))
    )
    waited = waited[np.ix_(rows, columns)]
    return {
        "kind": "matrix",
        "axis": "the rank that came last",
        "side": "the rank that waited",
        "color": BLUE,
        "high": float(waited.max()) / 1e6,
        "between": "waited for",
        "columns": [names[at] for at in columns],
        "rows": [
            names[at]
            | {
                "values": [waited_ns / 1e6 if waited_ns else None for waited_ns in of_rank],
                "texts": [duration(waited_ns) if waited_ns else None for waited_ns in of_rank],
                "notes": None,
            }
            for at, of_rank in zip(rows, waited.tolist(), strict=True)
        ],
    }


def _by_machine(
    comparison: RankComparison, order: Sequence[tuple[int, int]]
) -> tuple[Int64, list[_Name]]:
    """Return the number of the machine of each rank, and the names of the machines."""
    machines = [comparison.machines[member] for _, member in order]
    distinct = list(dict.fromkeys(machines))
    titles = []
    for machine in distinct:
        of_machine = [rank for rank, member in order if comparison.machines[member] == machine]
        name = f"{one_line(machine, MAX_NAME)} ({ranks_text(of_machine)})"
        title = one_line(machine, _MAX_TITLE)
        titles.append({"title": title, "name": name, "ranks": of_machine})
    return np.array([distinct.index(machine) for machine in machines]), titles
