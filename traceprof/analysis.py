"""The public entry point: analyses the reports of a run, which stay open or are closed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from traceprof.analyses.measurements import MeasuredReport, MeasuredRun
from traceprof.analyses.registry import FINDING_IDS
from traceprof.analyses.results import Judge, Result
from traceprof.analyses.verdict.judging import judge
from traceprof.analyses.verdict.measured_run import measured_run
from traceprof.analyses.verdict.run_result import RunResult, Verdict
from traceprof.analyses.verdict.three_lines import three_lines
from traceprof.errors import REPORT_IT, TraceFormatError, TraceprofError
from traceprof.execution.open_reports import MeasuredReports, Measurer
from traceprof.execution.options import Options, checked
from traceprof.execution.workers import SharedCount, Workers, can_fork, map_items, workers
from traceprof.findings import Finding, NotApplicable
from traceprof.progress import UNHEARD, Progress
from traceprof.ranks.comparison import RankComparison
from traceprof.run.guard import collected_failures, optional
from traceprof.run.opening import Run, attach_ranks
from traceprof.run.rank import Rank
from traceprof.run.recognition import has_changed
from traceprof.run.summary import FailedReport, all_failed, close_on_error, try_report
from traceprof.trace.model.trace import Trace
from traceprof.trace.open import AnyPath, open_trace, report_paths
from traceprof.units import counted, duration, reports_text

if TYPE_CHECKING:
    import pandas as pd


__all__ = [
    "FINDING_IDS",
    "Analysis",
    "AnalysisFuture",
    "Options",
    "RunResult",
    "analyze",
    "analyze_captures",
    "analyze_in_worker",
    "analyze_reports",
]

_SHOWN = ["severity", "id", "rank", "title", "impact_ns", "impact_fraction"]
_MAX_SHOWN = 40  # findings in a notebook's cell; of more, the first and the last


@dataclass(frozen=True, eq=False, repr=False)
class Analysis:
    """Results of the analysis of a run, together with its open reports."""

    result: RunResult
    run: Run

    @property
    def measured(self) -> MeasuredRun:
        """The measurements, before judgement."""
        return self.result.measured

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The claims, in the order in which to act on them."""
        return self.result.findings

    @property
    def not_applicable(self) -> tuple[NotApplicable, ...]:
        """Findings that could be neither made nor ruled out."""
        return self.result.not_applicable

    @property
    def notes(self) -> tuple[tuple[int, str], ...]:
        """Notes on the data: (report index, note)."""
        return self.result.notes

    @property
    def ranks(self) -> RankComparison:
        """The comparison of the ranks: clocks, waits, transfers."""
        return self.result.ranks

    def of(self, module: Judge[Result]) -> tuple[Result, ...]:
        """Return the measurements of one analysis, by rank: `of(breakdown)`."""
        return self.result.of(module)

    def to_pandas(self, table: str) -> pd.DataFrame:
        """Return a list of the JSON document as a pandas frame, with a column for each field.

        Args:
            table: `breakdown`, `steps`, `kernels`, `collectives`, `links`, `findings`, or the name
                of another list of the document.

        Raises:
            UsageError: there is no such list.
        """
        from traceprof.frames.results import table_frame

        return table_frame(self.result, table)

    def scalars(self) -> dict[str, int]:
        """Return six numbers of the run for an experiment tracker, in nanoseconds.

        Returns:
            `step_ns`, the mean of the steady steps on the rank where it is longest;
            `possible_step_ns`, what it could take (`headline` of the JSON document), missing where
            nothing could be replayed; and of the mean step of the mean rank the parts
            `compute_ns`, `exposed_communication_ns`, `exposed_copy_ns` and `idle_ns`, as in
            `traceprof runs --format csv`. Empty without a rank.
        """
        return self.result.scalars

    def __repr__(self) -> str:
        """Return the reports and the findings in one line."""
        names = reports_text([trace.path for trace in self.run.traces])
        headline = self.result.headline
        step_ns = None if headline is None else headline.step_ns
        step = "" if step_ns is None else f", step: {duration(step_ns)}"
        num_ranks, num_findings = len(self.run.ranks), len(self.findings)
        return f"<Analysis of {names}, ranks: {num_ranks}, findings: {num_findings}{step}>"

    def _repr_html_(self) -> str:
        import html

        import pandas as pd

        findings = self.to_pandas("findings")[_SHOWN]
        with pd.option_context("display.max_colwidth", None):  # titles are long
            table = findings.to_html(index=False, max_rows=_MAX_SHOWN, show_dimensions=True)
        verdict = three_lines(self.result)
        lines = () if verdict is None else verdict.lines
        said = "".join(f"<p>{html.escape(line)}</p>" for line in lines)
        return f"{said}<p>{html.escape(repr(self)[1:-1])}</p>{table}"

    def close(self) -> None:
        """Close the reports as soon as no thread reads them (`run.in_use`)."""
        self.run.close()


