"""The text report's findings, and what could not be judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from traceprof.analyses.breakdown import judged_kind
from traceprof.errors import one_line
from traceprof.findings import Severity, by_id, by_reason, worst_of
from traceprof.reports.tables import OneLine
from traceprof.units import between, duration, percent, ranks_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from traceprof.analyses.verdict.run_result import RunResult
    from traceprof.findings import Evidence, Finding, NotApplicable, Saving
    from traceprof.run.rank import WindowKind

_MAX_UNEXPLAINED = 6
MAX_EVIDENCE = {Severity.INFO: 0, Severity.LOW: 1, Severity.MEDIUM: 2, Severity.HIGH: 2}
"""Pieces of evidence that are shown of a finding."""
_MAX_ADVICE = {Severity.INFO: 0, Severity.LOW: 1, Severity.MEDIUM: 2, Severity.HIGH: 2}
_MIN_ADVISED = 3  # findings, of whatever severity
_SEVERITY_STYLE = {
    Severity.HIGH: "bold white on red",
    Severity.MEDIUM: "bold black on yellow",
    Severity.LOW: "bold cyan",
    Severity.INFO: "bold bright_black",
}


def findings_section(analysis: RunResult) -> Iterable[RenderableType]:
    """Yield the findings, and what of the time no finding owns."""
    kind = judged_kind(analysis.breakdown)
    if not analysis.findings:
        yield Text(no_finding(kind))
    seen: set[tuple[int, int, int]] = set()
    for place, group in enumerate(by_id(analysis.findings)):
        yield _finding_group(analysis, group, seen, max_advice(place, worst_of(group)))
    for line in unexplained_lines(analysis, kind):
        yield Text(line)


def no_finding(kind: WindowKind) -> str:
    """Say that nothing was found."""
    return f"No finding reaches 1 % of the {kind}."


def unexplained_lines(analysis: RunResult, kind: WindowKind) -> list[str]:
    """Say which parts of the time no finding accounts for, and why."""
    left = [part for part in analysis.attributions if part.finding is None]
    return [
        f"rank {part.rank}: {percent(part.fraction)} of the {kind} is {part.part}, and no"
        f" finding's: {one_line(part.sentence or '')}"
        for part in left[:_MAX_UNEXPLAINED]
    ]


def max_advice(place: int, finding: Finding) -> int:
    """Return how many pieces of advice are shown; explain and the JSON have the rest.

    Args:
        place: of the finding in the order in which to act, from 0.
        finding: on the rank where it costs most.
    """
    return max(_MAX_ADVICE[finding.severity], place < _MIN_ADVISED)


def claim_lines(analysis: RunResult, group: Sequence[Finding]) -> list[str]:
    """Say what a finding claims of several ranks, by its costliest rank.

    Args:
        analysis: that the finding is of.
        group: the finding on each rank.
    """
    worst, kind = worst_of(group), judged_kind(analysis.breakdown)
    headline = analysis.headline
    has_steps = headline is not None and headline.lengths is not None
    lines = [f"rank {worst.rank}: {one_line(worst.title)} ({_cost(worst, kind)})"]
    per_step = worst.metrics.get("per_step_ns")
    if isinstance(per_step, int):
        lines.append(f"{duration(per_step)} in the mean step")
    gain = _gain(worst.saving, "a step" if has_steps else f"the {kind}")
    if gain:
        lines.append(gain)
    least = min(group, key=lambda finding: finding.impact_fraction)
    if _cost(least, kind) != _cost(worst, kind):
        lines.append(f"lowest: rank {least.rank} with {percent(least.impact_fraction)}")
    return lines


def evidence_text(evidence: Evidence) -> str:
    """Say where in time evidence is, and what it is."""
    length = duration(evidence.end_ns - evidence.start_ns)
    return f"at {evidence.start_ns / 1e9:.6f} s for {length}: {one_line(evidence.label)}"


def _finding_group(
    analysis: RunResult, group: list[Finding], seen: set[tuple[int, int, int]], num_shown: int
) -> RenderableType:
    """Show the same finding on several ranks once, by its costliest rank.

    Args:
        analysis: that it is of.
        group: the finding on each rank.
        seen: the intervals shown so far, which are not shown again: rank, start and end.
        num_shown: how many pieces of advice are shown.
    """
    worst = worst_of(group)
    head = Text.assemble(
        (f" {worst.severity} ", _SEVERITY_STYLE[worst.severity]),
        (f" {worst.id} ", "bold"),
        f"  {ranks_text([finding.rank for finding in group])}",
    )
    parts: list[RenderableType] = [
        head,
        _indented([Text(line) for line in claim_lines(analysis, group)]),
    ]
    for evidence in worst.evidence[: MAX_EVIDENCE[worst.severity]]:
        place = worst.rank, evidence.start_ns, evidence.end_ns
        if place not in seen:
            parts.append(OneLine(Text(f"   {evidence_text(evidence)}", "bright_black")))
        seen.add(place)
    advice = [Text(f"→ {one_line(text)}", "italic") for text in worst.advice[:num_shown]]
    more = len(worst.advice) - num_shown
    if num_shown and more > 0:
        advice.append(Text(f"… {more} more: traceprof explain {worst.id}", "bright_black"))
    if advice:
        parts.append(_indented(advice))
    return Group(*parts, Text(""))


def _gain(saving: Saving | None, subject: str) -> str:
    """Say what would be gained, by a replay; what a finding costs is said with its title."""
    if saving is None or saving.assume is None:
        return ""
    if not saving.high_ns:
        return f"without it {subject} takes as long ({saving.assume})"
    if saving.step_ns is None:
        most = duration(saving.high_ns)
        return f"without it {subject} takes at most {most} less ({saving.assume})"
    limits = between(saving.low_ns or 0, saving.high_ns)
    gain = duration(saving.step_ns)
    span = "" if limits == gain else f"{limits}; "
    return f"without it {subject} takes {gain} less ({span}{saving.assume})"


def _indented(lines: Sequence[RenderableType]) -> RenderableType:
    return Padding(Group(*lines), (0, 0, 0, 3))


def _cost(finding: Finding, kind: WindowKind) -> str:
    if not finding.impact_ns:
        return "costs nothing"
    return f"{percent(finding.impact_fraction)} of the {kind}"


def gap_lines(missing: Sequence[NotApplicable]) -> list[tuple[str, str, str]]:
    """Say once what is missing in the same way: the findings, what of which ranks, the remedy."""
    lines = []
    for group in by_reason(missing):
        known = {gap.rank for gap in group if gap.rank is not None}
        where = f" on {ranks_text(known)}" if known else ""
        findings = ", ".join(dict.fromkeys(gap.id for gap in group))
        reason = f"{where}: {one_line(group[0].reason)}"
        lines.append((findings, reason, one_line(group[0].how_to_collect)))
    return lines


def not_applicable_section(missing: Sequence[NotApplicable]) -> Iterable[RenderableType]:
    """Say once what is missing in the same way for several findings or ranks."""
    for findings, reason, remedy in gap_lines(missing):
        yield Text.assemble((findings, "bold"), reason)
        yield Padding(Text(f"→ {remedy}", "italic"), (0, 0, 0, 3))
