"""Advice on uneven kernels, by what makes them uneven."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import numpy as np

from traceprof.analyses.kernels import unevenness as limits
from traceprof.analyses.kernels.matched_kernels import shared_steps
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
    Positive,
    Sight,
    bullets,
    one_of,
    severity_of_cost,
    share,
)
from traceprof.kernel_names.categories import Category
from traceprof.ranks.lateness import waited_for
from traceprof.structs import Record
from traceprof.trace.model.parts import Part
from traceprof.units import duration, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.analyses.kernels.placed_kernels import PlacedKernels
    from traceprof.analyses.kernels.unevenness import Unevenness
    from traceprof.analyses.measurements.measured import MeasuredRun

CLOCK, WORK, HARDWARE, CHANGING, UNKNOWN = (
    "a lower clock",
    "more work",
    "the hardware",
    "changing work",
    "too few steps",
)
"""What makes kernels uneven, as far as the reports show it."""

_LIMITS = (
    "Find what limits its clock: `nvidia-smi -q -d"
    " PERFORMANCE,CLOCK,POWER,TEMPERATURE` lists the reasons (SW Power Cap,"
    " HW Thermal Slowdown, …) while the training runs"
)
_LOCK = (
    "Give all GPUs the same clock and power limits (`nvidia-smi -lgc"
    " MIN,MAX`, `-pl WATTS`) if they were changed"
)
_COOL = "A hot GPU needs its fans or air flow fixed, or another slot; take the node out of service"
_SAMPLE = "Record clocks, too, to see whether it is throttled"
_OTHERS = "Look for another process on that GPU (`nvidia-smi pmon`), and for MIG or MPS shares"
_MOVE = "Run the job on another node, and see whether the slow rank moves with the GPU"
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
_STEPS = "Record at least 6 steps: they show whether it is always the same rank"

ADVICE: dict[str, tuple[str, ...]] = {
    CLOCK: (_LIMITS, _LOCK, _COOL),
    WORK: (_PARTITION, _SEE),
    HARDWARE: (_LIMITS, _SAMPLE, _OTHERS, _MOVE),
    CHANGING: (_SEQUENCES, _EXPERTS, _SEE),
    UNKNOWN: (_STEPS, _LIMITS, _SEQUENCES, _EXPERTS),
}
"""Advice by what makes kernels uneven."""


def advice(cause: str, how_to_sample: str | None) -> tuple[str, ...]:
    """Return the advice on a cause.

    Args:
        cause: a key of `ADVICE`.
        how_to_sample: how to record clocks; None if they were.
    """
    if how_to_sample is None:
        return tuple(line for line in ADVICE[cause] if line != _SAMPLE)
    sample = f"{_SAMPLE}: {how_to_sample}"
    return tuple(sample if line == _SAMPLE else line for line in ADVICE[cause])


def page_advice() -> str:
    """Return the advice of the page in Markdown, by what makes kernels uneven."""
    return "\n".join(f"\n*{cause}*\n\n{bullets(lines)}" for cause, lines in ADVICE.items())


ID = "uneven-kernels"
READS: tuple[str, ...] = ("arrivals", "placed")
MIN_LOWER_CLOCK = 0.01
"""The share by which a clock must be lower than the others' to be a reason."""
MIN_MORE_WORK = 0.02
"""The share by which thread blocks or bytes must be more than the others' to be a reason."""


class UnevenKernelsMetrics(Metrics):
    """Numbers of `uneven-kernels`."""

    excess_ns: Annotated[
        Ns,
        "how much longer the slowest rank of each part of a step took than the"
        " mean of the ranks at the same places, summed over the steady steps",
    ]
    rank: Annotated[Count, "the slowest rank; where it changes, the one that costs most"]
    num_kernels: Annotated[
        Count,
        "the number of kernels of `category` that were compared, on the slowest rank of each part",
    ]
    is_constant: Annotated[
        bool | None,
        "true if it is always the same rank (because of its GPU, or of how the"
        " work is divided), false if it changes (because of the data); null"
        " where too few steps show it",
    ]
    category: Annotated[
        str, one_of(*map(str, Category)), "the category of kernels that makes up most of the excess"
    ]
    category_fraction: Annotated[Fraction, "the share of the excess that it makes up"]
    slower: Annotated[
        Positive,
        "the time of the rank's kernels, as a multiple of the others' mean at these places",
    ]
    share_longest: Annotated[
        Fraction, "the share of the parts of steps in which it was the slowest"
    ]
    others_wait_ns: Annotated[
        Ns | None,
        "how long the other ranks waited in collectives with nothing to compute"
        " (their median): for this rank if it is always the same one, otherwise"
        " for the last one; null where no clock or matched operation shows it",
    ]
    clock: Annotated[
        Positive | None,
        "the mean clock of its GPU while it computed, as a multiple of the others' mean; null where"
        " clocks were not sampled",
    ]
    work: Annotated[
        Positive | None,
        "the number of thread blocks of the slowest rank's kernels, as a"
        " multiple of the others' mean: 1 where all do the same work; null if"
        " grids are unknown",
    ]
    all_to_all: Annotated[
        Positive | None,
        "the bytes that the slowest rank sends in the all-to-all after a part,"
        " as a multiple of the ranks' mean: experts send their results back;"
        " null if unknown",
    ]
    coverage: Annotated[Fraction, "the share of the ranks' compute that was compared"]


