"""Compare: what changed from another recording to this one, how sure that is, and where."""

from __future__ import annotations

import json
from typing import Any

from dash import html
from dash.development.base_component import Component

from dashboards import address as addresses
from dashboards.pages.timeline import COLORS
from dashboards.questions import ComparedSides, PendingAnswer, questions_about
from dashboards.timeline.server import AFTER, BEFORE, MAX_CHANGED
from dashboards.view import View, device_text
from dashboards.widgets import components as ui
from dashboards.widgets.charts import PARTS
from dashboards.widgets.tables import Column, record, table
from traceprof.documents.comparison import Comparison, KernelChange, ModuleChange
from traceprof.errors import one_line
from traceprof.kernel_names import kernel_title
from traceprof.reports.blocks import Paragraph, Section, TableBlock
from traceprof.reports.comparison_sections import comparison_sections
from traceprof.units import duration

PATH = addresses.COMPARE
TITLE = "Compare"
ANSWERS = "compare"

_MAX_NAME = 200
_SPLIT = "Where it comes from"
_BY_KERNEL = "Compute, by kernel"
_KERNELS = (
    Column("before", "kernel before"),
    Column("after", "kernel after"),
    Column("category", "category", None, 100, has_filter=True),
    Column("before_ns", "before (µs)", 1, 90, "in the mean step"),
    Column("after_ns", "after (µs)", 1, 90, "in the mean step"),
    Column("change_ns", "change (µs)", 1, 90),
    Column("sure", "is it sure", None, 100, "adjusted for the number of kernels, at 5 %"),
    Column("rung", "matched by", None, 130),
)


def layout(view: View) -> Component:
    """Return the page: the comparison once it is ready."""
    lead = (
        "What changed between an earlier recording and this one, per step. The whole runs are"
        " compared: the choice of ranks and time has no effect."
    )
    if questions_about(view.analysis).compared is None:
        empty = ui.nothing(
            "There is nothing to compare this run with.",
            "traceprof dashboard REPORT... --before OTHER",
        )
        return ui.page(TITLE, lead, ui.card("No other side", empty))
    return ui.page(TITLE, lead, *ui.answered_later(ANSWERS, *answers(view)))


def answers(view: View) -> tuple[list[Component], bool]:
    """Return the comparison once it is ready, and whether there is nothing more to come."""
    question = questions_about(view.analysis).comparison()
    return ([], True) if question is None else (drawn(question), question.is_over)


def drawn(question: PendingAnswer) -> list[Component]:
    """Return the comparison, or a note that it is being made."""
    if not question.is_over:
        return [ui.waiting("Analysing the other side …")]
    if question.answer is None:
        return [ui.card("No comparison", ui.nothing(one_line(question.error or "")))]
    compared: ComparedSides = question.answer
    comparison = compared.comparison
    head, *rest = comparison_sections(comparison)
    by_title = {section.title: section for section in rest}
    split = _section(by_title.pop(_SPLIT), *_two_bars(comparison))
    kernels = by_title.pop(_BY_KERNEL)
    return [
        _head(head),
        html.Div([split, _changed_kernels(kernels)], className="columns compared"),
        *_two_timelines(compared),
        *map(_section, by_title.values()),
        _kernels(comparison, kernels),
    ]


def _head(section: Section) -> Component:
    """Return the verdict, then the candidates for the cause, then the sides."""
    lines = [one_line(block.text, 500) for block in section.blocks if isinstance(block, Paragraph)]
    candidates = [line for line in lines if line.startswith("differs")]
    first, *others = (ui.minus(line) for line in lines if line not in candidates)
    causes = [html.Li(line.removeprefix("differs: ")) for line in candidates]
    listed = [html.P("What differs, and may be the cause:"), html.Ul(causes)] if causes else []
    notes = [html.P(line, className="note") for line in others]
    return html.Section(
        [html.P(html.Strong(first), className="takes"), *listed, *notes], className="card headline"
    )


def _section(section: Section, *above: Component) -> Component:
    parts: list[Any] = [*above]
    is_below = False
    for block in section.blocks:
        if isinstance(block, TableBlock):
            parts.append(_table(block))
            is_below = True
        elif isinstance(block, Paragraph):
            text = ui.minus(one_line(block.text, 500))
            parts.append(html.P(text, className="note") if is_below else html.P(text))
    return ui.card(section.title, *parts)


