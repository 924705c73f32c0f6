"""An analysis in a worker process, which then answers questions about it.

The reports are read before the worker is made: both processes have the same memory, and results
alone are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.sharedctypes import RawArray
from threading import Lock
from typing import Any, Generic, Protocol, TypeVar

from traceprof.analyses.verdict.run_result import RunResult
from traceprof.execution.workers import Workers, can_fork, workers
from traceprof.progress import UNHEARD, Progress
from traceprof.run.opening import Run
from traceprof.run.summary import FailedReport, all_failed, close_on_error, try_report
from traceprof.trace.model.trace import Trace


class JudgedReports(Protocol):
    """A judged run with open reports."""

    @property
    def result(self) -> RunResult:
        """The numbers and findings."""

    @property
    def run(self) -> Run:
        """The reports and their ranks."""


Analysis = TypeVar("Analysis", bound=JudgedReports)


class Analyst(Generic[Analysis]):
    """Analyses reports and answers questions, in the worker, or without one in this process.

    Attributes:
        reports: open ones, or why they could not be opened.
        analysis: what was made of them; None before that.
    """

    def __init__(
        self,
        opened: Sequence[Trace | FailedReport],
        analyze: Callable[[Sequence[Trace | FailedReport]], Analysis],
        answer: Callable[[Analysis, Any, Progress], object],
    ) -> None:
        """Read reports.

        `analyze` measures and judges them. `answer` answers questions about the analysis, and
        reports its progress.

        Raises TraceprofError: no report can be read.
        """
        self._analyze, self._answer = analyze, answer
        self.reports = [
            one if isinstance(one, FailedReport) else try_report(one.path, partial(_loaded, one))
            for one in opened
        ]
        failed = [report for report in self.reports if isinstance(report, FailedReport)]
        if failed and len(failed) == len(opened):
            raise all_failed(failed)
        self.analysis: Analysis | None = None

    @property
    def traces(self) -> list[Trace]:
        """The open reports."""
        return [report for report in self.reports if not isinstance(report, FailedReport)]

    def analyzed(self) -> Analysis:
        """Analyse."""
        self.analysis = self._analyze(self.reports)
        return self.analysis

    def answer(self, question: object, progress: Progress) -> object:
        """Answer a question about the analysis."""
        assert self.analysis is not None  # noqa: S101  (questions are about it)
        try:
            return self._answer(self.analysis, question, progress)
        finally:
            for rank in self.analysis.run.ranks:
                rank.release()


def _loaded(trace: Trace) -> Trace:
    with close_on_error(trace):
        trace.load()
    return trace


@contextmanager
def analysis_in_worker(
    analyst: Analyst[Analysis], make: Callable[[RunResult, Sequence[Trace]], Analysis]
) -> Iterator[AnalysisFuture[Analysis]]:
    """Analyse in a worker process while the block runs.

    `make` makes an analysis of its result and its open reports.
    """
    count = _SharedCount()

    def work(question: object) -> object:
        if analyst.analysis is not None:
            return analyst.answer(question, count)
        for trace in analyst.traces:
            trace.reopen()
        return analyst.analyzed().result

    if can_fork():
        with workers(1, work) as pool:
            yield AnalysisFuture(analyst, make, count, pool)
    else:
        yield AnalysisFuture(analyst, make, count, None)


class AnalysisFuture(Generic[Analysis]):
    """A running analysis; without a worker, this process makes it."""

    def __init__(
        self,
        analyst: Analyst[Analysis],
        make: Callable[[RunResult, Sequence[Trace]], Analysis],
        count: _SharedCount,
        pool: Workers[object, Any] | None,
    ) -> None:
        self._here, self._make, self._count, self._pool = analyst, make, count, pool
        self._running = None if pool is None else pool.work_on(None)
        self._lock = Lock()

    def result(self) -> Analysis:
        """Wait for the analysis and return it, or raise what `analyze` does.

        Where there is no worker, or it failed, this process analyses.
        """
        if self._here.analysis is None:
            self._here.analysis = self._finished() or self._here.analyzed()
        return self._here.analysis

    def _finished(self) -> Analysis | None:
        if self._pool is None or self._running is None:
            return None
        (done,) = self._pool.as_completed([self._running])
        if done.exception() is not None:
            self._pool = None
            return None
        result: RunResult = done.result()
        failed = {failed.path for failed in result.failed}
        return self._make(result, [one for one in self._here.traces if one.path not in failed])

    def ask(self, question: object, progress: Progress = UNHEARD) -> Any:  # noqa: ANN401  (any)
        """Return the answer to a question about the result, or raise what it raises.

        The question is as `answer` takes it, and can be pickled. One thread at a time is answered.
        """
        from concurrent.futures.process import BrokenProcessPool  # noqa: PLC0415

        with self._lock:
            if self._pool is not None:
                report = partial(self._count.report, progress)
                (answered,) = self._pool.as_completed([self._pool.work_on(question)], report)
                try:
                    return answered.result()
                except BrokenProcessPool:
                    self._pool = None
            return self._here.answer(question, progress)


class _SharedCount:
    """What a worker expects and has done, which its parent reports; a `Progress`."""

    def __init__(self) -> None:
        self._counted, self._reported = RawArray("q", 2), (0, 0)

    def expect(self, number: int) -> None:
        self._counted[0] += number

    def advance(self, number: int) -> None:
        self._counted[1] += number

    def report(self, progress: Progress) -> None:
        """Report what was counted since the last time."""
        (expected, done), before = self._counted, self._reported
        self._reported = expected, done
        progress.expect(expected - before[0])
        progress.advance(done - before[1])
