"""Stalls of the host: calls and operators that took far longer than usual, on any rank.

`traceprof.host.stalls` defines what a stall is. Curing one rank alone gains little where others
stall, too: the cost is that of the stalls of all ranks together.
"""

from __future__ import annotations

from collections import defaultdict
from math import ceil
from typing import TYPE_CHECKING, Annotated

from traceprof.analyses import breakdown
from traceprof.analyses.host_stall import shared_cores as cores
from traceprof.analyses.host_stall.advice import FEW_CORES, QUOTA, SLICES, advice, page_advice
from traceprof.analyses.host_stall.lost_time import lost_time
from traceprof.analyses.steps.step_lengths import steady_spans
from traceprof.findings import (
    Count,
    Finding,
    FindingKind,
    Fraction,
    Metrics,
    NotApplicable,
    Ns,
    Saving,
    severity_of_cost,
    share,
)
from traceprof.host import rank_stalls, stalls
from traceprof.intervals import Intervals, covered_within, total
from traceprof.structs import Record
from traceprof.units import counted, duration, percent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceprof.analyses.host_stall.shared_cores import SharedCores
    from traceprof.analyses.measurements.measured import MeasuredRun
    from traceprof.host.rank_stalls import RankStalls

ID = "host-stall"
_MIN_OWN = 0.1
"""Of the cost of the rank that costs most: a rank that costs less has no finding."""


class HostStallMetrics(Metrics):
    """Numbers of `host-stall`."""

    stalled_ns: Annotated[
        Ns, "the time of these calls beyond their usual time, summed over threads"
    ]
    num_calls: Annotated[
        Count, "the number of calls, operators and gaps between operators that stalled"
    ]
    longest_ns: Annotated[Ns, "the length of the longest of them"]
    idle_ns: Annotated[
        Ns, "how long this rank's GPU idled because of them: `stalled_ns` of `gpu-idle`"
    ]
    others_wait_ns: Annotated[
        Ns | None,
        "how long the other ranks waited for this one with nothing to compute"
        " (their median), up to the time that it had stalled since their last"
        " common operation; null where no clock or matched operation shows it",
    ]
    lost_ns: Annotated[
        Ns,
        "the cost of all ranks' stalls on the GPU that lost most by them, and"
        " the impact: its idle time for stalls of its own rank, and its waits"
        " for ranks that had stalled. The same for all ranks",
    ]
    num_ranks: Annotated[Count, "the number of ranks with this finding"]
    held_up_by: Annotated[
        str,
        "what accounts for half of the stalled time or more: `garbage collection`, `blocking call`"
        " (a lock, a file), `quota`, `few cores`, `time slices`, `off its core`, `whole process`"
        " (all threads at once), `one thread`; `unknown` where nothing shows it",
    ]
    num_running: Annotated[
        Count | None,
        "how many ranks of the machine went on while one was stalled, at the median over time; null"
        " for fewer than three ranks",
    ]
    coverage: Annotated[
        Fraction, "the share of the idle time before operations with a known launch"
    ]


FINDINGS = {ID: FindingKind(HostStallMetrics, removed_by=("no-host-stall",), part_of="gpu-idle")}


class StalledRank(Record, frozen=True):
    """A rank that has stalls, with what they cost.

    Attributes:
        stalls: of the rank.
        others_wait_ns: how long the others waited for it; None if that is unknown.
        held_up_by: what held its threads up.
        machine: the name of its machine.
        num_ranks: on that machine.
        cores: how many ranks of the machine went on; None for too few.
    """

    stalls: RankStalls
    others_wait_ns: int | None
    held_up_by: str
    machine: str
    num_ranks: int
    cores: SharedCores | None

    @property
    def cost_ns(self) -> int:
        """What the rank's own stalls cost: its GPU idles while the others wait for it."""
        return max(self.stalls.idle_ns, self.others_wait_ns or 0)


class HostStallResult(Record, frozen=True):
    """The stalls of a run.

    Attributes:
        ranks: those that have stalls.
        lost_ns: what all stalls cost the GPU that lost most.
        per_step_ns: what they cost it in the mean steady step; None if a rank has no steps.
        unknown: the ranks whose stalls cannot be known.
    """

    ranks: tuple[StalledRank, ...]
    lost_ns: int
    per_step_ns: int | None
    unknown: tuple[RankStalls, ...]


