"""Stragglers: ranks that come last again and again, and the causes, on one clock for the run.

Findings are about the root: if a rank is late because it waited for another one itself, the other
one is the straggler.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Annotated

import numpy as np
from msgspec.structs import replace

from traceprof import intervals
from traceprof.analyses import breakdown
from traceprof.analyses.steps.step_lengths import steady_spans
from traceprof.analyses.straggler import advice as texts
from traceprof.analyses.straggler.details import details
from traceprof.analyses.straggler.held_up_steps import held_up_steps
from traceprof.findings import (
    MAX_EVIDENCE,
    Count,
    Evidence,
    Finding,
    FindingKind,
    Fraction,
    Metrics,
    NotApplicable,
    Ns,
    Saving,
    Sight,
    severity_of_cost,
    share,
)
from traceprof.ranks.lateness import Cause, Causes, is_habit
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, median_of
from traceprof.units import counted, duration, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.analyses.breakdown import BreakdownResult
    from traceprof.analyses.measurements.measured import MeasuredRun
    from traceprof.analyses.straggler.held_up_steps import HeldUpSteps
    from traceprof.ranks.arrivals import Arrivals
    from traceprof.ranks.comparison import RankComparison
    from traceprof.ranks.lateness import Lateness
    from traceprof.ranks.waits import GroupWaits

ID = "straggler"


class StragglerMetrics(Metrics):
    """Numbers of `straggler`."""

    rank: Annotated[
        Count,
        "the rank at the root. A rank that was late because it waited for"
        " another one is not the root",
    ]
    lateness_ns: Annotated[
        Ns,
        "how long after the second latest rank it came, at the median: the gain"
        " from fixing it alone",
    ]
    share_last: Annotated[
        Fraction, "the share of the operations in which it, or the rank that it holds up, came last"
    ]
    clock_uncertainty_ns: Annotated[
        Ns | None,
        "the uncertainty of its clock against the others'; null if they cannot be compared",
    ]
    cause: Annotated[
        str,
        "what took the time since the ranks' last common operation: the late"
        " rank's compute, communication, copies and idle time by cause, each"
        " beyond the median of the others. The cause is what makes up half of"
        " the lateness. Without a GPU: data loading, slower compute (forward,"
        " backward, optimizer), communication, or time outside the ranges,"
        " about which the trace shows nothing more",
    ]
    num_operations: Annotated[Count, "the number of operations that it shared with others"]
    host: Annotated[str, "the name of its machine"]
    coverage: Annotated[
        Fraction, "the share of these operations that could be compared across ranks"
    ]


FINDINGS = {
    ID: FindingKind(
        StragglerMetrics,
        removed_by=("no-straggler",),
        changes_kernels=True,
        needs=Sight.COMMUNICATION,
    )
}

# Operations whose causes are looked for, from the latest ones of each rank to the least late, so
# that their median is that of all: enough for a majority.
_MAX_CAUSES = 64


class Straggler(Record, frozen=True):
    """A rank that many waits go back to.

    Attributes:
        member: index of the rank, the root.
        lateness: the lateness of the rank that came last because of it, itself or another one.
        metrics: the numbers of its finding.
        worst: the causes of the latest operations, all of one root and kind.
        share_per_step: the share of its lateness's cost that the mean steady step holds; None
            without steps.
        details: the numbers behind the cause, from its other measurements; may be empty.
    """

    member: int
    lateness: Lateness
    metrics: StragglerMetrics
    worst: tuple[Cause, ...]
    share_per_step: float | None = None
    details: str = ""


class StragglerResult(Record, frozen=True):
    """The stragglers of a run.

    Attributes:
        ranks: the comparison of the ranks.
        stragglers: the ranks that others' waits go back to.
    """

    ranks: RankComparison
    stragglers: tuple[Straggler, ...]


def run(measured: MeasuredRun) -> StragglerResult:
    """Find the ranks that the waits of a run go back to, from the arrivals of all ranks, once."""
    return measured.cache.get(_run, measured)


def _run(measured: MeasuredRun) -> StragglerResult:
    ranks = measured.ranks
    arrivals = [packed.unpacked for packed in measured.arrivals]
    of_rank = {result.rank: result for result in measured.of(breakdown)}
    held = held_up_steps(ranks, arrivals, measured.of(breakdown))
    stragglers = (
        replace(
            lag,
            share_per_step=_share_per_step(
                lag.lateness, of_rank.get(ranks.ranks[lag.lateness.member])
            ),
            details=details(measured, lag.metrics.rank, lag.metrics.cause, lag.lateness.total_ns),
        )
        for lag in _stragglers(ranks, arrivals, held)
    )
    return StragglerResult(ranks, tuple(stragglers))


def _stragglers(
    ranks: RankComparison, arrivals: Sequence[Arrivals], held: HeldUpSteps
) -> list[Straggler]:
    """Return one straggler for each root, by the rank whose lateness costs most."""
    causes = Causes(ranks.waits, arrivals)
    by_root: dict[int, Straggler] = {}
    for late in sorted(ranks.lateness, key=lambda late: -late.total_ns):
        if not late.num_last:
            continue
        num_ranks = _num_others(late, ranks.waits) + 1
        if not is_habit(late.num_last, late.num_operations, num_ranks) and not is_habit(
            int(held.num[late.member]), held.num_steps, num_ranks
        ):
            continue
        straggler = _root(ranks, late, causes)
        if straggler is not None and straggler.member not in by_root:
            by_root[straggler.member] = straggler
    return list(by_root.values())


def _share_per_step(late: Lateness, result: BreakdownResult | None) -> float | None:
    """Return which share of its cost the mean steady step holds; None without steps or a cost.

    Args:
        late: of a rank.
        result: where the time of the same rank went; None if that was not measured.
    """
    steps = intervals.empty() if result is None else steady_spans(result)
    if not len(steps) or not late.total_ns:
        return None
    at = np.searchsorted(steps.start_ns, late.start_ns, side="right") - 1
    is_inside = (at >= 0) & (late.start_ns < steps.end_ns[at])
    return int(late.cost_ns[is_inside].sum()) / late.total_ns / len(steps)


def _num_others(late: Lateness, waits: Sequence[GroupWaits]) -> int:
    """Return the number of other ranks in the operations to which the rank was last."""
    numbers = distinct_values(late.operations[:, 0]).tolist()
    return max(len(waits[number].group.members) for number in numbers) - 1


def _root(ranks: RankComparison, late: Lateness, causes: Causes) -> Straggler | None:
    """Return the root and cause of most of a rank's lateness, weighted by how late it was."""
    by_root: dict[tuple[int, str], list[Cause]] = defaultdict(list)
    last = len(late.operations) - 1
    chosen = distinct_values(np.linspace(0, last, min(last + 1, _MAX_CAUSES)).astype(np.int64))
    for number, row, column in late.operations[chosen].tolist():
        cause = causes.of(number, row, column)
        if cause is not None:
            by_root[cause.root, cause.what].append(cause)
    if not by_root:
        return None
    (member, what), alike = max(
        by_root.items(), key=lambda item: sum(cause.late_ns for cause in item[1])
    )
    metrics = StragglerMetrics(
        rank=ranks.ranks[member],
        lateness_ns=int(median_of([cause.late_ns for cause in alike])),
        share_last=late.share_last,
        clock_uncertainty_ns=late.uncertainty_ns,
        cause=what,
        num_operations=late.num_operations,
        host=ranks.machines[member],
        coverage=late.coverage,
    )
    return Straggler(member, late, metrics, tuple(alike[:MAX_EVIDENCE]))


