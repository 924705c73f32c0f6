"""What if: the length of a step under assumptions, from a validated replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from dashboards import address as addresses
from dashboards.address import Address
from dashboards.questions import PendingAnswer, WhatIfQuestion, questions_about
from dashboards.view import View
from dashboards.widgets import components as ui
from dashboards.widgets.charts import COMMUNICATION, COMPUTE, COPY, HOST, IDLE
from traceprof.analyses.verdict.headline import MIN_SHARE
from traceprof.errors import one_line
from traceprof.replay.assumptions.assumption import parse
from traceprof.replay.assumptions.table import ASSUMPTIONS
from traceprof.replay.results import Answer, Baseline, WhatIf
from traceprof.reports.whatif_text import GATES, change_text, path_shares, step_text, steps_text
from traceprof.units import duration, percent

PATH = addresses.WHAT_IF
TITLE = "What if"
ANSWERS = "what-if"
SEPARATOR = ";"
"""Between assumptions in an address."""

_EXAMPLES = "link=4x; kernel:gemm=0.5x; no-sync+no-data-loading"
_PATH_COLORS = {
    "compute": COMPUTE,
    "communication": COMMUNICATION,
    "copies": COPY,
    "the host": HOST,
    "delays between them": IDLE,
}


def layout(view: View) -> Component:
    """Return the page: the assumptions to choose from, and the answers once they are ready."""
    lead = "The steps of the whole run are replayed as they were recorded, with something changed."
    result = ui.answered_later(ANSWERS, *answers(view))
    return ui.page(TITLE, lead, _form(assumed_in(view.address)), *result)


def assumed_in(address: Address) -> tuple[str, ...]:
    """Return the assumptions of an address; none stands for each assumption by itself."""
    texts = tuple(filter(None, (part.strip() for part in (address.assume or "").split(SEPARATOR))))
    for text in texts:
        parse(text)
    return texts


def answers(view: View) -> tuple[list[Component], bool]:
    """Return the answers so far, and whether these are all."""
    question = questions_about(view.analysis).about(WhatIfQuestion(assumed_in(view.address)))
    return drawn(question), question.is_over


def drawn(question: PendingAnswer) -> list[Component]:
    """Return the answers, or a note that they are being computed."""
    if not question.is_over:
        return [_waiting(question)]
    if question.answer is None:
        return [ui.card("No answer", ui.nothing(one_line(question.error or "")))]
    whatif: WhatIf = question.answer
    parts = [] if whatif.baseline is None else [_gates(whatif.baseline)]
    if whatif.refused is not None:
        why = f"This report cannot answer it: {one_line(whatif.refused)}."
        how = one_line(whatif.how_to_collect or "")
        return [ui.card("What a step would take", ui.nothing(why, how)), *parts]
    return [_steps(whatif), *parts, *_critical_path(whatif)]


def _waiting(question: PendingAnswer) -> Component:
    done, expected = question.done, question.expected
    if not expected:
        return ui.waiting("Replaying the steps …")
    text = f"Replaying the steps: {percent(done / expected)}"
    return ui.waiting(text, html.Progress(value=str(done), max=str(expected)))


def _form(assumed: Sequence[str]) -> Component:
    meanings = {entry.form: entry.meaning for entry in ASSUMPTIONS if entry.is_default}
    others = [text for text in assumed if text not in meanings]
    options = [
        {"label": html.Span([html.Code(text), f" {meaning}"]), "value": text}
        for text, meaning in meanings.items()
    ]
    choices = dcc.Checklist(
        id="what-if-ticked",
        options=options,
        value=[text for text in assumed if text in meanings],
        className="assumptions",
    )
    written = dcc.Input(
        id="what-if-others",
        type="text",
        value=f"{SEPARATOR} ".join(others),
        placeholder=f"such as {_EXAMPLES}",
    )
    ask = html.Button("Replay", id="what-if-ask", className="plain")
    asking = html.Div([html.Label(["other assumptions ", written]), ask], className="ask")
    about = "several are answered each by itself, then all together; none: each of them"
    about_it = html.P(about, className="note")
    form = ui.folded("Assume …", about_it, choices, asking, opened=bool(assumed))
    return html.Section(form, className="card")


def _gates(baseline: Baseline) -> Component:
    rows = []
    for gate in sorted(baseline.gates, key=lambda gate: gate.holds):
        verdict = "holds" if gate.holds else "fails"
        value = "an unknown share" if gate.value is None else percent(abs(gate.value))
        cells = html.Td(verdict, className=verdict), html.Td(f"{GATES[gate.name]} {value}")
        rows.append(ui.row(gate.name, *cells, ui.number(f"limit {percent(gate.limit)}")))
    failing = [gate.name for gate in baseline.gates if not gate.holds]
    said = f"Not all: {', '.join(failing)}" if failing else f"Yes: all {len(rows)} checks hold"
    table = html.Table(html.Tbody(rows), className="gates")
    return ui.card(
        "Can the replay be believed?",
        ui.folded(said, table, opened=bool(failing)),
        note="where a check fails, what it makes unsure is not answered",
    )


def _steps(whatif: WhatIf) -> Component:
    baseline = whatif.baseline
    assert baseline is not None  # noqa: S101  (what is not refused has one)
    least_ns = MIN_SHARE * baseline.step_ns
    answered = [answer for answer in whatif.answers if answer.refused is None]
    answered.sort(key=lambda answer: answer.change_ns or 0)
    is_small = {
        answer.assume: answer.is_too_small or abs(answer.change_ns or 0) < least_ns
        for answer in answered
    }
    significant = [answer for answer in answered if not is_small[answer.assume]]
    same = [one_line(answer.assume) for answer in answered if is_small[answer.assume]]
    refused = [answer for answer in whatif.answers if answer.refused is not None]
    parts: list[Any] = []
    if significant:
        columns = ("if", f"{baseline.subject} takes", "gain", "from – to", "change", "")  # noqa: RUF001
        cells = [
            html.Th(name, scope="col", className="number" if at in {1, 3, 4} else "")
            for at, name in enumerate(columns)
        ]
        head = html.Thead(html.Tr(cells))
        as_it_is = ui.row(
            "as it is",
            ui.number(duration(baseline.step_ns)),
            html.Td(f"of {duration(baseline.step_ns)}", className="note"),
            *(html.Td(""), html.Td("")),
            html.Td(steps_text(baseline), className="note"),
        )
        body = html.Tbody([as_it_is, *(_row(answer, baseline.step_ns) for answer in significant)])
        parts.append(html.Table([head, body], className="what-if"))
    else:
        parts.append(
            ui.nothing("None of these would change the step by more than the replay misses.")
        )
    if same:
        least = f"No significant change, under {percent(MIN_SHARE)}"
        parts.append(html.P(f"{least}: {', '.join(same)}."))
    if refused:
        names, why = [one_line(answer.assume) for answer in refused], []
        for name, answer in zip(names, refused, strict=True):
            how = f" → {one_line(answer.how_to_collect)}" if answer.how_to_collect else ""
            why.append(html.Li(f"{name}: {one_line(answer.refused or '')}{how}"))
        listed = html.Ul(why, className="notes")
        parts.append(ui.folded(f"This recording does not answer {', '.join(names)}", listed))
    return ui.card("What a step would take", *parts)


def _row(answer: Answer, step_ns: int) -> Component:
    low, high = answer.low_ns or 0, answer.high_ns or 0
    meanings = {one.form: one.meaning for one in ASSUMPTIONS}
    span = "" if answer.is_bound else f"{duration(low)} – {duration(high)}"  # noqa: RUF001
    gain = max(-(answer.change_ns or 0), 0) / max(step_ns, 1)
    least, most = ((step_ns - end) / max(step_ns, 1) for end in (high, low))
    drawn = (
        ui.gain_bar(0, gain, None, "at most")
        if answer.is_bound
        else ui.gain_bar(max(least, 0), max(most, 0), gain, change_text(answer))
    )
    return ui.row(
        html.Code(one_line(answer.assume), title=meanings.get(answer.assume, answer.assume)),
        ui.number(step_text(answer)),
        html.Td(drawn, className="bar-cell"),
        ui.number(span),
        ui.number(change_text(answer)),
        html.Td(answer.note, className="note"),
    )


def _critical_path(whatif: WhatIf) -> list[Component]:
    shares = path_shares(whatif)
    if not shares:
        return []
    shown = ui.shares((name, part, _PATH_COLORS[name]) for name, part in shares.items())
    note = "what its end waited for, of all ranks: a change elsewhere gains nothing"
    where = html.P(
        ["Of one step, part by part: key K on ", dcc.Link("the timeline", href=addresses.TIMELINE)],
        className="note",
    )
    return [ui.card("The critical path", *shown, where, note=note)]
