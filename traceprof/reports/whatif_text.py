"""What-if answers as text: the checks first, then what a step would take."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from traceprof.errors import one_line
from traceprof.reports.tables import new_table
from traceprof.units import counted, duration, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from traceprof.replay.answers.answers import Answer, WhatIf
    from traceprof.replay.answers.ask import Asked
    from traceprof.replay.answers.checked_replay import Baseline
    from traceprof.replay.answers.critical_path import StepPath
    from traceprof.replay.assumptions.run_change import StreamOrder as Order

_MAX_SHOWN = 5


def schedule_lines(whatif: WhatIf) -> list[RenderableType]:
    """Say what the stages of a pipeline would take in each order of their passes."""
    if not whatif.schedules:
        return []
    table = new_table(
        "passes in the order", "take", "without slowdown beside communication",
        left=("passes in the order",),
    )  # fmt: skip
    for order in whatif.schedules:
        table.add_row(order.order, _time(order.step_ns), _time(order.naive_ns))
    return [Text(""), Text("A step of these stages, passes only:"), table]


def _time(time_ns: int | None) -> str:
    return "waits for ever" if time_ns is None else duration(time_ns)


def blocked_lines(whatif: WhatIf) -> list[RenderableType]:
    """Say which sends waited behind which, and which stage waited for them."""
    if whatif.unknown_sends is not None:
        why = one_line(whatif.unknown_sends)
        return [Text(f"Which sends wait behind others of their stream is unknown: {why}")]
    if not whatif.blocked_sends:
        return []
    table = new_table(
        "of rank", "this", "waits behind", "so that waits", "in a step",
        left=("this", "waits behind", "so that waits"),
    )  # fmt: skip
    for blocked in whatif.blocked_sends[:_MAX_SHOWN]:
        table.add_row(
            str(blocked.rank), Text(str(blocked.blocked)), Text(str(blocked.behind)),
            f"rank {blocked.stage}", duration(blocked.blocked_ns),
        )  # fmt: skip
    more = len(whatif.blocked_sends) - _MAX_SHOWN
    lines: list[RenderableType] = [
        Text(""),
        Text("Sends and receives that wait on their stream although both sides are ready:"),
        table,
    ]
    if more > 0:
        lines.append(Text(f"… {more} more: --format json has them"))
    return lines


def order_lines(answers: list[Answer]) -> list[RenderableType]:
    """Say in which order streams would run their sends, once for orders that are the same."""
    lines: list[RenderableType] = []
    seen: dict[tuple[Order, ...], str] = {}
    for answer in answers:
        if not answer.orders:
            continue
        if answer.orders in seen:
            lines.append(Text(f"{answer.assume}: the order of {seen[answer.orders]}"))
            continue
        seen[answer.orders] = answer.assume
        lines.append(Text(f"{answer.assume}: the order of micro-batches in every step"))
        lines += [Text(f"  rank {order.rank}: {_in_turns(order)}") for order in answer.orders]
    return lines


def _in_turns(order: Order) -> str:
    """Return an order with the micro-batches that go the same way one after the other together."""
    turns = groupby(order.sends, key=lambda send: send.way)
    return "; ".join(
        f"{way}: {', '.join(str(send.micro_batch) for send in sends)}" for way, sends in turns
    )


_MAX_PARTS = 20  # of a step's critical path; the JSON has them all
_MIN_SHARE = 0.001  # of the critical path: less is not worth a word
GATES = {
    "launches": "operations without the call that launched them:",
    "records": "calls that record an event, without its record in the report:",
    "hidden-host-waits": "time in which threads waited for the GPU in no recorded call:",
    "hidden-stream-waits": "time in which streams waited for each other without a recorded event:",
    "misfit": "with the delays of other steps, the replay is off the measurement by",
    "unexplained": "time in which the GPU was idle for no known reason:",
    "host-floor": "with GPU times at zero, the replay is off the host's own time by",
    "floor": "answers lie below what must run by",
}


def report(answers: Asked) -> RenderableType:
    """Return the answers for a rich console."""
    whatif, reports = answers.whatif, answers.run.reports
    parts: list[RenderableType] = [Text(one_line(report.path)) for report in reports[:3]]
    if len(reports) > 3:
        parts.append(Text(f"… and {counted(len(reports) - 3, 'more report')}"))
    if whatif.baseline is not None:
        parts += _checks(whatif.baseline)
    if whatif.refused is not None:
        parts.append(Text(f"This report cannot answer it: {one_line(whatif.refused)}"))
        if whatif.how_to_collect:
            parts.append(Text(f"→ {one_line(whatif.how_to_collect)}", "italic"))
        return Group(*parts)
    shown = [
        answer for answer in whatif.answers if not answer.is_too_small and answer.refused is None
    ]
    parts += _refused(whatif.answers)
    same = [answer.assume for answer in whatif.answers if answer.is_too_small]
    if shown:
        subject = "a step" if whatif.baseline is None else whatif.baseline.subject
        parts += [Text(""), _answers(shown, subject)]
    by_note: dict[str, list[str]] = {}
    for answer in shown:
        by_note.setdefault(answer.note, []).append(answer.assume)
    parts += [Text(f"{', '.join(names)}: {note}") for note, names in by_note.items() if note]
    if same:
        parts.append(Text(f"No significant change: {', '.join(same)}"))
    parts += order_lines(shown)
    parts += blocked_lines(whatif)
    parts += schedule_lines(whatif)
    parts += _path(whatif)
    parts += [line for path in answers.paths for line in _step_path(path)]
    return Group(*parts)


def _refused(answers: Sequence[Answer]) -> list[RenderableType]:
    """Say which answers are refused, each reason once, and what to record for them."""
    refused = [answer for answer in answers if answer.refused is not None]
    by_reason: dict[str, list[str]] = {}
    for answer in refused:
        by_reason.setdefault(answer.refused or "", []).append(answer.assume)
    lines: list[RenderableType] = [
        Text(f"{', '.join(names)} {'have' if names[1:] else 'has'} no answer: {one_line(reason)}")
        for reason, names in by_reason.items()
    ]
    hows = dict.fromkeys(answer.how_to_collect for answer in refused if answer.how_to_collect)
    return [*lines, *(Text(f"→ {one_line(how)}", "italic") for how in hows)]


def _checks(baseline: Baseline) -> list[RenderableType]:
    steps = steps_text(baseline)
    lines: list[RenderableType] = [
        Text(
            f"{baseline.subject.capitalize()} takes {duration(baseline.step_ns)} ({steps})."
            " Checks of the replay:"
        )
    ]
    for gate in baseline.gates:
        value = "unknown" if gate.value is None else percent(abs(gate.value))
        mark = "holds" if gate.holds else "FAILS"
        text = f"  {mark}  {gate.name}: {GATES[gate.name]} {value} (limit {percent(gate.limit)})"
        lines.append(Text(text))
    return lines


def _answers(answers: list[Answer], subject: str) -> RenderableType:
    table = new_table("if", f"{subject} takes", "from", "to", "change", left=("if",))
    for answer in sorted(answers, key=lambda answer: answer.change_ns or 0):
        table.add_row(
            Text(one_line(answer.assume)),
            step_text(answer),
            "" if answer.is_bound else duration(answer.low_ns or 0),
            "" if answer.is_bound else duration(answer.high_ns or 0),
            change_text(answer),
        )
    return table


def steps_text(baseline: Baseline) -> str:
    """Return of which steps the length of a step is the mean."""
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
    return f"{most}{'-' if change < 0 else '+'}{duration(abs(change))}{share}"


def _step_path(path: StepPath) -> list[RenderableType]:
    """Show the longest parts of a step's critical path, in the order of time."""
    shown = sorted(path.parts, key=lambda part: part.start_ns - part.end_ns)[:_MAX_PARTS]
    table = new_table("rank", "at s", "for", "kind", "what", left=("kind", "what"))
    for part in [part for part in path.parts if part in shown]:
        table.add_row(
            str(part.rank),
            f"{part.start_ns / 1e9:.6f}",
            duration(part.end_ns - part.start_ns),
            part.kind,
            Text(one_line(part.name)),
        )
    num, length = len(path.parts), duration(path.length_ns)
    heading = (
        f"Critical path of step {path.step}, {length} on rank {path.rank}: {counted(num, 'part')}"
    )
    rest = "" if num <= _MAX_PARTS else f", the {_MAX_PARTS} longest of them"
    return [Text(""), Text(f"{heading}{rest}"), table]


def path_shares(whatif: WhatIf) -> dict[str, float]:
    """Return the parts of the critical path by name, as shares; very small ones are left out."""
    parts = {
        "compute": sum(path.compute_ns for path in whatif.critical_path),
        "communication": sum(path.communication_ns for path in whatif.critical_path),
        "copies": sum(path.copy_ns for path in whatif.critical_path),
        "the host": sum(path.host_ns for path in whatif.critical_path),
        "delays between them": sum(path.delay_ns for path in whatif.critical_path),
    }
    total = sum(parts.values())
    return {name: part / total for name, part in parts.items() if part > _MIN_SHARE * total}


def _path(whatif: WhatIf) -> list[RenderableType]:
    parts = [f"{percent(part)} {name}" for name, part in path_shares(whatif).items()]
    return [Text(f"The critical path of what was replayed is {', '.join(parts)}.")] if parts else []
