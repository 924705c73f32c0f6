"""Ranks that compute longer than their peers (`rank_work`), and what makes them do so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import numpy as np

from traceprof import findings as f
from traceprof.analyses import rank_work
from traceprof.analyses.kernels.placed_kernels import PlacedKernels, shared_steps
from traceprof.analyses.measurements import MeasuredRun
from traceprof.analyses.rank_work import SAME_BLOCKS, Excess, RunWork
from traceprof.analyses.remedies import CLOCK_LIMITS, OTHER_NODE, OTHERS_ON_GPU
from traceprof.errors import one_line
from traceprof.intervals import Float64
from traceprof.kernel_names.categories import Category
from traceprof.ranks.lateness import waited_for
from traceprof.structs import Record
from traceprof.trace.model.parts import Part
from traceprof.units import counted, duration, percent

CLOCK, WORK, ONE_KERNEL, PARTS, HARDWARE, CHANGING, UNKNOWN = (
    "a lower clock",
    "more work",
    "one kernel",
    "parts of the step",
    "the hardware",
    "changing work",
    "too few steps",
)
"""What reports show to make kernels uneven."""

_SAMPLE = "Record clocks, too, to see whether it is throttled"
_PARTITION = (
    "Its kernels have more to do: divide layers, heads, embedding tables or the batch so that each"
    " rank gets the same amount"
)
_SEQUENCES = (
    "Sequences: sort or pack batches by length, so that each rank gets as many tokens in each step"
    " (attention grows with the square of the length)"
)
_EXPERTS = (
    "Experts: raise the load-balancing loss, limit tokens per expert (capacity factor), or place"
    " often-used experts on more ranks (redundant experts, EPLB)"
)
_SEE = (
    "Log tokens per rank and step beside the time, and check whether the"
    " slowest rank has most of them"
)

ADVICE: dict[str, tuple[str, ...]] = {
    CLOCK: (CLOCK_LIMITS,),
    WORK: (_PARTITION, _SEE),
    ONE_KERNEL: (_SEE, _SEQUENCES, OTHER_NODE),
    PARTS: (_SEE, _EXPERTS, _SEQUENCES),
    HARDWARE: (CLOCK_LIMITS, _SAMPLE, OTHERS_ON_GPU, OTHER_NODE),
    CHANGING: (_SEQUENCES, _EXPERTS, _SEE),
    UNKNOWN: (CLOCK_LIMITS, _SEQUENCES, _EXPERTS),
}
"""Advice by what makes kernels uneven."""


def advice(cause: str, how_to_sample: str | None) -> tuple[str, ...]:
    """Return the advice on a cause, a key of `ADVICE`; how to record clocks, if they were not."""
    if how_to_sample is None:
        return tuple(line for line in ADVICE[cause] if line != _SAMPLE)
    sample = f"{_SAMPLE}: {how_to_sample}"
    return tuple(sample if line == _SAMPLE else line for line in ADVICE[cause])


ID = "uneven-kernels"
MAX_KERNEL = 60
"""Characters of a kernel's name in a title."""
MIN_LOWER_CLOCK = 0.01
"""The share by which a clock must be lower than the others' to be a reason."""
MIN_ALIKE = 0.1
"""The share of matrix products that are as fast as the others', from which on no clock is slow."""


