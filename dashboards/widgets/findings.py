"""What the analysis claims: a step's length, what to act on first, each finding as a card."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from dash import dcc, html

from dashboards.widgets.components import (
    UNKNOWN,
    card,
    evidence_address,
    evidence_list,
    folded,
    heads,
    nothing,
    number,
    row,
    worst_first,
)
from traceprof.analyses import breakdown
from traceprof.analyses.explanations.page import explanation
from traceprof.analyses.verdict.three_lines import three_lines
from traceprof.errors import one_line
from traceprof.findings import by_id, worst_of
from traceprof.reports.claims import gain_text, no_cost
from traceprof.reports.time_text import about_steps, judged_share, where_it_went
from traceprof.run.period_steps import about_periods
from traceprof.units import between, counted, duration, percent, ranks_text, size_text, three_digits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dash.development.base_component import Component

    from dashboards.address import Address
    from dashboards.clock import Clock
    from dashboards.view import View
    from traceprof.analyses.verdict.headline import Headline
    from traceprof.analyses.verdict.savings import Replay
    from traceprof.findings import Finding, MetricValue, Saving

PART_MEANINGS = {
    "compute_ns": "a kernel ran that does not communicate",
    "exposed_communication_ns": "communication ran, and no compute beside it",
    "exposed_copy_ns": "a copy ran, and neither compute nor communication beside it",
    "idle_ns": "nothing ran",
}
"""By the field of `Measures`: what the GPU did in that part of the time."""


@cache
def meaning(finding: str) -> str:
    """Return the claim of a finding: the first paragraph of its page, as plain text."""
    paragraph = explanation(finding).split("\n\n")[1]
    return " ".join(paragraph.split()).replace("`", "").replace("**", "")


_MAX_ADVICE = 2  # the most promising; the rest is behind a click
_MAX_EVIDENCE = 3


def finding_card(
    group: Sequence[Finding], address: Address, clock: Clock, judged: str, unit: str = "a step"
) -> Component:
    """Return the card of one finding on all its ranks.

    `judged` is what its share is of, such as `training`; `unit` gains its saving, as `a step`.
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
            row(
                linked if finding.evidence else name,
                number(f"{finding.impact_ns / 1e6:.3f}"),
                number(f"{100 * finding.impact_fraction:.1f}"),
                html.Td(one_line(finding.title)),
            )
        )
    if split.others:
        rows.append(_others(split.others))
    head = heads("rank", "cost (ms)", f"of the {judged} (%)", "what was found")
    table = html.Table([head, html.Tbody(rows)])
    what = "ranks" if len({finding.rank for finding in group}) > 1 else "findings"
    return [folded(f"All {len(group)} {what}", html.Div(table, className="scroll"))]


