"""Reports that are opened, measured, and kept open."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec import field, structs

from traceprof.analyses import breakdown
from traceprof.analyses.verdict.measured_run import measured_run
from traceprof.analyses.verdict.run_result import partial_result
from traceprof.errors import TraceprofError
from traceprof.execution.children import ProgressOfAll
from traceprof.execution.measuring import measure, read_shared
from traceprof.execution.options import checked, num_jobs
from traceprof.execution.sections import SectionReader
from traceprof.run.guard import collected_failures
from traceprof.run.host_clock import aligned
from traceprof.run.opening import attach_ranks, summarize_report, summarize_run
from traceprof.run.rank import WindowKind
from traceprof.run.step_ranges import NO_TRAINING_RANGES
from traceprof.run.summary import FailedReport, close_on_error, try_report
from traceprof.run.windows import time_window
from traceprof.structs import Record
from traceprof.trace.open import open_trace

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from typing_extensions import Self

    from traceprof.analyses.breakdown import BreakdownResult
    from traceprof.analyses.measurements import MeasuredReport, MeasuredRun, Wanted
    from traceprof.analyses.verdict.run_result import RunResult
    from traceprof.execution.options import Options
    from traceprof.progress import Progress
    from traceprof.run.opening import Run
    from traceprof.run.rank import Rank
    from traceprof.trace.model.trace import Section, Trace


class MeasuredReports(Record, frozen=True):
    """A measured run with open reports."""

    measured: MeasuredRun  # the measurements
    run: Run  # the reports and their ranks, with all events


class Measurer(Record, frozen=True):
    """Measures reports that stay open."""

    options: Options  # what to analyse
    progress: ProgressOfAll | None  # receives the number of rows read
    num_processes: int  # the maximum number of processes
    # receives partial results of a single report, with the report, while it is read
    on_partial: Callable[[RunResult, Run], None] | None = None
    # whether this process is a child whose parent gets the sections that it reads
    forwards: bool = False
    # sections that a report holds already, by its index
    held: Mapping[int, Collection[Section]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        options: Options | None,
        progress: Progress | None,
        jobs: int | None,
        on_partial: Callable[[RunResult, Run], None] | None = None,
    ) -> Self:
        """Measurer for a user's options.

        Raises:
            UsageError: the options are impossible.
        """
        options = checked(options)
        of_all = None if progress is None else ProgressOfAll(progress)
        return cls(options, of_all, num_jobs(jobs), on_partial)

    def opened(self, paths: Sequence[str | os.PathLike[str]]) -> list[Trace | FailedReport]:
        """Return the reports of a run, opened, or why they cannot be."""
        return [
            try_report(path, partial(open_trace, path, self.progress)) for path in map(Path, paths)
        ]

    def measured(self, opened: Sequence[Trace | FailedReport]) -> MeasuredReports:
        """Return the measurements of open reports, which are closed where that fails.

        Raises:
            TraceprofError: no report can be read, or the options select nothing.
        """
        wanted = self.options.wanted(len(opened))
        try:
            reports: list[MeasuredReport | FailedReport] = []
            traces: list[Trace] = []
            ranks: list[list[Rank]] = []
            for index, trace in enumerate(opened):
                report: tuple[list[Rank], MeasuredReport] | FailedReport
                if isinstance(trace, FailedReport):
                    reports.append(trace)
                    continue
                is_only = len(opened) == 1
                measure_it = partial(self._measured, index, trace, wanted, is_only)
                report = try_report(trace.path, measure_it)
                if isinstance(report, FailedReport):
                    reports.append(report)
                    continue
                reports.append(report[1])
                traces.append(trace)
                ranks.append(report[0])
            options = self.options
            measured = measured_run(reports, options.steps, options.time_range, wanted)
            return MeasuredReports(measured, attach_ranks(measured.run, traces, ranks))
        except Exception:  # after an interrupt a thread may still be reading
            close_reports(opened)
            raise

    def _measured(
        self, index: int, trace: Trace, wanted: Wanted | None, is_only: bool
    ) -> tuple[list[Rank], MeasuredReport]:
        with close_on_error(trace):
            with (
                SectionReader(
                    trace,
                    self.progress,
                    self.num_processes,
                    index,
                    self.held.get(index, ()),
                    forwards=self.forwards,
                ) as sections,
                collected_failures() as failures,
            ):
                ranks = self.options.opened_ranks_of(trace)
                if is_only:
                    self._report_partial(trace, ranks, sections)
                read_shared(ranks, sections, wanted)
                ranks = aligned(ranks)
            measured = measure(trace, ranks, self.options, self.num_processes, wanted)
            failed = (*failures, *measured.failures)
            return ranks, structs.replace(measured, failures=failed)

    def _report_partial(self, trace: Trace, ranks: Sequence[Rank], sections: SectionReader) -> None:
        """Report what is known of a rank, and of the others while children read the report."""
        if self.on_partial is None:
            return
        with suppress(TraceprofError):  # the analysis itself raises it, too
            summary = summarize_run([summarize_report(trace, ranks)], [ranks])
            run = attach_ranks(summary, [trace], [ranks])
            for breakdowns in previews(run.ranks, self.options):
                self.on_partial(partial_result(summary, breakdowns), run)
                if not sections.are_coming:
                    break


def close_reports(opened: Sequence[Trace | FailedReport]) -> None:
    """Close those reports of a run that could be opened."""
    for trace in opened:
        if not isinstance(trace, FailedReport):
            trace.close()


def previews(ranks: Sequence[Rank], options: Options) -> Iterator[tuple[BreakdownResult, ...]]:
    """Breakdown, without steps, of the first rank by number, of the first two, ….

    It needs GPU operations only: steps and lost operations need the API calls, read later, so that
    windows chosen by steps are not known yet.
    """
    if options.steps is not None:
        return
    results: tuple[BreakdownResult, ...] = ()
    for rank in sorted(ranks, key=lambda rank: rank.rank):
        without_steps = structs.replace(
            rank, training_ranges=NO_TRAINING_RANGES, may_use_period=False, reads_calls=False
        )
        time_range = options.time_range
        chosen = rank.window if time_range is None else time_window(rank, time_range)
        whole = structs.replace(chosen, kind=WindowKind.WHOLE)  # its training is not known yet
        results = (*results, breakdown.run(without_steps, whole))
        without_steps.release()
        yield results


class OpenAnalysis(Protocol):
    """A run that was measured, and perhaps judged, with open reports."""

    @property
    def measured(self) -> MeasuredRun:
        """The measurements."""

    @property
    def run(self) -> Run:
        """The reports and their ranks."""
