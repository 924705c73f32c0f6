"""The steps that took far longer than usual, in a few lines: which, how much longer, and why."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from traceprof.errors import one_line
from traceprof.host.units import StepUnit
from traceprof.reports.blocks import section
from traceprof.reports.time_text import CAUSE_WORDS
from traceprof.units import duration, ranks_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.analyses.steps.slow_steps import SlowStep
    from traceprof.analyses.verdict.run_result import RunResult
    from traceprof.reports.blocks import Section

_MAX_LINES = 3  # each may take two on a terminal
_MAX_NUMBERS = 4
_MAX_NAME = 60
_WORDS = {
    "checkpoint": "a checkpoint",
    "evaluation": "evaluation",
    "collection": "garbage collection",
    "compile": "compilation",
    "file": "access to files",
    "range": "a range",
    "operator": "an operator",
    "compute": "longer compute",
    "exposed_communication": "communication that nothing hides",
    "exposed_copy": "copies that nothing hides",
    "late_return": "the GPU was done, but the host stayed in its wait",
    **{name.removesuffix("_ns"): words for name, words in CAUSE_WORDS.items()},
}
_Group = dict[int, list["SlowStep"]]  # by rank


def slow_steps_section(analysis: RunResult) -> Section | None:
    """Return the slow steps; None without any."""
    lines = slow_steps_lines(analysis)
    return section("Slow steps", *lines) if lines else None


def slow_steps_lines(analysis: RunResult) -> list[str]:
    """Return which steps are slow and why, in three lines at most, the costliest first."""
    groups: dict[tuple[str, str | None], _Group] = defaultdict(lambda: defaultdict(list))
    for of_rank in analysis.slow_steps:
        for step in of_rank.steps:
            groups[step.cause, step.label][of_rank.rank].append(step)
    ordered = sorted(groups.items(), key=lambda item: -max(map(_extra_ns, item[1].values())))
    num = _MAX_LINES if len(ordered) <= _MAX_LINES else _MAX_LINES - 1
    unit = analysis.breakdown[0].unit.unit if analysis.breakdown else StepUnit.STEP
    lines = [_line(unit, *why, by_rank) for why, by_rank in ordered[:num]]
    if len(ordered) > num:
        rest = [
            step for _, by_rank in ordered[num:] for steps in by_rank.values() for step in steps
        ]
        lines.append(f"{len(rest)} more: --format json has them all")
    return lines


def _line(unit: StepUnit, cause: str, label: str | None, by_rank: _Group) -> str:
    rank, steps = max(by_rank.items(), key=lambda item: (_extra_ns(item[1]), -item[0]))
    what = cause_text(cause, label)
    where = ranks_text(sorted(by_rank))
    most = "" if len(by_rank) == 1 else f" (rank {rank})"
    extra = duration(_extra_ns(steps) // len(steps))
    usual = duration(steps[0].step_ns - steps[0].extra_ns)
    if len(steps) == 1:
        took = f"{unit.word} {_number(steps[0])} of {where}: {extra} more than the median {usual}"
    else:
        took = (
            f"{unit.several} {_numbers(steps)} of {where}: {extra} more each than the median"
            f" {usual}, {duration(_extra_ns(steps))} in all"
        )
    num_out = sum(not step.counts for step in steps)
    out = "not in the mean" if num_out == len(steps) else f"{num_out} not in the mean"
    spent = duration(sum(step.cause_ns for step in steps))
    took = f"{took[0].upper()}{took[1:]}{most}: {what}, {spent}"
    return f"{took}; {out}" if num_out else took


def cause_text(cause: str, label: str | None = None) -> str:
    """Return why a step is slow, in words: `a checkpoint (torch.save)`."""
    name = "" if label is None else one_line(label, _MAX_NAME)
    is_said = not name or _WORDS[cause].endswith(name)
    return _WORDS[cause] if is_said else f"{_WORDS[cause]} ({name})"


def _extra_ns(steps: Sequence[SlowStep]) -> int:
    return sum(step.extra_ns for step in steps)


def _number(step: SlowStep) -> str:
    if step.host_number in {None, step.number}:
        return str(step.number)
    return f"{step.host_number} (while the GPU was at step {step.number})"


def _numbers(steps: Sequence[SlowStep]) -> str:
    numbers = [step.number if step.host_number is None else step.host_number for step in steps]
    named = ", ".join(map(str, numbers[:_MAX_NUMBERS]))
    return named if len(numbers) <= _MAX_NUMBERS else f"{named}, … ({len(numbers)})"
