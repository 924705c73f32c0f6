"""Where the time went: compute, communication, copies, idleness, for the rank and each step.

All are measures of unions of intervals clipped to a window, so that
compute + exposed communication + exposed copy + idle = window, to the nanosecond.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.analyses.results import RankResult
from traceprof.findings import (
    MAX_EVIDENCE,
    Evidence,
    Finding,
    Kind,
    Metric,
    Metrics,
    MetricValue,
    NotApplicable,
    bullets,
    severity_of_cost,
    share,
)
from traceprof.trace.model.parts import HowToCollect, Part
from traceprof.units import duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.intervals import Int64, Intervals
    from traceprof.run.opening import Mask, Rank, Window
    from traceprof.run.rank import Spans

IDS: tuple[str, ...] = ("exposed-communication",)
REQUIRES: tuple[Part, ...] = ()  # a rank has operations of a GPU, or ranges of its own
METRICS: Metrics = {
    "exposed-communication": {
        "exposed_ns": Metric(
            Kind.NS, "its length, and the impact: what perfect overlap would save"
        ),
        "fraction": Metric(Kind.FRACTION, "the exposed share of the communication"),
        "overlap_efficiency": Metric(
            Kind.FRACTION,
            "(compute + communication − either) ÷ min(compute, communication); 1 where everything"
            " that can overlap does",
            is_nullable=True,
        ),
        "per_step_ns": Metric(
            Kind.NS,
            "exposed time of the median training step, null where no step was found",
            is_nullable=True,
        ),
        "coverage": Metric(
            Kind.FRACTION,
            "the share of GPU operations whose kind is known; a CUDA graph traced as a whole may"
            " hide communication",
        ),
    }
}


@dataclass(frozen=True, slots=True)
class Measures:
    """The breakdown of one window of one rank; DESIGN's names, ns and counts.

    `num_*` count the operations that are inside the window at all.
    """

    window_start_ns: int
    window_ns: int
    compute_ns: int
    communication_ns: int
    overlapped_communication_ns: int
    exposed_communication_ns: int
    copy_ns: int
    exposed_copy_ns: int
    idle_ns: int
    num_kernels: int
    num_communication: int
    num_copies: int

    @property
    def overlap_efficiency(self) -> float | None:
        """Overlap that was achieved over what was possible, 0 to 1; None without communication.

        (T_compute + T_communication - T_either) / min(T_compute, T_communication).
        """
        possible = min(self.compute_ns, self.communication_ns)
        return self.overlapped_communication_ns / possible if possible else None

    @property
    def hidden_fraction(self) -> float | None:
        """Share of the communication that compute hides, 0 to 1; None without communication."""
        if not self.communication_ns:
            return None
        return self.overlapped_communication_ns / self.communication_ns

    def fraction(self, part_ns: str) -> float:
        """Return the share of the window that a part of it takes, 0 to 1.

        Args:
            part_ns: the field of the part, such as `idle_ns`.
        """
        part: int = getattr(self, part_ns)
        return part / self.window_ns if self.window_ns else 0.0


@dataclass(frozen=True, slots=True)
class StepMeasures:
    """The breakdown of one training step of one rank."""

    number: int
    measures: Measures


@dataclass(frozen=True, slots=True)
class BreakdownResult(RankResult):
    """Where a rank's time went.

    Attributes:
        whole: the breakdown of the window asked for.
        steps: the breakdown of each training step inside it, in order of time.
        exposed: the longest stretches of exposed communication, longest first.
        num_graphs: CUDA graphs traced as a whole: what ran inside is not known.
        has_gpu: whether the rank has one; otherwise ranges of its host were measured.
        is_compute_known: whether anything tells when the rank computed.
        how_to_collect: what the trace may lack, should it be needed.
    """

    whole: Measures
    steps: tuple[StepMeasures, ...]
    exposed: tuple[Evidence, ...]
    num_graphs: int
    has_gpu: bool
    is_compute_known: bool
    how_to_collect: HowToCollect


def run(rank: Rank, window: Window) -> BreakdownResult:
    """Measure a window of a rank, and each step that lies inside it."""
    start = np.array([window.start_ns], np.int64)
    end = np.array([window.end_ns], np.int64)
    numbers: list[int] = []
    if rank.steps is not None:
        inside = rank.steps.start_ns >= window.start_ns
        steps = rank.steps.chosen(inside & (rank.steps.end_ns <= window.end_ns))
        start, end = np.append(start, steps.start_ns), np.append(end, steps.end_ns)
        numbers = steps.number.tolist()
    closed = np.zeros(len(start), np.bool_)
    closed[0] = window.is_whole
    whole, *of_steps = _measure(rank, start, end, closed)
    return BreakdownResult(
        rank=rank.rank,
        how_to_collect=rank.trace.how_to_collect,
        whole=whole,
        steps=tuple(
            StepMeasures(number, each) for number, each in zip(numbers, of_steps, strict=True)
        ),
        exposed=_exposed_evidence(rank, window),
        num_graphs=len(rank.operations.graphs),
        has_gpu=rank.device is not None,
        is_compute_known=rank.device is not None or len(rank.compute) > 0,
    )


def findings(result: BreakdownResult) -> list[Finding | NotApplicable]:
    """Judge what was measured."""
    found = _exposed_communication(result)
    return [] if found is None else [found]


# -- numbers --------------------------------------------------------------------------------------


def _measure(rank: Rank, start_ns: Int64, end_ns: Int64, closed: Mask) -> list[Measures]:
    """Measure many windows of a rank at once.

    Args:
        rank: the rank.
        start_ns: int64[m].
        end_ns: int64[m].
        closed: bool[m], whether an operation without length at the very end counts as inside.
    """

    def within(covered: Intervals) -> Int64:
        return intervals.covered_within(covered, start_ns, end_ns)

    compute, communication, copy = (
        within(rank.compute),
        within(rank.communication),
        within(rank.copy),
    )
    overlapped, busy = within(rank.overlapped), within(rank.busy)
    either = compute + communication - overlapped
    counts = _counts(rank, start_ns, end_ns, closed)
    columns = (
        start_ns,
        end_ns - start_ns,
        compute,
        communication,
        overlapped,
        communication - overlapped,
        copy,
        busy - either,
        end_ns - start_ns - busy,
        *counts,
    )
    return [Measures(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _counts(rank: Rank, start_ns: Int64, end_ns: Int64, closed: Mask) -> tuple[Int64, Int64, Int64]:
    """Return how many compute kernels, communications and copies are in each window."""

    def inside(spans: Spans) -> Int64:
        counts = [_num_inside(*span, start_ns, end_ns, closed) for span in spans]
        return sum(counts, np.zeros(len(start_ns), np.int64))

    kernels, communication, copies = rank.counted
    return inside(kernels), inside(communication), inside(copies)


def _num_inside(
    start_ns: Int64, end_ns: Int64, window_start: Int64, window_end: Int64, closed: Mask
) -> Int64:
    """Count operations, ordered by start, in each window; one without length is where it starts."""
    instant = start_ns == end_ns
    times = start_ns[instant]
    if len(times):
        start_ns, end_ns = start_ns[~instant], end_ns[~instant]
    begun = np.searchsorted(start_ns, window_end, side="left")
    over = np.searchsorted(np.sort(end_ns, kind="stable"), window_start, side="right")
    # Times are whole nanoseconds.
    instants: Int64 = np.searchsorted(times, window_end + closed, side="left")
    instants = instants - np.searchsorted(times, window_start, side="left")
    # A window may be empty, or lie inside an operation that spans it.
    inside: Int64 = np.maximum(begun - over, 0) + np.maximum(instants, 0)
    return inside


def _exposed_evidence(rank: Rank, window: Window) -> tuple[Evidence, ...]:
    exposed = intervals.clip(rank.exposed, window.start_ns, window.end_ns)
    return tuple(
        Evidence(start, end, rank.name_at(start) or "communication")
        for start, end in _longest(exposed)
    )


def _longest(covered: Intervals) -> Sequence[tuple[int, int]]:
    order = intervals.largest(covered.length_ns, MAX_EVIDENCE)
    return list(zip(covered.start_ns[order].tolist(), covered.end_ns[order].tolist(), strict=True))


# -- judgement ------------------------------------------------------------------------------------


def _exposed_communication(result: BreakdownResult) -> Finding | NotApplicable | None:
    unjudged = _why_unjudged(result)
    if unjudged is not None:
        return NotApplicable("exposed-communication", *unjudged, result.rank)
    whole = result.whole
    fraction = share(whole.exposed_communication_ns, whole.window_ns)
    severity = severity_of_cost(fraction)
    if severity is None:
        return None
    per_step = _median_of_steps(result, "exposed_communication_ns")
    efficiency = whole.overlap_efficiency
    metrics: dict[str, MetricValue] = {
        "exposed_ns": whole.exposed_communication_ns,
        "fraction": share(whole.exposed_communication_ns, whole.communication_ns),
        "overlap_efficiency": efficiency,
        "per_step_ns": per_step,
        "coverage": _coverage(result),
    }
    return Finding(
        "exposed-communication",
        severity,
        result.rank,
        f"{duration(whole.exposed_communication_ns)} of"
        f" {duration(whole.communication_ns)} of communication is not hidden by compute",
        whole.exposed_communication_ns,
        fraction,
        metrics,
        result.exposed,
        ADVICE if result.has_gpu else CPU_ADVICE,
    )


def _why_unjudged(result: BreakdownResult) -> tuple[str, str] | None:
    """Return what is missing to judge, and how to collect it; None where nothing is."""
    whole = result.whole
    if result.num_graphs and not whole.num_communication:
        return (
            (
                f"{result.num_graphs} CUDA graphs were traced as a whole: communication inside them"
                " is not recorded"
            ),
            result.how_to_collect(Part.GRAPH_KERNELS),
        )
    if not whole.num_communication and result.has_gpu:
        return (
            "no communication kernel and no peer copy ran in the window",
            (
                "record every rank of a run on several GPUs; where kernels of another name"
                " communicate, give it with --communication-kernel REGEX"
            ),
        )
    if not whole.communication_ns and not result.has_gpu:
        return (
            "no range of a communication call lies in the window",
            "instrument.enable() in the training script names every call",
        )
    if not result.is_compute_known:
        return (
            "no range tells when the process computed: forward, backward or optimizer step",
            (
                "instrument.enable() names them for DistributedDataParallel and optimizers;"
                " elsewhere put instrument.annotate('forward') around what computes"
            ),
        )
    return None


def _median_of_steps(result: BreakdownResult, measure: str) -> int | None:
    values = [getattr(step.measures, measure) for step in result.steps]
    return int(np.median(values)) if values else None


def _coverage(result: BreakdownResult) -> float:
    """Return the share of operations whose kind is known: a whole graph may hide communication."""
    whole = result.whole
    known = whole.num_kernels + whole.num_communication + whole.num_copies
    return known / (known + result.num_graphs) if known + result.num_graphs else 1.0


_SMALLER_BUCKETS = (
    "DDP: give all-reduces more compute to hide behind with smaller buckets (bucket_cap_mb),"
    " static_graph=True where the graph does not change, and no_sync() on all but the last"
    " micro-batch when accumulating gradients"
)
_HALF_THE_BYTES = (
    "Send half the bytes: torch.distributed.algorithms.ddp_comm_hooks.default_hooks"
    ".bf16_compress_hook"
)
ADVICE = (
    (
        "Look at the slowest ranks first: a collective's kernel runs until the last rank arrives,"
        " so exposed time may be waiting for a straggler; record every rank and compare"
    ),
    _SMALLER_BUCKETS,
    _HALF_THE_BYTES,
    "FSDP2: prefetch with set_modules_to_forward_prefetch and set_modules_to_backward_prefetch",
)
CPU_ADVICE = (
    (
        "Look at the slowest ranks first: a collective is over when the last rank has come, so"
        " exposed time may be waiting for a straggler; record every rank and compare"
    ),
    "Start operations with async_op=True, compute meanwhile, and wait for them late",
    _SMALLER_BUCKETS,
    _HALF_THE_BYTES,
)
PAGE = {"advice": bullets(ADVICE), "cpu_advice": bullets(CPU_ADVICE)}
