"""Numbers behind a straggler's cause, from other measurements of the rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Annotated

import numpy as np
from msgspec.structs import replace

from traceprof import findings as f
from traceprof import intervals
from traceprof.analyses import breakdown, remedies, uneven_kernels
from traceprof.analyses.breakdown import BreakdownResult
from traceprof.analyses.measurements import MeasuredRun
from traceprof.analyses.steps import steady_spans
from traceprof.ranks import lateness
from traceprof.ranks.arrivals import Arrivals
from traceprof.ranks.comparison import RankComparison
from traceprof.ranks.lateness import Cause, Causes, Lateness
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, median_of
from traceprof.units import counted, duration, percent, ranks_text


def _explained(
    measured: MeasuredRun, rank: int, cause: str, lateness_ns: int
) -> tuple[str, tuple[str, ...]]:
    """Return the numbers behind a cause, empty if nothing else was measured, and what to do."""
    if cause in {lateness.SLOWER, lateness.MORE_WORK}:
        metrics = uneven_kernels.run(measured).metrics
        if metrics is not None and metrics.is_constant and metrics.rank == rank:
            one = "" if metrics.kernel is None else "one kernel "
            longer = f"{percent(metrics.slower - 1)} longer than its peers"
            advice = uneven_kernels.advice(uneven_kernels.cause_of(metrics), None)
            return f"{one}{longer}, {uneven_kernels.because(metrics)}", advice
    is_code = cause == lateness.SLOWER_COMPUTE
    details = _longer_code(measured, rank, lateness_ns) if is_code else ""
    return details, ADVICE.get(cause, (remedies.HELD_UP,))


def _longer_code(measured: MeasuredRun, rank: int, lateness_ns: int) -> str:
    spent = {packed.others.rank: packed.others.host_code for packed in measured.arrivals}
    own = spent.pop(rank, {})
    longer_ns = {
        name: ns - median_of([others.get(name, 0) for others in spent.values()])
        for name, ns in own.items()
        if spent
    }
    name = max(longer_ns, key=lambda name: longer_ns[name], default="")
    if not name or 2 * longer_ns[name] < lateness_ns:
        return ""
    return f"{name}, {duration(int(longer_ns[name]))} more than elsewhere"


MIN_STEPS = 6
"""In fewer, one rank of many is the latest several times by chance."""


def _held_up_steps(
    ranks: RankComparison, arrivals: Sequence[Arrivals], measured: Sequence[BreakdownResult]
) -> tuple[list[int], int]:
    """Return how many steps each rank holds up, and of how many in which ranks share operations.

    In these its lateness alone, after the rank before it had come, costs more than half of what all
    lateness does. None where steps are too few, or not known on all ranks.
    """
    num_ranks = len(ranks.ranks)
    steps = {result.rank: [s for s in result.steps if s.is_training] for result in measured}
    numbers = [[step.number for step in steps.get(rank, ())] for rank in ranks.ranks]
    if not numbers or not numbers[0] or any(own != numbers[0] for own in numbers):
        return [0] * num_ranks, 0
    alone = np.zeros((len(numbers[0]), num_ranks), np.int64)
    of_all = np.zeros((len(alone), 1), np.int64)
    is_shared = np.zeros(len(alone), np.bool_)
    begins = [
        ranks.clocks.to_run(report, np.array([s.measures.window_start_ns for s in steps[rank]]))
        for rank, report in zip(ranks.ranks, ranks.reports, strict=True)
    ]
    for waits in ranks.waits:
        costs = np.where(waits.is_last, lateness.costs_of(waits, arrivals), 0)
        # Without a rank the others would still have waited for the one before it.
        of_one = np.minimum(costs, waits.behind_ns)
        judged = waits.is_judged & waits.group.leaves_together
        for column, member in enumerate(waits.group.members):
            step = np.searchsorted(begins[member], waits.start_ns[:, column], side="right") - 1
            known = judged & (step >= 0)
            is_shared[step[known]] = True
            known &= waits.last == column
            np.add.at(alone[:, member], step[known], of_one[known, column])
            np.add.at(of_all[:, 0], step[known], costs[known].max(axis=1))
    if is_shared.sum() < MIN_STEPS:
        return [0] * num_ranks, 0
    return (2 * alone > of_all).sum(axis=0).tolist(), int(is_shared.sum())


BECAUSE: dict[str, str] = {
    lateness.SLOWER: "the same kernels take longer there",
    lateness.MORE_WORK: "it runs other or more kernels than the others",
    "launch": "its host launched late: the GPU had nothing to do",
    "sync": "its host waited for the GPU before it launched more",
    "blocking copy": "it was busy with a copy, or its host waited for one",
    "data loading": "it waited for its data loader",
    "waiting": "its launching thread slept, or was in MPI",
    "host code": "its host ran other code before it launched more",
    "set-up": "it set something up, or allocated memory",
    "communication": "it spent the time in other communication",
    "other": "its GPU waited for something that had already been launched",
    lateness.SLOWER_COMPUTE: "its forward, backward or optimizer takes longer",
    lateness.OUTSIDE: (
        "it spends the time outside the ranges of instrument: the trace does not show on what"
    ),
    lateness.UNEXPLAINED: "no single cause stands out",
}

_LOOK_AT_HOST = (
    "Look at its host: other processes on the same cores (pin ranks to cores: torchrun"
    " --numa-binding, numactl), CPU frequency, garbage collection (gc.freeze())"
)
_NAME_MORE = (
    "Name what the step does besides forward, backward and optimizer, with"
    " instrument.annotate('…') or data loading through a DataLoader, and record again"
)
_LOOK_AT_DISK = "Check whether its node reads from a slower disk or a remote file system"
ADVICE: dict[str, tuple[str, ...]] = {
    lateness.SLOWER: (remedies.CLOCK_LIMITS, remedies.OTHERS_ON_GPU, remedies.OTHER_NODE),
    "launch": (_LOOK_AT_HOST,),
    "sync": (remedies.TAKE_OUT, remedies.READ_LATE),
    "blocking copy": (remedies.PIN, remedies.PREFETCH),
    "data loading": (_LOOK_AT_DISK, remedies.LOAD_CHEAPER),
    "waiting": (remedies.SLEEPS_FOR,),
    lateness.SLOWER_COMPUTE: (_LOOK_AT_HOST,),
    lateness.OUTSIDE: (_NAME_MORE,),
}
"""What to do by the cause; without a row here, `HELD_UP`."""
_ROWS = {BECAUSE[cause]: lines for cause, lines in ADVICE.items()} | {"else": (remedies.HELD_UP,)}
PAGE = {"advice": "\n".join(f"\n*{cause}*\n\n{f.bullets(lines)}" for cause, lines in _ROWS.items())}


ID = "straggler"


class StragglerMetrics(f.Metrics):
    """Numbers of `straggler`."""

    rank: Annotated[
        f.Count,
        "the rank at the root. A rank that was late because it waited for"
        " another one is not the root",
    ]
    lateness_ns: Annotated[
        f.Ns,
        "how long after the second latest rank it came, at the median: the gain"
        " from fixing it alone",
    ]
    share_last: Annotated[
        f.Fraction,
        "the share of the operations in which it, or the rank that it holds up, came last",
    ]
    clock_uncertainty_ns: Annotated[
        f.Ns | None,
        "the uncertainty of its clock against the others'; null if they cannot be compared",
    ]
    cause: Annotated[
        str,
        "what took the time since the ranks' last common operation: the late rank's compute,"
        " communication, copies and idle time by cause, each beyond the median of the others. The"
        " cause is what makes up half of the lateness. Without a GPU: data loading, slower compute"
        " (forward, backward, optimizer), communication, or time outside the ranges, about which"
        " the trace shows nothing more",
    ]
    num_operations: Annotated[f.Count, "the number of operations that it shared with others"]
    host: Annotated[str, "the name of its machine"]
    coverage: Annotated[
        f.Fraction, "the share of these operations that could be compared across ranks"
    ]


FINDINGS = {
    ID: f.FindingKind(
        StragglerMetrics,
        removed_by=("no-straggler",),
        changes_kernels=True,
        needs=f.Sight.COMMUNICATION,
    )
}

# Operations whose causes are looked for, from the latest ones of each rank to the least late, so
# that their median is that of all: enough for a majority.
_MAX_CAUSES = 64


class Straggler(Record, frozen=True):
    """A rank that many waits go back to."""

    member: int  # index of the rank, the root
    # the lateness of the rank that came last because of it, itself or another one
    lateness: Lateness
    metrics: StragglerMetrics  # the numbers of its finding
    worst: tuple[Cause, ...]  # the causes of the latest operations, all of one root and kind
    # the share of its lateness's cost that the mean steady step holds; None without steps
    share_per_step: float | None = None
    details: str = ""  # the numbers behind the cause, from its other measurements; may be empty
    advice: tuple[str, ...] = ()


class StragglerResult(Record, frozen=True):
    """The stragglers of a run."""

    ranks: RankComparison  # the comparison of the ranks
    stragglers: tuple[Straggler, ...]  # the ranks that others' waits go back to


def run(measured: MeasuredRun) -> StragglerResult:
    """Find the ranks that the waits of a run go back to, from the arrivals of all ranks, once."""
    return measured.cache.get(_run, measured)


def _run(measured: MeasuredRun) -> StragglerResult:
    ranks = measured.ranks
    arrivals = [packed.unpacked for packed in measured.arrivals]
    of_rank = {result.rank: result for result in measured.of(breakdown)}
    held_up, num_steps = _held_up_steps(ranks, arrivals, measured.of(breakdown))
    stragglers = []
    for lag in _stragglers(ranks, arrivals, held_up, num_steps):
        late, last = lag.lateness, ranks.ranks[lag.lateness.member]  # whom the root may hold up
        details, advice = _explained(measured, lag.metrics.rank, lag.metrics.cause, late.total_ns)
        share = _share_per_step(late, of_rank.get(last))
        stragglers.append(replace(lag, share_per_step=share, details=details, advice=advice))
    return StragglerResult(ranks, tuple(stragglers))


def _stragglers(
    ranks: RankComparison, arrivals: Sequence[Arrivals], held_up: Sequence[int], num_steps: int
) -> list[Straggler]:
    causes = Causes(ranks.waits, arrivals)
    by_root: dict[int, Straggler] = {}
    for late in sorted(ranks.lateness, key=lambda late: -late.total_ns):
        if not late.num_last:
            continue
        groups = distinct_values(late.operations[:, 0]).tolist()
        num_ranks = max(len(ranks.waits[group].group.members) for group in groups)
        lasts = (late.num_last, late.num_operations), (held_up[late.member], num_steps)
        if not any(lateness.is_habit(*last, num_ranks) for last in lasts):
            continue
        straggler = _root(ranks, late, causes)
        if straggler is not None and straggler.member not in by_root:
            by_root[straggler.member] = straggler
    return list(by_root.values())


def _share_per_step(late: Lateness, result: BreakdownResult | None) -> float | None:
    """Return which share of its cost the mean steady step holds; None without steps or a cost."""
    steps = intervals.empty() if result is None else steady_spans(result)
    if not len(steps) or not late.total_ns:
        return None
    is_inside = intervals.holder(steps.start_ns, steps.end_ns, late.start_ns) >= 0
    return int(late.cost_ns[is_inside].sum()) / late.total_ns / len(steps)


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
    return Straggler(member, late, metrics, tuple(alike[: f.MAX_EVIDENCE]))


def findings(result: StragglerResult) -> list[f.Finding | f.NotApplicable]:
    """Judge the stragglers by what the others' waiting costs."""
    claims: list[f.Finding | f.NotApplicable] = []
    ranks = result.ranks
    for straggler in result.stragglers:
        metrics = straggler.metrics
        impact = min(straggler.lateness.total_ns, ranks.window_ns)
        via = straggler.worst[0].via
        why = ": ".join(filter(None, (BECAUSE[metrics.cause], straggler.details)))
        held_up = f", and holds up rank {ranks.ranks[via[0]]}, which arrives last" if via else ""
        claims += f.costly(
            ID,
            metrics.rank,
            ranks.window_ns,
            f"On {metrics.host}, it arrives {duration(metrics.lateness_ns)} after"
            f" the rank before it{held_up}: last in {percent(metrics.share_last)} of"
            f" {counted(metrics.num_operations, 'operation')}; {why}",
            impact,
            metrics,
            tuple(
                f.Evidence(
                    cause.start_ns,
                    cause.end_ns,
                    f"{duration(cause.late_ns)} late: {BECAUSE[cause.what]}",
                )
                for cause in straggler.worst
            ),
            straggler.advice,
            f.Saving.of_step(impact, straggler.share_per_step),
        )
    return claims or _not_resolvable(ranks)


