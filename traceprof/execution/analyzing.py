"""Reports opened, measured and judged, and kept open: what every analysis of a run begins with."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from traceprof.analyses.verdict.judging import judge
from traceprof.analyses.verdict.run_result import partial_result
from traceprof.errors import TraceprofError
from traceprof.execution.measuring import measure, read_shared
from traceprof.execution.open_analysis import AnalyzedReports
from traceprof.execution.preview import previews
from traceprof.execution.reading import SectionsBeside
from traceprof.run.failures import close_on_error, try_report
from traceprof.run.opening import attach_ranks, summarize_report, summarize_run
from traceprof.run.summary import FailedReport
from traceprof.trace.open import open_trace

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Mapping, Sequence

    from traceprof.analyses.measurements.measured import MeasuredReport
    from traceprof.analyses.verdict.run_result import RunResult
    from traceprof.execution.options import Options
    from traceprof.execution.reading import ProgressOfAll
    from traceprof.progress import Progress
    from traceprof.run.rank import Rank
    from traceprof.trace.model.trace import Section, Trace


def open_reports(
    paths: Sequence[str | os.PathLike[str]], progress: Progress | None
) -> list[Trace | FailedReport]:
    """Open the reports of a run; of those that cannot be opened, say why.

    Args:
        paths: Nsight Systems exports or traces of torch.profiler.
        progress: told of the rows that are read.
    """
    return [try_report(path, partial(open_trace, path, progress)) for path in map(Path, paths)]


def close_reports(opened: Sequence[Trace | FailedReport]) -> None:
    """Close those reports of a run that could be opened."""
    for trace in opened:
        if not isinstance(trace, FailedReport):
            trace.close()


def judge_reports(reports: Sequence[MeasuredReport | FailedReport], options: Options) -> RunResult:
    """Say what was measured of the reports of a run, and what it means.

    Args:
        reports: in the order given.
        options: what to analyse.

    Raises:
        TraceprofError: no report could be measured, or the options ask for what is not there.
    """
    return judge(
        reports,
        only=options.only,
        skip=options.skip,
        steps=options.steps,
        time_range=options.time_range,
    )


@dataclass(frozen=True)
class Analyzer:
    """Analyses open reports.

    Attributes:
        options: what to analyse.
        progress: told of the rows that are read.
        num_processes: how many processes may work.
        on_partial: told what is known of a single report while it is being read.
        is_beside: whether another process waits for what this one reads and finds out.
        held: sections that a report holds already, by its index.
    """

    options: Options
    progress: ProgressOfAll | None
    num_processes: int
    on_partial: Callable[[AnalyzedReports], None] | None = None
    is_beside: bool = False
    held: Mapping[int, Collection[Section]] = field(default_factory=dict)

    def analyzed(self, opened: Sequence[Trace | FailedReport]) -> AnalyzedReports:
        """Return the analysis of reports, which are closed where that fails.

        Raises:
            TraceprofError: no report can be read, or the options ask for what is not there.
        """
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
                report = try_report(trace.path, partial(self._measured, index, trace, is_only))
                if isinstance(report, FailedReport):
                    reports.append(report)
                    continue
                reports.append(report[1])
                traces.append(trace)
                ranks.append(report[0])
            result = judge_reports(reports, self.options)
            return AnalyzedReports(result, attach_ranks(result.run, traces, ranks))
        except Exception:  # after an interrupt a thread may still be reading
            close_reports(opened)
            raise

    def _measured(
        self, index: int, trace: Trace, is_only: bool
    ) -> tuple[list[Rank], MeasuredReport]:
        """Return the ranks of a report, and what was measured of it."""
        with close_on_error(trace):
            with SectionsBeside(
                trace,
                self.progress,
                self.num_processes,
                index,
                self.held.get(index, ()),
                forwards=self.is_beside,
            ) as sections:
                ranks = self.options.ranks_of(trace)
                if is_only:
                    self._tell_partial(trace, ranks, sections)
                read_shared(ranks, sections)
            return ranks, measure(trace, ranks, self.options, self.num_processes)

    def _tell_partial(self, trace: Trace, ranks: Sequence[Rank], sections: SectionsBeside) -> None:
        """Tell what is known of a rank, and of others as long as the report is being read."""
        if self.on_partial is None:
            return
        with suppress(TraceprofError):  # the analysis itself meets it, too
            summary = summarize_run([summarize_report(trace, ranks)], [ranks])
            run = attach_ranks(summary, [trace], [ranks])
            for breakdowns in previews(run.ranks, self.options):
                self.on_partial(AnalyzedReports(partial_result(summary, breakdowns), run))
                if not sections.are_coming:
                    break
