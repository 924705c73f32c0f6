"""Pieces that pages are made of: cards, numbers, links to evidence, and what is not there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dash import dcc, html
from dash.development.base_component import Component

from dashboards import address as addresses
from traceprof.errors import one_line
from traceprof.findings import by_reason
from traceprof.units import duration, ranks_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dashboards.address import Address
    from dashboards.time_axis import Clock
    from traceprof.findings import Evidence, Finding, NotApplicable

    Child = Component | str
    Children = Child | Sequence[Child] | None

UNKNOWN = "–"  # noqa: RUF001  (what tables show where there is no number)

_NUMBER = re.compile(r"\d[\d.,]*")


def page(title: str, lead: Children, *children: Children) -> Component:
    """Return a page: its heading, a sentence that says how to read it, and its cards."""
    return html.Div(
        [
            html.H1(title),
            *([html.P(lead, className="lead")] if lead else []),
            *_flat(children),
        ],
        className="page",
    )


def card(title: str, *children: Children, note: Children = None) -> Component:
    """Return a framed section with a heading, and a note beside it."""
    head = [html.H2(title), html.P(note, className="note")] if note else [html.H2(title)]
    return html.Section([html.Header(head), *_flat(children)], className="card")


def folded(summary: Children, *children: Children, opened: bool = False) -> Component:
    """Return what is shown once its summary is clicked."""
    return html.Details([html.Summary(summary), *_flat(children)], open=opened)


def numbers(*pairs: tuple[str, str, str]) -> Component:
    """Return numbers to be read at a glance: name, value with its unit, what it means."""
    return html.Dl(
        [
            html.Div([html.Dt(name), html.Dd(value), html.Dd(meaning, className="note")])
            for name, value, meaning in pairs
        ],
        className="numbers",
    )


def time_note(address: Address) -> str:
    """Say how the charts of time are zoomed."""
    if address.chosen.has_range:
        return "drag to zoom in, double-click for the whole"
    return "drag to zoom in: all pages show that time"


def nothing(text: str, how: str = "") -> Component:
    """Return what stands where there is nothing to draw: why, and what would supply it."""
    parts: list[Child] = [html.P(text)]
    if how:
        parts.append(html.P(["→ ", html.Code(how)], className="how"))
    return html.Div(parts, className="nothing")


def labelled(component: Component, label: str) -> Component:
    """Return the component with a name for those who do not see it."""
    setattr(component, "aria-label", label)
    return component


def part_id(part: str, name: Any) -> dict[str, Any]:  # noqa: ANN401  (or Dash's MATCH)
    """Return the id of a part of a table: parts of one name belong together."""
    return {"name": name, "part": part}


def missing(not_applicable: Iterable[NotApplicable]) -> list[Component]:
    """Say once what could not be judged in the same way, why, and how to collect it.

    Reasons that differ in their numbers only are those of the first rank.
    """
    alike: dict[tuple[Any, ...], list[NotApplicable]] = {}
    for same in by_reason(not_applicable):
        ids = tuple(dict.fromkeys(gap.id for gap in same))
        reason = _NUMBER.sub("#", same[0].reason)
        alike.setdefault((ids, reason, same[0].how_to_collect), []).extend(same)
    entries = []
    for (ids, *_), group in alike.items():
        ranks = {gap.rank for gap in group if gap.rank is not None}
        where = f" on {ranks_text(ranks)}" if ranks else ""
        differ = len({gap.reason for gap in group}) > 1
        first = f"rank {group[0].rank}: " if differ and group[0].rank is not None else ""
        names: list[Child] = [html.Code(id_) for id_ in ids]
        entries.append(
            html.Li(
                [
                    html.Div([*_joined(names), where], className="subject"),
                    html.P(f"{first}{one_line(group[0].reason)}"),
                    html.P(["→ ", html.Code(group[0].how_to_collect)], className="how"),
                ]
            )
        )
    if not entries:
        return []
    which = ", ".join(dict.fromkeys(id_ for ids, *_ in alike for id_ in ids))
    title: list[Child] = [html.Strong("Could not be analysed"), f": {which}"]
    shown = folded(title, html.Ul(entries, className="missing"))
    return [html.Section(shown, className="card")]


def evidence_address(finding: Finding, index: int, address: Address, clock: Clock) -> Address:
    """Return where on the timeline an interval of a finding's evidence is to be seen.

    The interval takes half of the view, so that one sees what came before and after.
    """
    return interval_address(
        clock.rank(finding.rank).interval(finding.evidence[index]),
        finding.rank,
        address,
        finding=finding.id,
        evidence=index,
    )


def interval_address(
    interval: Evidence,
    rank: int,
    address: Address,
    *,
    finding: str | None = None,
    evidence: int | None = None,
) -> Address:
    """Return where on the timeline an interval of the run is to be seen, with its surroundings."""
    margin = max((interval.end_ns - interval.start_ns) // 2, 500)
    return address.to_place(
        addresses.TIMELINE,
        rank=(rank,),
        start_ns=interval.start_ns - margin,
        end_ns=interval.end_ns + margin,
        finding=finding,
        evidence=evidence,
    )


def evidence_list(entries: Iterable[tuple[Evidence, Address]], clock: Clock) -> Component:
    """Return intervals as links to the timeline: when, how long, what happened."""
    return html.Ol(
        [
            html.Li(
                dcc.Link(
                    [
                        html.Span(
                            [f"at {clock.text(interval.start_ns)}", *_own(interval, where, clock)],
                            className="when",
                        ),
                        html.Span(
                            duration(interval.end_ns - interval.start_ns), className="length"
                        ),
                        html.Span(
                            one_line(interval.label),
                            className="label",
                            title=one_line(interval.label),
                        ),
                    ],
                    href=where.href(),
                )
            )
            for interval, where in entries
        ],
        className="evidence",
    )


def _own(interval: Evidence, where: Address, clock: Clock) -> list[Component]:
    """Write when an interval begins by its report's clock, where that is not the run's."""
    own = f"{clock.rank(where.rank[0]).own(interval.start_ns) / 1e9:.6f} s"
    is_same = own == clock.text(interval.start_ns)
    return [] if is_same else [html.Small(f"{own} in its report")]


def _joined(parts: Sequence[Child]) -> list[Child]:
    return [piece for part in parts for piece in (", ", part)][1:]


def _flat(children: Iterable[Children]) -> list[Child]:
    flat: list[Child] = []
    for child in children:
        if isinstance(child, (str, Component)):
            flat.append(child)
        elif child is not None:
            flat += child
    return flat
