"""All analyses over a run: numbers first, then what they mean."""

from __future__ import annotations

from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from traceprof.analyses.judging import judge
from traceprof.analyses.registry import FINDING_IDS
from traceprof.analyses.run_result import RunResult, partial_result
from traceprof.errors import TraceprofError
from traceprof.execution.beside import RankAlone, made_beside, questions, send
from traceprof.execution.measuring import Task, measure, read_shared
from traceprof.execution.memory import drop_freed_memory, give_freed_memory_back
from traceprof.execution.options import Options, num_jobs
from traceprof.execution.places import measured_anywhere
from traceprof.execution.preview import previews
from traceprof.execution.reading import ProgressOfAll, SectionsBeside
from traceprof.run.captures import captures
from traceprof.run.failures import all_failed, close_on_error, try_report
from traceprof.run.opening import Run, attach_ranks, summarize_report, summarize_run
from traceprof.run.summary import FailedReport
from traceprof.trace.open import open_trace
from traceprof.whatif.savings import (
    MAX_READ_AGAIN,
    bounds_only,
    not_replayed,
    num_operations,
    with_savings,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    import pandas as pd

    from traceprof.analyses.measured import MeasuredReport
    from traceprof.analyses.results import Judge, Result
    from traceprof.execution.beside import Beside
    from traceprof.findings import Finding, NotApplicable
    from traceprof.progress import Listener, Progress
    from traceprof.ranks.comparison import RankComparison
    from traceprof.run.rank import Rank
    from traceprof.trace.model.trace import Section, Trace

__all__ = [
    "FINDING_IDS",
    "Analysis",
    "BegunAnalysis",
    "Options",
    "RunResult",
    "analyze",
    "analyze_captures",
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

    def to_pandas(self, table: str) -> pd.DataFrame:
        """Return a list of the JSON document as a pandas frame, with a column for each field.

        Args:
            table: `breakdown`, `steps`, `kernels`, `collectives`, `links`, `findings`, or the name
                of another list of the document.

        Raises:
            UsageError: there is no such list.
        """
        from traceprof.frames.results import table_frame  # noqa: PLC0415  (few ask for one)

        return table_frame(self.result, table)

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
        paths: Nsight Systems exports or traces of torch.profiler.
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


class BegunAnalysis:
    """An analysis that is made beside what this process does; called, it is waited for.

    Args:
        finish: returns it.
        beside: the process that makes it.
        answer: answers questions there, or here where there is no such process.
    """

    def __init__(
        self,
        finish: Callable[[], Analysis],
        beside: Beside[_SentAnalysis | _Answer],
        answer: Callable[[Analysis, Any], object] | None,
    ) -> None:
        self._finish, self._beside, self._answer = finish, beside, answer
        self._analysis: Analysis | None = None
        self._lock = Lock()

    def __call__(self) -> Analysis:
        """Return the analysis when it is there, or raise what `analyze` does.

        Where this process has to analyse by itself, it does so then.
        """
        self._analysis = self._finish()
        return self._analysis

    def ask(self, question: object) -> Any:  # noqa: ANN401  (whatever answers say)
        """Return the answer to a question; one thread at a time is answered.

        Args:
            question: as `answer` takes it; it can be pickled.

        Raises:
            TraceprofError: what the answer raises.
        """
        assert self._analysis is not None  # noqa: S101  (asked of what is there)
        assert self._answer is not None  # noqa: S101
        with self._lock:
            if self._beside.ask(question):
                for item in self._beside.items:
                    if isinstance(item, _Answer):
                        return item.told()
            return _Answer.of(self._answer, self._analysis, question).told()


class _Answer(NamedTuple):
    """The answer to a question on its way, or why there is none."""

    answer: object
    error: TraceprofError | None

    @classmethod
    def of(
        cls, answer: Callable[[Analysis, Any], object], analysis: Analysis, question: object
    ) -> _Answer:
        try:
            return cls(answer(analysis, question), None)
        except TraceprofError as error:
            return cls(None, error)
        finally:
            for rank in analysis.run.ranks:
                rank.release()

    def told(self) -> object:
        if self.error is not None:
            raise self.error
        return self.answer


@contextmanager
def begun_analysis(
    *paths: str | os.PathLike[str],
    options: Options | None = None,
    listener: Listener[Analysis] | None = None,
    jobs: int | None = None,
    answer: Callable[[Analysis, Any], object] | None = None,
) -> Iterator[BegunAnalysis]:
    """Analyse the reports of one run beside what this process does in the block.

    Args:
        paths: Nsight Systems exports or traces of torch.profiler.
        options: what to analyse; everything where not given.
        listener: as for `analyze`; told when the analysis is waited for.
        jobs: likewise.
        answer: what answers questions about the analysis, where any will be asked: the process that
            analyses then stays for them, as long as the block runs.

    Yields:
        The analysis, which is to be called.

    Raises:
        TraceprofError: no report can be opened, or the options are impossible.
    """
    options = options or Options()
    options.check()
    progress = None if listener is None else ProgressOfAll(listener)
    opened = _opened(paths, progress)
    failed = [report for report in opened if isinstance(report, FailedReport)]
    if failed and len(failed) == len(opened):
        raise all_failed(failed)
    traces = {
        index: trace for index, trace in enumerate(opened) if not isinstance(trace, FailedReport)
    }

    def make_there() -> Iterator[_SentAnalysis | _Answer]:
        sender = None if progress is None else _Sender(progress)
        there = _Analyzer(options, sender, progress, num_jobs(jobs), is_beside=True)
        analysis = there.analyzed(opened)
        yield _SentAnalysis.of(analysis)
        if answer is not None:
            give_freed_memory_back()
            for question in questions():
                yield _Answer.of(answer, analysis, question)
                give_freed_memory_back()

    held: dict[int, list[Section]] = {}
    with made_beside(make_there, traces, progress, held) as beside:

        def finish() -> Analysis:
            for sent in beside.items:
                assert isinstance(sent, _SentAnalysis)  # noqa: S101  (nothing was asked)
                analysis = sent.within(traces)
                if not sent.is_partial:
                    return analysis
                if listener is not None:
                    listener.partial(analysis)
            here = _Analyzer(options, listener, progress, num_jobs(jobs), held=held)
            return here.analyzed(opened)

        yield BegunAnalysis(finish, beside, answer)


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
        paths: Nsight Systems exports or traces of torch.profiler.
        options: what to analyse; everything where not given.
        jobs: how many processes measure reports; by default one for each processor core, as far as
            the reports are worth it. With one, this process does.
        scheduler: `tcp://HOST:PORT` or `tls://HOST:PORT` of a cluster of `distributed`, whose
            workers do instead.
        listener: told of the rows of a report if there is but one, else of the reports.

    Raises:
        TraceprofError: no report can be read, the options ask for what is not there, or the cluster
            cannot be used.
    """
    options = options or Options()
    if len(paths) == 1 and scheduler is None:
        options.check()
        progress = None if listener is None else ProgressOfAll(listener)
        analyzer = _Analyzer(options, None, progress, num_jobs(jobs))
        with closing(analyzer.analyzed(_opened(paths, progress))) as analysis:
            return analysis.result
    result = _judged(_measured_reports(paths, options, jobs, scheduler, listener), options)
    return result if options.savings is False else _with_savings(result, options)


def analyze_captures(
    paths: Sequence[str | os.PathLike[str]],
    options: Options | None = None,
    *,
    jobs: int | None = None,
    listener: Progress | None = None,
) -> list[RunResult]:
    """Analyse reports that may be of several recordings, each recording by itself.

    A report that cannot be read is left out, and named in the first recording's
    `RunResult.failed`, if there are others.

    Args:
        paths: Nsight Systems exports or traces of torch.profiler, in any order.
        options: as for `analyze_reports`.
        jobs: likewise.
        listener: likewise.

    Returns:
        The recordings in the order of their first reports.

    Raises:
        TraceprofError: no report can be read, or the options ask for what is not there.
    """
    options = options or Options()
    if len(paths) == 1:
        return [analyze_reports(paths, options, jobs=jobs, listener=listener)]
    measured = _measured_reports(paths, options, jobs, None, listener)
    failed = [report for report in measured if isinstance(report, FailedReport)]
    reports = [report for report in measured if not isinstance(report, FailedReport)]
    if not reports:
        raise all_failed(failed)
    recordings = captures(
        [report.facts for report in reports],
        [[rank.facts for rank in report.ranks] for report in reports],
    )
    judged = [
        _judged([*(reports[index] for index in indices), *(() if number else failed)], options)
        for number, indices in enumerate(recordings)
    ]
    if options.savings is False:
        return judged
    return [_with_savings(result, options) for result in judged]


def _measured_reports(
    paths: Sequence[str | os.PathLike[str]],
    options: Options,
    jobs: int | None,
    scheduler: str | None,
    listener: Progress | None,
) -> list[MeasuredReport | FailedReport]:
    """Return what was measured of each report, in the order given."""
    options.check()
    tasks = [Task(Path(path), Path(path), options) for path in paths]
    measured: list[MeasuredReport | FailedReport | None] = [None] * len(tasks)
    if listener is not None and len(tasks) > 1:
        listener.expect(len(tasks))
    for index, report in measured_anywhere(tasks, jobs, scheduler, listener):
        measured[index] = report
        if listener is not None and len(tasks) > 1:
            listener.advance(1)
    return [report for report in measured if report is not None]


def _judged(reports: Sequence[MeasuredReport | FailedReport], options: Options) -> RunResult:
    result = judge(
        reports,
        only=options.only,
        skip=options.skip,
        steps=options.steps,
        time_range=options.time_range,
    )
    return bounds_only(result)


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
            result = _judged(reports, self.options)
            analysis = Analysis(result, attach_ranks(result.run, traces, ranks))
            return self._with_savings(analysis)
        except Exception:  # after an interrupt a thread may still be reading
            _close(opened)
            raise

    def _with_savings(self, analysis: Analysis) -> Analysis:
        """Return the analysis with what a step would gain without its findings, if asked for."""
        if self.options.savings is False:
            return analysis
        drop_freed_memory()  # of the analyses
        return replace(analysis, result=with_savings(analysis))

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


def _with_savings(result: RunResult, options: Options) -> RunResult:
    """Return a result with what a step would gain, of reports that have to be opened again."""
    if options.savings is None and num_operations(result) > MAX_READ_AGAIN:
        why = f"{len(result.run.reports)} reports would have to be read again for a replay"
        return not_replayed(result, why, "ask for it with --savings")
    traces: list[Trace] = []
    try:
        ranks: list[list[Rank]] = []
        for report in result.run.reports:
            traces.append(open_trace(report.path))
            ranks.append(options.ranks_of(traces[-1]))
            traces[-1].release()  # of many reports what is read again only where needed adds up
        return with_savings(Analysis(result, attach_ranks(result.run, traces, ranks)))
    except (
        TraceprofError
    ) as error:  # what a cluster's workers see may not be there for this process
        return not_replayed(result, f"the reports cannot be read again ({error})", None)
    finally:
        _close(traces)


def _close(opened: Sequence[Trace | FailedReport]) -> None:
    for trace in opened:
        if not isinstance(trace, FailedReport):
            trace.close()
