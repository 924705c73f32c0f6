"""All analyses over a run: numbers first, then what they mean."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from traceprof.analyses.judging import judge
from traceprof.analyses.registry import FINDING_IDS
from traceprof.analyses.run_result import RunResult, partial_result
from traceprof.errors import TraceprofError
from traceprof.execution.beside import RankAlone, made_beside, send
from traceprof.execution.measuring import Task, measure, read_shared
from traceprof.execution.options import Options, num_jobs
from traceprof.execution.places import measured_anywhere
from traceprof.execution.preview import previews
from traceprof.execution.reading import ProgressOfAll, SectionsBeside
from traceprof.run.failures import close_on_error, try_report
from traceprof.run.opening import Run, attach_ranks, summarize_report, summarize_run
from traceprof.run.summary import FailedReport
from traceprof.trace.open import open_trace

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from traceprof.analyses.measured import MeasuredReport
    from traceprof.analyses.results import Judge, Result
    from traceprof.findings import Finding, NotApplicable
    from traceprof.progress import Listener, Progress
    from traceprof.ranks.comparison import RankComparison
    from traceprof.run.rank import Rank
    from traceprof.trace.model.trace import Section, Trace

__all__ = [
    "FINDING_IDS",
    "Analysis",
    "Options",
    "RunResult",
    "analyze",
    "analyze_reports",
    "begun_analysis",
]  # fmt: skip


@dataclass(frozen=True)
class Analysis:
    """What was found out about reports that are still open.

    Attributes:
        result: the numbers, and what they mean.
        run: the reports and their ranks, with all that they did.
    """

    result: RunResult
    run: Run

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The claims, the costliest first."""
        return self.result.findings

    @property
    def not_applicable(self) -> tuple[NotApplicable, ...]:
        """Findings that could be neither made nor ruled out."""
        return self.result.not_applicable

    @property
    def notes(self) -> tuple[tuple[int, str], ...]:
        """What to know about the data: (report index, note)."""
        return self.result.notes

    @property
    def ranks(self) -> RankComparison:
        """How the ranks met: clocks, waits, transfers."""
        return self.result.ranks

    def of(self, module: Judge[Result]) -> tuple[Result, ...]:
        """Return what an analysis measured, by rank: `of(breakdown)`."""
        return self.result.of(module)

    def close(self) -> None:
        """Release the reports."""
        for trace in self.run.traces:
            trace.close()


def analyze(
    *paths: str | os.PathLike[str],
    options: Options | None = None,
    listener: Listener[Analysis] | None = None,
    jobs: int | None = None,
) -> Analysis:
    """Analyse the reports of one run, and keep them open.

    A report that cannot be read is left out, and named in `Analysis.lost`, if others can.

    Args:
        paths: Nsight Systems exports.
        options: what to analyse; everything where not given.
        listener: told of the rows that are read, and of a single report what is known before all of
            it is read: the breakdown of the first rank, without steps, then of others, too.
        jobs: how many processes may work; by default one for each processor core. Results do not
            depend on it.

    Raises:
        TraceprofError: no report can be read, or the options ask for what is not there.
    """
    options = options or Options()
    options.check()
    progress = None if listener is None else ProgressOfAll(listener)
    opened = _opened(paths, progress)
    return _Analyzer(options, listener, progress, num_jobs(jobs)).analyzed(opened)


@contextmanager
def begun_analysis(
    *paths: str | os.PathLike[str],
    options: Options | None = None,
    listener: Listener[Analysis] | None = None,
    jobs: int | None = None,
) -> Iterator[Callable[[], Analysis]]:
    """Analyse the reports of one run beside what this process does in the block.

    Args:
        paths: Nsight Systems exports.
        options: what to analyse; everything where not given.
        listener: as for `analyze`; told within the function that is yielded.
        jobs: likewise.

    Yields:
        A function that returns the analysis when it is there, or raises what `analyze` does. Where
        this process has to analyse by itself, it does so then.

    Raises:
        UsageError: the options are impossible.
    """
    options = options or Options()
    options.check()
    progress = None if listener is None else ProgressOfAll(listener)
    opened = _opened(paths, progress)
    traces = {
        index: trace for index, trace in enumerate(opened) if not isinstance(trace, FailedReport)
    }

    def make_there() -> Iterator[_SentAnalysis]:
        sender = None if progress is None else _Sender(progress)
        there = _Analyzer(options, sender, progress, num_jobs(jobs), is_beside=True)
        yield _SentAnalysis.of(there.analyzed(opened))

    held: dict[int, list[Section]] = {}
    with made_beside(make_there, traces, progress, held) as items:

        def finish() -> Analysis:
            for sent in items:
                analysis = sent.within(traces)
                if not sent.is_partial:
                    return analysis
                if listener is not None:
                    listener.partial(analysis)
            here = _Analyzer(options, listener, progress, num_jobs(jobs), held=held)
            return here.analyzed(opened)

        yield finish


