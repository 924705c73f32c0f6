"""The training of a rank: the time that is judged, without what comes before and after."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

from msgspec import Struct

from traceprof import intervals
from traceprof.findings import Count
from traceprof.run.rank import CpuRank

if TYPE_CHECKING:
    from traceprof.intervals import Mask
    from traceprof.run.rank import Rank
    from traceprof.run.steps.step_ranges import StepRanges


MAX_PROFILER_SHARE = 0.1
"""Share of a step's time: a leading step in which the profiler worked longer is not training."""


class TrainingBasis(str, Enum):
    """The evidence for where the training begins and ends."""

    STEPS = "steps"
    OPTIMIZER = "optimizer steps"
    PERIODS = "periods"
    MAIN_COMPUTE = "main compute"
    WINDOW = "window"


class Training(Struct, frozen=True):
    """Training part of a rank's window: findings are about it if nothing else is asked for.

    Attributes:
        basis: the evidence for both limits.
        num_warm_up: leading steps that are left out since they lie in a range of warm-up.
        num_distorted: leading steps after these in which the profiler itself took too long.
    """

    start_ns: int
    end_ns: int
    before_ns: Annotated[Count, "Part of the rank's window that comes before: set-up, warm-up."]
    after_ns: Count
    basis: TrainingBasis
    num_warm_up: int = 0
    num_distorted: int = 0

    @property
    def num_left_out(self) -> int:
        """Number of the rank's first steps that are not training."""
        return self.num_warm_up + self.num_distorted


def training_of(rank: Rank) -> Training:
    """Return the training of a rank: its steps, else what follows its first main compute.

    Where nobody marked steps, the periods of its kernels are its steps. Leading steps that warm up,
    or that the profiler distorts, are left out, unless none remain. Without steps and without main
    compute, it is the rank's window.
    """
    return rank.cache.get(_training, rank)


def _training(rank: Rank) -> Training:
    steps = rank.steps
    if steps is None or len(steps) == 0:
        return _without_steps(rank)
    num_warm_up, basis = 0, TrainingBasis.PERIODS  # which are searched after the warm-up
    if rank.step_ranges is not None:
        is_marked = rank.training_ranges.steps is not None
        basis = TrainingBasis.STEPS if is_marked else TrainingBasis.OPTIMIZER
        num_warm_up = _num_leading(_lie_in_warm_up(rank, rank.step_ranges)[steps.source])
    num_warm_up %= len(steps)  # if all are, they count
    spans = rank.trace.profiler_overhead(rank.process)
    is_over = spans.end_ns < intervals.BEYOND_NS
    overhead = intervals.union(spans.start_ns[is_over], spans.end_ns[is_over])
    spent = intervals.covered_within(overhead, steps.start_ns, steps.end_ns)
    is_distorted = spent > MAX_PROFILER_SHARE * (steps.end_ns - steps.start_ns)
    num_distorted = _num_leading(is_distorted[num_warm_up:]) % (len(steps) - num_warm_up)
    start_ns = int(steps.start_ns[num_warm_up + num_distorted])
    end_ns = int(steps.end_ns.max())
    if basis is TrainingBasis.PERIODS and rank.periods is not None and rank.periods.is_part:
        (start_ns, end_ns), num_distorted = rank.periods.span_ns, 0
    return Training(
        start_ns,
        end_ns,
        start_ns - rank.window.start_ns,
        rank.window.end_ns - end_ns,
        basis,
        num_warm_up,
        num_distorted,
    )


def _without_steps(rank: Rank) -> Training:
    whole = rank.window
    if isinstance(rank, CpuRank):
        return Training(whole.start_ns, whole.end_ns, 0, 0, TrainingBasis.WINDOW)
    main = rank.main_compute
    if main is None:
        return Training(whole.start_ns, whole.end_ns, 0, 0, TrainingBasis.WINDOW)
    before_ns = main.start_ns - whole.start_ns
    return Training(main.start_ns, whole.end_ns, before_ns, 0, TrainingBasis.MAIN_COMPUTE)


def _num_leading(mask: Mask) -> int:
    """Return the number of true values before the first false one."""
    return len(mask) if mask.all() else int(mask.argmin())


def _lie_in_warm_up(rank: Rank, ranges: StepRanges) -> Mask:
    """Return which steps lie within ranges of warm-up, bool[steps]."""
    warm_up = rank.training_ranges.warm_up
    warm = intervals.covered_within(warm_up, ranges.start_ns, ranges.end_ns)
    mask: Mask = (warm == ranges.end_ns - ranges.start_ns) & (len(warm_up) > 0)
    return mask
