"""Sections of a comparison, in order: sentences and tables for all formats; and as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from traceprof.analyses.gpu_idle import CAUSES
from traceprof.analyses.steps import cause_text
from traceprof.comparison.findings import LEVEL_TEXT, change_text, exact, signed, span
from traceprof.documents.comparison import CommunicationChange, Comparison, FindingChange, Side
from traceprof.host.idle_causes import IdleCause
from traceprof.kernel_names import function_name
from traceprof.reports.blocks import MAX_NAME, Paragraph, Section, others, section, table
from traceprof.reports.text import plain, renderable
from traceprof.units import counted, duration, percent, three_digits
from traceprof.version import __version__

if TYPE_CHECKING:
    from rich.console import RenderableType


MAX_KERNELS = 15  # in a table; the JSON has them all
MAX_MODULES = 20
MAX_DIFFERENCES = 8
MAX_COMMUNICATION = 15
_MIN_SHOWN = 0.0005  # of the step: a smaller change of a kernel is not shown
_MAX_NAMED = 3  # reports
MARKS = {"met": "✓", "not met": "✗", "inconclusive": "?"}


def comparison_sections(comparison: Comparison) -> Iterator[Section]:
    """Yield the sections of a comparison, first whether the sides are comparable."""
    yield section("", *_head(comparison))
    if comparison.gates:
        yield _gates(comparison)
    yield _parts(comparison)
    if comparison.idle:
        yield _idle(comparison)
    yield _kernels(comparison)
    yield from _modules(comparison)
    if comparison.communication:
        yield _communication(comparison.communication)
    if comparison.findings:
        yield _findings(comparison.findings)
    yield section("About these numbers", *comparison.notes)


def render_comparison(comparison: Comparison) -> str:
    """Return the comparison as plain text that ends in a newline."""
    return plain(comparison_report(comparison))


def comparison_report(comparison: Comparison) -> RenderableType:
    """Return the comparison for a rich console."""
    title = Section("", (Paragraph(f"traceprof {__version__}", "title"),))
    return renderable([title, *comparison_sections(comparison)], max_cell=MAX_NAME)


def usual(comparison: Comparison) -> str | None:
    """Say what the usual step does, where the mean is undecided."""
    step = comparison.step.usual
    is_decided = comparison.step.verdict not in {"inconclusive", "differs"}
    if step is None or is_decided or step.verdict not in {"faster", "slower"}:
        return None
    change = span(step.change, step.low, step.high)
    why = "" if step.longer_cause is None else f" (mostly {cause_text(step.longer_cause)})"
    return (
        f"The usual step takes {exact(step.before_ns)} before and {exact(step.after_ns)} after:"
        f" {step.verdict}, {change[:-1]}, {LEVEL_TEXT} over steps). In the mean,"
        f" {counted(step.num_longer_before, 'step')} before and {step.num_longer_after} after, a"
        f" quarter longer or more{why}, hide it."
    )


def _unrecorded(comparison: Comparison) -> str | None:
    step = comparison.step.unrecorded
    if step is None:
        return None
    change = signed(step.change)
    if step.low is not None and step.high is not None:
        change = f"{span(step.change, step.low, step.high)[:-1]}, {LEVEL_TEXT} over steps)"
    under = "" if comparison.step.change is None else f"; under it {signed(comparison.step.change)}"
    return (
        f"Without the recorder a step takes {exact(step.before_ns)} before and"
        f" {exact(step.after_ns)} after, {change}, by {step.num_before} and {step.num_after} steps"
        f" before the recordings{under}."
    )


def _head(comparison: Comparison) -> Iterator[str]:
    for reason in comparison.comparable.reasons:
        yield f"Not comparable: {reason}."
    for reason in comparison.comparable.allowed:
        yield f"Compared all the same: {reason}."
    yield comparison.headline
    of_usual = usual(comparison)
    if of_usual is not None:
        yield of_usual
    of_unrecorded = _unrecorded(comparison)
    if of_unrecorded is not None:
        yield of_unrecorded
    yield from _why(comparison)
    for reason in dict.fromkeys(part.unknown for part in comparison.part_changes if part.unknown):
        yield f"Unknown are the parts of the step: {reason}."
    yield from _differences(comparison)
    yield f"before: {_side(comparison.before)}"
    yield f"after:  {_side(comparison.after)}"
    for side in (comparison.before, comparison.after):
        for reason in side.left_out_reports:
            yield f"left out: {reason}"


def _differences(comparison: Comparison) -> Iterator[str]:
    """Yield what may be the cause, first what both sides have a value of."""
    reasons = [*comparison.comparable.reasons, *comparison.comparable.allowed]
    others = [
        one
        for one in comparison.comparable.differences
        if not any(f"{one.before} before, {one.after} after" in reason for reason in reasons)
    ]
    if len(others) > MAX_DIFFERENCES:
        others.sort(key=lambda one: one.what != "command line" and not (one.before and one.after))
    for one in others[:MAX_DIFFERENCES]:
        values = f"{one.before or 'nothing'} before, {one.after or 'nothing'} after"
        yield f"differs: {one.what}: {values}"
    if more := others[MAX_DIFFERENCES:]:
        yield f"differs, too: {', '.join(one.what for one in more)}: --format json has the values"


def _why(comparison: Comparison) -> Iterator[str]:
    changed_ns = comparison.parts.mean_step_ns
    known = [part for part in comparison.part_changes if part.change_ns]
    if not changed_ns or not known:
        return
    most = max(known, key=lambda part: (part.change_ns or 0) * (1 if changed_ns > 0 else -1))
    said = f"Most of the change: {most.part}, {change_text(most.change_ns or 0)}"
    causes = [cause for cause in comparison.idle if cause.change_ns * (most.change_ns or 0) > 0]
    if most.part == "idle" and causes:
        cause = max(causes, key=lambda one: abs(one.change_ns))
        what = CAUSES[IdleCause(cause.cause)]
        said += f" (mostly {what}, {change_text(cause.change_ns)})"
    yield f"{said}."


def _side(side: Side) -> str:
    names = ", ".join(side.reports[:_MAX_NAMED])
    more = len(side.reports) - _MAX_NAMED
    captures = f"{side.num_captures} recordings, " if side.num_captures > 1 else ""
    left_out = f" ({side.num_left_out} left out)" if side.num_left_out else ""
    ranks = counted(len(side.ranks), "rank")
    gpus = f", {', '.join(side.gpus)}" if side.gpus else ""
    others = f" and {more} more" if more > 0 else ""
    steps = f"{counted(side.num_steps, 'step')}{left_out}" if side.num_steps else "no steps"
    return f"{names}{others}: {captures}{steps}, {ranks}{gpus}"


def _gates(comparison: Comparison) -> Section:
    headings = ("", "gate", "outcome", "why")
    rows = [
        (MARKS[gate.outcome], gate.gate, gate.outcome, gate.reason) for gate in comparison.gates
    ]
    return section("Gates", table(headings, rows, text=headings))


def _parts(comparison: Comparison) -> Section:
    before_ns, after_ns = comparison.mean_before.mean_step_ns, comparison.mean_after.mean_step_ns
    rows: list[tuple[str, ...]] = [
        (
            part.part,
            duration(part.before_ns),
            duration(part.after_ns),
            "unknown" if part.change_ns is None else change_text(part.change_ns),
            ""
            if part.low_ns is None or part.high_ns is None
            else f"{change_text(part.low_ns)} to {change_text(part.high_ns)}",
        )
        for part in comparison.part_changes
    ]
    change = change_text(comparison.parts.mean_step_ns)
    rows.append(("mean over ranks", duration(before_ns), duration(after_ns), change, ""))
    headings = ("part", "before", "after", "change", LEVEL_TEXT)
    return section("Where it comes from", table(headings, rows, text=("part",)))


def _idle(comparison: Comparison) -> Section:
    rows = [
        (
            CAUSES[IdleCause(cause.cause)],
            duration(cause.before_ns),
            duration(cause.after_ns),
            change_text(cause.change_ns),
        )
        for cause in comparison.idle
    ]
    headings = ("cause", "before", "after", "change")
    return section("Idle, by cause", table(headings, rows, text=("cause",)))


def _kernels(comparison: Comparison) -> Section:
    matching = [
        f"{percent(rung.before)} / {percent(rung.after)} {_RUNGS[rung.rung]}"
        for rung in comparison.kernel_matching
        if rung.before or rung.after
    ]
    least = _MIN_SHOWN * comparison.mean_before.mean_step_ns
    changed = [
        kernel
        for kernel in comparison.kernels
        if abs(kernel.change_ns) >= least and (kernel.is_significant or kernel.p_adjusted is None)
    ]
    lines = [f"Of the kernels' time before / after: {', '.join(matching)}."] if matching else []
    shown = changed[:MAX_KERNELS]
    rest = sum(kernel.change_ns for kernel in comparison.kernels if kernel not in shown)
    after = [f"All other kernels: {change_text(rest)}."] if comparison.kernels else []
    if comparison.kernels_beside_ns:
        beside = change_text(comparison.kernels_beside_ns)
        after.append(
            "What kernels do not add up to, as they overlap or are in CUDA graphs that were traced"
            f" as a whole: {beside}."
        )
    if not shown:
        lines.append("No kernel changed significantly.")
        return section("Compute, by kernel", *lines, *after)
    headings = ("change", "before", "after", "matched by", "category", "kernel")
    rows = [
        (
            change_text(kernel.change_ns),
            duration(kernel.before_ns),
            duration(kernel.after_ns),
            kernel.rung,
            kernel.category,
            _names(*(name and function_name(name) for name in (kernel.before, kernel.after))),
        )
        for kernel in shown
    ]
    shown_table = table(headings, rows, text=headings[3:])
    return section("Compute, by kernel", *lines, shown_table, *after)


def _modules(comparison: Comparison) -> Iterator[Section]:
    """Yield the modules that changed, outer ones first: a change is in all modules around it."""
    least = _MIN_SHOWN * comparison.mean_before.mean_step_ns
    changed = [
        module
        for module in comparison.modules
        if abs(module.change_ns) >= least and (module.is_significant or module.p_adjusted is None)
    ]
    if not comparison.modules:
        return
    if not changed:
        yield section("Compute, by module", "No module changed significantly.")
        return
    rows = [
        (
            change_text(module.change_ns),
            _known(module.before_ns),
            _known(module.after_ns),
            module.module,
        )
        for module in changed[:MAX_MODULES]
    ]
    yield section(
        "Compute, by module",
        table(("change", "before", "after", "module"), rows, text=("module",)),
        others(len(changed) - len(rows), "module"),
    )


_RUNGS = {
    "name": "matched by name",
    "canonical name": "by canonical name",
    "place in the step": "by place in the step",
    "only before": "only before",
    "only after": "only after",
}


def _communication(changes: Sequence[CommunicationChange]) -> Section:
    rows = [
        (
            change.operation,
            _names(change.before, change.after) or "-",
            " → ".join(map(three_digits, (change.count_before, change.count_after))),
            _both(change.before_ns, change.after_ns),
            _both(change.wait_before_ns, change.wait_after_ns),
            _both(change.transfer_before_ns, change.transfer_after_ns),
            change_text(change.change_ns),
        )
        for change in changes[:MAX_COMMUNICATION]
    ]
    rest = changes[MAX_COMMUNICATION:]
    total = change_text(sum(change.change_ns for change in rest))
    headings = ("operation", "communicator", "count", "time", "waiting", "transfer", "change")
    return section(
        "Communication, per step",
        table(headings, rows, text=headings[:2]),
        f"… and {len(rest)} more: {total}" if rest else None,
    )


def _names(*names: str | None) -> str:
    return " → ".join(dict.fromkeys(name for name in names if name is not None))


def _known(ns: int | None) -> str:
    return "-" if ns is None else duration(ns)


def _both(before_ns: int | None, after_ns: int | None) -> str:
    values = ["unknown" if value is None else duration(value) for value in (before_ns, after_ns)]
    return values[0] if values == ["unknown"] * 2 else " → ".join(values)


def _findings(changes: Sequence[FindingChange]) -> Section:
    rows = [
        (
            change.id,
            change.status,
            _known(change.before_ns),
            _known(change.after_ns),
            _change(change),
            _predicted(change),
        )
        for change in changes
    ]
    headings = ("finding", "", "before", "after", "change", "predicted gain")
    return section("Findings, per step", table(headings, rows, text=headings[:2]))


def _change(change: FindingChange) -> str:
    if change.came_ns is None:
        return "-" if change.before_ns is None else "unknown"
    return change_text(-change.came_ns)


def _predicted(change: FindingChange) -> str:
    saving = change.predicted
    if saving is None or saving.high_ns is None:
        return "" if change.before_ns is None else "unknown"
    if saving.step_ns is None:
        return f"at most {duration(saving.high_ns)}"
    span = ""
    if saving.low_ns is not None:
        span = f" ({duration(saving.low_ns)} to {duration(saving.high_ns)})"
    return f"{duration(saving.step_ns)}{span}"