class UnevenKernelsMetrics(f.Metrics):
    """Numbers of `uneven-kernels`."""

    excess_ns: Annotated[
        f.Ns,
        "how much longer the slowest rank of each part of a step took than the"
        " mean of its peers, summed over the steady steps",
    ]
    rank: Annotated[f.Count, "the slowest rank; where it changes, the one that costs most"]
    num_kernels: Annotated[
        f.Count,
        "the number of kernels of `category` that were compared, on the slowest rank of each part",
    ]
    is_constant: Annotated[
        bool | None,
        "true if it is always the same rank (because of its GPU, or of how the work is divided),"
        " false if it changes (because of the data); null where too few steps show it",
    ]
    category: Annotated[
        str,
        f.one_of(*map(str, Category)),
        "the category of kernels that makes up most of the excess",
    ]
    category_fraction: Annotated[f.Fraction, "the share of the excess that it makes up"]
    slower: Annotated[
        f.Positive, "the time of the rank's kernels, as a multiple of its peers' mean"
    ]
    share_longest: Annotated[
        f.Fraction, "the share of the parts of steps in which it was the slowest"
    ]
    others_wait_ns: Annotated[
        f.Ns | None,
        "how long the other ranks waited in collectives with nothing to compute"
        " (their median): for this rank if it is always the same one, otherwise"
        " for the last one; null where no clock or matched operation shows it",
    ]
    compute_ns: Annotated[
        f.Ns | None,
        "what the rank computes in a step, all kernels added, or only the kernel that is uneven",
    ]
    least_ns: Annotated[f.Ns | None, "the same of its peers, the least; null without peers"]
    most_ns: Annotated[f.Ns | None, "the same of its peers, the most"]
    num_peers: Annotated[
        f.Count,
        "the number of the other ranks that should do the same: they reduce gradients together, or"
        " run the same kernels equally often, and are of one pipeline stage",
    ]
    num_in_group: Annotated[
        f.Count, "the number of ranks that should do the same, with those that were not recorded"
    ]
    stage: Annotated[f.Count | None, "the pipeline stage of the rank, from 0; null without any"]
    clock: Annotated[
        f.Positive | None,
        "the mean clock of its GPU while it computed, as a multiple of the others' mean; null where"
        " clocks were not sampled",
    ]
    work: Annotated[
        f.Positive | None,
        "the number of thread blocks of the slowest rank's kernels (of kernels, where grids are"
        " unknown), as a multiple of its peers' mean: 1 where all do the same work; null where"
        " another rank is the slowest each time, and of one kernel",
    ]
    kernel: Annotated[str | None, "the only kernel that is uneven; null where all kernels count"]
    alike_fraction: Annotated[
        f.Fraction | None,
        "the share of its matrix multiplications, convolutions and attention in parts of the step"
        " (between two meetings of the ranks) where they take as long on its peers, within a"
        f" quarter of the excess; null under {rank_work.MIN_STEPS} steps, or where they do not make"
        " most of it",
    ]
    coverage: Annotated[f.Fraction, "1: all kernels of the compared steps are counted"]


FINDINGS = {
    ID: f.FindingKind(
        UnevenKernelsMetrics,
        removed_by=("equal-kernels",),
        part_of="straggler",
        changes_kernels=True,
        needs=f.Sight.OPERATIONS,
    )
}


class UnevenRank(Record, frozen=True):
    """What is uneven, by the rank that is named for it."""

    rank: int  # its number
    metrics: UnevenKernelsMetrics
    step_ns: float  # the excess in the mean step
    window_ns: int  # the length of what is judged, on the rank
    evidence: tuple[f.Evidence, ...]  # the steps in which the rank was furthest beyond the others


class UnevenKernelsResult(Record, frozen=True):
    """The uneven kernels of a run."""

    work: RunWork  # of the ranks
    ranks: tuple[UnevenRank, ...]  # worst first; none if kernels are even
    num_ranks: int  # with a GPU
    how_to_sample: str  # how to record clocks

    @property
    def metrics(self) -> UnevenKernelsMetrics | None:
        """The numbers of the worst; None if kernels are even."""
        return self.ranks[0].metrics if self.ranks else None


def run(measured: MeasuredRun) -> UnevenKernelsResult:
    """Measure what uneven kernels cost a run."""
    work = rank_work.run(measured)
    ranks = tuple(_uneven_rank(measured, work, excess) for excess in work.excesses)
    how_to_sample = measured.run.how_to_collect(Part.LINK_COUNTERS)
    return UnevenKernelsResult(work, ranks, len(measured.placed), how_to_sample)


