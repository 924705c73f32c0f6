"""Savings: the time a step would gain without findings, from a replay or at most."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from traceprof.analyses.registry import FINDINGS
from traceprof.analyses.steps.step_lengths import compute_ns, steady_steps, step_ns
from traceprof.findings import Count, Saving, TimePart, by_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.analyses.breakdown import BreakdownResult
    from traceprof.findings import Finding

_MEASURES: dict[TimePart, str] = {
    "exposed communication": "exposed_communication_ns",
    "exposed copies": "exposed_copy_ns",
    "idle": "idle_ns",
}
RESOLUTION = 0.01
"""The smallest error of what a step is said to gain, as a share of it.

Nobody knows how long an operation waits for what did not hold it when it was measured: up to some
microseconds each. Simulated programs of known change are missed by up to 0.5 %.
"""
_NOT_REPLAYED = "no step was replayed: at most all that goes with it"
_NOT_REMOVABLE = "no replay can remove it: at most all that goes with it"
GateName = Literal[
    "launches", "records", "hidden-host-waits", "hidden-stream-waits", "misfit", "unexplained",
    "host-floor", "floor",
]  # fmt: skip


class Gate(Struct, frozen=True, forbid_unknown_fields=True):
    """A check of the replay; where one does not hold, what it makes unsure is not answered."""

    name: Annotated[GateName, Meta(description="What is checked.")]
    value: Annotated[float | None, Meta(description="As a share; null if unknown.")]
    limit: Annotated[float, Meta(description="The most that it may be.")]
    holds: Annotated[bool, Meta(description="Whether the value keeps the limit.")]


class Gain(Struct, frozen=True, forbid_unknown_fields=True):
    """The gain of a step without a finding, beyond what it gains without those before."""

    finding: Annotated[str, Meta(description="Its id.")]
    assume: Annotated[str, Meta(description="What was assumed besides what stands before.")]
    gain_ns: Annotated[Count, Meta(description="Of the mean step.")]
    step_ns: Annotated[Count, Meta(description="What a step takes then.")]


class Replay(Struct, frozen=True, forbid_unknown_fields=True):
    """The replay of steps from which savings come."""

    num_steps: Annotated[
        Count, Meta(description="That were replayed; of a long run not all. 0: none was.")
    ]
    gates: tuple[Gate, ...]
    refused: Annotated[str | None, Meta(description="Why nothing could be replayed, else null.")]
    how_to_collect: str | None

    @property
    def misfit(self) -> float | None:
        """By which share the replay misses what was measured; None if unknown."""
        value = next((gate.value for gate in self.gates if gate.name == "misfit"), None)
        return None if value is None else abs(value)


class Savings(Struct, frozen=True, kw_only=True):
    """The possible length of a step without the findings; nothing is counted twice."""

    possible_step_ns: Annotated[
        Count | None,
        Meta(
            description="Without the findings of `gains`, all together: `step_ns` less their gains."
            " Null where nothing could be replayed."
        ),
    ] = None
    possible_low_ns: Annotated[Count | None, Meta(description="The least that it may be.")] = None
    possible_high_ns: Annotated[Count | None, Meta(description="The most.")] = None
    gains: Annotated[
        tuple[Gain, ...],
        Meta(
            description="What counts, the largest first: nothing twice, and no bounds. Empty where"
            " no finding's absence would make a step shorter."
        ),
    ] = ()
    replay: Annotated[Replay | None, Meta(description="Null where none was tried.")] = None


def bounded(
    findings: Sequence[Finding], breakdowns: Sequence[BreakdownResult]
) -> tuple[Finding, ...]:
    """Return findings with what a step would gain at most: what goes with them, by step.

    Of a finding on several ranks that is what goes on the rank where it is most: a step gains as
    much on all.

    Args:
        findings: of the run.
        breakdowns: where the time of its ranks went.
    """
    of_rank = {result.rank: result for result in breakdowns}
    why = {
        group[0].id: _NOT_REPLAYED if FINDINGS[group[0].id].assumed(group) else _NOT_REMOVABLE
        for group in by_id(findings)
    }
    most: dict[str, float] = {}
    for one in findings:
        if one.rank in of_rank:
            most[one.id] = max(most.get(one.id, 0), _goes_ns(one, of_rank[one.rank]))
    return within_reach(
        [
            replace(
                one, saving=_bound(one, of_rank.get(one.rank), most.get(one.id, 0), why[one.id])
            )
            for one in findings
        ],
        breakdowns,
    )


def within_reach(
    findings: Sequence[Finding], breakdowns: Sequence[BreakdownResult]
) -> tuple[Finding, ...]:
    """Return findings whose savings are no more than can go.

    A finding that leaves kernels as they are gains no more than what of a step is not compute on
    its rank.

    Args:
        findings: of the run, with savings.
        breakdowns: where the time of its ranks went.
    """
    rest = {result.rank: round(step_ns(result) - compute_ns(result)) for result in breakdowns}
    return tuple(
        finding
        if finding.saving is None
        or finding.rank not in rest
        or FINDINGS[finding.id].changes_kernels
        else replace(finding, saving=_at_most(finding.saving, max(rest[finding.rank], 0)))
        for finding in findings
    )


def _at_most(saving: Saving, most_ns: int) -> Saving:
    def limited(value: int | None) -> int | None:
        return None if value is None else min(value, most_ns)

    return replace(
        saving,
        step_ns=limited(saving.step_ns),
        low_ns=limited(saving.low_ns),
        high_ns=limited(saving.high_ns),
    )


def _goes_ns(finding: Finding, breakdown: BreakdownResult) -> float:
    """Return how much goes with a finding in the mean step of its rank."""
    if finding.saving is not None:
        return finding.saving.high_ns or 0
    steps = [step.measures for step in steady_steps(breakdown)] or [breakdown.judged]
    part = FINDINGS[finding.id].part
    if part is not None:
        spent: int = sum(getattr(one, _MEASURES[part]) for one in steps)
        return spent / len(steps)
    # Of the impact no more lies in steady steps than all of it.
    return finding.impact_ns / len(steps)


def _bound(finding: Finding, breakdown: BreakdownResult | None, goes_ns: float, why: str) -> Saving:
    if breakdown is None:
        return Saving.unknown(f"the time of rank {finding.rank} was not measured")
    most = [ceil((1 + RESOLUTION) * goes_ns), step_ns(breakdown)]
    if finding.part_of is not None:  # a wait: nearly all of it is another one's, none computes
        most.append(max(round(step_ns(breakdown) - compute_ns(breakdown)), 0))
    return Saving.at_most(min(most), why=why)
