"""Phases of a program: findings that lie mostly in one whose steps are not the headline's.

Phases are programs of their own, one after the other. What is said of a step is said of those of
the longest phase; findings judge the whole training. Each other phase is judged as a run, too, so
that a finding which lies mostly there says what it costs there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from traceprof.analyses.breakdown import BreakdownResult
from traceprof.analyses.steps import phases
from traceprof.analyses.verdict.headline import Headline
from traceprof.analyses.verdict.run_result import Verdict
from traceprof.analyses.verdict.yields import expected_ns
from traceprof.findings import Finding, InPhase, costliest_like

_MIN_SHARE = 0.5  # of a finding's cost
_NAMES = ("first phase", "second phase", "third phase", "fourth phase")


def phase_name(phase: int) -> str:
    """Return a phase in words, from its index."""
    return _NAMES[phase]


def name_of_counted_phase(result: BreakdownResult) -> str:
    """Return the phase in words whose steps count, if a program has several."""
    return next((phase_name(one.phase) for one in phases(result) if one.counts), "")


def name_of_phase(finding: Finding) -> str:
    """Return the phase in words in which a finding lies, if its saving is of another one."""
    return "" if finding.elsewhere is None else phase_name(finding.elsewhere.phase)


def costs_elsewhere(phases: Mapping[int, Verdict]) -> dict[tuple[str, int], int]:
    """Return what findings cost in phases whose steps are not counted, by id and rank."""
    costs: Counter[tuple[str, int]] = Counter()
    for verdict in phases.values():
        for finding in verdict.findings:
            costs[finding.id, finding.rank] += finding.impact_ns
    return dict(costs)


def in_phases(
    findings: Sequence[Finding], headline: Headline | None, phases: Mapping[int, Verdict]
) -> list[Finding]:
    """Return findings, those with the phase in which they lie that lie mostly in another one."""
    if headline is None or headline.lengths is None:
        return [*findings]
    num_steps, placed = headline.lengths.num_steps, []
    for finding in findings:
        inside = [_in_phase(finding, number, phases[number], num_steps) for number in phases]
        found = next((one for one in inside if one is not None), None)
        placed.append(finding if found is None else _placed(finding, found, phases[found.phase]))
    return placed


def _placed(finding: Finding, found: InPhase, phase: Verdict) -> Finding:
    inside = costliest_like(finding, phase.findings)
    first = () if inside is None else inside.advice
    advice = tuple(dict.fromkeys([*first, *finding.advice]))
    return replace(finding, in_phase=found, advice=advice)


def _in_phase(finding: Finding, number: int, phase: Verdict, num_steps: int) -> InPhase | None:
    most = costliest_like(finding, phase.findings)
    headline = phase.headline
    if most is None or most.impact_ns <= _MIN_SHARE * finding.impact_ns:
        return None
    if headline is None or headline.lengths is None:
        return None
    times = headline.lengths.num_steps / num_steps
    return InPhase(
        phase=number,
        impact_ns=most.impact_ns,
        impact_fraction=most.impact_fraction,
        step_ns=headline.step_ns,
        saving=most.saving,
        most_ns=None if most.most_ns is None else round(times * most.most_ns),
        expected_ns=round(times * expected_ns(most, headline.step_ns)),
    )
