"""Measurements of ranks, reports and the run: small, and to be pickled.

A report is measured where it is opened, perhaps by another process or machine. What comes back is
this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import field, structs
from msgspec.structs import replace

from traceprof.analyses.shape.results import Results
from traceprof.run.cache import Cache
from traceprof.structs import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from traceprof.analyses.compute.compute_parts import ComputeParts
    from traceprof.analyses.gradients.buckets import DdpBucketsResult
    from traceprof.analyses.kernels.kernel_table import KernelTable
    from traceprof.analyses.kernels.launched_kernels import LaunchedKernels
    from traceprof.analyses.kernels.placed_kernels import PlacedKernels
    from traceprof.analyses.kernels.unevenness import Unevenness
    from traceprof.analyses.measurements.hidden import Hidden
    from traceprof.analyses.measurements.process_groups import ProcessGroupsResult
    from traceprof.analyses.shape.results import Judge, RankResult, Result
    from traceprof.analyses.steps.slow_steps import SlowSteps
    from traceprof.analyses.steps.step_means import StepTotals
    from traceprof.findings import NotApplicable
    from traceprof.host.rank_stalls import RankStalls
    from traceprof.ranks.arrivals import PackedArrivals
    from traceprof.ranks.comparison import RankComparison
    from traceprof.ranks.passes import RankPasses
    from traceprof.run.completeness import Losses
    from traceprof.run.opening import RunSummary
    from traceprof.run.summary import FailedReport, RankInfo, ReportSummary


class Wanted(Record, frozen=True):
    """What is to be measured and judged; analyses by name."""

    asked: frozenset[str]
    """The analyses whose findings are asked for."""
    read: frozenset[str]
    """These, and those whose results they read."""
    measured: frozenset[str]
    """These, and those whose findings may include the time of a finding that is asked for."""
    measurements: frozenset[str]
    """The shared measurements, by name."""


class RankMeasurements(Record, frozen=True):
    """The measurements of a rank: of what is judged, unless a comment says otherwise.

    A measurement is None if it was not asked for, is not for such a rank, or failed.
    """

    results: Mapping[str, RankResult]
    """Of each analysis that is for the rank, by its name."""
    missing: Mapping[str, tuple[NotApplicable, ...]]
    """Why analyses could not run, by their name."""
    hidden: tuple[Hidden, ...]
    """What its report hides of it."""
    shown: Mapping[str, RankResult]
    """Of the analyses that are listed, what they measured of all that is shown."""
    arrivals: PackedArrivals | None = None
    buckets: DdpBucketsResult | None = None  # of all that is shown
    kernels: KernelTable | None = None
    compute: ComputeParts | None = None  # of all that is shown
    launched: LaunchedKernels | None = None
    process_groups: ProcessGroupsResult | None = None
    shown_process_groups: ProcessGroupsResult | None = None
    step_totals: StepTotals | None = None
    slow_steps: SlowSteps | None = None
    stalls: RankStalls | None = None
    placed: PlacedKernels | None = None
    passes: RankPasses | None = None
    losses: Losses | None = None
    """What its recording lacks."""

    def with_rank(self, rank: int, report: int) -> RankMeasurements:
        """Return the same with the rank's number and its report's index in the run."""
        groups, shown_groups = (
            of_rank and replace(of_rank, rank=rank, report=report)
            for of_rank in (self.process_groups, self.shown_process_groups)
        )
        return RankMeasurements(
            results={name: result.with_rank(rank) for name, result in self.results.items()},
            missing={name: _numbered(gaps, rank) for name, gaps in self.missing.items()},
            hidden=self.hidden,
            losses=self.losses,
            shown={name: result.with_rank(rank) for name, result in self.shown.items()},
            arrivals=None if self.arrivals is None else self.arrivals.numbered(rank, report),
            buckets=self.buckets and replace(self.buckets, rank=rank),
            kernels=self.kernels and self.kernels.with_rank(rank),
            compute=self.compute and self.compute.with_rank(rank),
            launched=self.launched and self.launched.with_rank(rank),
            process_groups=groups,
            shown_process_groups=shown_groups,
            step_totals=self.step_totals and structs.replace(self.step_totals, rank=rank),
            slow_steps=self.slow_steps and self.slow_steps.with_rank(rank),
            stalls=None if self.stalls is None else self.stalls.numbered(rank, report),
            placed=None if self.placed is None else self.placed.numbered(rank, report),
            passes=None if self.passes is None else self.passes.numbered(rank, report),
        )


def _numbered(gaps: Iterable[NotApplicable], rank: int) -> tuple[NotApplicable, ...]:
    return tuple(structs.replace(gap, rank=rank) for gap in gaps)


class MeasuredRank(Record, frozen=True):
    """A rank with its measurements."""

    facts: RankInfo
    """The rank, by its number within the report."""
    step_numbers: tuple[int, int] | None
    """The first and last number of its training steps, None without any."""
    measurements: RankMeasurements | None
    """None for a rank without the window asked for."""
    failures: tuple[NotApplicable, ...] = ()
    """What could not be analysed because an optional part failed."""

    def with_rank(self, rank: int, report: int) -> MeasuredRank:
        """Return the same with the rank's number and its report's index in the run."""
        measured = self.measurements
        return replace(
            self,
            measurements=None if measured is None else measured.with_rank(rank, report),
            failures=_numbered(self.failures, rank),
        )


class MeasuredReport(Record, frozen=True):
    """A report with its measurements."""

    facts: ReportSummary
    ranks: tuple[MeasuredRank, ...]
    """In order of (pid, device)."""
    captured_ns: tuple[int, int] | None = None
    """When its capture began and ended; None if no time range was asked for."""
    failures: tuple[NotApplicable, ...] = ()
    """What could not be analysed because an optional part failed, whatever the rank."""


class MeasuredRun(Record, frozen=True):
    """The measurements of a run before anything is judged; by rank, in order of the ranks."""

    run: RunSummary
    """The reports and their ranks."""
    results: Results
    """Of each analysis."""
    ranks: RankComparison
    """Clocks, waits and transfers; without ranks if arrivals were not measured."""
    wanted: Wanted | None = None
    """What was to be measured; None for everything."""
    missing: Mapping[str, tuple[NotApplicable, ...]] = field(default_factory=dict)
    """Why analyses could not run on ranks, by the analysis' name."""
    failures: tuple[NotApplicable, ...] = ()
    """What could not be analysed because an optional part failed."""
    arrivals: tuple[PackedArrivals, ...] = ()
    """When ranks came to each communication operation."""
    buckets: tuple[DdpBucketsResult, ...] = ()
    """The gradient buckets of DistributedDataParallel."""
    kernels: tuple[KernelTable, ...] = ()
    """The times of kernels by name, of ranks with a GPU."""
    compute: tuple[ComputeParts, ...] = ()
    """The kinds of compute of ranks with a GPU."""
    losses: Mapping[int, Losses] = field(default_factory=dict)
    """What the recordings of ranks with a GPU lack."""
    hidden: Mapping[int, tuple[Hidden, ...]] = field(default_factory=dict)
    """What reports hide of ranks, by the rank."""
    launched: tuple[LaunchedKernels, ...] = ()
    """The code that launched the kernels of ranks with a GPU."""
    process_groups: tuple[ProcessGroupsResult, ...] = ()
    """The communication of ranks without a GPU."""
    shown: Results = field(default_factory=Results)
    """Of the analyses that are listed, what they measured of all that is shown."""
    shown_process_groups: tuple[ProcessGroupsResult, ...] = ()
    """The process groups of all that is shown."""
    step_totals: tuple[StepTotals, ...] = ()
    """The time of steady steps by part and cause."""
    slow_steps: tuple[SlowSteps, ...] = ()
    """The steps that took far longer than usual."""
    stalls: tuple[RankStalls, ...] = ()
    """Of the hosts of ranks with a GPU."""
    placed: tuple[PlacedKernels, ...] = ()
    """The kernels of ranks with a GPU by their place in steps."""
    uneven: Unevenness | None = None
    """How uneven these are; None if no two ranks can be compared."""
    passes: tuple[RankPasses, ...] = ()
    """The compute of ranks between their messages."""
    failed: tuple[FailedReport, ...] = ()
    """Reports that could not be analysed; the run has none of them."""
    cache: Cache = field(default_factory=Cache)
    """Data that is derived from all of these."""

    def of(self, module: Judge[Result]) -> tuple[Result, ...]:
        """Return what an analysis measured, by rank: see each result's `rank`.

        For analyses whose numbers are listed that is all that is shown, for others what findings
        are about.
        """
        return self.shown.of(module) or self.results.of(module)
