"""Components of pages: cards, numbers, links to evidence, and notes on what is missing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from dash import dcc, html
from dash.development.base_component import Component

from dashboards import address as addresses
from dashboards.address import Address
from dashboards.view import View
from traceprof.errors import one_line
from traceprof.findings import Evidence, NotApplicable
from traceprof.reports.claims import gaps
from traceprof.units import counted, duration, percent

Child = Component | str
Children = Child | Sequence[Child] | None

_POLL_MS = 700
UNKNOWN = "–"  # noqa: RUF001  (what tables show where there is no number)


def page(title: str, lead: Children, *children: Children) -> Component:
    """Return a page: its heading, a sentence on how to read it, and its cards."""
    return html.Div(
        [html.H1(title), *([html.P(lead, className="lead")] if lead else []), *_flat(children)],
        className="page",
    )


def card(title: str, *children: Children, note: Children = None) -> Component:
    """Return a framed section with a heading, and a note beside it."""
    head = [html.H2(title), html.P(note, className="note")] if note else [html.H2(title)]
    return html.Section([html.Header(head), *_flat(children)], className="card")


def folded(summary: Children, *children: Children, opened: bool = False) -> Component:
    """Return content that is shown after a click on its summary."""
    return html.Details([html.Summary(summary), *_flat(children)], open=opened)


def numbers(*pairs: tuple[str, str, str]) -> Component:
    """Return a row of large numbers: name, value with its unit, meaning."""
    return html.Dl(
        [
            html.Div([html.Dt(name), html.Dd(value), html.Dd(meaning, className="note")])
            for name, value, meaning in pairs
        ],
        className="numbers",
    )


def heads(*texts: Children) -> Component:
    """Return the head of a table; texts that end with a unit in brackets stand over numbers."""
    cells = [
        html.Th(text, scope="col", className="number" if str(text).endswith(")") else "")
        for text in texts
    ]
    return html.Thead(html.Tr(cells))


def row(heading: Children, *cells: Component) -> Component:
    """Return a row of a table with its heading."""
    return html.Tr([html.Th(heading, scope="row"), *cells])


_SIGN = re.compile(r"(?<![\w.-])-(?=\d)")


def minus(text: str) -> str:
    """Write the signs of numbers as axes and sortable tables do."""
    return _SIGN.sub("\N{MINUS SIGN}", text)


def number(text: str) -> Component:
    """Return a cell with a number."""
    return html.Td(minus(text), className="number")


def bar(parts: Iterable[tuple[float, str, str]]) -> Component:
    """Return parts of a whole side by side: the share, colour and title of each."""
    spans = [
        html.Span(style={"width": f"{100 * share:.4f}%", "background": color}, title=title)
        for share, color, title in parts
    ]
    return html.Div(spans, className="bar")


def gain_bar(least: float, most: float, expected: float | None, title: str) -> Component:
    """Return a bar of shares of a step: solid to the least, hatched to the most, and a mark."""
    left, end = (f"{100 * min(part, 1):.2f}%" for part in (least, most))
    parts = [
        html.Span(className="limit", style={"width": end}),
        html.Span(className="proven", style={"width": left}),
    ]
    if expected is not None:
        parts.append(
            html.Span(className="expected", style={"left": f"{100 * min(expected, 1):.2f}%"})
        )
    return html.Span(parts, className="gain", title=title)


def legend(entries: Iterable[tuple[str, Children]]) -> Component:
    """Return what colours stand for."""
    items = [
        html.Li([html.Span(className="swatch", style={"background": color}), *_flat([text])])
        for color, text in entries
    ]
    return html.Ul(items, className="legend")


def time_note(address: Address) -> str:
    """Return a note on how to zoom charts over time."""
    if address.chosen.has_range:
        return "drag to zoom in, double-click for the whole"
    return "drag to zoom in: all pages show that time"


def nothing(text: str, how: str = "") -> Component:
    """Return the text of an empty chart: the reason, and how to collect the data."""
    parts: list[Child] = [html.P(text)]
    if how:
        parts.append(html.P(["→ ", html.Code(how)], className="how"))
    return html.Div(parts, className="nothing")


def shares(parts: Iterable[tuple[str, float, str]]) -> list[Component]:
    """Return parts of a whole, by name, share and colour: a bar, and what its colours stand for."""
    known = [(share, color, f"{name} {percent(share)}") for name, share, color in parts]
    return [bar(known), legend((color, text) for _, color, text in known)]


def waiting(text: str, bar: Component | None = None) -> Component:
    """Return what is shown while an answer is made; the bar says how far it is."""
    bar = html.Progress() if bar is None else bar
    return html.Div([html.P(text), bar], className="loading", role="status")


def answered_later(name: str, shown: Children, is_over: bool) -> list[Component]:
    """Return what is shown until an answer is there, and the timer that asks for it."""
    poll = dcc.Interval(id=f"{name}-poll", interval=_POLL_MS, disabled=is_over)
    return [html.Div(shown, id=f"{name}-answers"), poll]


def labelled(component: Component, label: str) -> Component:
    """Return the component with a name for screen readers."""
    setattr(component, "aria-label", label)
    return component


def part_id(part: str, name: Any) -> dict[str, Any]:  # noqa: ANN401  (or Dash's MATCH)
    """Return the id of a part of a table: parts of one name belong together."""
    return {"name": name, "part": part}


def missing(not_applicable: Iterable[NotApplicable]) -> list[Component]:
    """Return what could not be judged, with reasons and how to collect it, equal ones once."""
    found = gaps([*not_applicable])
    if not found:
        return []
    entries = [
        html.Li(
            [
                html.Div(html.Code(gap.findings), className="subject"),
                html.P(gap.reason.removeprefix(":").strip()),
                html.P(["→ ", html.Code(gap.remedy)], className="how"),
            ]
        )
        for gap in found
    ]
    which = ", ".join(dict.fromkeys(", ".join(gap.findings for gap in found).split(", ")))
    title: list[Child] = [html.Strong("Could not be analysed"), f": {which}"]
    return [html.Section(folded(title, html.Ul(entries, className="missing")), className="card")]


def interval_address(
    view: View, rank: int, own: Evidence, finding: str | None = None, evidence: int | None = None
) -> Address:
    """Return the timeline's address for an interval of a rank's report, perhaps a finding's.

    The interval takes half of what is shown, so that events before and after it are visible.
    """
    interval = view.clock.rank(rank).interval(own)
    margin = max((interval.end_ns - interval.start_ns) // 2, 500)
    return view.address.to_place(
        addresses.TIMELINE,
        rank=(rank,),
        start_ns=interval.start_ns - margin,
        end_ns=interval.end_ns + margin,
        finding=finding,
        evidence=evidence,
    )


def evidence_list(
    view: View, rank: int, intervals: Iterable[Evidence], finding: str | None = None, first: int = 0
) -> Component:
    """Return intervals of a rank's report as links to the timeline: when, how long, what happened.

    Those of a finding are numbered from `first` on.
    """
    entries = []
    for index, own in enumerate(intervals, first):
        where = interval_address(view, rank, own, finding, None if finding is None else index)
        start = view.clock.text(view.clock.rank(rank).at(own.start_ns))
        in_report, label = f"{own.start_ns / 1e9:.6f} s", one_line(own.label)
        when: list[Child] = [f"at {start}"]
        if in_report != start:
            when.append(html.Small(f"{in_report} in its report"))
        parts = [
            html.Span(when, className="when"),
            html.Span(duration(own.end_ns - own.start_ns), className="length"),
            html.Span(label, className="label", title=label),
        ]
        entries.append(html.Li(dcc.Link(parts, href=where.href())))
    return html.Ol(entries, className="evidence")


def _flat(children: Iterable[Children]) -> list[Child]:
    flat: list[Child] = []
    for child in children:
        if isinstance(child, (str, Component)):
            flat.append(child)
        elif child is not None:
            flat += child
    return flat


Item = TypeVar("Item")
Cost = TypeVar("Cost", float, "tuple[float, ...]")

MAX_DRAWN = 16
"""Ranks that are drawn one by one."""


@dataclass(frozen=True)  # Python 3.10 has no generic named tuples
class Split(Generic[Item]):
    """Ranks that are drawn one by one, and the others."""

    drawn: list[Item]  # all ranks in their order; of many, only the worst, the worst first
    others: list[Item]  # those that are drawn together, in their order

    @property
    def rest(self) -> str:
        """The name of those drawn together, such as `48 others`; empty if there are none."""
        return counted(len(self.others), "other") if self.others else ""

    def note(self, subject: str) -> str:
        """Return which ranks are drawn, by a subject such as `the longest steps`."""
        if not self.others:
            return ""
        num = len(self.drawn)
        return f"the {num} ranks with {subject}, and the other {len(self.others)} together"


def worst_first(
    items: Sequence[Item], cost: Callable[[Item], Cost], most: int = MAX_DRAWN
) -> Split[Item]:
    """Split ranks into those to draw one by one, of many the `most` costliest, and the others."""
    if len(items) <= most:
        return Split([*items], [])
    order = sorted(range(len(items)), key=lambda at: cost(items[at]), reverse=True)
    worst = set(order[:most])
    return Split(
        [items[at] for at in order[:most]],
        [item for at, item in enumerate(items) if at not in worst],
    )


def sorted_worst_first(items: Sequence[Item], cost: Callable[[Item], Cost]) -> list[Item]:
    """Return the rows of a table in their order; of many ranks, the worst first."""
    return [*items] if len(items) <= MAX_DRAWN else sorted(items, key=cost, reverse=True)


def with_table(table: Component, num_ranks: int) -> Component:
    """Return the table of ranks below their chart; the table of many ranks is folded."""
    return table if num_ranks <= MAX_DRAWN else folded(f"All {num_ranks} ranks", table)