def run(measured: MeasuredRun) -> HostStallResult:
    """Add up what the stalls of all ranks cost."""
    known = {of_rank.rank: of_rank for of_rank in measured.stalls if of_rank.unknown is None}
    unknown = tuple(of_rank for of_rank in measured.stalls if of_rank.unknown is not None)
    if not any(map(len, known.values())):
        return HostStallResult((), 0, None, unknown)
    ranks = measured.ranks
    arrivals = [packed.unpacked for packed in measured.arrivals]
    lost = lost_time(known, ranks.waits, arrivals)
    by_machine = _by_machine(measured, known)
    member_of = {rank: member for member, rank in enumerate(ranks.ranks)}
    stalled = []
    for number, of_rank in known.items():
        if not len(of_rank):
            continue
        member = member_of[number]
        machine = ranks.machines[member]
        shared = by_machine.get(machine)
        is_matched = any(member in wait.group.members for wait in ranks.waits)
        is_unknown = ranks.are_waits_unknown(member) or (
            len(arrivals[member]) > 0 and not is_matched
        )
        others_ns = None if is_unknown else int(lost.others_ns[member])
        num_ranks = ranks.machines.count(machine)
        reason = _held_up_by(of_rank, shared, num_ranks)
        stalled.append(StalledRank(of_rank, others_ns, reason, machine, num_ranks, shared))
    most = max(
        min(of_rank.idle_ns + lost.waited[member_of[number]].measure_ns, of_rank.window_ns)
        for number, of_rank in known.items()
    )
    steps = {result.rank: steady_spans(result) for result in measured.of(breakdown)}
    in_step = [
        _lost_per_step(of_rank, lost.waited[member_of[number]], steps.get(number))
        for number, of_rank in known.items()
    ]
    of_all = [ns for ns in in_step if ns is not None]
    per_step = max(of_all) if len(of_all) == len(in_step) else None
    return HostStallResult(tuple(stalled), most, per_step, unknown)


def _lost_per_step(of_rank: RankStalls, waited: Intervals, steps: Intervals | None) -> int | None:
    """Return a rank's loss from all stalls in the mean steady step; None without steps."""
    if of_rank.idle_per_step_ns is None or steps is None or not len(steps):
        return None
    waited_ns = total(covered_within(waited, steps.start_ns, steps.end_ns))
    return of_rank.idle_per_step_ns + ceil(waited_ns / len(steps))


def findings(result: HostStallResult) -> list[Finding | NotApplicable]:
    """Judge the stalls by the time that the GPUs lost."""
    largest = max((rank.cost_ns for rank in result.ranks), default=0)
    chosen = [rank for rank in result.ranks if rank.cost_ns >= max(_MIN_OWN * largest, 1)]
    judged: list[Finding | NotApplicable] = []
    for rank in chosen:
        lost_ns = min(result.lost_ns, rank.stalls.window_ns)
        fraction = share(lost_ns, rank.stalls.window_ns)
        severity = severity_of_cost(fraction)
        if severity is not None:
            judged.append(
                Finding(
                    ID,
                    severity,
                    rank.stalls.rank,
                    _title(rank),
                    lost_ns,
                    fraction,
                    _metrics(rank, lost_ns, len(chosen)).by_name(),
                    rank.stalls.evidence,
                    _advice(rank),
                    None if result.per_step_ns is None else Saving.at_most(result.per_step_ns),
                )
            )
    for of_rank in result.unknown:
        assert of_rank.unknown is not None  # noqa: S101  (they are those for which it is not)
        why = of_rank.unknown
        judged.append(NotApplicable(ID, why.reason, why.how_to_collect, of_rank.rank))
    return judged


# -- numbers --------------------------------------------------------------------------------------


def _by_machine(
    measured: MeasuredRun, known: Mapping[int, RankStalls]
) -> dict[str, SharedCores | None]:
    """Return how many ranks of each machine go on while one is stalled."""
    ranks = measured.ranks
    members: dict[str, list[int]] = defaultdict(list)
    for member, machine in enumerate(ranks.machines):
        if ranks.ranks[member] in known:
            members[machine].append(member)
    shared: dict[str, SharedCores | None] = {}
    for machine, of_machine in members.items():
        of_ranks = [known[ranks.ranks[member]] for member in of_machine]
        on_run = [
            Intervals(
                ranks.clocks.to_run(rank.report, rank.stalled.start_ns),
                ranks.clocks.to_run(rank.report, rank.stalled.end_ns),
            )
            for rank in of_ranks
        ]
        limits = [ranks.clocks.to_run(rank.report, rank.span_ns) for rank in of_ranks]
        low, high = max(int(of[0]) for of in limits), min(int(of[1]) for of in limits)
        shared[machine] = cores.shared_cores(on_run, low, max(low, high))
    return shared


def _held_up_by(of_rank: RankStalls, shared: SharedCores | None, num_ranks: int) -> str:
    """Return the reason for most of a rank's stalls, surest first."""
    whole = sum(of_rank.reason_ns)
    main = next(
        (
            reason
            for reason, ns in zip(rank_stalls.REASONS, of_rank.reason_ns, strict=True)
            if 2 * ns >= whole > 0
        ),
        rank_stalls.UNKNOWN,
    )
    if main in {rank_stalls.GARBAGE, rank_stalls.BLOCKED}:
        return main
    known = of_rank.cores
    if cores.has_quota(of_rank.end_ns) or (known is not None and known.num_throttled):
        return QUOTA
    if (shared is not None and shared.are_few) or (known is not None and known.lack(num_ranks)):
        return FEW_CORES
    if cores.tick_of(of_rank.end_ns - of_rank.start_ns) is not None:
        return SLICES
    return main