def _not_resolvable(ranks: RankComparison) -> list[f.Finding | f.NotApplicable]:
    unsure: dict[str, int | None] = {}
    for waits in ranks.waits:
        judged = waits.is_judged & waits.group.leaves_together
        row = np.arange(len(waits))
        latest = waits.late_ns[row, waits.last]
        beneath = judged & ~waits.is_resolved
        if not ranks.window_ns or beneath.sum() * 2 < judged.sum():
            continue
        if f.severity_of_cost(int(np.maximum(latest[beneath], 0).sum()) / ranks.window_ns) is None:
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
        f.NotApplicable(
            ID,
            f"not resolvable: the clocks of {', '.join(sorted(unsure))} {how_well}",
            "synchronize the machines with PTP (NTP is good to tens of ms), or capture more"
            " operations that all ranks take part in",
        )
    ]


_MIN_RANKS = 3  # of two ranks, one or the other is last
_CAUSES = ("host-stall", "uneven-kernels")


def rotation(measured: MeasuredRun, findings: Iterable[f.Finding]) -> str | None:
    """Say that ranks take turns at being late, with what it costs; None if that is not so."""
    ranks, claims = measured.ranks, [*findings]
    if len(ranks.ranks) < _MIN_RANKS or any(finding.id == "straggler" for finding in claims):
        return None
    arrivals = [packed.unpacked for packed in measured.arrivals]
    cost = lateness.waited_for(ranks.waits, arrivals)
    whole_ns = int(cost.sum())
    waited_ns = min(whole_ns, ranks.window_ns)  # groups may wait at the same time
    severity = f.severity_of_cost(f.share(waited_ns, ranks.window_ns))
    if severity is None or severity is f.Severity.INFO:
        return None
    worst = int(cost.argmax())
    known = [
        f"{id_} ({ranks_text(sorted({finding.rank for finding in claims if finding.id == id_}))})"
        for id_ in _CAUSES
        if any(finding.id == id_ for finding in claims)
    ]
    return (
        f"no constant straggler: the rank that comes last changes. The others waited"
        f" {duration(waited_ns)} in all, {percent(f.share(waited_ns, ranks.window_ns))} of the"
        f" training, at most {percent(f.share(int(cost[worst]), whole_ns))} of it for one rank"
        f" ({ranks.ranks[worst]})" + (f"; see {' and '.join(known)}" if known else "")
    )