def _others(group: Sequence[Finding]) -> Component:
    costs = [finding.impact_ns / 1e6 for finding in group]
    shares = [100 * finding.impact_fraction for finding in group]
    return row(
        counted(len(group), "other"),
        number(f"{min(costs):.3f} to {max(costs):.3f}"),
        number(f"{min(shares):.1f} to {max(shares):.1f}"),
        html.Td("choose ranks above to see theirs"),
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


_MAX_ROWS = 7  # the rest stands below, as cards
_MAX_ON = 12  # characters of ranks


def headline_card(view: View, what_if: str) -> Component | None:
    """Return the main result, always of the whole run; None while a time range is chosen."""
    headline = view.analysis.result.headline
    if headline is None or view.address.chosen.has_range:
        return None
    groups = by_id(view.findings)
    return html.Section(
        [
            *(html.P(line, className="verdict") for line in _verdict_lines(view)),
            html.P(_takes(headline), className="takes"),
            html.P(_made_of(headline), className="note"),
            _causes(view, groups) if groups else _no_finding(view),
            _could_take(headline, what_if),
        ],
        className="card headline",
    )


def _verdict_lines(view: View) -> tuple[str, ...]:
    verdict = three_lines(view.analysis.result)
    return () if verdict is None else verdict.lines


def _takes(headline: Headline) -> list[Component | str]:
    result, lengths = headline.breakdown, headline.lengths
    if lengths is None:
        text = f"The {result.judged_kind} takes "
        how = f"on rank {result.rank}; no step is known"
    else:
        one = result.unit.unit.one
        text = f"{one[0].upper()}{one[1:]} takes "
        steps = f"the mean of {lengths.num_steps}" if lengths.num_steps > 1 else result.one_step
        how = f"on rank {result.rank}, the slowest: {steps}"
    return [text, html.Strong(duration(headline.step_ns)), html.Span(f" {how}", className="note")]


def _could_take(headline: Headline, what_if: str) -> Component:
    """Say what a step could take, and which savings lead there: nothing counts twice."""
    asking = dcc.Link("Ask what if …", href=what_if)
    savings, replay = headline.savings, headline.savings.replay
    if replay is None:
        text = "What it could take is not known: no finding here can be taken out of a replay. "
        return html.P([text, asking], className="could-take")
    if savings.possible_step_ns is None:
        why = one_line(replay.refused or "it could not be replayed")
        parts: list[Component | str] = [f"What it could take is unknown: {why}. "]
        if replay.how_to_collect:
            parts.append(html.Code(f"→ {one_line(replay.how_to_collect)}"))
        return html.P(parts, className="could-take")
    source = html.Span(f" {_source(replay)} ", className="note")
    if not savings.gains:
        text = "A replay proves no gain of 1 % or more."
        return html.P([text, source, asking], className="could-take")
    possible = duration(savings.possible_step_ns)
    limits = between(savings.possible_low_ns or 0, savings.possible_high_ns or 0)
    span = "" if limits == possible else f" ({limits})"
    gains: list[Component | str] = []
    for place, gain in enumerate(savings.gains):
        gains += [
            ", then " if place else ": ",
            html.Strong(f"−{duration(gain.gain_ns)}"),
            " without ",
            _finding_link(gain.finding),
        ]
    return html.P(
        ["It could take ", html.Strong(possible), span, *gains, ". ", source, asking],
        className="could-take",
    )


def _source(replay: Replay) -> str:
    misfit = replay.misfit
    steps = "all of it" if replay.num_steps == 1 else f"{replay.num_steps} steps"
    off = "" if misfit is None else f", which misses what was measured by {percent(misfit)}"
    return f"By a replay of {steps}{off}."


def _finding_link(id_: str) -> Component:
    return html.A(id_, href=f"#finding-{id_}", title=meaning(id_))


def _made_of(headline: Headline) -> str:
    result = headline.breakdown
    text = f"The {result.judged_kind} is {where_it_went(result.judged)}.{judged_share(headline)}"
    if headline.breakdown.periods:
        text = f"{text} {about_periods(headline.breakdown.periods, headline.breakdown.unit.layers)}"
    if headline.lengths is not None:
        text = " ".join((text, *about_steps(headline.breakdown, headline.lengths)))
    return text


def _no_finding(view: View) -> Component:
    judged = breakdown.judged_kind(view.analysis.of(breakdown))
    return nothing(
        f"No finding reaches 1 % of the {judged}: less cannot be distinguished from"
        " differences between two runs."
    )


def _causes(view: View, groups: Sequence[Sequence[Finding]]) -> Component:
    judged = breakdown.judged_kind(view.analysis.of(breakdown))
    worst = [*map(worst_of, groups)]
    numbers = {group[0].id: [finding.rank for finding in group] for group in groups}
    most = max(finding.impact_fraction for finding in worst) or 1.0
    rows = [
        row(
            _finding_link(finding.id),
            html.Td(one_line(finding.title), className="what"),
            _on(numbers[finding.id]),
            html.Td(_share_bar(finding, most), className="share-cell"),
            number(percent(finding.impact_fraction)),
            number(saving_text(finding.saving)),
        )
        for finding in worst[:_MAX_ROWS]
    ]
    heads = [
        html.Th("What to act on first", scope="col"),
        html.Th("what was found, on the rank where it costs most", scope="col"),
        html.Th("on", scope="col"),
        html.Th(f"of the {judged}", scope="col", colSpan=2, className="number"),
        html.Th(f"{view.unit} gains without it", scope="col", className="number"),
    ]
    table = html.Table([html.Thead(html.Tr(heads)), html.Tbody(rows)], className="causes")
    rest = len(worst) - _MAX_ROWS
    more = html.P(f"{rest} more below", className="note") if rest > 0 else None
    return html.Div([table, *([more] if more is not None else [])])


def _on(ranks: Sequence[int]) -> Component:
    """Return the cell of a finding's ranks; where their list is long, how many they are."""
    text = ranks_text(ranks)
    if len(text) <= _MAX_ON:
        return html.Td(text, className="name")
    return html.Td(f"{len(ranks)} ranks", className="name", title=text)


def _share_bar(finding: Finding, most: float) -> Component:
    width = 100 * finding.impact_fraction / most
    bar = html.Span(className=f"share {finding.severity}", style={"width": f"{width:.2f}%"})
    return html.Div(bar, title=f"{duration(finding.impact_ns)}, severity {finding.severity}")


def attribution_card(view: View) -> Component | None:
    """Return the attribution of each part of the time without compute; None without large parts."""
    if view.address.chosen.has_range:
        return None
    by_part: dict[tuple[str, str | None], list[tuple[float, int, str | None]]] = {}
    for owner in view.analysis.result.attributions:
        if owner.rank in view.numbers:
            key = (owner.part, owner.finding)
            by_part.setdefault(key, []).append((owner.fraction, owner.rank, owner.sentence))
    if not by_part:
        return None
    judged = breakdown.judged_kind(view.analysis.of(breakdown))
    entries = []
    order = {group[0].id: place for place, group in enumerate(by_id(view.findings))}
    for (part, finding), ranks in sorted(
        by_part.items(),
        key=lambda item: (order.get(item[0][1] or "", len(order)), -max(item[1])[0]),
    ):
        fraction, number, sentence = max(ranks, key=lambda rank: rank[0])
        where = f" at most, on rank {number}" if len(ranks) > 1 else f" on rank {number}"
        why = (
            [_finding_link(finding), " says why"]
            if finding is not None
            else [one_line(sentence or "")]
        )
        entries.append(html.Li([html.Strong(f"{percent(fraction)} {part}"), f"{where}: ", *why]))
    return card(
        f"Who owns what the {judged} loses", html.Ul(entries, className="notes"), note=_OWNED
    )


_OWNED = "each part from 3 % on"