def _uneven_rank(measured: MeasuredRun, work: RunWork, excess: Excess) -> UnevenRank:
    rank = measured.placed[excess.member]
    num_steps = max(rank.num_steps, 1)
    by_category = {name: max(ns, 0.0) for name, ns in excess.by_category_ns.items()}
    category = max(by_category, key=lambda name: by_category[name])
    peers = {
        index
        for index, row in enumerate(work.ranks)
        if row.peers == excess.peers and index != excess.member
    }
    metrics = UnevenKernelsMetrics(
        excess_ns=round(excess.excess_ns * num_steps),
        rank=rank.rank,
        num_kernels=round(excess.num_kernels.get(category, 0.0) * num_steps),
        is_constant=excess.is_constant,
        category=category,
        category_fraction=by_category[category] / max(sum(by_category.values()), 1.0),
        slower=excess.slower,
        share_longest=excess.share_longest,
        others_wait_ns=_others_wait_ns(measured, rank.rank, is_one=bool(excess.is_constant)),
        compute_ns=round(excess.own_ns),
        least_ns=round(excess.least_ns),
        most_ns=round(excess.most_ns),
        num_peers=len(peers),
        num_in_group=work.peers[excess.peers].num_ranks,
        stage=work.ranks[excess.member].stage,
        clock=_clock(measured.placed, excess.member, peers),
        work=excess.work if excess.is_constant is not False and excess.name is None else None,
        kernel=excess.name,
        alike_fraction=excess.alike_fraction,
        coverage=1.0,
    )
    evidence = _evidence(measured, excess.member, excess.by_step_ns)
    return UnevenRank(rank.rank, metrics, excess.excess_ns, rank.window_ns, evidence)


def findings(result: UnevenKernelsResult) -> list[f.Finding | f.NotApplicable]:
    """Judge the excess for which others waited by its share of the training."""
    if result.num_ranks < 2:
        return []
    if all(row.peers is None for row in result.work.ranks):
        return [
            f.NotApplicable(
                ID,
                "no two ranks reduce gradients together, or run the same kernels equally often on a"
                " GPU each, so none can be compared",
                "give reports of several ranks of one run",
            )
        ]
    claims: list[f.Finding | f.NotApplicable] = []
    for rank in result.ranks:
        metrics = rank.metrics
        impact = min(metrics.excess_ns, rank.window_ns)
        if metrics.others_wait_ns is not None:
            impact = min(impact, metrics.others_wait_ns)
        lines = advice(cause_of(metrics), None if metrics.clock else result.how_to_sample)
        title, evidence = _title(rank), rank.evidence
        claims += f.costly(ID, rank.rank, rank.window_ns, title, impact, metrics, evidence, lines)
    return claims


def cause_of(metrics: UnevenKernelsMetrics) -> str:
    """Return what the reports show to make kernels uneven."""
    if metrics.is_constant is False:
        return CHANGING
    if (metrics.work or 1.0) > SAME_BLOCKS:
        return WORK
    if metrics.kernel is not None:
        return ONE_KERNEL
    if metrics.clock is not None and metrics.clock < 1 - MIN_LOWER_CLOCK:
        return CLOCK
    if (metrics.alike_fraction or 0.0) >= MIN_ALIKE:
        return PARTS
    return HARDWARE if metrics.is_constant else UNKNOWN


def because(metrics: UnevenKernelsMetrics) -> str:
    """Say what makes kernels uneven, with the numbers that show it."""
    cause = cause_of(metrics)
    if cause == CLOCK:
        return f"the clock of its GPU is {percent(1 - (metrics.clock or 1.0))} lower"
    if cause == WORK:
        return f"it has more work: {metrics.work:.2f} × the thread blocks of the others"
    if cause == HARDWARE:
        same = "with as many thread blocks" if metrics.work is not None else ""
        clock = "at the same clock" if metrics.clock is not None else ""
        known = " ".join(filter(None, (same, clock)))
        hint = "" if metrics.clock is not None else ": throttled, shared, or another kind of board"
        return f"its GPU is slower {known}".rstrip() + hint
    return {
        ONE_KERNEL: "its other kernels take as long as theirs: see what this one works on",
        PARTS: f"its GPU is as fast as theirs in {percent(metrics.alike_fraction or 0.0)} of its"
        " matrix products: see what the others work on",
        CHANGING: "the work changes from step to step: sequences or experts",
        UNKNOWN: "too few steps show whether it is always this rank",
    }[cause]


