"""Advice on stalls of the host, by what held its threads up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Annotated

import numpy as np

from traceprof import findings as f
from traceprof import intervals
from traceprof.analyses import breakdown
from traceprof.analyses.measurements import MeasuredRun
from traceprof.analyses.remedies import COLLECT, CORES, SLEEPS_FOR, THREADS
from traceprof.analyses.results import look_at
from traceprof.analyses.steps import steady_spans
from traceprof.communication.messages import ROOTED
from traceprof.host import stalls
from traceprof.host.rank_stalls import (
    BLOCKED,
    GARBAGE,
    OFF_CORE,
    PROCESS,
    REASONS,
    THREAD,
    UNKNOWN,
    RankStalls,
)
from traceprof.intervals import Int64, Intervals, covered_within, total
from traceprof.ranks.arrivals import Arrivals
from traceprof.ranks.waits import GroupWaits
from traceprof.structs import Record
from traceprof.trace.grouping import mean_of, middle_of_others
from traceprof.trace.model.parts import Part
from traceprof.units import counted, duration, percent

FEW_CORES, QUOTA = "few cores", "quota"
"""What held threads up, as what `traceprof record` or `doctor` left beside a report shows it."""

_LIFTED = (
    "Raise or remove the container's CPU quota (cpu.max of its cgroup, a pod's limits.cpu): its"
    " cpu.stat counts nr_throttled"
)
_PAGES = (
    "Page faults and the allocator also hold up one thread: reuse pinned buffers, and let malloc"
    " keep its memory (MALLOC_TRIM_THRESHOLD_, jemalloc or tcmalloc by LD_PRELOAD)"
)

_BY_REASON: dict[str, tuple[str, ...]] = {
    GARBAGE: (COLLECT,),
    BLOCKED: (SLEEPS_FOR,),
    QUOTA: (_LIFTED, CORES, THREADS),
    FEW_CORES: (CORES, THREADS, _LIFTED),
    OFF_CORE: (CORES, THREADS, _LIFTED),
    PROCESS: (COLLECT, CORES, THREADS, _LIFTED),
    THREAD: (_PAGES, CORES, SLEEPS_FOR),
    UNKNOWN: (CORES, THREADS, COLLECT, _LIFTED, _PAGES),
}
_SHOWS = {
    Part.THREAD_SWITCHES: "Records of when its threads were on a core show whether they were kept"
    " off it: {}",
    Part.SYSTEM_CALLS: "System calls show whether threads waited for a lock or a file: {}",
}


def _lost_time(
    stalls: Mapping[int, RankStalls], waits: Sequence[GroupWaits], arrivals: Sequence[Arrivals]
) -> tuple[list[int], tuple[Intervals, ...]]:
    """Return the time that the ranks of a run lost in waits for stalled ranks, by index.

    Returns:
        How long others waited for each rank because it had stalled, at their median; and when each
        rank waited for others that had stalled, in the time of its report.
    """
    held_up: list[list[Intervals]] = [[] for _ in arrivals]
    waited: list[list[Intervals]] = [[] for _ in arrivals]
    for group in waits:
        members = [arrivals[member] for member in group.group.members]
        cost = _cost(group, waits, arrivals, stalls)
        row = np.arange(len(group))
        for column, member in enumerate(group.group.members):
            start = members[column].start_ns[group.group.place[:, column]]
            waited[member].append(intervals.union(start, start + cost[:, column]))
        low, high = middle_of_others(cost)
        by_last = mean_of(low, high)[row, group.last]
        for column, member in enumerate(group.group.members):
            rows = np.flatnonzero((group.last == column) & (by_last > 0))
            start = members[column].start_ns[group.group.place[rows, column]]
            held_up[member].append(intervals.union(start - by_last[rows], start))
    return (
        [intervals.merge(*spans).measure_ns for spans in held_up],
        tuple(intervals.merge(*spans) for spans in waited),
    )


def _cost(
    waits: GroupWaits,
    groups: Sequence[GroupWaits],
    arrivals: Sequence[Arrivals],
    stalls: Mapping[int, RankStalls],
) -> Int64:
    """Return how long each member waited for a last one that had stalled, unhidden, int64[m, r]."""
    members = [arrivals[member] for member in waits.group.members]
    unhidden: Int64 = waits.group.times([member.unhidden_ns() for member in members])
    unhidden = np.minimum(waits.wait_ns, unhidden)
    unhidden[~(waits.is_judged & waits.is_resolved)] = 0
    stalled = np.zeros(len(waits), np.int64)
    for column, member in enumerate(members):
        of_member = stalls.get(member.rank)
        rows = np.flatnonzero((waits.last == column) & (unhidden > 0).any(axis=1))
        if of_member is None or not len(of_member) or not len(rows):
            continue
        start = member.start_ns[waits.group.place[rows, column]]
        ends = _left_together(waits, groups, waits.group.members[column], member)
        ends = np.append(member.start_ns[:1], ends)  # what was before the first is not known
        since = ends[np.maximum(np.searchsorted(ends, start, side="right") - 1, 0)]
        stalled[rows] = intervals.covered_within(of_member.stalled, since, start)
    return np.minimum(unhidden, stalled[:, np.newaxis])


def _left_together(
    waits: GroupWaits, groups: Sequence[GroupWaits], index: int, member: Arrivals
) -> Int64:
    """Return when a member left operations that all members of a group took part in, ascending."""
    needed = {*waits.group.members}
    ends = [np.empty(0, np.int64)]
    for other in groups:
        if needed <= {*other.group.members}:
            column = other.group.members.index(index)
            # After a broadcast and similar operations, each goes on when its own part is done.
            together = ~other.group.is_one_of(ROOTED)
            ends.append(member.end_ns[other.group.place[together, column]])
    return np.sort(np.concatenate(ends))


ID = "host-stall"
_MIN_OWN = 0.1
"""Of the cost of the rank that costs most: a rank that costs less has no finding."""


class HostStallMetrics(f.Metrics):
    """Numbers of `host-stall`."""

    stalled_ns: Annotated[
        f.Ns, "the time of these calls beyond their usual time, summed over threads"
    ]
    num_calls: Annotated[
        f.Count, "the number of calls, operators and gaps between operators that stalled"
    ]
    longest_ns: Annotated[f.Ns, "the length of the longest of them"]
    idle_ns: Annotated[
        f.Ns, "how long this rank's GPU idled because of them: `stalled_ns` of `gpu-idle`"
    ]
    others_wait_ns: Annotated[
        f.Ns | None,
        "how long the other ranks waited for this one with nothing to compute"
        " (their median), up to the time that it had stalled since their last"
        " common operation; null where no clock or matched operation shows it",
    ]
    lost_ns: Annotated[
        f.Ns,
        "the cost of all ranks' stalls on the GPU that lost most by them, and"
        " the impact: its idle time for stalls of its own rank, and its waits"
        " for ranks that had stalled. The same for all ranks",
    ]
    num_ranks: Annotated[f.Count, "the number of ranks with this finding"]
    held_up_by: Annotated[
        str,
        "what accounts for half of the stalled time or more: `garbage collection`, `blocking call`"
        " (a lock, a file), `quota`, `few cores`, `off its core`, `whole process` (all threads at"
        " once), `one thread`; `unknown` where nothing shows it",
    ]
    coverage: Annotated[
        f.Fraction, "the share of the idle time before operations with a known launch"
    ]


FINDINGS = {ID: f.FindingKind(HostStallMetrics, removed_by=("no-host-stall",), part_of="gpu-idle")}


class StalledRank(Record, frozen=True):
    """A rank that has stalls, with what they cost."""

    stalls: RankStalls  # of the rank
    others_wait_ns: int | None  # how long the others waited for it; None if that is unknown
    held_up_by: str  # what held its threads up
    machine: str  # the name of its machine
    num_ranks: int  # on that machine

    @property
    def cost_ns(self) -> int:
        """What the rank's own stalls cost: its GPU idles while the others wait for it."""
        return max(self.stalls.idle_ns, self.others_wait_ns or 0)