def findings(result: StragglerResult) -> list[Finding | NotApplicable]:
    """Judge the stragglers by what the others' waiting costs."""
    claims: list[Finding | NotApplicable] = []
    ranks = result.ranks
    for straggler in result.stragglers:
        metrics = straggler.metrics
        impact = min(straggler.lateness.total_ns, ranks.window_ns)
        fraction = share(impact, ranks.window_ns)
        severity = severity_of_cost(fraction)
        if severity is None:
            continue
        via = straggler.worst[0].via
        why = ": ".join(filter(None, (texts.BECAUSE[metrics.cause], straggler.details)))
        held_up = f", and holds up rank {ranks.ranks[via[0]]}, which arrives last" if via else ""
        claims.append(
            Finding(
                ID,
                severity,
                metrics.rank,
                f"On {metrics.host}, it arrives {duration(metrics.lateness_ns)} after"
                f" the rank before it{held_up}: last in {percent(metrics.share_last)} of"
                f" {counted(metrics.num_operations, 'operation')}; {why}",
                impact,
                fraction,
                metrics.by_name(),
                tuple(
                    Evidence(
                        cause.start_ns,
                        cause.end_ns,
                        f"{duration(cause.late_ns)} late: {texts.BECAUSE[cause.what]}",
                    )
                    for cause in straggler.worst
                ),
                texts.ADVICE[metrics.cause],
                Saving.of_step(impact, straggler.share_per_step),
            )
        )
    return claims or _not_resolvable(ranks)


def _not_resolvable(ranks: RankComparison) -> list[Finding | NotApplicable]:
    """Return where the clocks leave open whether a rank is late enough for a finding."""
    unsure: dict[str, int | None] = {}
    for waits in ranks.waits:
        judged = waits.is_judged & waits.group.leaves_together
        row = np.arange(len(waits))
        latest = waits.late_ns[row, waits.last]
        beneath = judged & ~waits.is_resolved
        if not ranks.window_ns or beneath.sum() * 2 < judged.sum():
            continue
        if severity_of_cost(int(np.maximum(latest[beneath], 0).sum()) / ranks.window_ns) is None:
            continue
        for column in range(len(waits.group.members)):
            host = ranks.machines[waits.group.members[column]]
            column_ns = int(waits.uncertainty_ns[column])
            is_known = column_ns < np.iinfo(np.int64).max
            unsure[host] = max(unsure.get(host) or 0, column_ns) if is_known else None
    if not unsure:
        return []
    known = [uncertainty_ns for uncertainty_ns in unsure.values() if uncertainty_ns is not None]
    how_well = (
        f"are known only to within {duration(max(known))}, and the ranks arrive closer together"
        if known
        else "cannot be compared"
    )
    return [
        NotApplicable(
            ID,
            f"not resolvable: the clocks of {', '.join(sorted(unsure))} {how_well}",
            "synchronize the machines with PTP (NTP is good to tens of ms), or capture more"
            " operations that all ranks take part in",
        )
    ]


PAGE: dict[str, str] = {}
