"""What was measured of ranks, reports and the run: small, and to be pickled.

A report is measured where it is opened, perhaps by another process or machine. What comes back is
this.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceprof.analyses.ddp_buckets import DdpBucketsResult
    from traceprof.analyses.process_groups import ProcessGroupsResult
    from traceprof.analyses.results import RankResult, Results
    from traceprof.findings import NotApplicable
    from traceprof.ranks.arrivals import Arrivals
    from traceprof.ranks.comparison import RankComparison
    from traceprof.run.opening import RunSummary
    from traceprof.run.summary import RankInfo, ReportSummary


@dataclass(frozen=True, slots=True)
class RankMeasurements:
    """What was measured of a rank in a window.

    Attributes:
        results: of each analysis that is for the rank, by its name.
        missing: of the analyses that could not run, why not, by their name.
        arrivals: when the rank came to each communication operation.
        buckets: the gradient buckets of DistributedDataParallel.
        process_groups: what a rank without a GPU communicated; None for one with a GPU.
    """

    results: Mapping[str, RankResult]
    missing: Mapping[str, tuple[NotApplicable, ...]]
    arrivals: Arrivals
    buckets: DdpBucketsResult
    process_groups: ProcessGroupsResult | None

    def with_rank(self, rank: int, report: int) -> RankMeasurements:
        """Return the same with the rank's number and its report's index in the run."""
        return RankMeasurements(
            results={name: result.with_rank(rank) for name, result in self.results.items()},
            missing={
                name: tuple(replace(gap, rank=rank) for gap in gaps)
                for name, gaps in self.missing.items()
            },
            arrivals=replace(self.arrivals, rank=rank, report=report),
            buckets=replace(self.buckets, rank=rank),
            process_groups=self.process_groups
            and replace(self.process_groups, rank=rank, report=report),
        )


@dataclass(frozen=True)
class MeasuredRank:
    """A rank, and what was measured of it.

    Attributes:
        facts: the rank, by its number within the report.
        step_numbers: the first and last number of its training steps, None without any.
        measurements: None for a rank without the window asked for.
    """

    facts: RankInfo
    step_numbers: tuple[int, int] | None
    measurements: RankMeasurements | None


@dataclass(frozen=True)
class MeasuredReport:
    """A report, and what was measured of it.

    Attributes:
        facts: the report.
        ranks: its ranks, in order of (pid, device).
        captured_ns: when its capture began and ended; None where no time range was asked for.
    """

    facts: ReportSummary
    ranks: tuple[MeasuredRank, ...]
    captured_ns: tuple[int, int] | None = None


@dataclass(frozen=True)
class MeasuredRun:
    """What was measured of a run, before anything is judged; by rank, in order of the ranks.

    Attributes:
        run: the reports and their ranks.
        results: of each analysis.
        ranks: how the ranks met: clocks, waits, transfers.
        missing: why analyses could not run on ranks, by the analysis' name.
        arrivals: when ranks came to each communication operation.
        buckets: the gradient buckets of DistributedDataParallel.
        process_groups: what ranks without a GPU communicated.
    """

    run: RunSummary
    results: Results
    ranks: RankComparison
    missing: Mapping[str, tuple[NotApplicable, ...]] = field(default_factory=dict)
    arrivals: tuple[Arrivals, ...] = ()
    buckets: tuple[DdpBucketsResult, ...] = ()
    process_groups: tuple[ProcessGroupsResult, ...] = ()
