"""Compare: what changed from another recording to this one, how sure that is, and where."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from dash import dcc, html

from dashboards import address as addresses
from dashboards.address import Address, Scope
from dashboards.asking.questions import Asked, questions_about
from dashboards.widgets.components import card, nothing, page
from dashboards.widgets.palette import PARTS
from dashboards.widgets.tables import Column, table
from traceprof.errors import one_line
from traceprof.reports.comparison.sections import sections
from traceprof.reports.kernels_text import kernel_title
from traceprof.units import duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dash.development.base_component import Component

    from dashboards.asking.compare import Compared, StepStrips
    from traceprof.analysis import Analysis
    from traceprof.compare.document import Comparison, Parts
    from traceprof.reports.blocks import Table
    from traceprof.reports.comparison.sections import Section

PATH = addresses.COMPARE
TITLE = "Compare"

_POLL_MS = 700
_MAX_NAME = 200
_ROW, _GAP, _WIDTH = 22, 4, 1000  # of a step that is drawn
_LAST_TICK = 0.96  # of the width, so that its text has room
_DRAWN = {"compute_ns": "compute", "exposed_communication_ns": "communication"} | {
    "exposed_copy_ns": "copy"
}
_KERNELS = (
    Column("before", "kernel before"),
    Column("after", "kernel after"),
    Column("category", "category", None, 100, has_filter=True),
    Column("ns_before", "before (µs)", 1, 90, "in the mean step"),
    Column("ns_after", "after (µs)", 1, 90, "in the mean step"),
    Column("change", "change (µs)", 1, 90),
    Column("sure", "is it sure", None, 100, "adjusted for the number of kernels, at 5 %"),
    Column("rung", "matched by", None, 130),
)


def layout(analysis: Analysis, address: Address) -> Component:
    """Return the page: the comparison as soon as it is there."""
    del address
    lead = (
        "What changed from a recording before to this one: the unit is the step. The whole runs are"
        " compared, whatever ranks and time are chosen."
    )
    questions = questions_about(analysis)
    if questions.compared is None:
        empty = nothing(
            "There is nothing to compare this run with.",
            "traceprof dashboard REPORT... --before OTHER",
        )
        return page(TITLE, lead, card("No other side", empty))
    asked = questions.about(questions.compared)
    return page(
        TITLE,
        lead,
        html.Div(answers(asked), id="compare-answers"),
        dcc.Interval(id="compare-poll", interval=_POLL_MS, disabled=asked.is_over),
    )


def answers(asked: Asked) -> list[Component]:
    """Return the comparison, or that it is being made."""
    if not asked.is_over:
        parts = [html.P("Analysing the other side …"), html.Progress()]
        return [html.Div(parts, className="loading", role="status")]
    if asked.answer is None:
        return [card("No comparison", nothing(one_line(asked.error or "")))]
    compared: Compared = asked.answer
    comparison = compared.comparison
    head, *rest = sections(comparison)
    return [
        _head(head),
        _two_bars(comparison),
        *_two_steps(compared),
        *(_section(section) for section in rest if section.title != "Compute, by kernel"),
        _kernels(comparison, rest),
    ]


def _head(section: Section) -> Component:
    first, *others = section.lines
    lines = [html.P(one_line(line, 500), className="note") for line in others]
    return html.Section(
        [html.P(one_line(first), className="takes"), *lines], className="card headline"
    )


def _section(section: Section) -> Component:
    parts: list[Any] = [html.P(one_line(line, 500)) for line in section.lines]
    if section.table is not None:
        parts.append(_table(section.table))
    parts += [html.P(one_line(line, 500), className="note") for line in section.after]
    return card(section.title, *parts)


def _table(table: Table) -> Component:
    head = html.Tr(
        [
            html.Th(heading, scope="col", className="" if is_left else "number")
            for heading, is_left in zip(table.headings, table.is_left, strict=True)
        ]
    )
    rows = [
        html.Tr(
            [
                html.Td(
                    one_line(cell if isinstance(cell, str) else "", _MAX_NAME),
                    className="" if is_left else "number",
                )
                for cell, is_left in zip(row, table.is_left, strict=True)
            ]
        )
        for row in table.rows
    ]
    return html.Div(html.Table([html.Thead(head), html.Tbody(rows)]), className="scroll")


def _two_bars(comparison: Comparison) -> Component:
    most = max(comparison.mean_before.mean_step_ns, comparison.mean_after.mean_step_ns, 1)
    rows = [
        html.Tr(
            [
                html.Th(name, scope="row"),
                html.Td(_bar(parts, most), className="bar-cell"),
                html.Td(duration(parts.mean_step_ns), className="number"),
            ]
        )
        for name, parts in (("before", comparison.mean_before), ("after", comparison.mean_after))
    ]
    legend = html.Ul(
        [
            html.Li([html.Span(className="swatch", style={"background": color}), name])
            for _, name, color in PARTS
        ],
        className="legend",
    )
    return card("The mean step", html.Table(html.Tbody(rows), className="two-bars"), note=legend)


def _bar(parts: Parts, most_ns: int) -> Component:
    lengths = [(getattr(parts, measure), name, color) for measure, name, color in PARTS]
    return html.Div(
        [
            html.Span(
                style={"width": f"{100 * length / most_ns:.4f}%", "background": color},
                title=f"{name}: {duration(length)}",
            )
            for length, name, color in lengths
        ],
        className="bar",
    )


# -- a step of each side --------------------------------------------------------------------------


def _two_steps(compared: Compared) -> list[Component]:
    sides = [("before", compared.before), ("after", compared.after)]
    known = [(name, side) for name, side in sides if side is not None]
    if not known:
        return []
    most = max(side.length_ns for _, side in known)
    parts: list[Component] = []
    for name, side in known:
        step = "" if side.step is None else f"step {side.step} of "
        title = f"{name}: {step}rank {side.rank}, {duration(side.length_ns)}"
        parts += [html.H4([title, *_timeline_link(name, side)]), drawing(side, most)]
    parts.append(_axis(most))
    if len(known) < len(sides):
        parts.append(html.P("The other side's reports are not here: its steps cannot be drawn."))
    note = "a step in the middle of each, on its own clock, to the same scale: 0 is its beginning"
    return [card("A step of each", *parts, note=note)]


def _timeline_link(name: str, side: StepStrips) -> list[Any]:
    """Return where the step is on the timeline, which shows the run after the change only."""
    if name != "after":
        return []
    start, end = side.start_ns, side.start_ns + side.length_ns
    place = Address(addresses.TIMELINE, rank=(side.rank,), start_ns=start, end_ns=end)
    return [" · ", dcc.Link("on the timeline", href=replace(place, scope=Scope()).href())]


def _axis(most_ns: int) -> Component:
    """Return the times below the pictures of steps, which begin at 0."""
    step = 10 ** int(np.log10(max(most_ns, 1)))
    step = next(wide for wide in (step // 5, step // 2, step, 2 * step) if 8 * wide >= most_ns)
    ticks = range(0, most_ns + 1, max(step, 1))
    labels = [
        html.Span(duration(tick), style={"left": f"{100 * tick / max(most_ns, 1):.3f}%"})
        for tick in ticks
        if tick < _LAST_TICK * most_ns
    ]
    return html.Div([html.Div(className="strip-names"), html.Div(labels)], className="strips axis")


def drawing(side: StepStrips, most_ns: int) -> Component:
    """Return a picture of a step: a row for compute, communication and copies.

    Args:
        side: the step.
        most_ns: the time that is as wide as the picture.
    """
    width = _WIDTH * side.length_ns / max(most_ns, 1)
    colors = {measure: color for measure, _, color in PARTS}
    shapes = [
        f'<rect x="0" y="{row * (_ROW + _GAP)}" width="{width:.2f}" height="{_ROW}"'
        ' fill="#888" fill-opacity="0.12"/>'
        for row in range(len(_DRAWN))
    ]
    for row, measure in enumerate(_DRAWN):
        shares = side.shares[measure]
        piece = width / max(len(shares), 1)
        shapes += [
            f'<rect x="{first * piece:.2f}" y="{row * (_ROW + _GAP)}"'
            f' width="{(stop - first) * piece:.2f}" height="{_ROW}" fill="{colors[measure]}"'
            f' fill-opacity="{level / 8:.3f}"/>'
            for first, stop, level in _runs(shares)
        ]
    height = len(_DRAWN) * (_ROW + _GAP)
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}"'
        f' preserveAspectRatio="none">{"".join(shapes)}</svg>'
    )
    names = html.Div([html.Span(name) for name in _DRAWN.values()], className="strip-names")
    source = f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
    picture = html.Img(src=source, alt="when compute, communication and copies ran", height=height)
    return html.Div([names, picture], className="strips")


def _runs(shares: Sequence[float]) -> list[tuple[int, int, int]]:
    """Return the pieces that are covered alike: first, one past the last, eighths covered."""
    runs: list[tuple[int, int, int]] = []
    for place, share in enumerate(shares):
        level = min(8, -(-int(share * 8000) // 1000))
        if runs and runs[-1][1] == place and runs[-1][2] == level:
            runs[-1] = runs[-1][0], place + 1, level
        elif level:
            runs.append((place, place + 1, level))
    return runs


# -- kernels side by side -------------------------------------------------------------------------


def _kernels(comparison: Comparison, told: Sequence[Section]) -> Component:
    rows = [
        {
            "before": _name(kernel.before),
            "after": _name(kernel.after),
            "category": kernel.category,
            "ns_before": kernel.before_ns / 1e3,
            "ns_after": kernel.after_ns / 1e3,
            "change": kernel.change_ns / 1e3,
            "sure": _sure(kernel.p_adjusted, is_significant=kernel.is_significant),
            "rung": kernel.rung,
        }
        for kernel in comparison.kernels
    ]
    (section,) = (section for section in told if section.title == "Compute, by kernel")
    lines = [html.P(one_line(line, 500), className="note") for line in section.lines[:1]]
    if not rows:
        return card("Kernels side by side", nothing("No kernel ran on either side."))
    shown = table("compare-kernels", _KERNELS, rows, "comparison.csv")
    return card("Kernels side by side", *lines, shown, note="the largest change first")


def _name(name: str | None) -> str:
    return "–" if name is None else one_line(kernel_title(name), _MAX_NAME)  # noqa: RUF001


def _sure(p_adjusted: float | None, *, is_significant: bool) -> str:
    if p_adjusted is None:
        return "not known"
    return "yes" if is_significant else "no"