def _others_wait_ns(measured: MeasuredRun, rank: int, *, is_one: bool) -> int | None:
    """Return how long others waited for a rank, or for any, at their median, unhidden."""
    ranks = measured.ranks
    member = ranks.ranks.index(rank)
    is_matched = any(member in waits.group.members for waits in ranks.waits)
    if not is_matched or ranks.are_waits_unknown(member):
        return None
    waited = waited_for(ranks.waits, [packed.unpacked for packed in measured.arrivals])
    return int(waited[member] if is_one else waited.sum())


def _clock(placed: Sequence[PlacedKernels], member: int, peers: Iterable[int]) -> float | None:
    """Return the clock of one rank as a multiple of the mean of its peers."""
    own = placed[member].clock_hz
    others = [
        hz for index in peers if index != member and (hz := placed[index].clock_hz) is not None
    ]
    return None if own is None or not others else own / float(np.mean(others))


def _evidence(measured: MeasuredRun, member: int, by_step_ns: Float64) -> tuple[f.Evidence, ...]:
    placed = measured.placed[member]
    own = shared_steps(measured.placed, measured.ranks.clocks).of_rank[member]
    known = np.flatnonzero(own >= 0)
    beyond = by_step_ns[own[known]]
    worst = known[np.argsort(-beyond, kind="stable")[: f.MAX_EVIDENCE]]
    beyond = np.sort(-beyond, kind="stable")[: f.MAX_EVIDENCE]
    return tuple(
        f.Evidence(
            int(placed.start_ns[step]),
            int(placed.end_ns[step]),
            f"step {placed.number[step]}: its kernels took {duration(round(-ns))} beyond the mean",
        )
        for step, ns in zip(worst.tolist(), beyond.tolist(), strict=True)
        if ns < 0
    )


def _title(rank: UnevenRank) -> str:
    metrics = rank.metrics
    of_category = f"{percent(metrics.category_fraction)} of it {metrics.category}"
    of_stage = "" if metrics.stage is None else f" of stage {metrics.stage}"
    others, recorded = metrics.num_peers, 1 + metrics.num_peers
    peers = f"{counted(others, 'peer')}{of_stage}"
    if metrics.num_in_group > recorded:
        peers = f"{counted(others, 'recorded peer')}{of_stage} (of {metrics.num_in_group - 1})"
        of_stage += f" ({recorded} of {metrics.num_in_group} ranks recorded)"
    low, high = (duration(value or 0) for value in (metrics.least_ns, metrics.most_ns))
    they_take = f"{peers} {'take' if metrics.num_peers > 1 else 'takes'} {low}" + (
        f" to {high}" if low != high else ""
    )
    if metrics.is_constant is False:
        return (
            f"Another rank{of_stage} computes longest each time (this one in"
            f" {percent(metrics.share_longest)} of the parts of steps):"
            f" {duration(round(rank.step_ns))} in the mean step beyond the mean, {of_category};"
            f" {because(metrics)}"
        )
    what = (
        "It computes"
        if metrics.kernel is None
        else f"The kernel {one_line(metrics.kernel, MAX_KERNEL)} takes"
    )
    return (
        f"{what} {duration(metrics.compute_ns or 0)} in a step, where its {they_take}:"
        f" {metrics.slower:.2f} times as long, {of_category}; {because(metrics)}"
    )


PAGE = {
    "advice": "\n".join(f"\n*{cause}*\n\n{f.bullets(lines)}" for cause, lines in ADVICE.items()),
    "same_work": percent(rank_work.SAME_WORK),
    "min_noise": percent(rank_work.MIN_NOISE),
    "num_noise": f"{rank_work.NUM_NOISE:.0f}",
    "min_cost": percent(rank_work.MIN_COST),
    "certain": percent(rank_work.CERTAIN),
    "min_changing": percent(rank_work.MIN_CHANGING),
    "min_turn_steps": str(rank_work.MIN_CHANGING_STEPS),
    "min_errors": f"{rank_work.MIN_STANDARD_ERRORS:.0f}",
    "takes_turns": percent(rank_work.TAKES_TURNS),
    "min_lower_clock": percent(MIN_LOWER_CLOCK),
    "min_alike": percent(MIN_ALIKE),
    "min_more_work": percent(SAME_BLOCKS - 1),
}
