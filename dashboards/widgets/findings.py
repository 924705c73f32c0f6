"""What the analysis claims: the verdict, and each finding as a bar of what a step gains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache

from dash import dcc, html
from dash.development.base_component import Component

from dashboards.address import WHAT_IF
from dashboards.view import View
from dashboards.widgets import charts
from dashboards.widgets import components as ui
from traceprof.analyses import breakdown
from traceprof.analyses.explanations import explanation
from traceprof.analyses.verdict.headline import Headline, symptoms
from traceprof.analyses.verdict.phases import name_of_phase
from traceprof.analyses.verdict.savings import Replay
from traceprof.analyses.verdict.three_lines import ThreeLines, small_fixes, three_lines
from traceprof.analyses.verdict.yields import MIN_CHANGES, expected_ns, usual_yield
from traceprof.errors import one_line
from traceprof.findings import Finding, MetricValue, Saving, Severity, by_id, share, worst_of
from traceprof.reports.claims import gain_cell, gain_text, no_cost, quoted, unowned
from traceprof.reports.time_text import about_steps, judged_share
from traceprof.run.periods import about_periods
from traceprof.structs import by_key
from traceprof.units import between, counted, duration, percent, ranks_text, size_text, three_digits

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


DRAWING, DRAWING_WIDTH = "/drawing", 700
"""The path of pictures of evidence, before the number of the finding, and how wide they are."""
_DRAWN = (
    (charts.COMPUTE, "compute"),
    (charts.COMMUNICATION, "communication"),
    (charts.COPY, "copy"),
    (charts.HOST, "CUDA call"),
    (charts.NVTX, "range"),
)
_MAX_RANKS = 40  # letters that name the ranks of a finding
_MAX_ADVICE = 2  # the most promising; the rest is behind a click


def findings_card(view: View) -> Component | None:
    """Return the findings in the order of the report, as bars of gain that unfold; None without."""
    groups = by_id(view.findings)
    headline = view.analysis.result.headline
    if not groups or headline is None:
        return None
    counts = by_severity(map(worst_of, groups))
    bars = html.Span(
        [
            f"bars: {view.unit}, {duration(headline.step_ns)}; ",
            ui.gain_bar(0.7, 1, None, "solid"),
            " proven by a replay, ",
            ui.gain_bar(0, 1, None, "hatched"),
            " at most, ",
            ui.gain_bar(0, 0, 0.5, "mark"),
            " expected (where few such changes were measured, others count, too)",
        ],
        className="note",
    )
    causes = symptoms({group[0].id: group for group in groups}, headline.step_ns)
    cause_of = {symptom: cause for cause, symptom in reversed(causes.items())}
    cards = [
        finding_card(group, view, cause_of.get(group[0].id), opened=place == 0)
        for place, group in enumerate(groups)
    ]
    header = html.Header([html.H2("Findings"), html.P(counts, className="note"), bars])
    small = small_fixes(view.findings)
    notes = [small] if small is not None else []
    notes += [] if view.address.chosen.has_range else _unowned(view)
    lines = [html.P(line, className="note") for line in notes]
    return html.Section([header, *cards, *lines], className="card findings")


def by_severity(findings: Iterable[Finding]) -> str:
    """Return how many findings there are of each severity: `2 high, 1 low`."""
    severities = [finding.severity for finding in findings]
    counts = {severity: severities.count(severity) for severity in reversed(Severity)}
    return ", ".join(f"{count} {severity}" for severity, count in counts.items() if count)


def _unowned(view: View) -> list[str]:
    """Say of each large part of the time that no finding is about what it was."""
    judged = breakdown.judged_kind(view.analysis.of(breakdown))
    parts = view.analysis.result.verdict.attributions
    shown = (part for part in parts if part.rank in view.numbers and part.finding is None)
    of_parts = by_key(shown, lambda part: part.part).values()
    worst = [max(of_part, key=lambda part: part.fraction) for of_part in of_parts]
    return [one_line(unowned(part, judged)) for part in worst]


def finding_card(
    group: Sequence[Finding], view: View, cause: str | None = None, *, opened: bool = False
) -> Component:
    """Return one finding on all its ranks: what a step gains without it; the rest unfolds.

    `cause` is the finding that explains it.
    """
    worst = worst_of(group)
    judged = str(breakdown.judged_kind(view.analysis.of(breakdown)))
    severity = str(worst.severity)
    where = f"rank {worst.rank}: " if len(group) > 1 else ""
    numbers = {finding.rank for finding in group}
    ranks = ranks_text(numbers)
    brief = ranks if len(ranks) < _MAX_RANKS else f"{len(numbers)} of {len(view.ranks)} ranks"
    name = [
        html.H3(worst.id, title=meaning(worst.id)),
        html.Span(brief, className="note", title=ranks),
    ]
    if cause is not None:
        name.append(html.Span(f"because of {cause}", className="note"))
    head = html.Summary(
        [
            html.Span(severity, className=f"severity {severity}"),
            html.Div(name),
            html.P(f"{where}{one_line(worst.title)}.", className="title"),
            *_gain(worst, view),
        ]
    )
    # Each piece once, that for the worst rank first.
    advice = list(dict.fromkeys(text for finding in (worst, *group) for text in finding.advice))
    columns = html.Div(
        [
            html.Div(
                [
                    *_drawing(worst, view, opened=opened),
                    *_evidence(worst, view),
                    *_ranks(group, view, judged),
                ]
            ),
            html.Div([*_advice(advice), _metrics(worst)]),
        ],
        className="columns",
    )
    cost = f"{duration(worst.impact_ns)} · {percent(worst.impact_fraction)} of the {judged}"
    costs = html.Span(cost if worst.impact_ns else no_cost(worst), className="cost")
    about = html.P([costs, *_saving(*quoted(worst, view.unit))], className="note")
    return html.Details(
        [head, about, columns],
        className=f"finding {severity}" + " symptom" * (cause is not None),
        id=f"finding-{worst.id}",
        open=opened,
    )


def _drawing(finding: Finding, view: View, *, opened: bool) -> list[Component]:
    """Return the picture of the first evidence; assets/navigation.js fetches it once unfolded."""
    findings = enumerate(view.analysis.findings)
    number = next((at for at, found in findings if found is finding), None)
    if number is None or not finding.evidence:
        return []
    picture = html.Img(alt=f"what ran around {one_line(finding.evidence[0].label)}")
    setattr(picture, "src" if opened else "data-src", f"{DRAWING}/{number}")
    link = dcc.Link(picture, href=_first_evidence(finding, view), title="on the timeline")
    return [html.Figure([link, ui.legend(_DRAWN)])]


def _first_evidence(finding: Finding, view: View) -> str:
    return ui.interval_address(view, finding.rank, finding.evidence[0], finding.id, 0).href()


def _gain(finding: Finding, view: View) -> list[Component]:
    """Return what a step gains without a finding: a bar on the scale of a step, and its text."""
    headline, (saving, _) = view.analysis.result.headline, quoted(finding, view.unit)
    assert headline is not None  # noqa: S101  (there is one where something was found)
    step_ns = headline.step_ns
    least_ns = (saving.low_ns or 0) if saving is not None and saving.step_ns is not None else 0
    most_ns = finding.most_ns or 0
    about_ns = expected_ns(finding, step_ns) if most_ns or saving is None else 0
    about, known = share(about_ns, step_ns), usual_yield(finding)
    if least_ns:
        why = "the replay's estimate"
    elif known is None or known.num_changes < MIN_CHANGES:
        why = "few such changes were measured, so that those of other kinds count, too"
    else:
        why = f"the share of such limits that {counted(known.num_changes, 'change')} brought"
    title = f"{view.unit} is expected to gain {duration(about_ns)}, {percent(about)}: {why}"
    least, most = share(least_ns, step_ns), share(most_ns, step_ns)
    bar = ui.gain_bar(least, most, about or None, title)
    gained_ns = saving.step_ns if least_ns and saving is not None else most_ns
    of_step = f" {percent(share(gained_ns or 0, step_ns))}" if gained_ns else ""
    gained = saving_text(saving)
    if finding.elsewhere is not None:
        of_step = "" if gained == ui.UNKNOWN else f" of {duration(finding.elsewhere.step_ns)}"
        of_step += f", {name_of_phase(finding)}"
    text = [html.Strong(gained), html.Span(of_step, className="note")]
    return [bar, html.Div(text, className="number")]


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
    """Write what a step would gain without a finding, and an interval wider than half of it."""
    if saving is None or saving.high_ns is None:
        return ui.UNKNOWN
    step_ns, low_ns, high_ns = saving.step_ns, saving.low_ns, saving.high_ns
    is_wide = step_ns and low_ns and 2 * (high_ns - low_ns) > step_ns
    return gain_cell(saving) + (f" ({between(low_ns or 0, high_ns)})" if is_wide else "")


_UNITS: dict[tuple[str, ...], Callable[[float], str]] = {
    ("_ns",): lambda value: duration(round(value)),
    ("bytes",): lambda value: size_text(int(value)),
    ("gb_per_s",): "{:.2f} GB/s".format,
    ("fraction", "share", "coverage", "utilization", "efficiency"): percent,
}


def _saving(saving: Saving | None, unit: str) -> list[str]:
    if saving is None:
        return []
    text = gain_text(saving, unit)
    if saving.high_ns is None:
        text = f"what {unit} gains without it is not known: {one_line(saving.why or '')}"
    return [f". {text[0].upper()}{text[1:]}."] if text else []


def _evidence(finding: Finding, view: View) -> list[Component]:
    lists = [
        ui.evidence_list(view, finding.rank, part, finding.id, first)
        for first, part in ((0, finding.evidence[:1]), (1, finding.evidence[1:]))
        if part
    ]
    return [*lists[:1], *(ui.folded(f"{len(finding.evidence) - 1} more", one) for one in lists[1:])]


def _advice(advice: Sequence[str]) -> list[Component]:
    if not advice:
        return []
    first, rest = (
        html.Ul([html.Li(text) for text in part])
        for part in (advice[:_MAX_ADVICE], advice[_MAX_ADVICE:])
    )
    num_more = len(advice) - _MAX_ADVICE
    more = [ui.folded(f"{num_more} more", rest)] if num_more > 0 else []
    return [html.H4("What to do"), first, *more]


def _ranks(group: Sequence[Finding], view: View, judged: str) -> list[Component]:
    if len(group) < 2:
        return []
    rows: list[Component] = []
    split = ui.worst_first(group, lambda finding: finding.impact_ns)
    for finding in split.drawn:
        name: Component | str = f"rank {finding.rank}"
        if finding.evidence:
            href = _first_evidence(finding, view)
            name = dcc.Link(name, href=href, title="its worst interval on the timeline")
        rows.append(
            ui.row(
                name,
                ui.number(f"{finding.impact_ns / 1e6:.3f}"),
                ui.number(f"{100 * finding.impact_fraction:.1f}"),
                html.Td(one_line(finding.title)),
            )
        )
    if split.others:
        costs = [finding.impact_ns / 1e6 for finding in split.others]
        shares = [100 * finding.impact_fraction for finding in split.others]
        rows.append(
            ui.row(
                split.rest,
                ui.number(f"{min(costs):.3f} to {max(costs):.3f}"),
                ui.number(f"{min(shares):.1f} to {max(shares):.1f}"),
                html.Td("choose ranks above to see theirs"),
            )
        )
    head = ui.heads("rank", "cost (ms)", f"of the {judged} (%)", "what was found")
    table = html.Table([head, html.Tbody(rows)])
    what = "ranks" if len({finding.rank for finding in group}) > 1 else "findings"
    return [ui.folded(f"All {len(group)} {what}", html.Div(table, className="scroll"))]


def _metrics(finding: Finding) -> Component:
    entries = [
        html.Div([html.Dt(name), html.Dd(metric_text(name, value))])
        for name, value in finding.metrics.items()
        if value is not None or name != "step_cause"  # then it is the cause in all of the time
    ]
    return ui.folded(
        f"Numbers of rank {finding.rank}",
        html.Dl(entries, className="metrics"),
        html.P(
            ["How each is measured: ", html.Code(f"traceprof explain {finding.id}")],
            className="note",
        ),
    )


def headline_card(view: View) -> Component | None:
    """Return the main result, always of the whole run; None while a time range is chosen."""
    headline = view.analysis.result.headline
    if headline is None or view.address.chosen.has_range:
        return None
    verdict = three_lines(view.analysis.result)
    no_finding = (
        f"No finding reaches 1 % of the {breakdown.judged_kind(view.analysis.of(breakdown))}:"
        " less cannot be distinguished from differences between two runs."
    )
    return html.Section(
        [
            *(html.P(line, className="verdict") for line in (verdict.lines if verdict else ())),
            html.P(_takes(headline), className="takes"),
            html.P(_about(headline, verdict), className="note"),
            None if view.findings else ui.nothing(no_finding),
            _could_take(headline, view.address.to(WHAT_IF).href()),
        ],
        className="card headline",
    )


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
            html.A(gain.finding, href=f"#finding-{gain.finding}", title=meaning(gain.finding)),
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


def _about(headline: Headline, verdict: ThreeLines | None) -> str:
    result = headline.breakdown
    lines = [judged_share(headline, verdict).strip()]
    if result.periods:
        lines.append(about_periods(result.periods, result.unit.layers))
    if headline.lengths is not None:
        lines += about_steps(result, headline.lengths)
    return " ".join(filter(None, lines))
