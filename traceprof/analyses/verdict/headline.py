"""The headline of a run: the length of a step, its parts, and the costliest findings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from traceprof.analyses.steps.step_lengths import slowest_rank, step_lengths, step_ns
from traceprof.analyses.verdict.savings import Savings
from traceprof.findings import Basis, by_id, worst_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.analyses.breakdown import BreakdownResult
    from traceprof.analyses.steps.step_lengths import StepLengths
    from traceprof.findings import Finding

MAX_CAUSES = 3
MIN_SHARE = 0.01  # of what is judged: less is no cause that matters


@dataclass(frozen=True, slots=True)
class Headline:
    """The run in one line.

    Attributes:
        breakdown: of the rank whose step takes longest.
        step_ns: what its step takes, the mean of the steady ones; without steps all that is judged
            is one step.
        lengths: how long its steps take, None without steps.
        causes: the costliest finding of each of the three ids that cost most, of whatever rank.
        savings: what a step could take.
    """

    breakdown: BreakdownResult
    step_ns: int
    lengths: StepLengths | None
    causes: tuple[Finding, ...]
    savings: Savings = field(default_factory=Savings)


def headline(results: Sequence[BreakdownResult], findings: Sequence[Finding]) -> Headline | None:
    """Return the headline of a run; None where nothing was measured.

    Args:
        results: where the time of the ranks went.
        findings: of the run.
    """
    if not results:
        return None
    breakdown = slowest_rank(results)
    worst = [worst_of(group) for group in by_id(findings)]
    costly = [finding for finding in worst if finding.impact_fraction >= MIN_SHARE]
    costly.sort(key=lambda finding: (-finding.impact_fraction, finding.id))
    lengths = step_lengths(breakdown)
    return Headline(breakdown, step_ns(breakdown), lengths, tuple(costly[:MAX_CAUSES]))


def largest_limit(findings: Sequence[Finding], step_ns: int) -> Finding | None:
    """Return the finding without which a step would gain most, by a limit no change reaches.

    Args:
        findings: of the run, with their savings.
        step_ns: what a step takes; what is less than a hundredth of it is no limit that matters.
    """
    limits = [
        (finding.saving.high_ns, finding)
        for finding in findings
        if finding.saving is not None
        and finding.saving.basis is Basis.BOUND
        and finding.saving.assume is not None
        and finding.saving.high_ns >= MIN_SHARE * step_ns
    ]
    return max(limits, key=lambda pair: pair[0])[1] if limits else None
