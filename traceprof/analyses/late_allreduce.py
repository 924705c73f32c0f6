"""Gradients that are reduced only when the backward is over, with no compute left to hide it.

DDP reduces gradients in buckets, each as soon as its last gradient is there, beside the rest of the
backward. Where all wait for the end of it, the GPU waits for them.
"""

from __future__ import annotations

from math import ceil
from typing import Annotated

import numpy as np
from msgspec import structs
from msgspec.structs import replace

from traceprof import findings as f
from traceprof import intervals
from traceprof.analyses import gradient_buckets
from traceprof.analyses.gradient_buckets import StepTails, of_operation
from traceprof.analyses.remedies import HALF_THE_BYTES
from traceprof.analyses.results import CostResult, facts_of
from traceprof.communication.messages import MAX_LATENCY_NS, messages
from traceprof.intervals import Int64, Intervals
from traceprof.kernel_names import UNKNOWN_OPERATION
from traceprof.ranks.comparison import RankComparison
from traceprof.run.rank import Rank, Window
from traceprof.trace.grouping import is_in, median_of
from traceprof.trace.model.parts import Part
from traceprof.units import counted, duration

ID = "late-allreduce"


class LateAllreduceMetrics(f.Metrics):
    """Numbers of `late-allreduce`."""

    tail_ns: Annotated[f.Ns, "the tails of the late steps, summed"]
    num_buckets: Annotated[f.Count, "the number of buckets in the median step"]
    exposed_ns: Annotated[
        f.Ns,
        "the part of the tails in which AllReduce kernels ran: waiting for"
        " slower ranks and transfer",
    ]
    waiting_ns: Annotated[
        f.Ns | None,
        "the part of `exposed_ns` before the last rank had arrived, which no bucket size shortens:"
        " the impact is the rest. Null where ranks are missing or clocks are too coarse: then the"
        " impact is all of `exposed_ns`",
    ]
    num_late_steps: Annotated[
        f.Count, "the number of late steps. More than half of the judged ones must be late"
    ]
    num_steps: Annotated[f.Count, "the number of steps judged"]
    hideable_fraction: Annotated[
        f.Fraction,
        "the share of the compute that ran after the first bucket had started, in the median"
        " late step: what could hide communication",
    ]
    coverage: Annotated[
        f.Fraction, "the share of the AllReduce kernels that were launched in a known step"
    ]


FINDINGS = {
    ID: f.FindingKind(
        LateAllreduceMetrics, part_of="exposed-communication", needs=f.Sight.COMMUNICATION
    )
}

# One step may be an accident, or cut.
MIN_STEPS = 2
_LITTLE = 0.1  # of what moved: so much waiting is not worth words
_LIMITED_BY = "what the backward can hide"


class LateAllReduceResult(CostResult, frozen=True):
    """The reduction of gradients in the steps of one rank."""

    # the numbers of its finding; of no late step, `hideable_fraction` is 0
    metrics: LateAllreduceMetrics
    num_unknown: int  # communication kernels that start in the window whose operation is unknown
    num_all_reduces: int  # AllReduce kernels that start in the window
    # ReduceScatter kernels that start in the window: where parameters are sharded, these reduce
    # the gradients
    num_reduce_scatters: int
    has_steps: bool  # whether any training step is known
    steps: StepTails  # the steps judged
    exposed: Intervals  # when AllReduce kernels ran in these tails, but for waiting for other ranks
    place: Int64  # int64[n], the AllReduce kernels that did, among the rank's communication kernels
    start_ns: Int64  # int64[n], of these
    end_ns: Int64  # int64[n]
    moving: Intervals  # when they are known to have moved data

    @property
    def per_step_ns(self) -> tuple[int, int]:
        """What the mean steady step spends on it, and what it would gain at most.

        The data that move from a step's first gradient on still have to move after it, so that the
        last reduction ends earlier by the rest of that time at most.
        """
        steps = self.steps
        spent = intervals.covered_within(self.exposed, steps.tail_start_ns, steps.tail_end_ns)
        spent = np.where(steps.is_late, spent, 0)
        moved = intervals.covered_within(self.moving, steps.ready_ns, steps.tail_end_ns)
        free = np.maximum(steps.tail_end_ns - steps.ready_ns - moved, 0)
        counts = steps.is_steady if steps.is_steady.any() else np.ones_like(steps.is_steady)
        return ceil(spent[counts].mean()), ceil(np.minimum(spent, free)[counts].mean())


