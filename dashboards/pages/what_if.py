"""What if: the length of a step under assumptions, from a validated replay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dash import dcc, html

from dashboards import address as addresses
from dashboards.questions import PendingAnswer, WhatIfQuestion, questions_about
from dashboards.view import View
from dashboards.widgets.charts import COMMUNICATION, COMPUTE, COPY, HOST, IDLE
from dashboards.widgets.components import (
    answered_later,
    bar,
    card,
    legend,
    nothing,
    number,
    page,
    row,
)
from traceprof.errors import one_line
from traceprof.replay.assumptions.assumption import parse
from traceprof.replay.assumptions.table import ASSUMPTIONS
from traceprof.reports.whatif_text import GATES, change_text, path_shares, step_text, steps_text
from traceprof.units import duration, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dash.development.base_component import Component

    from dashboards.address import Address
    from traceprof.analysis import Analysis
    from traceprof.replay.results import Answer, Baseline, WhatIf

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


def layout(analysis: Analysis, address: Address) -> Component:
    """Return the page: the assumptions to choose from, and the answers once they are ready."""
    view = View(analysis, address)
    assumed = assumed_in(address)
    lead = (
        "The steps are replayed as they were recorded, with something changed: which call launched"
        " which operation, what streams and threads waited for, and how ranks waited for each"
        " other. The whole run is replayed, whatever ranks and time are chosen."
    )
    if not view.analysis.run.ranks:
        return page(TITLE, lead, nothing("No report holds GPU work: there is nothing to replay."))
    question = questions_about(analysis).about(WhatIfQuestion(assumed))
    return page(
        TITLE,
        lead,
        _form(assumed),
        *answered_later(ANSWERS, drawn(question), is_over=question.is_over),
    )


def assumed_in(address: Address) -> tuple[str, ...]:
    """Return the assumptions of an address; none stands for each assumption by itself."""
    texts = tuple(filter(None, (part.strip() for part in (address.assume or "").split(SEPARATOR))))
    for text in texts:
        parse(text)
    return texts


def answers(analysis: Analysis, address: Address) -> tuple[list[Component], bool]:
    """Return the answers so far, and whether these are all."""
    question = questions_about(analysis).about(WhatIfQuestion(assumed_in(address)))
    return drawn(question), question.is_over


def drawn(question: PendingAnswer) -> list[Component]:
    """Return the answers, or a note that they are being computed."""
    if not question.is_over:
        return [_waiting(question)]
    if question.answer is None:
        return [card("No answer", nothing(one_line(question.error or "")))]
    whatif: WhatIf = question.answer
    parts = [] if whatif.baseline is None else [_gates(whatif.baseline)]
    if whatif.refused is not None:
        why = f"This report cannot answer it: {one_line(whatif.refused)}."
        how = one_line(whatif.how_to_collect or "")
        return [card("What a step would take", nothing(why, how)), *parts]
    return [_steps(whatif), *parts, *_critical_path(whatif)]


def _waiting(question: PendingAnswer) -> Component:
    done, expected = question.done, question.expected
    if not expected:
        return html.Div(
            [html.P("Replaying the steps …"), html.Progress()], className="loading", role="status"
        )
    bar = html.Progress(value=str(done), max=str(expected))
    text = f"Replaying the steps: {percent(done / expected)}"
    return html.Div([html.P(text), bar], className="loading", role="status")


# -- what can be assumed --------------------------------------------------------------------------


def _form(assumed: Sequence[str]) -> Component:
    meanings = {entry.form: entry.meaning for entry in ASSUMPTIONS if entry.is_default}
    others = [text for text in assumed if text not in meanings]
    options = [
        {"label": html.Span([html.Code(text), f" {meaning}"]), "value": text}
        for text, meaning in meanings.items()
    ]
    return card(
        "Assume",
        dcc.Checklist(
            id="what-if-ticked",
            options=options,
            value=[text for text in assumed if text in meanings],
            className="assumptions",
        ),
        html.Div(
            [
                html.Label(
                    [
                        "other assumptions ",
                        dcc.Input(
                            id="what-if-others",
                            type="text",
                            value=f"{SEPARATOR} ".join(others),
                            placeholder=f"such as {_EXAMPLES}",
                        ),
                    ]
                ),
                html.Button("Replay", id="what-if-ask", className="plain"),
            ],
            className="ask",
        ),
        note="several are answered each by itself, then all together; none: each of them",
    )


# -- the answers ----------------------------------------------------------------------------------


def _gates(baseline: Baseline) -> Component:
    rows = [
        row(
            gate.name,
            html.Td(
                "holds" if gate.holds else "fails", className="holds" if gate.holds else "fails"
            ),
            html.Td(
                f"{GATES[gate.name]} "
                + ("an unknown share" if gate.value is None else percent(abs(gate.value)))
            ),
            number(f"limit {percent(gate.limit)}"),
        )
        for gate in baseline.gates
    ]
    return card(
        "Can the replay be believed?",
        html.Table(html.Tbody(rows), className="gates"),
        note="where a check fails, what it makes unsure is not answered",
    )


def _steps(whatif: WhatIf) -> Component:
    baseline = whatif.baseline
    assert baseline is not None  # noqa: S101  (what is not refused has one)
    significant = sorted(
        (answer for answer in whatif.answers if not answer.is_too_small and answer.refused is None),
        key=lambda answer: answer.change_ns or 0,
    )
    same = [answer.assume for answer in whatif.answers if answer.is_too_small]
    refused = [answer for answer in whatif.answers if answer.refused is not None]
    most = max([baseline.step_ns, *(answer.high_ns or 0 for answer in significant)])
    parts: list[Any] = []
    if significant:
        head = html.Tr(
            [
                html.Th("if", scope="col"),
                html.Th(f"{baseline.subject} takes", scope="col"),
                html.Th("", scope="col"),
                html.Th("from – to", scope="col", className="number"),  # noqa: RUF001
                html.Th("change", scope="col", className="number"),
                html.Th("", scope="col"),
            ]
        )
        as_it_is = row(
            "as it is",
            number(duration(baseline.step_ns)),
            html.Td(_step_bar(baseline.step_ns, None, None, most), className="bar-cell"),
            html.Td(""),
            html.Td(""),
            html.Td(steps_text(baseline), className="note"),
        )
        body = html.Tbody([as_it_is, *(_row(answer, most) for answer in significant)])
        parts.append(html.Table([html.Thead(head), body], className="what-if"))
    else:
        parts.append(nothing("None of these would change the step by more than the replay misses."))
    if same:
        parts.append(html.P(f"No significant change: {', '.join(map(one_line, same))}."))
    parts += [
        html.P(
            f"{one_line(answer.assume)} has no answer: {one_line(answer.refused or '')}"
            + (f" → {one_line(how)}" if (how := answer.how_to_collect) else "")
        )
        for answer in refused
    ]
    return card("What a step would take", *parts)


def _row(answer: Answer, most: int) -> Component:
    low, high = answer.low_ns or 0, answer.high_ns or 0
    span = "" if answer.is_bound else f"{duration(low)} – {duration(high)}"  # noqa: RUF001
    return row(
        html.Code(one_line(answer.assume)),
        number(step_text(answer)),
        html.Td(
            _step_bar(
                answer.step_ns or 0,
                None if answer.is_bound else low,
                None if answer.is_bound else high,
                most,
            ),
            className="bar-cell",
        ),
        number(span),
        number(change_text(answer)),
        html.Td(answer.note, className="note"),
    )


def _step_bar(step_ns: int, low_ns: int | None, high_ns: int | None, most_ns: int) -> Component:
    """Return a bar as long as the step, with its interval upon it."""

    def percent_of(time_ns: int) -> str:
        return f"{100 * time_ns / max(most_ns, 1):.3f}%"

    parts = [html.Span(className="step", style={"width": percent_of(step_ns)})]
    if low_ns is not None and high_ns is not None:
        place = {"left": percent_of(low_ns), "width": percent_of(high_ns - low_ns)}
        parts.append(html.Span(className="interval", style=place))
    return html.Div(parts, className="step-bar")


def _critical_path(whatif: WhatIf) -> list[Component]:
    shares = path_shares(whatif)
    if not shares:
        return []
    shown = bar(
        (part, _PATH_COLORS[name], f"{name}: {percent(part)}") for name, part in shares.items()
    )
    names = legend((_PATH_COLORS[name], f"{name} {percent(part)}") for name, part in shares.items())
    note = "what its end waited for, of all ranks: a change elsewhere gains nothing"
    where = html.P(
        ["Of one step, part by part: key K on ", dcc.Link("the timeline", href=addresses.TIMELINE)],
        className="note",
    )
    return [card("The critical path", shown, names, where, note=note)]
