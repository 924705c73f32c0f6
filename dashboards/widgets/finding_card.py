"""A finding as a card: its cost, its evidence on the timeline, its advice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dash import dcc, html

from dashboards.widgets.components import UNKNOWN, evidence_address, evidence_list, folded
from dashboards.widgets.worst import worst_first
from traceprof.errors import one_line
from traceprof.findings import worst_of
from traceprof.reports.findings_text import gain_text, no_cost
from traceprof.units import between, counted, duration, percent, ranks_text, size_text, three_digits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dash.development.base_component import Component

    from dashboards.address import Address
    from dashboards.time_axis import Clock
    from traceprof.findings import Finding, MetricValue, Saving

_MAX_ADVICE = 2  # the most promising; the rest is behind a click
_MAX_EVIDENCE = 3


def finding_card(
    group: Sequence[Finding], address: Address, clock: Clock, judged: str, unit: str = "a step"
) -> Component:
    """Return the card of one finding.

    Args:
        group: the same finding, by rank.
        address: of the page that the card is on.
        clock: of the run.
        judged: the base of its share, such as `training`.
        unit: the base of its saving, such as `a step`.
    """
    worst = worst_of(group)
    severity = str(worst.severity)
    head = html.Header(
        [
            html.Span(severity, className=f"severity {severity}"),
            html.H3(worst.id),
            html.Span(ranks_text([finding.rank for finding in group]), className="note"),
            html.Span(_cost(worst, judged), className="cost"),
        ]
    )
    where = f"rank {worst.rank}: " if len(group) > 1 else ""
    title = html.P(f"{where}{one_line(worst.title)}.", className="title")
    columns = html.Div(
        [
            html.Div([*_evidence(worst, address, clock), *_ranks(group, address, clock, judged)]),
            html.Div([*_advice(_advice_for(group, worst)), _metrics(worst)]),
        ],
        className="columns",
    )
    return html.Article(
        [head, title, *_saving(worst.saving, unit), columns],
        className=f"card finding {severity}",
        id=f"finding-{worst.id}",
    )


def metric_text(name: str, value: MetricValue) -> str:
    """Write a metric with the unit that its name ends with."""
    if value is None:
        return "not known"
    if isinstance(value, str):
        return one_line(value)
    for endings, write in _UNITS.items():
        if name.endswith(endings):
            return write(value)
    return str(value) if isinstance(value, int) else three_digits(value)


def saving_text(saving: Saving | None) -> str:
    """Write what a step would gain without a finding: `1.08 ms`, or `at most 1.4 ms`.

    An interval wider than half the gain is written beside it.
    """
    if saving is None or saving.high_ns is None:
        return UNKNOWN
    if saving.high_ns <= 0:
        return "nothing"
    if not saving.step_ns or not saving.low_ns:
        return f"at most {duration(saving.high_ns)}"
    if 2 * (saving.high_ns - saving.low_ns) > saving.step_ns:
        limits = between(saving.low_ns, saving.high_ns)
        return f"{duration(saving.step_ns)} ({limits})"
    return duration(saving.step_ns)


_UNITS: dict[tuple[str, ...], Callable[[float], str]] = {
    ("_ns",): lambda value: duration(round(value)),
    ("bytes",): lambda value: size_text(int(value)),
    ("gb_per_s",): "{:.2f} GB/s".format,
    ("fraction", "share", "coverage", "utilization", "efficiency"): percent,
}


def _cost(finding: Finding, judged: str) -> str:
    if not finding.impact_ns:
        return no_cost(finding)
    return f"{duration(finding.impact_ns)} · {percent(finding.impact_fraction)} of the {judged}"


def _saving(saving: Saving | None, unit: str) -> list[Component]:
    """Say what would be gained, and how that is known, as the text report does."""
    if saving is None:
        return []
    text = gain_text(saving, unit)
    if saving.high_ns is None:
        text = f"what {unit} gains without it is not known: {one_line(saving.why or '')}"
    return [html.P(f"{text[0].upper()}{text[1:]}.", className="note")] if text else []


def _evidence(finding: Finding, address: Address, clock: Clock) -> list[Component]:
    if not finding.evidence:
        return []
    places = (
        (
            clock.rank(finding.rank).interval(interval),
            evidence_address(finding, index, address, clock),
        )
        for index, interval in enumerate(finding.evidence)
    )
    entries = [*places]
    rest = entries[_MAX_EVIDENCE:]
    more = [folded(f"{len(rest)} more", evidence_list(rest, clock))] if rest else []
    shown = evidence_list(entries[:_MAX_EVIDENCE], clock)
    return [html.H4("Where to see it"), shown, *more]


def _advice_for(group: Sequence[Finding], worst: Finding) -> list[str]:
    """Return each piece of advice once, that for the worst rank first."""
    return list(dict.fromkeys(advice for finding in (worst, *group) for advice in finding.advice))


def _advice(advice: Sequence[str]) -> list[Component]:
    if not advice:
        return []
    shown: list[Component] = [
        html.H4("What to do"),
        html.Ul([html.Li(advice_given) for advice_given in advice[:_MAX_ADVICE]]),
    ]
    rest = advice[_MAX_ADVICE:]
    if rest:
        items = html.Ul([html.Li(advice_given) for advice_given in rest])
        shown.append(folded(f"{len(rest)} more", items))
    return shown


def _ranks(
    group: Sequence[Finding], address: Address, clock: Clock, judged: str
) -> list[Component]:
    if len(group) < 2:
        return []
    rows: list[Component] = []
    split = worst_first(group, lambda finding: finding.impact_ns)
    for finding in split.drawn:
        name = f"rank {finding.rank}"
        if finding.evidence:
            href = evidence_address(finding, 0, address, clock).href()
            linked = dcc.Link(name, href=href, title="its worst interval on the timeline")
        rows.append(
            html.Tr(
                [
                    html.Th(linked if finding.evidence else name, scope="row"),
                    html.Td(f"{finding.impact_ns / 1e6:.3f}", className="number"),
                    html.Td(f"{100 * finding.impact_fraction:.1f}", className="number"),
                    html.Td(one_line(finding.title)),
                ]
            )
        )
    if split.others:
        rows.append(_others(split.others))
    heads = [
        html.Th("rank", scope="col"),
        html.Th("cost (ms)", scope="col", className="number"),
        html.Th(f"of the {judged} (%)", scope="col", className="number"),
        html.Th("what was found", scope="col"),
    ]
    table = html.Table([html.Thead(html.Tr(heads)), html.Tbody(rows)])
    what = "ranks" if len({finding.rank for finding in group}) > 1 else "findings"
    return [folded(f"All {len(group)} {what}", html.Div(table, className="scroll"))]


def _others(group: Sequence[Finding]) -> Component:
    """Return the row of the ranks where a finding costs less."""
    costs = [finding.impact_ns / 1e6 for finding in group]
    shares = [100 * finding.impact_fraction for finding in group]
    return html.Tr(
        [
            html.Th(counted(len(group), "other"), scope="row"),
            html.Td(f"{min(costs):.3f} to {max(costs):.3f}", className="number"),
            html.Td(f"{min(shares):.1f} to {max(shares):.1f}", className="number"),
            html.Td("choose ranks above to see theirs"),
        ]
    )


def _metrics(finding: Finding) -> Component:
    entries = [
        html.Div([html.Dt(name), html.Dd(metric_text(name, value))])
        for name, value in finding.metrics.items()
    ]
    return folded(
        f"Numbers of rank {finding.rank}",
        html.Dl(entries, className="metrics"),
        html.P(
            ["How each is measured: ", html.Code(f"traceprof explain {finding.id}")],
            className="note",
        ),
    )