FINDINGS = {
    ID: FindingKind(
        UnevenKernelsMetrics,
        removed_by=("equal-kernels",),
        part_of="straggler",
        changes_kernels=True,
        needs=Sight.OPERATIONS,
    )
}


class UnevenKernelsResult(Record, frozen=True):
    """The uneven kernels of a run."""

    uneven: Unevenness | None  # how uneven kernels are; None if no two ranks can be compared
    metrics: UnevenKernelsMetrics | None  # the numbers of the finding; None if kernels are even
    window_ns: int  # the length of what is judged, on the rank
    evidence: tuple[Evidence, ...]  # the steps in which the rank was furthest beyond the others
    num_ranks: int  # with a GPU
    how_to_sample: str  # how to record clocks


def run(measured: MeasuredRun) -> UnevenKernelsResult:
    """Measure what uneven kernels cost a run."""
    uneven, placed = measured.uneven, measured.placed
    how_to_sample = measured.run.how_to_collect(Part.LINK_COUNTERS)
    if uneven is None or not uneven.is_uneven:
        return UnevenKernelsResult(uneven, None, 0, (), len(placed), how_to_sample)
    rank = placed[uneven.member]
    num_steps = max(rank.num_steps, 1)
    metrics = UnevenKernelsMetrics(
        excess_ns=round(uneven.excess_ns * num_steps),
        rank=rank.rank,
        num_kernels=round(uneven.num_kernels * num_steps),
        is_constant=uneven.is_constant,
        category=uneven.category,
        category_fraction=uneven.category_share,
        slower=uneven.slower,
        share_longest=uneven.share_longest,
        others_wait_ns=_others_wait_ns(measured, rank.rank, is_one=bool(uneven.is_constant)),
        clock=_clock(placed, uneven.member),
        work=uneven.work,
        all_to_all=uneven.all_to_all,
        coverage=uneven.coverage,
    )
    evidence = _evidence(measured, uneven)
    return UnevenKernelsResult(
        uneven, metrics, rank.window_ns, evidence, len(placed), how_to_sample
    )


def findings(result: UnevenKernelsResult) -> list[Finding | NotApplicable]:
    """Judge the excess by its share of the training, as far as others waited for it."""
    metrics, uneven = result.metrics, result.uneven
    if result.num_ranks < 2:
        return []
    if uneven is None:
        return [
            NotApplicable(
                ID,
                "no kernel is at the same place of a step on two ranks, so none can be compared",
                "give reports of several ranks of one run, with steps marked",
            )
        ]
    if metrics is None:
        return [] if uneven.is_judged else [_too_few(len(uneven.numbers))]
    impact = min(metrics.excess_ns, result.window_ns)
    if metrics.others_wait_ns is not None:
        impact = min(impact, metrics.others_wait_ns)
    fraction = share(impact, result.window_ns)
    severity = severity_of_cost(fraction)
    if severity is None:
        return []
    return [
        Finding(
            ID,
            severity,
            metrics.rank,
            _title(metrics, uneven),
            impact,
            fraction,
            metrics.by_name(),
            result.evidence,
            advice(cause_of(metrics), result.how_to_sample if metrics.clock is None else None),
        )
    ]


def cause_of(metrics: UnevenKernelsMetrics) -> str:
    """Return what makes kernels uneven, as far as the reports show it."""
    if metrics.is_constant is None:
        return UNKNOWN
    if not metrics.is_constant:
        return CHANGING
    if (metrics.work or 1.0) > 1 + MIN_MORE_WORK:
        return WORK
    if metrics.clock is not None and metrics.clock < 1 - MIN_LOWER_CLOCK:
        return CLOCK
    return HARDWARE


