"""Findings in words: a claim of each, the time that none accounts for, what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traceprof.analyses.breakdown import judged_kind
from traceprof.analyses.steps import counted_steps
from traceprof.analyses.verdict.attribution import Attribution
from traceprof.analyses.verdict.phases import name_of_phase
from traceprof.analyses.verdict.run_result import RunResult
from traceprof.analyses.verdict.three_lines import (
    share_of_step,
    short_action,
    small_fixes,
    why_more,
)
from traceprof.errors import one_line
from traceprof.findings import (
    Finding,
    InPhase,
    NotApplicable,
    Saving,
    Severity,
    by_id,
    by_reason,
    worst_of,
)
from traceprof.reports.blocks import Block, Claim, Gap, Paragraph, SeenEvidence, paragraph, table
from traceprof.run.rank import WindowKind
from traceprof.units import between, duration, percent, ranks_text

_MAX_UNEXPLAINED = 6
# Pieces of evidence and of advice that short formats show; explain and the JSON have the rest.
_MAX_SHOWN = {Severity.INFO: 0, Severity.LOW: 1, Severity.MEDIUM: 2, Severity.HIGH: 2}
_PACE = "this wait may set the pace: anything else that becomes faster then only waits longer"
_CLEARLY_MORE = 1.5  # times what a finding costs: a gain of as much is explained
_MIN_ADVISED = 3  # findings, of whatever severity
_CLOCKS = (
    "Times of evidence are on the clock of the rank's own report; the dashboard shows them on"
    " that of the first report, with these beside them."
)


def finding_blocks(analysis: RunResult) -> Iterator[Block]:
    """Yield the findings in the order in which to act, then time that no finding accounts for."""
    kind = judged_kind(analysis.breakdown)
    if any(losses.is_unusable for _, losses in analysis.completeness):
        yield Paragraph("Nothing was judged: too much is missing from the recording.")
    elif not analysis.findings:
        yield Paragraph(f"No finding reaches 1 % of the {kind}.")
    groups = by_id(analysis.findings)
    seen: set[tuple[int, int, int]] = set()  # rank, start and end of evidence shown so far
    for place, group in enumerate(groups):
        yield _claim(analysis, group, place, seen)
    small = small_fixes(analysis.findings)
    if small is not None:
        yield paragraph(small)
    left = [part for part in analysis.verdict.attributions if part.finding is None]
    for part in left[:_MAX_UNEXPLAINED]:
        yield paragraph(unowned(part, kind))
    if len(analysis.run.reports) > 1 and any(item.evidence for item in analysis.findings):
        yield Paragraph(_CLOCKS)


def unowned(part: Attribution, kind: WindowKind) -> str:
    """Say that no finding accounts for a part of the time, and what it was."""
    return (
        f"rank {part.rank}: {percent(part.fraction)} of the {kind} is {part.part} that"
        f" no finding accounts for: {part.sentence or ''}"
    )


def short_findings(analysis: RunResult, max_rows: int, max_advice: int) -> Iterator[Block]:
    """Yield a table of findings in the order in which to act, and what to do after the first."""
    kind, headline = judged_kind(analysis.breakdown), analysis.headline
    unit, one = str(kind), f"the {kind}"
    if headline is not None and headline.lengths is not None:
        unit, one = headline.unit, headline.breakdown.unit.unit.one
    groups = by_id(analysis.findings)
    if not groups:
        yield Paragraph(f"No finding reaches 1 % of the {kind}.")
        return
    rows, more = [], []
    for group in groups[:max_rows]:
        worst = worst_of(group)
        result, quoted = analysis.in_phase(worst) or (analysis, worst)
        of_step = share_of_step(quoted, result.breakdown)
        cost = percent(of_step) if worst.impact_ns else "-"
        step_ns = 0 if result.headline is None else result.headline.step_ns
        much_ns = _CLEARLY_MORE * of_step * step_ns
        why = why_more(quoted, round(much_ns))
        if why is not None and much_ns and worst.severity > Severity.INFO:
            more.append(f"{worst.id} ({why})")
        ranks = ranks_text([finding.rank for finding in group]).removeprefix("rank").lstrip("s ")
        gain = ", ".join(filter(None, (gain_cell(quoted.saving), name_of_phase(worst))))
        rows.append((str(worst.severity), worst.id, ranks, cost, gain))
    headings = ("", "finding", "rank", f"of the {unit}", f"{one} gains")
    yield table(headings, rows, text=headings[:3])
    if len(groups) > max_rows:
        yield Paragraph(f"Also: {', '.join(group[0].id for group in groups[max_rows:])}.")
    if more:
        yield paragraph(f"More than the cost: {'; '.join(more)}.")
    small = small_fixes(analysis.findings)
    if small is not None:
        yield paragraph(small)
    said: set[str | None] = {None}
    causes = () if headline is None else headline.causes[: 1 + max_advice]
    for number, cause in enumerate(causes):  # the verdict has the action of the first one
        action = short_action(cause)
        if number and action not in said:
            yield Paragraph(f"{cause.id}: {action}.", "advice")
        said.add(action)


def gain_cell(saving: Saving | None) -> str:
    """Say in a word or two what a step would gain without a finding: `at most 1.40 ms`."""
    if saving is None or saving.high_ns is None:
        return "unknown"
    if saving.low_ns and saving.step_ns:
        return duration(saving.step_ns)
    return f"at most {duration(saving.high_ns)}" if saving.high_ns else "nothing"


def _claim(
    analysis: RunResult, group: Sequence[Finding], place: int, seen: set[tuple[int, int, int]]
) -> Claim:
    """Return what a finding claims of the ranks that have it."""
    worst, evidence = worst_of(group), []
    for number, item in enumerate(worst.evidence):
        interval = worst.rank, item.start_ns, item.end_ns
        matters = number < _MAX_SHOWN[worst.severity]
        length = duration(item.end_ns - item.start_ns)
        text = f"at {item.start_ns / 1e9:.6f} s for {length}: {one_line(item.label)}"
        is_shown = matters and interval not in seen
        evidence.append(SeenEvidence(text, item.start_ns, item.end_ns, is_shown))
        if matters:
            seen.add(interval)
    is_first = place < _MIN_ADVISED and worst.impact_ns > 0
    num_advice = max(_MAX_SHOWN[worst.severity], is_first)
    more = len(worst.advice) - num_advice
    return Claim(
        id=worst.id,
        severity=str(worst.severity),
        ranks=ranks_text([finding.rank for finding in group]),
        rank=worst.rank,
        sentences=tuple(sentences(analysis, group)),
        evidence=tuple(evidence),
        advice=tuple(map(one_line, worst.advice)),
        num_advice=num_advice,
        more=f"… {more} more: traceprof explain {worst.id}" if num_advice and more > 0 else "",
    )


def sentences(analysis: RunResult, group: Sequence[Finding]) -> Iterator[str]:
    """Yield the title of a finding of several ranks, what it costs in a step and would gain."""
    worst, kind = worst_of(group), judged_kind(analysis.breakdown)
    headline = analysis.headline
    has_steps = headline is not None and headline.lengths is not None
    unit = "" if headline is None else headline.breakdown.unit.unit.one
    # Without the cost, a reader takes the share for one of the last time in the title.
    cost = duration(worst.impact_ns)
    of_what = f"it costs {cost}, " if worst.impact_ns and cost not in worst.title else ""
    yield f"rank {worst.rank}: {one_line(worst.title)} ({of_what}{_cost(worst, kind)})"
    per_step = worst.metrics.get("per_step_ns")
    if isinstance(per_step, int):
        word = "step" if headline is None else headline.breakdown.unit.unit.word
        yield f"{duration(per_step)} in the mean {word}"
    if gain := gain_text(worst.saving, unit if has_steps else f"the {kind}"):
        yield gain + _beyond(analysis, worst)
    if worst.elsewhere is not None:
        yield _in_phase(worst, worst.elsewhere, unit)
    least = min(group, key=lambda finding: finding.impact_fraction)
    if least.rank == worst.rank and len(group) > 1:  # as with both directions of a link
        for other in group:
            if other is not worst and other.rank == worst.rank:
                yield f"also: {one_line(other.title)} ({_cost(other, kind)})"
    elif _cost(least, kind) != _cost(worst, kind):
        yield f"lowest: rank {least.rank} with {percent(least.impact_fraction)}"


def _beyond(analysis: RunResult, finding: Finding) -> str:
    saving, per_step = finding.saving, finding.metrics.get("per_step_ns")
    if saving is None or saving.sets_pace:
        return ""
    if not isinstance(per_step, int):
        (result,) = (rank for rank in analysis.breakdown if rank.rank == finding.rank)
        per_step = finding.impact_ns // max(len(counted_steps(result)), 1)
    why = why_more(finding, per_step)
    return f": more than its cost, as {why}" if why else ""


def _in_phase(finding: Finding, inside: InPhase, one: str) -> str:
    cost, share = duration(inside.impact_ns), percent(inside.impact_fraction)
    most = f"most in the {name_of_phase(finding)}: {cost}, {share} of it"
    gain = gain_text(*quoted(finding, one))
    return f"{most}; {gain}" if gain else most


def quoted(finding: Finding, one: str) -> tuple[Saving | None, str]:
    """Return the saving to quote, and of what: a step of the phase where most of a finding lies.

    `one`: such a step in words.
    """
    if finding.elsewhere is None:
        return finding.saving, one
    return finding.elsewhere.saving, f"{one} of the {name_of_phase(finding)}"


def gain_text(saving: Saving | None, subject: str) -> str:
    """Say what a step would gain without a finding: from a replay, else from all its time.

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


def no_cost(finding: Finding) -> str:
    """Say that a finding costs nothing, or nothing by itself if a replay gains time without it."""
    gains = finding.saving is not None and finding.saving.low_ns
    return "costs nothing by itself" if gains else "costs nothing"


def _cost(finding: Finding, kind: WindowKind) -> str:
    if not finding.impact_ns:
        return no_cost(finding)
    return f"{percent(finding.impact_fraction)} of the {kind}"


def gaps(missing: Sequence[NotApplicable]) -> list[Gap]:
    """Return what could not be analysed, once for several findings or ranks."""
    explained: list[Gap] = []
    for group in by_reason(missing):
        known = {gap.rank for gap in group if gap.rank is not None}
        where = f" on {ranks_text(known)}" if known else ""
        findings = ", ".join(dict.fromkeys(gap.id for gap in group))
        differs = any(gap.reason != group[0].reason for gap in group)
        of_rank = f" (rank {group[0].rank})" if differs else ""
        reason = f"{where}: {one_line(group[0].reason)}{of_rank}"
        explained.append(Gap(findings, reason, one_line(group[0].how_to_collect)))
    return explained
