"""The text report's findings, and what could not be judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from traceprof.analyses.breakdown import judged_kind
from traceprof.analyses.steps.step_means import counted_steps
from traceprof.errors import one_line
from traceprof.findings import Severity, by_id, by_reason, worst_of
from traceprof.reports.detail import WHOLE
from traceprof.reports.tables import OneLine
from traceprof.units import between, duration, percent, ranks_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from traceprof.analyses.verdict.run_result import RunResult
    from traceprof.findings import Evidence, Finding, NotApplicable, Saving
    from traceprof.reports.detail import Detail
    from traceprof.run.rank import WindowKind

_MAX_UNEXPLAINED = 6
MAX_EVIDENCE = {Severity.INFO: 0, Severity.LOW: 1, Severity.MEDIUM: 2, Severity.HIGH: 2}
"""Pieces of evidence that are shown of a finding."""
_MAX_ADVICE = {Severity.INFO: 0, Severity.LOW: 1, Severity.MEDIUM: 2, Severity.HIGH: 2}
_PACE = "this wait may set the pace: anything else that becomes faster then only waits longer"
_MIN_ADVISED = 3  # findings, of whatever severity
_CLOCKS = (
    "Times of evidence are on the clock of the rank's own report; the dashboard shows them on"
    " that of the first report, with these beside them."
)
_GAINS_BESIDE = {
    "communication=0": "kernels beside communication become faster, too",
    "copies-hidden": "the calls that make the copies go, too",
    "half-precision": "kernels that only move numbers become faster, too",
    "launch=0": "what the host runs between launches goes, too",
    "no-sync": "the host then launches ahead, which hides other time of its own, too",
}
_MUCH_MORE = 1.05  # a step of another rank may be as much longer
_MANY = 4  # findings that one gap hides: it matters, and not all need a name
_SEVERITY_STYLE = {
    Severity.HIGH: "bold white on red",
    Severity.MEDIUM: "bold black on yellow",
    Severity.LOW: "bold cyan",
    Severity.INFO: "bold bright_black",
}


def findings_section(analysis: RunResult, detail: Detail = WHOLE) -> Iterable[RenderableType]:
    """Yield the findings, and what of the time no finding owns."""
    kind = judged_kind(analysis.breakdown)
    if not analysis.findings:
        yield Text(no_finding(kind))
    groups = by_id(analysis.findings)
    num_full = len(groups) if detail.is_whole else detail.num_first
    seen: set[tuple[int, int, int]] = set()
    shown = [
        *(
            _finding_group(analysis, group, seen, place, detail)
            for place, group in enumerate(groups[:num_full])
        ),
        *_later(analysis, groups[num_full:], detail),
    ]
    for place, group in enumerate(shown):
        yield from (Text(""), group) if place else (group,)
    for line in lines_below(analysis, kind):
        yield Text(line)


def no_finding(kind: WindowKind) -> str:
    """Say that nothing was found."""
    return f"No finding reaches 1 % of the {kind}."


def lines_below(analysis: RunResult, kind: WindowKind) -> list[str]:
    """Say which parts of the time no finding accounts for, and whose clock evidence has."""
    left = [part for part in analysis.attributions if part.finding is None]
    has_clocks = len(analysis.run.reports) > 1 and any(item.evidence for item in analysis.findings)
    lines = [
        f"rank {part.rank}: {percent(part.fraction)} of the {kind} is {part.part} that"
        f" no finding accounts for: {one_line(part.sentence or '')}"
        for part in left[:_MAX_UNEXPLAINED]
    ]
    return lines + [_CLOCKS] * has_clocks


def max_advice(place: int, finding: Finding) -> int:
    """Return how many pieces of advice are shown; explain and the JSON have the rest.

    Args:
        place: of the finding in the order in which to act, from 0.
        finding: on the rank where it costs most.
    """
    matters = place < _MIN_ADVISED and finding.impact_ns > 0
    return max(_MAX_ADVICE[finding.severity], matters)


def claim_lines(analysis: RunResult, group: Sequence[Finding]) -> list[str]:
    """Say what a finding claims of several ranks, by its costliest rank.

    Args:
        analysis: that the finding is of.
        group: the finding on each rank.
    """
    worst, kind = worst_of(group), judged_kind(analysis.breakdown)
    # A share that is of none of the times in the title is read as one of the last of them.
    cost = duration(worst.impact_ns)
    of_what = f"it costs {cost}, " if worst.impact_ns and cost not in worst.title else ""
    lines = [f"rank {worst.rank}: {one_line(worst.title)} ({of_what}{_cost(worst, kind)})"]
    per_step = worst.metrics.get("per_step_ns")
    if isinstance(per_step, int):
        lines.append(f"{duration(per_step)} in the mean step")
    gain = gain_text(worst.saving, _subject(analysis))
    if gain:
        lines.append(gain + _beyond(analysis, worst))
    least = min(group, key=lambda finding: finding.impact_fraction)
    if least.rank == worst.rank and len(group) > 1:  # as with both directions of a link
        others = (claim for claim in group if claim is not worst and claim.rank == worst.rank)
        lines += [f"also: {one_line(claim.title)} ({_cost(claim, kind)})" for claim in others]
    elif _cost(least, kind) != _cost(worst, kind):
        lines.append(f"lowest: rank {least.rank} with {percent(least.impact_fraction)}")
    return lines


def _beyond(analysis: RunResult, finding: Finding) -> str:
    """Say that what was replayed takes out more than the finding costs in the mean step."""
    saving, per_step = finding.saving, finding.metrics.get("per_step_ns")
    if saving is None or saving.assume is None or saving.sets_pace:
        return ""
    if not isinstance(per_step, int):
        (result,) = (rank for rank in analysis.breakdown if rank.rank == finding.rank)
        per_step = finding.impact_ns // max(len(counted_steps(result)), 1)
    gained = saving.high_ns if saving.step_ns is None else saving.step_ns
    why = _GAINS_BESIDE.get(saving.assume, "it changes more than this finding counts")
    return f": more than its cost, as {why}" if (gained or 0) > _MUCH_MORE * per_step else ""


def evidence_text(evidence: Evidence) -> str:
    """Say where in time evidence is, and what it is."""
    length = duration(evidence.end_ns - evidence.start_ns)
    return f"at {evidence.start_ns / 1e9:.6f} s for {length}: {one_line(evidence.label)}"


def _finding_group(
    analysis: RunResult,
    group: list[Finding],
    seen: set[tuple[int, int, int]],
    place: int,
    detail: Detail,
) -> RenderableType:
    """Show the same finding on several ranks once, by its costliest rank.

    Args:
        analysis: that it is of.
        group: the finding on each rank.
        seen: the intervals shown so far, which are not shown again: rank, start and end.
        place: of the finding among all.
        detail: how much of it is shown.
    """
    worst = worst_of(group)
    num_shown = min(max_advice(place, worst), detail.num_advice)
    parts = _claim(analysis, group)
    for evidence in worst.evidence[: min(MAX_EVIDENCE[worst.severity], detail.num_evidence)]:
        interval = worst.rank, evidence.start_ns, evidence.end_ns
        if interval not in seen:
            parts.append(OneLine(Text(f"   {evidence_text(evidence)}", "bright_black")))
        seen.add(interval)
    advice = [Text(f"→ {one_line(text)}", "italic") for text in worst.advice[:num_shown]]
    more = len(worst.advice) - num_shown
    if detail.is_whole and num_shown and more > 0:
        advice.append(Text(f"… {more} more: traceprof explain {worst.id}", "bright_black"))
    if advice:
        parts.append(_indented(advice))
    return Group(*parts)


def _claim(analysis: RunResult, group: list[Finding]) -> list[RenderableType]:
    """Return what a finding claims: its name, its title, and what it costs and would gain."""
    title, *more = claim_lines(analysis, group)
    lines = [title, *(["; ".join(more)] if more else [])]
    return [_head(group), _indented([Text(line) for line in lines])]


def _head(group: Sequence[Finding]) -> Text:
    worst = worst_of(group)
    return Text.assemble(
        (f" {worst.severity} ", _SEVERITY_STYLE[worst.severity]),
        (f" {worst.id} ", "bold"),
        f"  {ranks_text([finding.rank for finding in group])}",
    )


def _later(
    analysis: RunResult, groups: Sequence[list[Finding]], detail: Detail
) -> Iterable[RenderableType]:
    """Yield the findings after the first ones, shorter."""
    if detail.later == "claim":
        yield from (Group(*_claim(analysis, group)) for group in groups)
        return
    if detail.later == "list":
        kind = judged_kind(analysis.breakdown)
        words = [f"{worst.id} {_cost(worst, kind)}" for worst in map(worst_of, groups)]
        if words:
            yield Text(f"Also: {', '.join(words)}.")
        return
    lines = []
    for group in groups:
        worst = worst_of(group)
        cost = _cost(worst, judged_kind(analysis.breakdown))
        is_replayed = worst.saving is not None and worst.saving.assume is not None
        gain = gain_text(worst.saving, _subject(analysis)) if is_replayed else ""
        line = _head(group)
        most = "at most " if len(group) > 1 and worst.impact_ns else ""
        line.append(f": {most}{cost}{f'; {gain}' if gain else ''}")
        lines.append(line)
    if lines:
        yield Group(*lines)


def _subject(analysis: RunResult) -> str:
    """Return what takes less time without a finding."""
    headline = analysis.headline
    has_steps = headline is not None and headline.lengths is not None
    return "a step" if has_steps else f"the {judged_kind(analysis.breakdown)}"


def gain_text(saving: Saving | None, subject: str) -> str:
    """Say what would be gained, from a replay or else from all time that the finding involves.

    Args:
        saving: of a finding.
        subject: what would be shorter, such as `a step`.

    Returns:
        `without it a step takes 1.2 ms less (no-sync)`; empty if nothing is known, or where a
        finding that no replay takes out costs nothing.
    """
    if saving is None or saving.high_ns is None or not (saving.high_ns or saving.assume):
        return ""
    source = saving.assume or saving.limited_by or "all time it involves"
    without = "without it" if saving.share is None else f"without {percent(saving.share)} of it"
    if not saving.high_ns:
        return f"{without} {subject} takes as long ({source})"
    if not saving.low_ns:  # a limit, or an interval that begins at zero: nothing is promised
        at_most = f"{without} {subject} takes at most {duration(saving.high_ns)} less ({source})"
        return f"{at_most}; {_PACE}" if saving.sets_pace else at_most
    limits, gain = between(saving.low_ns, saving.high_ns), duration(saving.step_ns or 0)
    span = "" if limits == gain else f"{limits}; "
    return f"{without} {subject} takes {gain} less ({span}{saving.assume})"


def _indented(lines: Sequence[RenderableType]) -> RenderableType:
    return Padding(Group(*lines), (0, 0, 0, 3))


def no_cost(finding: Finding) -> str:
    """Say that a finding costs nothing, or nothing unless something else changes as well."""
    gains = finding.saving is not None and finding.saving.low_ns
    return "costs nothing by itself" if gains else "costs nothing"


def _cost(finding: Finding, kind: WindowKind) -> str:
    if not finding.impact_ns:
        return no_cost(finding)
    return f"{percent(finding.impact_fraction)} of the {kind}"


def gap_lines(missing: Sequence[NotApplicable]) -> list[tuple[str, str, str]]:
    """Say once what is missing in the same way: the findings, what of which ranks, the remedy."""
    lines = []
    for group in by_reason(missing):
        known = {gap.rank for gap in group if gap.rank is not None}
        where = f" on {ranks_text(known)}" if known else ""
        findings = ", ".join(dict.fromkeys(gap.id for gap in group))
        differs = any(gap.reason != group[0].reason for gap in group)
        of_rank = f" (rank {group[0].rank})" if differs else ""
        reason = f"{where}: {one_line(group[0].reason)}{of_rank}"
        lines.append((findings, reason, one_line(group[0].how_to_collect)))
    return lines


def gaps(
    missing: Sequence[NotApplicable], detail: Detail = WHOLE
) -> tuple[list[RenderableType], list[str]]:
    """Say once what is missing in the same way for several findings or ranks.

    Args:
        missing: what could not be analysed.
        detail: how much of it is shown.

    Returns:
        Lines with reasons, and the ids of the findings without.
    """
    lines: list[RenderableType] = []
    others: dict[str, None] = {}
    for findings, reason, remedy in gap_lines(missing):
        names = findings.split(", ")
        hides_much = len(names) > _MANY
        if not (detail.has_reasons or hides_much):
            others |= dict.fromkeys(names)
            continue
        if hides_much and not detail.is_whole:
            findings = f"{', '.join(names[:_MANY])} and {len(names) - _MANY} more"  # noqa: PLW2901
        lines.append(Text.assemble((findings, "bold"), reason))
        lines.append(Padding(Text(f"→ {remedy}", "italic"), (0, 0, 0, 3)))
    return lines, [*others]
