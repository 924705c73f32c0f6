"""An analysis in a child process, which then answers questions about it.

The child sends the sections of the reports as soon as it has read them. Its results refer to them,
so that the parent has the analysis with open reports, as if it had analysed them itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from msgspec.structs import replace

from traceprof.analyses.verdict.run_result import RunResult
from traceprof.errors import TraceprofError
from traceprof.execution import children
from traceprof.execution.children import Child, ChildError, ProgressOfAll, questions
from traceprof.execution.open_reports import Measurer
from traceprof.execution.sections import ReadSection
from traceprof.progress import UNHEARD, Progress
from traceprof.run.opening import Run, attach_ranks
from traceprof.run.rank import Rank
from traceprof.run.summary import FailedReport, all_failed
from traceprof.trace.model.operations import NO_OPERATIONS, RankKey
from traceprof.trace.model.trace import Section, Trace

# What a child sends: of sections those that its own children read, too.
_Sent: TypeAlias = "ReadSection | _SentAnalysis | _Answer"

_OF_TRACE = ("trace", "operations", "process_cache", "cache")


class JudgedReports(Protocol):
    """A judged run with open reports."""

    @property
    def result(self) -> RunResult:
        """The numbers and findings."""

    @property
    def run(self) -> Run:
        """The reports and their ranks."""


Analysis = TypeVar("Analysis", bound=JudgedReports)


@dataclass(frozen=True)
class AnalysisTask(Generic[Analysis]):
    """An analysis to be made in a child process."""

    opened: Sequence[Trace | FailedReport]  # the reports, in the order given
    measurer: Measurer  # measures them
    # measures and judges the reports
    analyze: Callable[[Measurer, Sequence[Trace | FailedReport]], Analysis]
    # makes an analysis of its result and its open reports
    make: Callable[[RunResult, Run], Analysis]
    # answers questions about the analysis, and reports its progress; None if none will be asked
    answer: Callable[[Analysis, Any, Progress], object] | None

    @property
    def traces(self) -> dict[int, Trace]:
        """Reports that could be opened, by their index."""
        return {
            index: trace
            for index, trace in enumerate(self.opened)
            if not isinstance(trace, FailedReport)
        }

    def run(self) -> Iterator[_Sent]:
        """Analyse, in the child, then answer the parent's questions."""
        for trace in self.traces.values():
            trace.reopen()
        analysis = self.analyze(replace(self.measurer, forwards=True), self.opened)
        yield _SentAnalysis.of(analysis.result, analysis.run)
        if self.answer is not None:
            for question in questions():
                yield _Answer.of(self.answer, analysis, question, ProgressOfAll())


@contextmanager
def run_in_child(task: AnalysisTask[Analysis]) -> Iterator[AnalysisFuture[Analysis]]:
    """Analyse open reports in a child process while the block runs.

    Raises TraceprofError: no report could be opened.
    """
    failed = [report for report in task.opened if isinstance(report, FailedReport)]
    if failed and len(failed) == len(task.opened):
        raise all_failed(failed)
    with ExitStack() as stack:
        child: Child[_Sent] | None = None
        if children.can_fork():
            child = stack.enter_context(Child(task.run, task.measurer.progress))
        yield AnalysisFuture(task, child)


class AnalysisFuture(Generic[Analysis]):
    """A running analysis; without a child, this process makes it."""

    def __init__(self, task: AnalysisTask[Analysis], child: Child[_Sent] | None) -> None:
        self._task, self._child, self._traces = task, child, task.traces
        self._held: dict[int, list[Section]] = {}
        self._items = self._received()
        self._analysis: Analysis | None = None
        self._lock = Lock()

    def result(self) -> Analysis:
        """Wait for the analysis and return it, or raise what `analyze` does.

        Where there is no child, or it failed, this process analyses.
        """
        if self._analysis is None:
            self._analysis = self._finished()
        return self._analysis

    def ask(self, question: object, progress: Progress = UNHEARD) -> Any:  # noqa: ANN401  (any)
        """Return the answer to a question about the result, or raise what it raises.

        The question is as `answer` takes it, and can be pickled. One thread at a time is answered.
        """
        assert self._analysis is not None  # noqa: S101  (questions are about the result)
        assert self._task.answer is not None  # noqa: S101
        with self._lock:
            if self._child is not None:
                with suppress(ChildError):
                    self._child.ask(question, ProgressOfAll(progress))
                    for item in self._items:
                        if isinstance(item, _Answer):
                            return item.value()
            return _Answer.of(self._task.answer, self._analysis, question, progress).value()

    def _finished(self) -> Analysis:
        task = self._task
        for sent in self._items:
            assert isinstance(sent, _SentAnalysis)  # noqa: S101  (nothing was asked)
            return task.make(sent.result, sent.attached(self._traces))
        return task.analyze(replace(task.measurer, held=self._held), task.opened)

    def _received(self) -> Iterator[_SentAnalysis | _Answer]:
        if self._child is None:
            return
        with suppress(ChildError):
            for item in self._child.items():
                if isinstance(item, ReadSection):
                    self._traces[item.report].keep_section(item.section, item.data)
                    self._held.setdefault(item.report, []).append(item.section)
                else:
                    yield item


class _Answer(NamedTuple):
    answer: object
    error: TraceprofError | None

    @classmethod
    def of(
        cls,
        answer: Callable[[Analysis, Any, Progress], object],
        analysis: Analysis,
        question: object,
        progress: Progress,
    ) -> _Answer:
        try:
            return cls(answer(analysis, question, progress), None)
        except TraceprofError as error:
            return cls(None, error)
        finally:
            for rank in analysis.run.ranks:
                rank.release()

    def value(self) -> object:
        if self.error is not None:
            raise self.error
        return self.answer


class _SentRank(NamedTuple):
    """A rank without its report, which is open in the parent, too."""

    kind: type[Rank]  # the rank's class
    attributes: dict[str, object]  # those that are not the report's
    moved_ns: int  # by how much the report moved its operations

    @classmethod
    def of(cls, rank: Rank) -> _SentRank:
        names = [name for name in rank.__struct_fields__ if name not in _OF_TRACE]
        return cls(type(rank), {name: getattr(rank, name) for name in names}, rank.moved_ns)

    def attached(self, trace: Trace) -> Rank:
        process, device = self.attributes["process"], self.attributes["device"]
        key = RankKey(process, device)  # type: ignore[arg-type]
        if self.moved_ns and key not in trace.moved:
            trace.move_operations(key, self.moved_ns)
        operations = NO_OPERATIONS if device is None else trace.operations[key]
        return self.kind(**self.attributes, trace=trace, operations=operations)  # type: ignore[arg-type]


class _SentAnalysis(NamedTuple):
    """An analysis without its reports, which are open in the parent, too."""

    result: RunResult  # the numbers and findings
    ranks: tuple[tuple[_SentRank, ...], ...]  # the ranks of each report

    @classmethod
    def of(cls, result: RunResult, run: Run) -> _SentAnalysis:
        ranks = tuple(
            tuple(_SentRank.of(rank) for rank in run.ranks if rank.trace is trace)
            for trace in run.traces
        )
        return cls(result, ranks)

    def attached(self, traces: Mapping[int, Trace]) -> Run:
        failed = {failed.path for failed in self.result.failed}
        kept = [trace for trace in traces.values() if trace.path not in failed]
        ranks = [
            [rank.attached(trace) for rank in report]
            for trace, report in zip(kept, self.ranks, strict=True)
        ]
        for trace in kept:
            trace.release()
        return attach_ranks(self.result.run, kept, ranks)
