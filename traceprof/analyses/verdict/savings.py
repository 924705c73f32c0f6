"""What a step would gain without findings, as a replay says, or at most."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from traceprof.analyses.steps.step_lengths import step_ns, training_steps
from traceprof.findings import Basis, Saving

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.analyses.breakdown import BreakdownResult
    from traceprof.findings import Finding

GateName = Literal["misfit", "unexplained", "host-floor"]


@dataclass(frozen=True, slots=True)
class Gate:
    """A check of a replay.

    Attributes:
        name: `misfit`, `unexplained` or `host-floor`.
        value: what was measured, as a share of the step; None where it cannot be.
        limit: beyond which nothing is answered.
        holds: whether it is kept.
    """

    name: GateName
    value: float | None
    limit: float
    holds: bool


@dataclass(frozen=True, slots=True)
class Gain:
    """What a step gains without a finding, beside what it gains without those before.

    Attributes:
        finding: its id.
        assume: what was assumed besides what stands before.
        gain_ns: of the step in the middle.
        step_ns: what that takes then.
    """

    finding: str
    assume: str
    gain_ns: int
    step_ns: int


@dataclass(frozen=True, slots=True)
class Savings:
    """What a step could take without what findings are about; nothing is counted twice.

    Attributes:
        possible_ns: without all that is counted; None where nothing was replayed.
        low_ns: the least that it may be.
        high_ns: the most.
        gains: what is counted, the largest first.
        num_steps: how many steps were replayed; 1 is the whole training where none are known.
        gates: of the replay.
        refused: why nothing can be replayed, None where it can.
        how_to_collect: what to record so that it can.
    """

    possible_ns: int | None = None
    low_ns: int | None = None
    high_ns: int | None = None
    gains: tuple[Gain, ...] = ()
    num_steps: int = 0
    gates: tuple[Gate, ...] = ()
    refused: str | None = None
    how_to_collect: str | None = None


def bounded(
    findings: Sequence[Finding], breakdowns: Sequence[BreakdownResult]
) -> tuple[Finding, ...]:
    """Return findings with what a step would gain at most: what they cost, by step.

    Args:
        findings: of the run.
        breakdowns: where the time of its ranks went.
    """
    of_rank = {result.rank: result for result in breakdowns}
    return tuple(
        replace(finding, saving=_bound(finding, of_rank.get(finding.rank))) for finding in findings
    )


def _bound(finding: Finding, breakdown: BreakdownResult | None) -> Saving | None:
    if breakdown is None:
        return None
    num_steps = max(len(training_steps(breakdown)), 1)
    at_most = min(-(-finding.impact_ns // num_steps), step_ns(breakdown))
    return Saving(Basis.BOUND, at_most)
