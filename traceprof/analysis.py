"""The one door: what was found out about reports, whether they stay open or not."""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from traceprof.analyses.registry import FINDING_IDS
from traceprof.analyses.verdict.run_result import RunResult
from traceprof.errors import TraceprofError
from traceprof.execution.analyzing import Analyzer, close_reports, judge_reports, open_reports
from traceprof.execution.begun import BegunAnalysis, begin_analysis
from traceprof.execution.options import Options, num_jobs
from traceprof.execution.places import measure_reports
from traceprof.execution.reading import ProgressOfAll
from traceprof.replay.answers.savings import (
    MAX_READ_AGAIN,
    not_replayed,
    num_operations,
    with_savings,
)
from traceprof.run.captures import captures
from traceprof.run.failures import all_failed
from traceprof.run.opening import Run, attach_ranks
from traceprof.run.summary import FailedReport
from traceprof.trace.open import open_trace

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    import pandas as pd

    from traceprof.analyses.shape.results import Judge, Result
    from traceprof.execution.open_analysis import AnalyzedReports
    from traceprof.findings import Finding, NotApplicable
    from traceprof.progress import Listener, Progress
    from traceprof.ranks.comparison import RankComparison
    from traceprof.run.rank import Rank
    from traceprof.trace.model.trace import Trace

__all__ = [
    "FINDING_IDS",
    "Analysis",
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
        """Release the reports, when nobody uses them (`run.in_use`)."""
        self.run.close()


def analyze(
    *paths: str | os.PathLike[str],
    options: Options | None = None,
    listener: Listener[Analysis] | None = None,
    jobs: int | None = None,
) -> Analysis:
    """Analyse the reports of one run, and keep them open.

    A report that cannot be read is left out, and named in `result.failed`, if others can.

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
    analyzer = _analyzer(options, listener, jobs)
    return _analyzed(analyzer, open_reports(paths, analyzer.progress))


@contextmanager
def begun_analysis(
    *paths: str | os.PathLike[str],
    options: Options | None = None,
    listener: Listener[Analysis] | None = None,
    jobs: int | None = None,
    answer: Callable[[Analysis, Any], object] | None = None,
) -> Iterator[BegunAnalysis[Analysis]]:
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
    analyzer = _analyzer(options, listener, jobs)
    opened = open_reports(paths, analyzer.progress)
    with begin_analysis(opened, analyzer, _analyzed, _open_analysis, answer) as begun:
        yield begun


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
    read, or whose worker dies twice, is left out, and named in `RunResult.failed`, if there are
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
        analyzer = Analyzer(options, progress, num_jobs(jobs))
        with closing(_analyzed(analyzer, open_reports(paths, progress))) as analysis:
            return analysis.result
    measured = measure_reports(paths, options, jobs, scheduler, listener)
    return _with_savings(judge_reports(measured, options), options)


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
    measured = measure_reports(paths, options, jobs, None, listener)
    failed = [report for report in measured if isinstance(report, FailedReport)]
    reports = [report for report in measured if not isinstance(report, FailedReport)]
    if not reports:
        raise all_failed(failed)
    recordings = captures(
        [report.facts for report in reports],
        [[rank.facts for rank in report.ranks] for report in reports],
    )
    judged = [
        judge_reports(
            [*(reports[index] for index in indices), *(() if number else failed)], options
        )
        for number, indices in enumerate(recordings)
    ]
    return [_with_savings(result, options) for result in judged]


def _analyzer(options: Options, listener: Listener[Analysis] | None, jobs: int | None) -> Analyzer:
    """Return what analyses open reports, and tells a listener."""
    if listener is None:
        return Analyzer(options, None, num_jobs(jobs))

    def tell(analysis: AnalyzedReports) -> None:
        listener.partial(_open_analysis(analysis))

    return Analyzer(options, ProgressOfAll(listener), num_jobs(jobs), tell)


def _analyzed(analyzer: Analyzer, opened: Sequence[Trace | FailedReport]) -> Analysis:
    """Analyse open reports, with what a step would gain without its findings, if asked for."""
    analysis = _open_analysis(analyzer.analyzed(opened))
    if analyzer.options.savings is False:
        return analysis
    try:
        return replace(analysis, result=with_savings(analysis, analyzer.num_processes))
    except Exception:
        analysis.close()
        raise


def _open_analysis(analysis: AnalyzedReports) -> Analysis:
    return Analysis(analysis.result, analysis.run)


def _with_savings(result: RunResult, options: Options) -> RunResult:
    """Return a result with what a step would gain, of reports that have to be opened again."""
    if options.savings is False:
        return result
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
        close_reports(traces)