class HostStallResult(Record, frozen=True):
    """The stalls of a run."""

    ranks: tuple[StalledRank, ...]  # those that have stalls
    lost_ns: int  # what all stalls cost the GPU that lost most
    # what they cost it in the mean steady step; None if a rank has no steps
    per_step_ns: int | None
    unknown: tuple[RankStalls, ...]  # the ranks whose stalls cannot be known


def run(measured: MeasuredRun) -> HostStallResult:
    """Add up what the stalls of all ranks cost."""
    known = {of_rank.rank: of_rank for of_rank in measured.stalls if of_rank.unknown is None}
    unknown = tuple(of_rank for of_rank in measured.stalls if of_rank.unknown is not None)
    if not any(map(len, known.values())):
        return HostStallResult((), 0, None, unknown)
    ranks = measured.ranks
    arrivals = [packed.unpacked for packed in measured.arrivals]
    waited_for_ns, waited = _lost_time(known, ranks.waits, arrivals)
    member_of = {rank: member for member, rank in enumerate(ranks.ranks)}
    stalled = []
    for number, of_rank in known.items():
        if not len(of_rank):
            continue
        member = member_of[number]
        machine = ranks.machines[member]
        is_matched = any(member in wait.group.members for wait in ranks.waits)
        is_unknown = ranks.are_waits_unknown(member) or (
            len(arrivals[member]) > 0 and not is_matched
        )
        others_ns = None if is_unknown else waited_for_ns[member]
        num_ranks = ranks.machines.count(machine)
        reason = _held_up_by(of_rank, num_ranks)
        stalled.append(StalledRank(of_rank, others_ns, reason, machine, num_ranks))
    most = max(
        min(of_rank.idle_ns + waited[member_of[number]].measure_ns, of_rank.window_ns)
        for number, of_rank in known.items()
    )
    steps = {result.rank: steady_spans(result) for result in measured.of(breakdown)}
    in_step = [
        _lost_per_step(of_rank, waited[member_of[number]], steps.get(number))
        for number, of_rank in known.items()
    ]
    of_all = [ns for ns in in_step if ns is not None]
    per_step = max(of_all) if len(of_all) == len(in_step) else None
    return HostStallResult(tuple(stalled), most, per_step, unknown)


