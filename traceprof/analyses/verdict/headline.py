"""The headline of a run: the length of a step, its parts, and what to act on first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import field
from msgspec.structs import replace

from traceprof.analyses.steps.step_means import slowest_rank, step_lengths, step_ns
from traceprof.analyses.verdict.order import MIN_SHARE, in_order, is_proven
from traceprof.analyses.verdict.savings import Savings
from traceprof.findings import by_id, worst_of
from traceprof.structs import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.analyses.breakdown import BreakdownResult
    from traceprof.analyses.steps.step_means import StepLengths
    from traceprof.findings import Finding

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