def because(metrics: UnevenKernelsMetrics) -> str:
    """Say what makes kernels uneven, with the numbers that show it."""
    more = [
        f"{value:.2f} × {what}"
        for value, what in (
            (metrics.work, "the thread blocks of the others"),
            (metrics.all_to_all, "the mean bytes of the all-to-all after it"),
        )
        if value is not None and value > 1 + MIN_MORE_WORK
    ]
    cause = cause_of(metrics)
    if cause == CLOCK:
        return f"the clock of its GPU is {percent(1 - (metrics.clock or 1.0))} lower"
    if cause == WORK:
        return f"it has more work: {', '.join(more)}"
    if cause == HARDWARE:
        same = "with as many thread blocks" if metrics.work is not None else ""
        clock = "at the same clock" if metrics.clock is not None else ""
        known = " ".join(filter(None, (same, clock)))
        hint = "" if metrics.clock is not None else ": throttled, shared, or another kind of board"
        return f"its GPU is slower {known}".rstrip() + hint
    uneven = f"; the longest has {', '.join(more)}" if more else ""
    if cause == CHANGING:
        return f"the work changes from step to step: sequences or experts{uneven}"
    return f"too few steps show whether it is always this rank{uneven}"


# -- numbers --------------------------------------------------------------------------------------


def _others_wait_ns(measured: MeasuredRun, rank: int, *, is_one: bool) -> int | None:
    """Return how long others waited for a rank, or for any, at their median, unhidden."""
    ranks = measured.ranks
    member = ranks.ranks.index(rank)
    is_matched = any(member in waits.group.members for waits in ranks.waits)
    if not is_matched or ranks.are_waits_unknown(member):
        return None
    waited = waited_for(ranks.waits, [packed.unpacked for packed in measured.arrivals])
    return int(waited[member] if is_one else waited.sum())


def _clock(placed: Sequence[PlacedKernels], member: int) -> float | None:
    """Return the clock of one rank as a multiple of the mean of the others."""
    own = placed[member].clock_hz
    others = [
        rank.clock_hz
        for index, rank in enumerate(placed)
        if index != member and rank.clock_hz is not None
    ]
    return None if own is None or not others else own / float(np.mean(others))


def _evidence(measured: MeasuredRun, uneven: Unevenness) -> tuple[Evidence, ...]:
    placed = measured.placed[uneven.member]
    own = shared_steps(measured.placed, measured.ranks.clocks).of_rank[uneven.member]
    known = np.flatnonzero(own >= 0)
    beyond = uneven.by_step_ns[own[known], uneven.member]
    worst = known[np.argsort(-beyond, kind="stable")[:MAX_EVIDENCE]]
    beyond = np.sort(-beyond, kind="stable")[:MAX_EVIDENCE]
    return tuple(
        Evidence(
            int(placed.start_ns[step]),
            int(placed.end_ns[step]),
            f"step {placed.number[step]}: its kernels took {duration(round(-ns))} beyond the mean",
        )
        for step, ns in zip(worst.tolist(), beyond.tolist(), strict=True)
        if ns < 0
    )


# -- judgement ------------------------------------------------------------------------------------


def _too_few(num_steps: int) -> NotApplicable:
    steps = "no steps" if num_steps < 2 else f"{num_steps} steps"
    return NotApplicable(
        ID,
        f"{steps} with few kernels at the same place on several ranks: noise cannot be estimated",
        f"record at least {limits.MIN_STEPS} steps",
    )


def _title(metrics: UnevenKernelsMetrics, uneven: Unevenness) -> str:
    step = f"{duration(round(uneven.excess_ns))} in the mean step"
    of_category = f"{percent(metrics.category_fraction)} of it {metrics.category}"
    if metrics.is_constant:
        return (
            f"The same kernels take {percent(metrics.slower - 1)} longer than on the other ranks:"
            f" {step} beyond the mean, {of_category}; {because(metrics)}"
        )
    return (
        "The same kernels take different times, the longest not always on the same rank (on this"
        f" one in {percent(metrics.share_longest)} of the parts of steps): {step} beyond the mean,"
        f" {of_category}; {because(metrics)}"
    )


PAGE = {
    "advice": page_advice(),
    "min_standard_errors": f"{limits.MIN_STANDARD_ERRORS:.0f}",
    "min_excess": percent(limits.MIN_EXCESS),
    "min_constant": percent(limits.MIN_CONSTANT),
    "min_steps": str(limits.MIN_STEPS),
    "min_lower_clock": percent(MIN_LOWER_CLOCK),
    "min_more_work": percent(MIN_MORE_WORK),
}
