"""The main result: the length of a step, what to improve, in order, and the length after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dash import dcc, html

from dashboards.widgets.components import card, nothing
from dashboards.widgets.finding_card import saving_text
from dashboards.widgets.terms import meaning
from traceprof.analyses import breakdown
from traceprof.errors import one_line
from traceprof.findings import by_id, worst_of
from traceprof.reports.headline_text import beyond_gains, limits_text, same_time
from traceprof.reports.time_text import about_steps, where_it_went
from traceprof.run.steps.period_steps import about_periods
from traceprof.units import between, duration, percent, ranks_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dash.development.base_component import Component

    from dashboards.view import View
    from traceprof.analyses.verdict.headline import Headline
    from traceprof.analyses.verdict.savings import Replay
    from traceprof.findings import Finding

_MAX_ROWS = 7  # the rest stands below, as cards
_MAX_ON = 12  # characters of ranks


def headline_card(view: View, what_if: str) -> Component | None:
    """Return the card; None if nothing was measured, or a time is chosen, as it covers all time.

    Args:
        view: the reader's choice; the headline is always of the whole run.
        what_if: the address of the page What if.
    """
    headline = view.analysis.result.headline
    if headline is None or view.address.chosen.has_range:
        return None
    groups = by_id(view.findings)
    return html.Section(
        [
            html.P(_takes(headline), className="takes"),
            html.P(_made_of(headline), className="note"),
            _causes(view, groups) if groups else _no_finding(view),
            _could_take(view, headline, what_if),
        ],
        className="card headline",
    )


def _takes(headline: Headline) -> list[Component | str]:
    result, lengths = headline.breakdown, headline.lengths
    if lengths is None:
        text = f"The {result.judged_kind} takes "
        how = f"on rank {result.rank}; no training step is known"
    else:
        text = "A step takes "
        steps = f"the mean of {lengths.num_steps}" if lengths.num_steps > 1 else result.one_step
        how = f"on rank {result.rank}, the slowest: {steps}"
    return [text, html.Strong(duration(headline.step_ns)), html.Span(f" {how}", className="note")]


def _could_take(view: View, headline: Headline, what_if: str) -> Component:
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
        text = f"{limits_text(view.analysis.findings, headline.step_ns)}."
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
        [
            "It could take ",
            html.Strong(possible),
            span,
            *gains,
            f".{beyond_gains(view.analysis.findings, headline.step_ns, savings.gains)} ",
            source,
            asking,
        ],
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
    text = f"The {result.judged_kind} is {where_it_went(result.judged)}."
    if headline.breakdown.periods:
        text = f"{text} {about_periods(headline.breakdown.periods)}"
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
        html.Tr(
            [
                html.Th(_finding_link(finding.id), scope="row"),
                html.Td(
                    f"{one_line(finding.title)}{same_time(finding, worst[:place])}",
                    className="what",
                ),
                _on(numbers[finding.id]),
                html.Td(_share_bar(finding, most), className="share-cell"),
                html.Td(percent(finding.impact_fraction), className="number"),
                html.Td(saving_text(finding.saving), className="number"),
            ]
        )
        for place, finding in enumerate(worst[:_MAX_ROWS])
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
    """Return the cell of the ranks of a finding; where they take too long, how many they are."""
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
