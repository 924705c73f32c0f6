"""The order of findings, and the headline: the length of a step, and what to act on first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import field
from msgspec.structs import replace

from traceprof.analyses.registry import FINDINGS
from traceprof.analyses.steps.step_means import slowest_rank, step_lengths, step_ns
from traceprof.analyses.verdict.savings import Savings
from traceprof.findings import Basis, Finding, Saving, Severity, by_id, worst_of
from traceprof.structs import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from traceprof.analyses.breakdown import BreakdownResult
    from traceprof.analyses.steps.step_means import StepLengths

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


MAX_CAUSES = 3


class Headline(Record, frozen=True):
    """The run in one line."""

    breakdown: BreakdownResult  # of the rank whose step takes longest
    # what its step takes, the mean of the steady ones; without steps all that is judged is one
    # step
    step_ns: int
    lengths: StepLengths | None  # how long its steps take, None without steps
    # share of the time in which the GPUs worked that lies in what is judged: in the training, of
    # all that was recorded; None without a GPU
    judged_fraction: float | None = None
    # of each finding's id the costliest, of whatever rank, in the order of findings
    worst: tuple[Finding, ...] = ()
    savings: Savings = field(default_factory=Savings)  # what a step could take

    @property
    def causes(self) -> tuple[Finding, ...]:
        """What to act on first: at most three findings, each worth 1 % of a step or more."""
        return tuple(finding for finding in self.worst if self._matters(finding))[:MAX_CAUSES]

    def _matters(self, finding: Finding) -> bool:
        most_ns = None if finding.saving is None else finding.saving.high_ns
        is_costly = finding.impact_fraction >= MIN_SHARE or is_proven(finding, self.step_ns)
        return is_costly and (most_ns is None or most_ns >= MIN_SHARE * self.step_ns)

    def updated(self, findings: Sequence[Finding]) -> Headline:
        """Return the headline with findings instead of those of the same ids."""
        ids = {finding.id for finding in findings}
        others = [finding for finding in self.worst if finding.id not in ids]
        ordered = in_order([*findings, *others], self.step_ns)
        return replace(self, worst=tuple(map(worst_of, by_id(ordered))))


def headline(results: Sequence[BreakdownResult]) -> Headline | None:
    """Return the headline of a run, without findings; None if nothing was measured.

    Args:
        results: where the time of the ranks went.
    """
    if not results:
        return None
    breakdown = slowest_rank(results)
    of_gpus = [result for result in results if result.has_gpu]
    recorded_ns = sum(result.whole.busy_ns for result in of_gpus)
    judged_ns = sum(result.judged.busy_ns for result in of_gpus)
    return Headline(
        breakdown,
        step_ns(breakdown),
        step_lengths(breakdown),
        judged_ns / recorded_ns if recorded_ns else None,
    )