def _table(table: TableBlock) -> Component:
    classes = ["" if column.is_text else "number" for column in table.columns]
    head = html.Tr(
        [
            html.Th(column.heading, scope="col", className=name)
            for column, name in zip(table.columns, classes, strict=True)
        ]
    )
    rows = [
        html.Tr([_cell(cell, name) for cell, name in zip(row, classes, strict=True)])
        for row in table.rows
    ]
    return html.Div(html.Table([html.Thead(head), html.Tbody(rows)]), className="scroll")


def _cell(cell: object, class_name: str) -> Component:
    text = one_line(cell if isinstance(cell, str) else "", _MAX_NAME)
    if class_name == "number":
        return ui.number(ui.UNKNOWN if text == "-" else text)
    return html.Td(text, title=text)  # which may be cut to the width of the column


def _changed_kernels(section: Section) -> Component:
    """Return the kernels that changed most, without how they were matched."""
    tables = [block for block in section.blocks if isinstance(block, TableBlock)]
    places = [0, 1, 2, 5]  # change, before, after, kernel
    rows = [[row[place] for place in places] for row in tables[0].rows] if tables else []
    columns = [tables[0].columns[place] for place in places] if tables else []
    if not rows:
        return _section(section)
    shown = _table(TableBlock(tuple(columns), tuple(map(tuple, rows[:MAX_CHANGED]))))
    return ui.card("Kernels that changed", shown, note="the largest changes; all stand below")


def _two_bars(comparison: Comparison) -> list[Component]:
    most = max(comparison.mean_before.mean_step_ns, comparison.mean_after.mean_step_ns, 1)
    rows = []
    for name, mean in (("before", comparison.mean_before), ("after", comparison.mean_after)):
        lengths = [(getattr(mean, field), part, color) for field, part, color in PARTS]
        bar = ui.bar((ns / most, color, f"{part}: {duration(ns)}") for ns, part, color in lengths)
        step = ui.number(duration(mean.mean_step_ns))
        rows.append(ui.row(name, html.Td(bar, className="bar-cell"), step))
    legend = ui.legend((color, name) for _, name, color in PARTS)
    return [legend, html.Table(html.Tbody(rows), className="two-bars")]


def _two_timelines(compared: ComparedSides) -> list[Component]:
    """Return a step of each side, one below the other, which `assets/compare` draws."""
    sides = (("before", BEFORE, compared.before), ("after", AFTER, compared.after))
    described: list[dict[str, Any]] = []
    for name, prefix, side in sides:
        if side is not None:
            texts = {rank.rank: device_text(rank.device, rank.gpu) for rank in side.ranks}
            ranks = [{"number": at, "label": f"rank {at} · {text}"} for at, text in texts.items()]
            shown = {"name": name, "path": f"/{prefix}", "rank": side.rank, "step": side.step}
            described.append({**shown, "ranks": ranks})
    if not described:
        return []
    attributes: dict[str, Any] = {
        "data-sides": json.dumps(described),
        "data-colors": json.dumps(COLORS),
    }
    parts: list[Component] = [html.Div(id="compare-timelines", **attributes)]
    if len(described) < len(sides):
        several = "Before: there are several recordings; none of them is drawn."
        is_one = compared.comparison.before.num_captures == 1
        parts.append(html.P("Before: its reports are not here." if is_one else several))
    has_steps = any(side["step"] is not None for side in described)
    title = "A step of each" if has_steps else "Both trainings"
    note = (
        "each on a clock of its own, which is 0 where it begins; both zoom and move together"
        " (wheel, drag; W A S D); below the axis, kernels that surely changed, in red those that"
        " take longer"
    )
    return [ui.card(title, *parts, note=note)]


def _kernels(comparison: Comparison, section: Section) -> Component:
    rows = []
    for kernel in comparison.kernels:
        before, after = _name(kernel.before), _name(kernel.after)
        rows.append(record(_KERNELS, kernel, before=before, after=after, sure=sure(kernel)))
    texts = [block.text for block in section.blocks[:1] if isinstance(block, Paragraph)]
    lines = [html.P(one_line(text, 500), className="note") for text in texts]
    if not rows:
        return ui.card("Kernels side by side", ui.nothing("No kernel ran on either side."))
    shown = table("compare-kernels", _KERNELS, rows, "comparison.csv")
    return ui.card("Kernels side by side", *lines, shown, note="the largest change first")


def _name(name: str | None) -> str:
    return "–" if name is None else one_line(kernel_title(name), _MAX_NAME)  # noqa: RUF001


def sure(change: KernelChange | ModuleChange) -> str:
    """Write whether a change is significant."""
    if change.p_adjusted is None:
        return "not known"
    return "yes" if change.is_significant else "no"