def _lost_per_step(of_rank: RankStalls, waited: Intervals, steps: Intervals | None) -> int | None:
    if of_rank.idle_per_step_ns is None or steps is None or not len(steps):
        return None
    waited_ns = total(covered_within(waited, steps.start_ns, steps.end_ns))
    return of_rank.idle_per_step_ns + ceil(waited_ns / len(steps))


def findings(result: HostStallResult) -> list[f.Finding | f.NotApplicable]:
    """Judge the stalls by the time that the GPUs lost."""
    largest = max((rank.cost_ns for rank in result.ranks), default=0)
    chosen = [rank for rank in result.ranks if rank.cost_ns >= max(_MIN_OWN * largest, 1)]
    judged: list[f.Finding | f.NotApplicable] = []
    for rank in chosen:
        lost_ns = min(result.lost_ns, rank.stalls.window_ns)
        judged += f.costly(
            ID,
            rank.stalls.rank,
            rank.stalls.window_ns,
            _title(rank),
            lost_ns,
            HostStallMetrics(
                stalled_ns=rank.stalls.stalled_ns,
                num_calls=len(rank.stalls),
                longest_ns=rank.stalls.longest_ns,
                idle_ns=rank.stalls.idle_ns,
                others_wait_ns=rank.others_wait_ns,
                lost_ns=lost_ns,
                num_ranks=len(chosen),
                held_up_by=rank.held_up_by,
                coverage=rank.stalls.coverage,
            ),
            rank.stalls.evidence,
            _advice(rank),
            None if result.per_step_ns is None else f.Saving.at_most(result.per_step_ns),
        )
    for of_rank in result.unknown:
        assert of_rank.unknown is not None  # noqa: S101  (they are those for which it is not)
        why = of_rank.unknown
        judged.append(f.NotApplicable(ID, why.reason, why.how_to_collect, of_rank.rank))
    return judged