def analyze(
    *paths: AnyPath | Iterable[AnyPath],
    options: Options | None = None,
    listener: Progress | None = None,
    jobs: int | None = None,
) -> Analysis:
    """Analyse the reports of one run, and keep them open.

    A report that cannot be read is left out, and named in `RunResult.failed`, if others can.

    Args:
        paths: Nsight Systems exports or traces of torch.profiler, folders of them, patterns, or
            lists of these.
        options: what to analyse; by default everything.
        listener: receives the number of rows read.
        jobs: the maximum number of processes; by default one for each processor core. Results do
            not depend on it.

    Raises:
        TraceprofError: no report can be read, or the options select nothing.
    """
    measurer = Measurer.of(options, listener, jobs)
    return _analyzed(measurer, measurer.opened(report_paths(paths)))


@contextmanager
def analyze_in_worker(
    *paths: str | os.PathLike[str],
    options: Options | None = None,
    listener: Progress | None = None,
    jobs: int | None = None,
    answer: Callable[[Analysis, Any, Progress], object],
) -> Iterator[AnalysisFuture]:
    """Read reports, then do what `analyze` does in a worker while the block runs; yield its future.

    `listener` receives the number of rows read before the block. `answer` answers questions about
    the analysis in the worker, which stays until the block ends.
    """
    measurer = Measurer.of(options, listener, jobs)
    future = AnalysisFuture(measurer, measurer.opened(report_paths(paths)), answer)
    if not can_fork():
        yield future
        return
    with workers(1, future.work) as pool:
        future.start(pool)
        yield future