def _metrics(rank: StalledRank, lost_ns: int, num_ranks: int) -> HostStallMetrics:
    of_rank = rank.stalls
    return HostStallMetrics(
        stalled_ns=of_rank.stalled_ns,
        num_calls=len(of_rank),
        longest_ns=of_rank.longest_ns,
        idle_ns=of_rank.idle_ns,
        others_wait_ns=rank.others_wait_ns,
        lost_ns=lost_ns,
        num_ranks=num_ranks,
        held_up_by=rank.held_up_by,
        num_running=None if rank.cores is None else rank.cores.num_running,
        coverage=of_rank.coverage,
    )


# -- judgement ------------------------------------------------------------------------------------


def _title(rank: StalledRank) -> str:
    of_rank = rank.stalls
    lost = f"its GPU idled for {duration(of_rank.idle_ns)}"
    if rank.others_wait_ns:
        lost += f", and the others waited {duration(rank.others_wait_ns)} for it"
    calls, beyond = counted(len(of_rank), "call"), duration(of_rank.stalled_ns)
    return f"{calls} of the host took {beyond} beyond the usual: {lost}; {_because(rank)}"


def _because(rank: StalledRank) -> str:
    """Say what held the threads up."""
    of_rank, shared, known = rank.stalls, rank.cores, rank.stalls.cores
    if rank.held_up_by == QUOTA and known is not None and known.num_throttled:
        lost = "" if known.throttled_ns is None else f", for {duration(known.throttled_ns)}"
        return (
            f"the control group had used up its CPU quota in {known.num_throttled} of"
            f" {known.num_periods} periods{lost}"
        )
    if rank.held_up_by == FEW_CORES:
        lack = None if known is None else known.lack(rank.num_ranks)
        few = f"too few cores on {rank.machine}: {lack}" if lack else ""
        share_few = "" if shared is None or not shared.are_few else _running(rank.machine, shared)
        return "; ".join(filter(None, (few, share_few)))
    if rank.held_up_by == SLICES:
        tick_ns = cores.tick_of(of_rank.end_ns - of_rank.start_ns) or 0
        return (
            f"they last multiples of {duration(tick_ns)}, the scheduler's tick: something else"
            " had its core"
        )
    if rank.held_up_by == rank_stalls.BLOCKED:
        return f"the thread waited in {of_rank.blocked_in}"
    return _BECAUSE[rank.held_up_by]


def _running(machine: str, shared: SharedCores) -> str:
    """Say how many cores ranks seem to share."""
    return (
        f"{shared.num_ranks} ranks of {machine} share about {counted(shared.num_running, 'core')}:"
        f" while one stalls, {shared.num_running} ± 1 of them run in"
        f" {percent(shared.constant_fraction)} of the time"
    )


_BECAUSE = {
    rank_stalls.GARBAGE: "Python collected garbage",
    QUOTA: (
        f"they end on a grid of {duration(cores.QUOTA_PERIOD_NS)}, as when a container has used"
        " up its CPU quota"
    ),
    rank_stalls.OFF_CORE: "the thread was off its core",
    rank_stalls.PROCESS: (
        "all threads of the process were held up at once: by Python's lock, garbage collection, or"
        " for lack of a core"
    ),
    rank_stalls.THREAD: (
        "only this thread was held up while others of its process went on: by a lock, a page"
        " fault, or for lack of a core"
    ),
    rank_stalls.UNKNOWN: "the report does not show what held it up",
}


def _advice(rank: StalledRank) -> tuple[str, ...]:
    of_rank = rank.stalls
    may_record = rank.held_up_by in {rank_stalls.PROCESS, rank_stalls.THREAD, rank_stalls.UNKNOWN}
    missing = of_rank.missing if may_record else None
    return advice(rank.held_up_by, is_pytorch=of_rank.is_pytorch, missing=missing)


PAGE = {
    "advice": page_advice(),
    "factor": str(stalls.MIN_FACTOR),
    "excess": duration(stalls.MIN_EXCESS_NS),
    "samples": str(stalls.MIN_SAMPLES),
    "min_own": percent(_MIN_OWN),
    "min_ranks": str(cores.MIN_RANKS),
    "min_stalled": percent(cores.MIN_STALLED),
    "min_constant": percent(cores.MIN_CONSTANT),
    "max_variation": percent(cores.MAX_VARIATION),
    "quota": duration(cores.QUOTA_PERIOD_NS),
    "min_stalls": str(cores.MIN_STALLS),
    "ticks": ", ".join(duration(tick) for tick in cores.TICKS_NS),
}
