"""The order of findings: what to act on first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from traceprof.analyses.registry import FINDINGS
from traceprof.findings import Basis, Finding, Saving, Severity, by_id

if TYPE_CHECKING:
    from collections.abc import Iterable

MIN_SHARE = 0.01
"""The share of a step from which on a gain is above the noise between two runs."""
_PROVEN, _PACING, _LIMITED, _UNKNOWN = range(4)


def in_order(findings: Iterable[Finding], step_ns: int) -> tuple[Finding, ...]:
    """Return findings in the order in which to act on them, the ranks of each id together.

    First those with a gain that a replay proved, by that gain; then those with a limit only, by the
    limit; then the others, by what they cost. Of limits that of a wait which may set the pace goes
    first: as long as it does, other limits are none that a change comes near. Mere information
    comes last, in the same order: a limit far above what a finding costs is no evidence. One with a
    proven gain is no mere information.

    Args:
        findings: of the run, with their savings as far as they are known.
        step_ns: what a step takes.
    """
    marked = [_marked(finding, step_ns) for finding in findings]
    groups = [sorted(group, key=lambda finding: _key(finding, step_ns)) for group in by_id(marked)]
    groups.sort(key=lambda group: _key(group[0], step_ns))
    return tuple(finding for group in groups for finding in group)


def as_parts(findings: Iterable[Finding], wholes: Iterable[Finding]) -> list[Finding]:
    """Return findings, each marked with the finding on its rank that includes all of its time.

    Args:
        findings: some of the run's.
        wholes: those that may include the time of others.
    """
    costs = {(whole.id, whole.rank): whole.impact_ns for whole in wholes}
    return [replace(finding, part_of=_part_of(finding, costs)) for finding in findings]


def is_proven(finding: Finding, step_ns: int) -> bool:
    """Say whether a replay proved that a step gains more than noise without a finding."""
    saving = finding.saving
    return (
        saving is not None
        and saving.basis is Basis.REPLAY
        and (saving.low_ns or 0) > MIN_SHARE * step_ns
    )


def limits(findings: Iterable[Finding], step_ns: int) -> list[tuple[Finding, Saving]]:
    """Return the findings without which a step gains at most a limit that is above noise.

    Args:
        findings: of the run, in the order in which to act: so are the limits.
        step_ns: what a step takes.
    """
    return [
        (finding, finding.saving)
        for finding in findings
        if finding.saving is not None
        and finding.saving.is_limit
        and (finding.saving.high_ns or 0) >= MIN_SHARE * step_ns
    ]


def _marked(finding: Finding, step_ns: int) -> Finding:
    if finding.severity is Severity.INFO and is_proven(finding, step_ns):
        return replace(finding, severity=Severity.LOW)
    return finding


def _part_of(finding: Finding, costs: dict[tuple[str, int], int]) -> str | None:
    whole = finding.part_of or FINDINGS[finding.id].part_of
    if whole is None or finding.impact_ns > costs.get((whole, finding.rank), -1):
        return None
    return whole


def _key(finding: Finding, step_ns: int) -> tuple[object, ...]:
    saving = finding.saving
    if saving is None or saving.high_ns is None:
        rank, gain_ns = _UNKNOWN, 0
    elif is_proven(finding, step_ns):
        rank, gain_ns = _PROVEN, saving.step_ns or 0
    else:
        is_pacing = saving.sets_pace and saving.high_ns > MIN_SHARE * step_ns
        rank, gain_ns = (_PACING if is_pacing else _LIMITED), saving.high_ns
    # Of two that gain as much, a part is more specific than the whole.
    return (
        rank >= _LIMITED and finding.severity is Severity.INFO,
        rank,
        -gain_ns,
        finding.part_of is None,
        -finding.impact_ns,
        -finding.severity.level,
        finding.id,
        finding.rank,
    )
