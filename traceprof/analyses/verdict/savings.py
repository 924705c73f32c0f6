"""Savings: the time a step would gain without findings, from a replay or at most."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import ceil
from typing import Annotated, Literal

from msgspec import Struct
from msgspec.structs import replace

from traceprof.analyses import breakdown, overlap_slowdown
from traceprof.analyses.breakdown import BreakdownResult
from traceprof.analyses.measurements import MeasuredRun
from traceprof.analyses.overlap_slowdown import OverlapSlowdownResult
from traceprof.analyses.registry import FINDINGS
from traceprof.analyses.steps import counted_steps, mean_ns, step_ns
from traceprof.analyses.verdict.attribution import MEASURES
from traceprof.findings import Count, Finding, Saving
from traceprof.run.guard import optional

RESOLUTION = 0.01
"""The smallest error of what a step is said to gain, as a share of it.

Nobody knows how long an operation waits for what did not hold it when it was measured: up to some
microseconds each. Simulated programs of known change are missed by up to 0.5 %.
"""
_NOT_REPLAYED = "no step was replayed: the limit is all time that it involves"
_NOT_REMOVABLE = "no replay can remove it: the limit is all time that it involves"
GateName = Literal[
    "launches",
    "records",
    "hidden-host-waits",
    "hidden-stream-waits",
    "misfit",
    "unexplained",
    "host-floor",
    "floor",
]


class Gate(Struct, frozen=True, forbid_unknown_fields=True):
    """A check of the replay; if it fails, the answers that it makes unsure are refused."""

    name: Annotated[GateName, "What the gate checks."]
    value: Annotated[float | None, "The measured value, as a share; null if unknown."]
    limit: Annotated[float, "The largest value that passes."]
    holds: Annotated[bool, "Whether the value is within the limit."]


class Gain(Struct, frozen=True, forbid_unknown_fields=True):
    """The gain of a step without a finding, beyond the gains without the findings before it."""

    finding: Annotated[str, "Its id."]
    assume: Annotated[str, "What was assumed in addition to the entries before it."]
    gain_ns: Annotated[Count, "Gain of the mean step."]
    step_ns: Annotated[Count, "Duration of a step after that."]


class Replay(Struct, frozen=True, forbid_unknown_fields=True):
    """The replay of steps from which savings come."""

    num_steps: Annotated[
        Count, "Number of steps that were replayed: a sample if the run is long, 0 if none was."
    ]
    gates: tuple[Gate, ...]
    refused: Annotated[str | None, "Why nothing could be replayed; null if something was."]
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
        "Duration of a step without all findings of `gains`: `step_ns` minus their gains. Null"
        " if nothing could be replayed.",
    ] = None
    possible_low_ns: Annotated[Count | None, "Lower end of its interval."] = None
    possible_high_ns: Annotated[Count | None, "Upper end of its interval."] = None
    gains: Annotated[
        tuple[Gain, ...],
        "Gains of findings, largest first, each beyond those before it, without bounds. Empty"
        " if removing findings would not make a step shorter.",
    ] = ()
    replay: Annotated[Replay | None, "The replay; null if none was tried."] = None


@optional("savings", otherwise=lambda findings, *_: tuple(findings))
def bounded(
    findings: Sequence[Finding],
    measured: MeasuredRun,
    assumed: Mapping[str, Collection[str]],
    elsewhere: Mapping[tuple[str, int], int],
) -> tuple[Finding, ...]:
    """Return findings with the most that a step can gain: all time in a step that they involve.

    For a finding on several ranks this is its time on the rank where it is longest, since a step
    gains the same on all ranks. Less communication also slows fewer kernels down, and who waits for
    it may idle. `assumed`: what a replay assumes so that a finding is gone, by id. `elsewhere`: the
    costs in phases whose steps are not counted, by id and rank.
    """
    breakdowns, slowdowns = measured.results.of(breakdown), measured.results.of(overlap_slowdown)
    of_rank = {result.rank: result for result in breakdowns}
    slowed = {result.rank: result.per_step_at_most_ns for result in slowdowns}
    most: dict[str, float] = {}
    for finding in findings:
        if finding.rank in of_rank:
            elsewhere_ns = elsewhere.get((finding.id, finding.rank), 0)
            goes_ns = _goes_ns(finding, of_rank[finding.rank], elsewhere_ns)
            if FINDINGS[finding.id].part == "exposed communication":
                goes_ns += _waits_ns(of_rank[finding.rank], breakdowns, slowdowns)
            if "communication=0" in assumed.get(finding.id, ()):
                goes_ns += slowed.get(finding.rank, 0)
            most[finding.id] = max(most.get(finding.id, 0), goes_ns)
    return within_reach(
        [
            replace(
                finding,
                saving=_bound(
                    finding,
                    of_rank.get(finding.rank),
                    most.get(finding.id, 0),
                    _NOT_REPLAYED if finding.id in assumed else _NOT_REMOVABLE,
                ),
            )
            for finding in findings
        ],
        breakdowns,
    )


def within_reach(
    findings: Sequence[Finding], breakdowns: Sequence[BreakdownResult]
) -> tuple[Finding, ...]:
    """Return findings with savings limited to the time that can be saved.

    A finding that leaves kernels as they are gains at most the part of a step on its rank that is
    not compute.
    """
    rest = {result.rank: _beyond_compute_ns(result) for result in breakdowns}
    return tuple(
        finding
        if finding.saving is None
        or finding.rank not in rest
        or FINDINGS[finding.id].changes_kernels
        else replace(finding, saving=_at_most(finding.saving, rest[finding.rank]))
        for finding in findings
    )


def _beyond_compute_ns(result: BreakdownResult) -> int:
    return max(round(step_ns(result) - mean_ns(result, "compute_ns")), 0)


def _at_most(saving: Saving, most_ns: int) -> Saving:
    limits = {
        name: min(value, most_ns)
        for name in ("step_ns", "low_ns", "high_ns")
        if (value := getattr(saving, name)) is not None
    }
    return replace(saving, **limits)


def _goes_ns(finding: Finding, of_rank: BreakdownResult, elsewhere_ns: int) -> float:
    """Return the time that a finding involves in the mean step of its rank.

    `elsewhere_ns`: what it costs in phases whose steps are not counted.
    """
    if finding.saving is not None:
        return finding.saving.high_ns or 0
    part = FINDINGS[finding.id].part
    if part is not None:
        return mean_ns(of_rank, MEASURES[part])
    # At most all of the impact lies in steady steps.
    return max(finding.impact_ns - elsewhere_ns, 0) / max(len(counted_steps(of_rank)), 1)


def _waits_ns(
    of_rank: BreakdownResult,
    breakdowns: Sequence[BreakdownResult],
    slowdowns: Sequence[OverlapSlowdownResult],
) -> float:
    """Return how long a rank idles at most for the communication of others in the mean step.

    A kernel of communication runs while it waits, and that time is communication. Who waits for a
    copy of another rank idles.
    """
    if not any(rank.has_peer_copies for rank in slowdowns):
        return 0
    others = sum(mean_ns(rank, "communication_ns") for rank in breakdowns if rank is not of_rank)
    return min(mean_ns(of_rank, "idle_ns"), others)


def _bound(finding: Finding, of_rank: BreakdownResult | None, goes_ns: float, why: str) -> Saving:
    if of_rank is None:
        return Saving.unknown(f"the time of rank {finding.rank} was not measured")
    most = [ceil((1 + RESOLUTION) * goes_ns), step_ns(of_rank)]
    if finding.part_of is not None:  # a wait: nearly all of it is in another finding, none computes
        most.append(_beyond_compute_ns(of_rank))
    limited_by = None if finding.saving is None else finding.saving.limited_by
    if limited_by is not None:
        why = f"no replay can remove it: the limit is {limited_by}"
    return Saving.at_most(min(most), why=why, limited_by=limited_by)