def analyze_reports(
    paths: Sequence[str | os.PathLike[str]],
    options: Options | None = None,
    *,
    jobs: int | None = None,
    scheduler: str | None = None,
    listener: Progress | None = None,
) -> RunResult:
    """Analyse the reports of one run; of each, only what was measured is kept.

    The result is the same, bit for bit, wherever the reports are measured. A report that cannot be
    read, or whose worker dies twice, is left out, and named in `RunResult.lost`, if there are
    others.

    Args:
        paths: Nsight Systems exports.
        options: what to analyse; everything where not given.
        jobs: how many processes measure reports; by default one for each processor core, as far as
            the reports are worth it. With one, this process does.
        scheduler: `tcp://HOST:PORT` of a cluster of `distributed`, whose workers do instead.
        listener: told of the rows of a report if there is but one, else of the reports.

    Raises:
        TraceprofError: no report can be read, the options ask for what is not there, or the cluster
            cannot be used.
    """
    options = options or Options()
    options.check()
    tasks = [Task(Path(path), Path(path), options) for path in paths]
    measured: list[MeasuredReport | FailedReport | None] = [None] * len(tasks)
    if listener is not None and len(tasks) > 1:
        listener.expect(len(tasks))
    for index, report in measured_anywhere(tasks, jobs, scheduler, listener):
        measured[index] = report
        if listener is not None and len(tasks) > 1:
            listener.advance(1)
    reports = [report for report in measured if report is not None]
    return judge(
        reports,
        only=options.only,
        skip=options.skip,
        steps=options.steps,
        time_range=options.time_range,
    )


class _SentAnalysis(NamedTuple):
    """An analysis on its way to where its reports are open, too.

    Attributes:
        result: the numbers, and what they mean.
        ranks: of each report.
        is_partial: whether another one follows.
    """

    result: RunResult
    ranks: tuple[tuple[RankAlone, ...], ...]
    is_partial: bool

    @classmethod
    def of(cls, analysis: Analysis, *, is_partial: bool = False) -> _SentAnalysis:
        ranks = tuple(
            tuple(RankAlone.of(rank) for rank in analysis.run.ranks if rank.trace is trace)
            for trace in analysis.run.traces
        )
        return cls(analysis.result, ranks, is_partial)

    def within(self, traces: Mapping[int, Trace]) -> Analysis:
        """Return the analysis of these reports, those left out that failed."""
        failed = {failed.path for failed in self.result.failed}
        kept = [trace for trace in traces.values() if trace.path not in failed]
        ranks = [
            [rank.within(trace) for rank in report]
            for trace, report in zip(kept, self.ranks, strict=True)
        ]
        if not self.is_partial:
            for trace in kept:
                trace.release()
        return Analysis(self.result, attach_ranks(self.result.run, kept, ranks))


class _Sender:
    """Tells the process that waits for an analysis how far it is."""

    def __init__(self, progress: Progress) -> None:
        self.expect, self.advance = progress.expect, progress.advance

    def partial(self, analysis: Analysis) -> None:
        send(_SentAnalysis.of(analysis, is_partial=True))


def _opened(
    paths: Sequence[str | os.PathLike[str]], progress: Progress | None
) -> list[Trace | FailedReport]:
    return [try_report(path, partial(open_trace, path, progress)) for path in map(Path, paths)]


@dataclass(frozen=True)
class _Analyzer:
    """Analyses open reports.

    Attributes:
        options: what to analyse.
        listener: told of partial results.
        progress: told of the rows that are read.
        num_processes: how many processes may work.
        is_beside: whether another process waits for what this one reads and finds out.
        held: sections that a report holds already, by its index.
    """

    options: Options
    listener: Listener[Analysis] | None
    progress: ProgressOfAll | None
    num_processes: int
    is_beside: bool = False
    held: Mapping[int, Collection[Section]] = field(default_factory=dict)

    def analyzed(self, opened: Sequence[Trace | FailedReport]) -> Analysis:
        """Return the analysis of reports, which are closed where that fails."""
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
            options = self.options
            result = judge(
                reports,
                only=options.only,
                skip=options.skip,
                steps=options.steps,
                time_range=options.time_range,
            )
            return Analysis(result, attach_ranks(result.run, traces, ranks))
        except Exception:  # after an interrupt a thread may still be reading
            _close(opened)
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
        if self.listener is None:
            return
        with suppress(TraceprofError):  # the analysis itself meets it, too
            summary = summarize_run([summarize_report(trace, ranks)], [ranks])
            run = attach_ranks(summary, [trace], [ranks])
            for breakdowns in previews(run.ranks, self.options):
                self.listener.partial(Analysis(partial_result(summary, breakdowns), run))
                if not sections.are_coming:
                    break


def _close(opened: Sequence[Trace | FailedReport]) -> None:
    for trace in opened:
        if not isinstance(trace, FailedReport):
            trace.close()