def _held_up_by(of_rank: RankStalls, num_ranks: int) -> str:
    whole = sum(of_rank.reason_ns)
    main = next(
        (
            reason
            for reason, ns in zip(REASONS, of_rank.reason_ns, strict=True)
            if 2 * ns >= whole > 0
        ),
        UNKNOWN,
    )
    if main in {GARBAGE, BLOCKED}:
        return main
    known = of_rank.cores
    if known is not None and known.num_throttled:
        return QUOTA
    return FEW_CORES if known is not None and known.lack(num_ranks) else main


def _title(rank: StalledRank) -> str:
    of_rank = rank.stalls
    lost = f"its GPU idled for {duration(of_rank.idle_ns)}"
    if rank.others_wait_ns:
        lost += f", and the others waited {duration(rank.others_wait_ns)} for it"
    calls, beyond = counted(len(of_rank), "call"), duration(of_rank.stalled_ns)
    return f"{calls} of the host took {beyond} beyond the usual: {lost}; {_because(rank)}"


def _because(rank: StalledRank) -> str:
    of_rank, known = rank.stalls, rank.stalls.cores
    if rank.held_up_by == QUOTA and known is not None:
        lost = "" if known.throttled_ns is None else f", for {duration(known.throttled_ns)}"
        return (
            f"the control group had used up its CPU quota in {known.num_throttled} of"
            f" {known.num_periods} periods{lost}"
        )
    if rank.held_up_by == FEW_CORES and known is not None:
        return f"too few cores on {rank.machine}: {known.lack(rank.num_ranks)}"
    if rank.held_up_by == BLOCKED:
        return f"the thread waited in {of_rank.blocked_in}"
    return _BECAUSE[rank.held_up_by]


_BECAUSE = {
    GARBAGE: "Python collected garbage",
    OFF_CORE: "the thread was off its core",
    PROCESS: (
        "all threads of the process were held up at once: by Python's lock, garbage collection, or"
        " for lack of a core"
    ),
    THREAD: (
        "only this thread was held up while others of its process went on: by a lock, a page"
        " fault, or for lack of a core"
    ),
    UNKNOWN: "the report does not show what held it up",
}


def _advice(rank: StalledRank) -> tuple[str, ...]:
    of_rank = rank.stalls
    lines = [line for line in _BY_REASON[rank.held_up_by] if of_rank.is_pytorch or line != COLLECT]
    if of_rank.only_step is not None:
        lines = [look_at(of_rank.only_step, "this happened")]
    if of_rank.missing is not None and rank.held_up_by in {PROCESS, THREAD, UNKNOWN}:
        part, how = of_rank.missing
        lines.append(_SHOWS[part].format(how))
    return tuple(lines)


_BY_LINES: dict[Sequence[str], list[str]] = {}
for _reason, _lines in _BY_REASON.items():
    _BY_LINES.setdefault(_lines, []).append(_reason)
PAGE = {
    "advice": "\n".join(
        f"\n*{', '.join(reasons)}*\n\n{f.bullets(lines)}" for lines, reasons in _BY_LINES.items()
    ).strip(),
    "factor": str(stalls.MIN_FACTOR),
    "excess": duration(stalls.MIN_EXCESS_NS),
    "samples": str(stalls.MIN_SAMPLES),
    "min_own": percent(_MIN_OWN),
}
