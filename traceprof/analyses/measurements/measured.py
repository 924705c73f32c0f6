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
    from collections.abc import Mapping

    from traceprof.analyses.compute.compute_parts import ComputeParts
    from traceprof.analyses.gradients.buckets import DdpBucketsResult
    from traceprof.analyses.kernels.kernel_table import KernelTable
    from traceprof.analyses.kernels.launched_kernels import LaunchedKernels
    from traceprof.analyses.kernels.placed_kernels import PlacedKernels
    from traceprof.analyses.kernels.unevenness import Unevenness
    from traceprof.analyses.measurements.hidden import Hidden
    from traceprof.analyses.measurements.process_groups import ProcessGroupsResult
    from traceprof.analyses.shape.results import Judge, RankResult, Result
    from traceprof.analyses.steps.step_means import StepTotals
    from traceprof.findings import NotApplicable
    from traceprof.host.rank_stalls import RankStalls
    from traceprof.ranks.arrivals import PackedArrivals
    from traceprof.ranks.comparison import RankComparison
    from traceprof.ranks.passes import RankPasses
    from traceprof.run.opening import RunSummary
    from traceprof.run.summary import FailedReport, RankInfo, ReportSummary


class RankMeasurements(Record, frozen=True):
    """The measurements of a rank: of what is judged, unless an attribute says otherwise."""

    results: Mapping[str, RankResult]  # of each analysis that is for the rank, by its name
    # of the analyses that could not run, why not, by their name
    missing: Mapping[str, tuple[NotApplicable, ...]]
    arrivals: PackedArrivals  # when the rank came to each communication operation
    # the gradient buckets of DistributedDataParallel, in all that is shown
    buckets: DdpBucketsResult
    kernels: KernelTable | None  # what its kernels took, by name; None for a rank without a GPU
    # what its compute consists of, in all that is shown; None for a rank without a GPU
    compute: ComputeParts | None
    hidden: tuple[Hidden, ...]  # what its report hides of it
    # the code that launched its kernels; None for a rank without a GPU
    launched: LaunchedKernels | None
    # what a rank without a GPU communicated; None for one with a GPU
    process_groups: ProcessGroupsResult | None
    # of the analyses that are listed, what they measured of all that is shown
    shown: Mapping[str, RankResult]
    shown_process_groups: ProcessGroupsResult | None  # the process groups of all that is shown
    step_totals: StepTotals  # where the time of the steady steps went
    stalls: RankStalls | None  # of the host; None for a rank without a GPU
    # its kernels by their place in steps; None for a rank without a GPU
    placed: PlacedKernels | None
    passes: RankPasses  # what it computed between its messages, as a stage of a pipeline does

    def with_rank(self, rank: int, report: int) -> RankMeasurements:
        """Return the same with the rank's number and its report's index in the run."""
        return RankMeasurements(
            results={name: result.with_rank(rank) for name, result in self.results.items()},
            missing={
                name: tuple(structs.replace(gap, rank=rank) for gap in gaps)
                for name, gaps in self.missing.items()
            },
            arrivals=self.arrivals.numbered(rank, report),
            buckets=replace(self.buckets, rank=rank),
            kernels=self.kernels and self.kernels.with_rank(rank),
            compute=self.compute and self.compute.with_rank(rank),
            hidden=self.hidden,
            launched=self.launched and self.launched.with_rank(rank),
            process_groups=self.process_groups
            and replace(self.process_groups, rank=rank, report=report),
            shown={name: result.with_rank(rank) for name, result in self.shown.items()},
            shown_process_groups=self.shown_process_groups
            and replace(self.shown_process_groups, rank=rank, report=report),
            step_totals=structs.replace(self.step_totals, rank=rank),
            stalls=self.stalls and self.stalls.numbered(rank, report),
            placed=self.placed and self.placed.numbered(rank, report),
            passes=self.passes.numbered(rank, report),
        )


class MeasuredRank(Record, frozen=True):
    """A rank with its measurements."""

    facts: RankInfo  # the rank, by its number within the report
    # the first and last number of its training steps, None without any
    step_numbers: tuple[int, int] | None
    measurements: RankMeasurements | None  # None for a rank without the window asked for


class MeasuredReport(Record, frozen=True):
    """A report with its measurements."""

    facts: ReportSummary  # the report
    ranks: tuple[MeasuredRank, ...]  # its ranks, in order of (pid, device)
    # when its capture began and ended; None if no time range was asked for
    captured_ns: tuple[int, int] | None = None


class MeasuredRun(Record, frozen=True):
    """The measurements of a run before anything is judged; by rank, in order of the ranks."""

    run: RunSummary  # the reports and their ranks
    results: Results  # of each analysis
    ranks: RankComparison  # the comparison of the ranks: clocks, waits, transfers
    # why analyses could not run on ranks, by the analysis' name
    missing: Mapping[str, tuple[NotApplicable, ...]] = field(default_factory=dict)
    arrivals: tuple[PackedArrivals, ...] = ()  # when ranks came to each communication operation
    buckets: tuple[DdpBucketsResult, ...] = ()  # the gradient buckets of DistributedDataParallel
    kernels: tuple[KernelTable, ...] = ()  # what the kernels of ranks with a GPU took, by name
    compute: tuple[ComputeParts, ...] = ()  # what the compute of ranks with a GPU consists of
    # what reports hide of ranks, by the rank
    hidden: Mapping[int, tuple[Hidden, ...]] = field(default_factory=dict)
    # the code that launched the kernels of ranks with a GPU
    launched: tuple[LaunchedKernels, ...] = ()
    process_groups: tuple[ProcessGroupsResult, ...] = ()  # what ranks without a GPU communicated
    # of the analyses that are listed, what they measured of all that is shown
    shown: Results = field(default_factory=Results)
    # the process groups of all that is shown
    shown_process_groups: tuple[ProcessGroupsResult, ...] = ()
    step_totals: tuple[StepTotals, ...] = ()  # where the time of steady steps went
    stalls: tuple[RankStalls, ...] = ()  # of the hosts of ranks with a GPU
    # the kernels of ranks with a GPU by their place in steps
    placed: tuple[PlacedKernels, ...] = ()
    uneven: Unevenness | None = None  # how uneven these are; None if no two ranks can be compared
    passes: tuple[RankPasses, ...] = ()  # what ranks computed between their messages
    # reports that could not be analysed; the run has none of them
    failed: tuple[FailedReport, ...] = ()
    cache: Cache = field(default_factory=Cache)  # what is derived from all of these

    def of(self, module: Judge[Result]) -> tuple[Result, ...]:
        """Return what an analysis measured, by rank: see each result's `rank`.

        For analyses whose numbers are listed that is all that is shown, for others what findings
        are about.
        """
        return self.shown.of(module) or self.results.of(module)
