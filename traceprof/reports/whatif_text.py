"""What-if answers as text: the checks first, then what a step would take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traceprof.errors import one_line
from traceprof.replay.results import Answer, Asked, Baseline, StepPath, WhatIf
from traceprof.reports.blocks import (
    Block,
    Paragraph,
    Section,
    TableBlock,
    paragraph,
    section,
    table,
)
from traceprof.structs import by_key
from traceprof.units import counted, duration, percent, signed_duration

_MAX_PARTS = 20  # of a step's critical path; the JSON has them all
_MIN_SHARE = 0.001  # of the critical path: less is not worth a word
GATES = {
    "launches": "operations without their launch, or launches without their operation:",
    "records": "calls that record an event, without its record in the report:",
    "hidden-host-waits": "time in which threads waited for the GPU in no recorded call:",
    "hidden-stream-waits": "time in which streams waited for each other without a recorded event:",
    "misfit": "with the delays of other steps, the replay is off the measurement by",
    "unexplained": "time in which the GPU was idle for no known reason:",
    "host-floor": "with GPU times at zero, the replay is off the host's own time by",
    "floor": "answers lie below what must run by",
}


def answers_section(answers: Asked) -> Section:
    """Return the answers to what-if questions, below the checks of the replay."""
    return section("", *_blocks(answers))


def _blocks(answers: Asked) -> Iterator[Block]:
    whatif, reports = answers.whatif, answers.run.reports
    yield from (paragraph(str(report.path)) for report in reports[:3])
    if len(reports) > 3:
        yield paragraph(f"… and {counted(len(reports) - 3, 'more report')}")
    if whatif.baseline is not None:
        yield from _checks(whatif.baseline)
    if whatif.refused is not None:
        is_known = any(answer.refused is None for answer in whatif.answers)
        what = "the rest" if is_known else "it"
        yield from _answered(whatif)
        yield paragraph(f"This report cannot answer {what}: {whatif.refused}")
        if whatif.how_to_collect:
            yield _remedy(whatif.how_to_collect)
        return
    yield from _refused(whatif.answers)
    yield from _answered(whatif)
    shares = ", ".join(f"{percent(part)} {name}" for name, part in path_shares(whatif).items())
    if shares:
        yield paragraph(f"The critical path of what was replayed is {shares}.")
    for path in answers.paths:
        yield from _step_path(path)


def _answered(whatif: WhatIf) -> Iterator[Block]:
    shown = [
        answer for answer in whatif.answers if not answer.is_too_small and answer.refused is None
    ]
    same = [answer.assume for answer in whatif.answers if answer.is_too_small]
    if shown:
        subject = "a step" if whatif.baseline is None else whatif.baseline.subject
        yield _answers(shown, subject)
    for note, answers in by_key(shown, lambda answer: answer.note).items():
        if note:
            yield paragraph(f"{', '.join(answer.assume for answer in answers)}: {note}")
    if same:
        yield paragraph(f"No significant change: {', '.join(same)}")


def _remedy(how_to_collect: str) -> Paragraph:
    return Paragraph(f"→ {one_line(how_to_collect)}", "advice")


def _refused(answers: Sequence[Answer]) -> Iterator[Block]:
    refused = [answer for answer in answers if answer.refused is not None]
    for reason, alike in by_key(refused, lambda answer: answer.refused).items():
        have = "have" if alike[1:] else "has"
        names = ", ".join(answer.assume for answer in alike)
        yield paragraph(f"{names} {have} no answer: {reason}")
    yield from map(
        _remedy, dict.fromkeys(answer.how_to_collect for answer in refused if answer.how_to_collect)
    )


def _checks(baseline: Baseline) -> Iterator[Block]:
    step = f"{duration(baseline.step_ns)} ({steps_text(baseline)})"
    yield paragraph(f"{baseline.subject.capitalize()} takes {step}. Checks of the replay:")
    for gate in baseline.gates:
        value = "unknown" if gate.value is None else percent(abs(gate.value))
        mark = "holds" if gate.holds else "FAILS"
        limit = f"(limit {percent(gate.limit)})"
        yield paragraph(f"  {mark}  {gate.name}: {GATES[gate.name]} {value} {limit}")


def _answers(answers: list[Answer], subject: str) -> TableBlock:
    rows = [
        (
            answer.assume,
            step_text(answer),
            "" if answer.is_bound else duration(answer.low_ns or 0),
            "" if answer.is_bound else duration(answer.high_ns or 0),
            change_text(answer),
        )
        for answer in sorted(answers, key=lambda answer: answer.change_ns or 0)
    ]
    headings = ("if", f"{subject} takes", "from", "to", "change")
    return table(headings, rows, text=("if",), is_apart=True)


def _step_path(path: StepPath) -> Iterator[Block]:
    shown = sorted(path.parts, key=lambda part: part.start_ns - part.end_ns)[:_MAX_PARTS]
    num, length = len(path.parts), duration(path.length_ns)
    rest = "" if num <= _MAX_PARTS else f", the {_MAX_PARTS} longest of them"
    yield paragraph(
        f"Critical path of step {path.step}, {length} on rank {path.rank}:"
        f" {counted(num, 'part')}{rest}",
        is_apart=True,
    )
    rows = [
        (
            str(part.rank),
            f"{part.start_ns / 1e9:.6f}",
            duration(part.end_ns - part.start_ns),
            part.kind,
            part.name,
        )
        for part in path.parts
        if part in shown
    ]
    yield table(("rank", "at s", "for", "kind", "what"), rows, text=("kind", "what"))


def steps_text(baseline: Baseline) -> str:
    """Say over which steps the length of a step is averaged."""
    if baseline.num_measured < 2:
        return "all that is known"
    replayed = f", {baseline.num_steps} of them replayed"
    is_sample = baseline.num_steps < baseline.num_measured
    return f"mean of {baseline.num_measured}{replayed if is_sample else ''}"


def step_text(answer: Answer) -> str:
    """Write what a step takes: `178 ms`, of bounds with `at least`."""
    least = "at least " if answer.is_bound else ""
    return f"{least}{duration(answer.step_ns or 0)}"


def change_text(answer: Answer) -> str:
    """Write what a step gains, with its share: `-469 ms (-72.6 %)`, of bounds with `at most`."""
    change = answer.change_ns or 0
    before = (answer.step_ns or 0) - change
    share = f" ({100 * change / before:+.1f} %)" if before else ""
    most = "at most " if answer.is_bound else ""
    return f"{most}{signed_duration(change)}{share}"


def path_shares(whatif: WhatIf) -> dict[str, float]:
    """Return the share of each part of the critical path, without very small ones."""
    parts = {
        "compute": sum(path.compute_ns for path in whatif.critical_path),
        "communication": sum(path.communication_ns for path in whatif.critical_path),
        "copies": sum(path.copy_ns for path in whatif.critical_path),
        "the host": sum(path.host_ns for path in whatif.critical_path),
        "delays between them": sum(path.delay_ns for path in whatif.critical_path),
    }
    total = sum(parts.values())
    return {name: part / total for name, part in parts.items() if part > _MIN_SHARE * total}