class AnalysisFuture:
    """An analysis by a worker process, which then answers questions about it.

    The reports are read before the worker is made: both processes have the same memory, and
    results alone are sent. Where there is no worker, or it was killed, this process does its work.
    """

    def __init__(
        self,
        measurer: Measurer,
        opened: Sequence[Trace | FailedReport],
        answer: Callable[[Analysis, Any, Progress], object],
    ) -> None:
        """Read reports. Raises TraceprofError: none can be read."""
        self._measurer, self._answer, self._count = measurer, answer, SharedCount()
        self._reports = [
            one if isinstance(one, FailedReport) else try_report(one.path, partial(_loaded, one))
            for one in opened
        ]
        self._traces = [one for one in self._reports if not isinstance(one, FailedReport)]
        if opened and not self._traces:
            raise all_failed([one for one in self._reports if isinstance(one, FailedReport)])
        self._analysis: Analysis | None = None
        self._pool: Workers[object, Any] | None = None
        self._lock = Lock()

    def start(self, pool: Workers[object, Any]) -> None:
        """Have a worker analyse."""
        self._pool, self._running = pool, pool.work_on(None)

    def work(self, question: object) -> object:
        """In the worker: analyse the reports, or answer a question about them after that."""
        if self._analysis is not None:
            return self._answered(self._analysis, question, self._count)
        for trace in self._traces:
            trace.reopen()
        self._analysis = _analyzed(self._measurer, self._reports)
        return self._analysis.result

    def result(self) -> Analysis:
        """Wait for the analysis and return it, or raise what `analyze` does."""
        if self._analysis is None:
            result = self._result_of_worker()
            if result is None:
                self._analysis = _analyzed(self._measurer, self._reports)
            else:
                self._analysis = Analysis(result, self._run_of(result))
        return self._analysis

    def _result_of_worker(self) -> RunResult | None:
        if self._pool is None:
            return None
        (done,) = self._pool.as_completed([self._running])
        if done.exception() is not None:
            self._pool = None
            return None
        result: RunResult = done.result()
        return result

    def _run_of(self, result: RunResult) -> Run:
        failed = {report.path for report in result.failed}
        traces = [trace for trace in self._traces if trace.path not in failed]
        with collected_failures():  # which the result has, too
            ranks = [self._measurer.options.ranks_of(trace) for trace in traces]
        run = attach_ranks(result.run, traces, ranks)
        for rank in run.ranks:  # the worker answers what needs more
            rank.release()
        for trace in traces:
            trace.release()
        return run

    def ask(self, question: object, progress: Progress = UNHEARD) -> Any:  # noqa: ANN401  (any)
        """Return the answer to a question about the result, or raise what it raises.

        The question is as `answer` takes it, and can be pickled. One thread at a time is answered.
        """
        from concurrent.futures.process import BrokenProcessPool

        with self._lock:
            if self._pool is not None:
                report = partial(self._count.report, progress)
                (answered,) = self._pool.as_completed([self._pool.work_on(question)], report)
                try:
                    return answered.result()
                except BrokenProcessPool:
                    self._pool = None
            return self._answered(self.result(), question, progress)

    def _answered(self, analysis: Analysis, question: object, progress: Progress) -> object:
        try:
            return self._answer(analysis, question, progress)
        finally:
            for rank in analysis.run.ranks:
                rank.release()


def _loaded(trace: Trace) -> Trace:
    with close_on_error(trace):
        trace.load()
    return trace


def analyze_reports(
    paths: Sequence[str | os.PathLike[str]],
    options: Options | None = None,
    *,
    jobs: int | None = None,
    scheduler: str | None = None,
    listener: Progress | None = None,
) -> RunResult:
    """Analyse the reports of one run, and close each as soon as it is measured.

    The result is the same, bit for bit, wherever the reports are measured. If there are others, a
    report that cannot be read, or whose worker dies twice, is left out, and named in
    `RunResult.failed`.

    Args:
        paths: Nsight Systems exports or traces of torch.profiler.
        options: what to analyse; by default everything.
        jobs: the maximum number of processes that measure reports; by default one for each
            processor core, fewer for small reports. With 1, this process measures them.
        scheduler: `tcp://HOST:PORT` or `tls://HOST:PORT` of a Dask cluster, whose workers measure
            the reports instead.
        listener: receives progress in rows of a single report, else in reports.

    Raises:
        TraceprofError: no report can be read, the options select nothing, or the cluster cannot be
            used.
    """
    reports = report_paths(paths)
    if len(reports) == 1 and scheduler is None:
        measurer = Measurer.of(options, listener, jobs)
        with closing(_analyzed(measurer, measurer.opened(reports))) as analysis:
            return analysis.result
    from traceprof.execution.many_reports import measure_reports

    options = checked(options)
    return _result(measure_reports(reports, options, jobs, scheduler, listener), options)


