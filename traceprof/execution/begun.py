"""An analysis begun in another process, which stays for questions about it."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from traceprof.errors import TraceprofError
from traceprof.execution.beside import RankAlone, made_beside, questions, send
from traceprof.execution.memory import give_freed_memory_back
from traceprof.execution.open_analysis import AnalyzedReports, OpenAnalysis
from traceprof.run.failures import all_failed
from traceprof.run.opening import attach_ranks
from traceprof.run.summary import FailedReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from traceprof.analyses.verdict.run_result import RunResult
    from traceprof.execution.analyzing import Analyzer
    from traceprof.execution.beside import Beside
    from traceprof.trace.model.trace import Section, Trace

Analysis = TypeVar("Analysis", bound=OpenAnalysis)


class BegunAnalysis(Generic[Analysis]):
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
                        return item.value()
            return _Answer.of(self._answer, self._analysis, question).value()


@contextmanager
def begin_analysis(
    opened: Sequence[Trace | FailedReport],
    analyzer: Analyzer,
    analyze: Callable[[Analyzer, Sequence[Trace | FailedReport]], Analysis],
    make: Callable[[AnalyzedReports], Analysis],
    answer: Callable[[Analysis, Any], object] | None,
) -> Iterator[BegunAnalysis[Analysis]]:
    """Analyse open reports beside what this process does in the block.

    Args:
        opened: the reports, in the order given.
        analyzer: as it would analyse in this process.
        analyze: has an analyzer analyse the reports, and completes what it says.
        make: makes an analysis of what was completed in the other process.
        answer: what answers questions about the analysis, where any will be asked: the process that
            analyses then stays for them, as long as the block runs.

    Yields:
        The analysis, which is to be called.

    Raises:
        TraceprofError: no report could be opened.
    """
    failed = [report for report in opened if isinstance(report, FailedReport)]
    if failed and len(failed) == len(opened):
        raise all_failed(failed)
    traces = {
        index: trace for index, trace in enumerate(opened) if not isinstance(trace, FailedReport)
    }

    def make_there() -> Iterator[_SentAnalysis | _Answer]:
        on_partial = None if analyzer.on_partial is None else _send_partial
        analysis = analyze(replace(analyzer, on_partial=on_partial, is_beside=True), opened)
        yield _SentAnalysis.of(analysis)
        if answer is not None:
            give_freed_memory_back()
            for question in questions():
                yield _Answer.of(answer, analysis, question)
                give_freed_memory_back()

    held: dict[int, list[Section]] = {}
    with made_beside(make_there, traces, analyzer.progress, held) as beside:

        def finish() -> Analysis:
            for sent in beside.items:
                assert isinstance(sent, _SentAnalysis)  # noqa: S101  (nothing was asked)
                analysis = sent.within(traces)
                if not sent.is_partial:
                    return make(analysis)
                if analyzer.on_partial is not None:
                    analyzer.on_partial(analysis)
            return analyze(replace(analyzer, held=held), opened)

        yield BegunAnalysis(finish, beside, answer)


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

    def value(self) -> object:
        if self.error is not None:
            raise self.error
        return self.answer


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
    def of(cls, analysis: OpenAnalysis, *, is_partial: bool = False) -> _SentAnalysis:
        ranks = tuple(
            tuple(RankAlone.of(rank) for rank in analysis.run.ranks if rank.trace is trace)
            for trace in analysis.run.traces
        )
        return cls(analysis.result, ranks, is_partial)

    def within(self, traces: Mapping[int, Trace]) -> AnalyzedReports:
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
        return AnalyzedReports(self.result, attach_ranks(self.result.run, kept, ranks))


def _send_partial(analysis: AnalyzedReports) -> None:
    """Send the process that waits for an analysis what is known so far."""
    send(_SentAnalysis.of(analysis, is_partial=True))