def run(rank: Rank, window: Window) -> LateAllReduceResult:
    """Measure the steps whose AllReduce kernels all start in the window, but for the first step."""
    kernels = rank.operations.kernels
    inside = window.holds_start(kernels.start_ns)
    reduces = of_operation(rank, "AllReduce")
    step = gradient_buckets.steps_of_kernels(rank)
    steps = gradient_buckets.judge_steps(rank, window, step, reduces, inside)
    late = steps.tail_start_ns[steps.is_late], steps.tail_end_ns[steps.is_late]
    tails = window.clip(intervals.union(*late))
    tails = intervals.subtract(tails, rank.compute)
    start, end = kernels.start_ns[reduces], kernels.ends(reduces)
    exposed = intervals.intersect(tails, intervals.union(start, end))
    is_exposed = intervals.covered_before(exposed, end) > intervals.covered_before(exposed, start)
    sent = messages(rank)
    place = np.flatnonzero(is_in(sent.kernel, np.flatnonzero(reduces)[is_exposed]))
    num_all_reduces = int((reduces & inside).sum())
    num_in_steps = int((reduces & inside & (step >= 0)).sum())
    num_buckets = np.sort(steps.num_buckets)
    hideable = steps.hideable[steps.is_late]
    metrics = LateAllreduceMetrics(
        tail_ns=tails.measure_ns,
        # Of an even number of steps the lower of the middle two.
        num_buckets=int(num_buckets[(len(num_buckets) - 1) // 2]) if len(num_buckets) else 0,
        exposed_ns=exposed.measure_ns,
        waiting_ns=None,
        num_late_steps=int(steps.is_late.sum()),
        num_steps=len(num_buckets),
        hideable_fraction=float(median_of(hideable)) if len(hideable) else 0.0,
        coverage=num_in_steps / num_all_reduces if num_all_reduces else 1.0,
    )
    return LateAllReduceResult(
        **facts_of(rank, window),
        metrics=metrics,
        num_unknown=int((of_operation(rank, UNKNOWN_OPERATION) & inside).sum()),
        num_all_reduces=num_all_reduces,
        num_reduce_scatters=int((of_operation(rank, "ReduceScatter") & inside).sum()),
        has_steps=bool((step >= 0).any()),
        steps=steps,
        evidence=_evidence(rank, steps, tails),
        exposed=exposed,
        place=place,
        start_ns=kernels.start_ns[sent.kernel[place]],
        end_ns=kernels.ends(sent.kernel[place]),
        moving=intervals.empty(),
    )


def refined(result: LateAllReduceResult, ranks: RankComparison) -> LateAllReduceResult:
    """Return the same with the time in which the rank waited for others.

    Data move once the last rank has come: what is exposed before is waiting.
    """
    waits = ranks.waits_of(result.rank)
    if len(waits) == 0:
        return result
    at = np.minimum(np.searchsorted(waits.place, result.place), len(waits) - 1)
    is_matched = waits.place[at] == result.place
    wait, unsure = waits.wait_ns[at], waits.uncertainty_ns[at]
    is_certain = is_matched & (wait > unsure)
    moved = np.where(is_certain, result.start_ns + wait, result.start_ns)
    moving = intervals.union(np.minimum(moved, result.end_ns), result.end_ns)
    exposed = intervals.intersect(result.exposed, moving)
    waiting_ns = result.exposed.measure_ns - exposed.measure_ns
    uncertain = np.minimum(unsure, result.end_ns - result.start_ns)[is_matched & ~is_certain]
    if (len(is_matched) and not is_matched.any()) or int(uncertain.sum()) > waiting_ns:
        return result
    length = result.end_ns - np.minimum(moved, result.end_ns)
    surely = np.where(is_matched, np.maximum(length - np.minimum(unsure, length), 0), 0)
    # As one, those of a step would pay latency once. It is at most what the shortest takes.
    latency = np.full(len(length), length.min(initial=MAX_LATENCY_NS))
    first = np.searchsorted(result.start_ns, result.steps.ready_ns)
    latency[first[first < len(length)]] = 0
    surely = np.maximum(surely - latency, 0)
    return replace(
        result,
        metrics=structs.replace(result.metrics, waiting_ns=waiting_ns),
        exposed=exposed,
        moving=intervals.union(result.end_ns - surely, result.end_ns),
    )


def findings(result: LateAllReduceResult) -> list[f.Finding | f.NotApplicable]:
    """Judge the measurements."""
    missing = _missing(result)
    if missing is not None:
        return [missing]
    metrics = result.metrics
    waiting_ns = metrics.waiting_ns or 0
    impact_ns = metrics.exposed_ns - waiting_ns
    num_steps, num_late = metrics.num_steps, metrics.num_late_steps
    # The median step decides how the run reduces gradients.
    if 2 * num_late <= num_steps:
        return []
    spent_ns, most_ns = result.per_step_ns
    is_one = result.steps.num_buckets[result.steps.is_late] == 1
    beside = f", beside {duration(waiting_ns)} of waiting for other ranks"
    beside = beside if waiting_ns > _LITTLE * impact_ns else ""
    how = "in one bucket" if 2 * is_one.sum() > len(is_one) else "when the backward is almost over"
    title = (
        f"{num_late} of {num_steps} steps reduce their gradients {how}: {duration(impact_ns)} of it"
        f" is not hidden by compute{beside}"
    )
    advice = ADVICE if metrics.waiting_ns is None else ADVICE_WITH_ALL_RANKS
    saving = f.Saving.at_most(most_ns, limited_by=_LIMITED_BY if most_ns < spent_ns else None)
    return result.finding(ID, title, impact_ns, metrics, advice, saving=saving)


def _evidence(rank: Rank, steps: StepTails, tails: Intervals) -> tuple[f.Evidence, ...]:
    evidence = []
    for start, end in tails.longest(f.MAX_EVIDENCE):
        of_step = steps.is_late & (steps.tail_start_ns <= start) & (start < steps.tail_end_ns)
        number = steps.number[of_step.argmax()]
        what = rank.name_at(end - 1) or "idle time"
        evidence.append(f.Evidence(start, end, f"{what} of step {number}"))
    return tuple(evidence)


def _missing(result: LateAllReduceResult) -> f.NotApplicable | None:
    if not result.num_all_reduces:
        if not result.num_unknown:
            return None
        kernels = counted(result.num_unknown, "communication kernel")
        why = f"{kernels} of unknown operations, and no other is AllReduce"
        how = result.how_to_collect(Part.COMMUNICATION_CALLS)
        how += ", or --communication-kernel REGEX=AllReduce"
    elif not result.has_steps:
        why = "no training step is known whose kernels can be identified by their launches"
        how = (
            f"{result.how_to_collect(Part.RANGES)} with a range around each step: instrument.step,"
            " or a range of your own and --step-pattern REGEX"
        )
    elif result.num_reduce_scatters:
        why = (
            "gradients are reduced by ReduceScatter (sharded parameters or optimizer): the"
            " AllReduce kernels carry something else"
        )
        how = "see exposed-communication for what no compute hides"
    elif result.metrics.num_steps < MIN_STEPS:
        steps = counted(result.metrics.num_steps, "step")
        why = (
            f"{steps} can be judged, and {MIN_STEPS} are needed: those with compute and then"
            " AllReduce kernels, all in the time judged, but for the first, where one bucket is"
            " right"
        )
        how = "record several steps, from cudaProfilerStart some steps into the training on"
    else:
        return None
    return f.NotApplicable(ID, why, how, result.rank)


ADVICE = (
    (
        "DDP: smaller buckets, the first of which is ready sooner (bucket_cap_mb, 25 by default); a"
        " bucket as large as the model waits for the last gradient"
    ),
    (
        "Let DDP overlap: it does so while loss.backward() runs. Calling all_reduce yourself after"
        " backward(), or under no_sync(), loses that; register_comm_hook changes what is sent and"
        " keeps the overlap"
    ),
    (
        "Drop find_unused_parameters=True, or also give DDP static_graph=True (torch 1.11 and"
        " later): otherwise it does not order its buckets by which gradients are ready first"
    ),
    (
        "Megatron: --overlap-grad-reduce; DeepSpeed: overlap_comm true and a smaller"
        " reduce_bucket_size"
    ),
    (
        "Record every rank and compare: exposed time may be waiting for a slower one, which no"
        " bucket shortens"
    ),
    HALF_THE_BYTES,
)
ADVICE_WITH_ALL_RANKS = tuple(text for text in ADVICE if not text.startswith("Record every rank"))

PAGE = {"min_of_longest": str(gradient_buckets.MIN_OF_LONGEST), "advice": f.bullets(ADVICE)}