def analyze_captures(
    paths: Sequence[str | os.PathLike[str]],
    options: Options | None = None,
    *,
    jobs: int | None = None,
    listener: Progress | None = None,
) -> list[RunResult]:
    """Analyse reports of possibly several recordings, each recording by itself.

    Arguments, in any order, and errors are those of `analyze_reports`. A report that cannot be read
    is named in the first recording's `RunResult.failed`. Recordings are in the order of their first
    reports.
    """
    options = replace(checked(options), measures_all=True)  # a comparison is of everything
    reports_given = report_paths(paths)
    if len(reports_given) == 1:
        return [analyze_reports(reports_given, options, jobs=jobs, listener=listener)]
    from traceprof.execution.many_reports import measure_reports
    from traceprof.run.opening import captures

    measured = measure_reports(reports_given, options, jobs, None, listener)
    failed = [report for report in measured if isinstance(report, FailedReport)]
    reports = [report for report in measured if not isinstance(report, FailedReport)]
    if not reports:
        raise all_failed(failed)
    recordings = captures(
        [report.facts for report in reports],
        [[rank.facts for rank in report.ranks] for report in reports],
    )
    return [
        _result([*(reports[index] for index in indices), *(() if number else failed)], options)
        for number, indices in enumerate(recordings)
    ]


def _analyzed(measurer: Measurer, opened: Sequence[Trace | FailedReport]) -> Analysis:
    reports = measurer.measured(opened)
    spread = partial(map_items, num_processes=measurer.num_processes)

    def replay(verdict: Verdict) -> Verdict:
        from traceprof.replay.savings import savings

        return savings(verdict, reports, spread)

    try:
        result = _concluded(reports.measured, measurer.options, replay)
    except Exception:  # after an interrupt a thread may still be reading
        reports.run.close()
        raise
    return Analysis(result, reports.run)


def _result(reports: Sequence[MeasuredReport | FailedReport], options: Options) -> RunResult:
    measured = measured_run(
        reports, options.steps, options.time_range, options.wanted(len(reports))
    )
    del reports  # what they hold now stands in the run
    return _concluded(
        measured, options, lambda verdict: _with_savings_of_closed(verdict, measured, options)
    )


def _concluded(
    measured: MeasuredRun, options: Options, replay: Callable[[Verdict], Verdict]
) -> RunResult:
    verdict = judge(measured, only=options.only, skip=options.skip)
    if options.savings is not False and verdict.assumed:
        with collected_failures() as failures:
            verdict = _by_passes(_replayed(verdict, replay), measured)
        verdict = verdict.with_failures(failures)
    return RunResult(measured, verdict.listed(options.only, options.skip))


def _not_replayed(verdict: Verdict, _: object) -> Verdict:
    from traceprof.replay.savings import not_replayed

    return not_replayed(verdict, "the replay failed", REPORT_IT)


@optional("replay", otherwise=lambda verdict, _: verdict)
def _by_passes(verdict: Verdict, measured: MeasuredRun) -> Verdict:
    from traceprof.replay.savings import by_passes

    return by_passes(verdict, measured)


@optional("replay", otherwise=_not_replayed)
def _replayed(verdict: Verdict, replay: Callable[[Verdict], Verdict]) -> Verdict:
    return replay(verdict)


def _with_savings_of_closed(verdict: Verdict, measured: MeasuredRun, options: Options) -> Verdict:
    """Return a verdict with savings; the reports are opened again for the replay."""
    from traceprof.replay.savings import MAX_READ_AGAIN, not_replayed, num_operations, savings

    if options.savings is None and num_operations(measured) > MAX_READ_AGAIN:
        reports = counted(len(measured.run.reports), "report")
        why = f"{reports} would have to be read again for a replay"
        return not_replayed(verdict, why, "ask for it with --savings")
    with ExitStack() as stack:
        traces: list[Trace] = []
        ranks: list[list[Rank]] = []
        try:
            for report in measured.run.reports:
                traces.append(stack.enter_context(closing(open_trace(report.path))))
                ranks.append(options.ranks_of(traces[-1]))
                if has_changed(report.identity, traces[-1]):
                    what, why = f"cannot read {report.path}", "it has changed since it was measured"
                    raise TraceFormatError(what, why, "analyze it again")
                traces[-1].unload()  # what is read again of many reports adds up
            run = attach_ranks(measured.run, traces, ranks)
            return savings(verdict, MeasuredReports(measured, run))
        except TraceprofError as error:  # a cluster's workers may see what this process does not
            return not_replayed(verdict, f"the reports cannot be read again ({error})", None)
