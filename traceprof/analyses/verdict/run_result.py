"""Everything that was found out about a run: numbers, and what they mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from traceprof.analyses import breakdown, collectives, exposed_copy, link_limits
from traceprof.analyses.measurements.measured import MeasuredRun
from traceprof.analyses.shape.results import Results
from traceprof.ranks.comparison import compare_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from traceprof.analyses.breakdown import BreakdownResult
    from traceprof.analyses.collectives import CollectivesResult
    from traceprof.analyses.gradients.ddp_buckets import DdpBucketsResult
    from traceprof.analyses.kernels.kernel_table import KernelTable
    from traceprof.analyses.links.link_counters import LinkCountersResult
    from traceprof.analyses.links.link_usage import LinkUsageResult
    from traceprof.analyses.measurements.process_groups import ProcessGroupsResult
    from traceprof.analyses.shape.results import Judge, Result
    from traceprof.analyses.steps.step_means import StepTotals
    from traceprof.analyses.verdict.attribution import Attribution
    from traceprof.analyses.verdict.headline import Headline
    from traceprof.findings import Finding, NotApplicable
    from traceprof.ranks.comparison import RankComparison
    from traceprof.run.concurrency import KindBeside
    from traceprof.run.opening import RunSummary
    from traceprof.run.summary import FailedReport


@dataclass(frozen=True)
class RunResult:
    """Everything that was found out about a run, whether its reports are still open or not.

    Attributes:
        measured: the reports, their ranks, and what was measured of them.
        findings: the costliest first.
        not_applicable: findings that could be neither made nor ruled out.
        notes: (report index, what to know about its data).
        failed: reports that could not be analysed; the run has none of them.
        headline: the run in one line, by all findings, also those that were not asked for.
        attributions: the findings or reasons that account for the time in which ranks did not
            compute, by all findings, too.
    """

    measured: MeasuredRun
    findings: tuple[Finding, ...] = ()
    not_applicable: tuple[NotApplicable, ...] = ()
    notes: tuple[tuple[int, str], ...] = ()
    failed: tuple[FailedReport, ...] = ()
    headline: Headline | None = None
    attributions: tuple[Attribution, ...] = ()

    @property
    def run(self) -> RunSummary:
        """The reports and their ranks."""
        return self.measured.run

    @property
    def ranks(self) -> RankComparison:
        """How the ranks met: clocks, waits, transfers."""
        return self.measured.ranks

    def of(self, module: Judge[Result]) -> tuple[Result, ...]:
        """Return what an analysis measured, by rank: see each result's `rank`.

        Of what is listed of all that a rank did, it is that, else what findings are about.
        """
        return self.measured.shown.of(module) or self.measured.results.of(module)

    @property
    def breakdown(self) -> tuple[BreakdownResult, ...]:
        """Where the time went, by rank."""
        return self.of(breakdown)

    @property
    def collectives(self) -> tuple[CollectivesResult | ProcessGroupsResult, ...]:
        """What was communicated, by operation, by rank: first of those with a GPU."""
        return (*self.of(collectives), *self.measured.shown_process_groups)

    @property
    def buckets(self) -> tuple[DdpBucketsResult, ...]:
        """Gradient buckets, by rank."""
        return self.measured.buckets

    @property
    def kernels(self) -> tuple[KernelTable, ...]:
        """What kernels took, by name, by rank."""
        return self.measured.kernels

    @property
    def step_totals(self) -> tuple[StepTotals, ...]:
        """Where the time of steady steps went, by rank."""
        return self.measured.step_totals

    @property
    def communication(self) -> tuple[CollectivesResult | ProcessGroupsResult, ...]:
        """What was communicated in what findings are about, by rank: see `collectives`."""
        return (*self.measured.results.of(collectives), *self.measured.process_groups)

    @property
    def beside(self) -> tuple[tuple[int, KindBeside], ...]:
        """Ranks with a GPU, and what ran beside what there."""
        return tuple(
            (copies.rank, row) for copies in self.of(exposed_copy) for row in copies.beside
        )

    @property
    def links(self) -> tuple[LinkUsageResult, ...]:
        """What copies carried, by rank."""
        return tuple(result.copies for result in self.of(link_limits))

    @property
    def counters(self) -> tuple[LinkCountersResult, ...]:
        """What sampled counters saw of the links, by rank."""
        return tuple(result.counters for result in self.of(link_limits))


def partial_result(run: RunSummary, breakdowns: Iterable[BreakdownResult]) -> RunResult:
    """Return what is known of a run while its reports are read: where the time of ranks went.

    Args:
        run: the reports and their ranks.
        breakdowns: of some of the ranks.
    """
    results = Results({breakdown.__name__: breakdowns})
    return RunResult(MeasuredRun(run, results, compare_ranks(run, ())))
