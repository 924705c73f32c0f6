"""Reports that are opened, measured, and kept open."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from traceprof.analyses.measurements import MeasuredReport, MeasuredRun, Wanted
from traceprof.analyses.verdict.measured_run import measured_run
from traceprof.execution.measuring import measured_with_ranks
from traceprof.execution.options import Options, check_listener, checked, num_jobs
from traceprof.progress import Progress
from traceprof.run.opening import Run, attach_ranks
from traceprof.run.rank import Rank
from traceprof.run.summary import FailedReport, close_on_error, try_report
from traceprof.structs import Record
from traceprof.trace.model.trace import Trace
from traceprof.trace.open import open_trace

if TYPE_CHECKING:
    from typing_extensions import Self


class MeasuredReports(Record, frozen=True):
    """A measured run with open reports."""

    measured: MeasuredRun  # the measurements
    run: Run  # the reports and their ranks, with all events


class Measurer(Record, frozen=True):
    """Measures reports that stay open."""

    options: Options  # what to analyse
    progress: Progress | None  # receives the number of rows read
    num_processes: int  # the maximum number of processes

    @classmethod
    def of(cls, options: Options | None, progress: Progress | None, jobs: int | None) -> Self:
        """Measurer for a user's options. Raises UsageError: the options are impossible."""
        options = checked(options)
        if progress is not None:
            check_listener(progress)
        return cls(options, progress, num_jobs(jobs))

    def opened(self, paths: Sequence[str | os.PathLike[str]]) -> list[Trace | FailedReport]:
        """Return the reports of a run, opened, or why they cannot be."""
        return [
            try_report(path, partial(open_trace, path, self.progress)) for path in map(Path, paths)
        ]

    def measured(self, opened: Sequence[Trace | FailedReport]) -> MeasuredReports:
        """Return the measurements of open reports, which are closed where that fails.

        Raises TraceprofError: no report can be read, or the options select nothing.
        """
        wanted = self.options.wanted(len(opened))
        try:
            read = [
                trace
                if isinstance(trace, FailedReport)
                else try_report(trace.path, partial(self._measured, trace, wanted))
                for trace in opened
            ]
            done = [one for one in read if not isinstance(one, FailedReport)]
            reports = [one if isinstance(one, FailedReport) else one[2] for one in read]
            options = self.options
            measured = measured_run(reports, options.steps, options.time_range, wanted)
            traces, ranks = [trace for trace, _, _ in done], [ranks for _, ranks, _ in done]
            return MeasuredReports(measured, attach_ranks(measured.run, traces, ranks))
        except Exception:  # after an interrupt a thread may still be reading
            close_reports(opened)
            raise

    def _measured(
        self, trace: Trace, wanted: Wanted | None
    ) -> tuple[Trace, list[Rank], MeasuredReport]:
        with close_on_error(trace):
            return trace, *measured_with_ranks(trace, self.options, self.num_processes, wanted)


def close_reports(opened: Sequence[Trace | FailedReport]) -> None:
    """Close those reports of a run that could be opened."""
    for trace in opened:
        if not isinstance(trace, FailedReport):
            trace.close()


class OpenAnalysis(Protocol):
    """A run that was measured, and perhaps judged, with open reports."""

    @property
    def measured(self) -> MeasuredRun:
        """The measurements."""

    @property
    def run(self) -> Run:
        """The reports and their ranks."""
