"""Questions about a run that take long to answer, and their answers so far."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dashboards.queries import QueryQuestion, answer
from traceprof.analyses.breakdown import Measures, StepMeasures
from traceprof.analysis import Analysis
from traceprof.comparison.ask import compared
from traceprof.comparison.sides import LoadedSide, loaded
from traceprof.documents.analysis.model import Document
from traceprof.documents.comparison import Comparison
from traceprof.errors import TraceprofError
from traceprof.execution.options import Options
from traceprof.progress import Progress
from traceprof.replay.critical_path import step_path
from traceprof.replay.whatif import answers_to
from traceprof.run.opening import Run

_MEASURED = tuple(name for name in Measures.__struct_fields__ if name != "window_start_ns")

Span = tuple[int, int]


@dataclass(frozen=True, eq=False)
class CompareQuestion:
    """The other side of a comparison."""

    # reports, folders, saved analyses and runs, as `traceprof compare` takes them
    before: tuple[str, ...]
    options: Options  # how to analyse reports


class ComparedRank(NamedTuple):
    """A rank of a side that has a GPU."""

    rank: int  # its number
    device: int  # its GPU's
    gpu: str | None  # the name of its GPU
    steps: tuple[StepMeasures, ...]  # its training steps, in the own time of its report
    judged: Span  # start and end of the time that findings judge


class ComparedSide(NamedTuple):
    """The recording of a side, to be drawn."""

    reports: tuple[str, ...]  # its files, which are there
    ranks: tuple[ComparedRank, ...]  # those with a GPU, at least one
    rank: int  # the number of the slowest
    step: int | None  # its step in the middle; None if all that is judged is one step


def alike(side: ComparedSide, other: ComparedSide | None) -> ComparedSide:
    """Return a side with the rank and step of the other side, if it has that rank."""
    same = [rank for rank in side.ranks if other is not None and rank.rank == other.rank]
    if not same or other is None or side.rank == other.rank:
        return side
    numbers = {step.number for step in same[0].steps}
    step = other.step if other.step in numbers else _middle_number(same[0])
    return side._replace(rank=other.rank, step=step)


class ComparedSides(NamedTuple):
    """A comparison, and the recordings of its sides."""

    comparison: Comparison  # what changed
    # the other side; None if its reports are missing, or belong to several recordings
    before: ComparedSide | None
    after: ComparedSide | None  # this run


def compared_with(analysis: Analysis, question: CompareQuestion) -> ComparedSides:
    """Compare a run with another side, or raise why that cannot be read."""
    before, after = loaded(question.before, question.options), loaded([analysis])
    other, run = recording(before), recording(after)
    drawn = None if other is None else alike(other, run)
    return ComparedSides(compared(before, after), drawn, run)


def recording(side: LoadedSide) -> ComparedSide | None:
    """Return the recording of a side; None if its reports are missing."""
    if len(side.captures) != 1:
        return None
    (capture,) = side.captures
    reports = tuple(report.path for report in capture.reports)
    ranks = tuple(_ranks(capture))
    if not ranks or not all(Path(path).is_file() for path in reports):
        return None

    def length(rank: ComparedRank) -> tuple[int, int]:
        step = _middle(rank.steps)
        judged = rank.judged[1] - rank.judged[0]
        return judged if step is None else step.measures.window_ns, -rank.rank

    slowest = max(ranks, key=length)
    return ComparedSide(reports, ranks, slowest.rank, _middle_number(slowest))


def _ranks(capture: Document) -> list[ComparedRank]:
    steps: dict[int, list[StepMeasures]] = {}
    judged: dict[int, Span] = {
        whole.rank: (whole.window_start_ns, whole.window_start_ns + whole.window_ns)
        for whole in capture.breakdown
    }
    judged |= {span.rank: (span.start_ns, span.end_ns) for span in capture.training}
    for row in capture.steps:
        parts = {name: getattr(row, name) for name in _MEASURED}
        start, end = judged[row.rank]
        measures = Measures(window_start_ns=row.start_ns, **parts)
        is_training = start <= row.start_ns and row.end_ns <= end
        steps.setdefault(row.rank, []).append(StepMeasures(row.step, measures, is_training))
    return [
        ComparedRank(
            rank.rank, rank.device, rank.gpu, tuple(steps.get(rank.rank, ())), judged[rank.rank]
        )
        for rank in sorted(capture.ranks, key=lambda rank: rank.rank)
        if rank.device is not None and rank.rank in judged
    ]


def _middle(steps: Sequence[StepMeasures]) -> StepMeasures | None:
    """Return the step of median length, one of the training where there are some."""
    chosen = [step for step in steps if step.is_training] or list(steps)
    ordered = sorted(chosen, key=lambda step: step.measures.window_ns)
    return ordered[len(ordered) // 2] if ordered else None


def _middle_number(rank: ComparedRank) -> int | None:
    step = _middle(rank.steps)
    return None if step is None else step.number


@dataclass(frozen=True, slots=True)
class PathQuestion:
    """The critical path: calls and operations that determine the length of steps."""

    step: int | None  # the number of the first step; None for the whole training
    last: int | None = None  # that of the last one; None if it is the first, too


class WhatIfQuestion(NamedTuple):
    """The length of a step under assumptions, as a question."""

    # in the form of `traceprof whatif --assume`; empty for each assumption alone
    assumed: tuple[str, ...]


Ask = Callable[[Any, "Progress"], Any]  # a question in, its answer out
Question = WhatIfQuestion | CompareQuestion | PathQuestion | QueryQuestion

_log = logging.getLogger("traceprof.dashboard")
_MAX_KEPT = 64  # answers
_MAX_RUNS = 2


def answered(analysis: Analysis, question: Question, progress: Progress) -> object:
    """Answer a question about a run with open reports."""
    if isinstance(question, CompareQuestion):
        return compared_with(analysis, question)
    if isinstance(question, QueryQuestion):
        return answer(analysis, question.sql)
    if isinstance(question, PathQuestion):
        return step_path(analysis, question.step, question.last)
    return answers_to(analysis, question.assumed, progress)


@dataclass
class PendingAnswer:
    """A question, and its answer once it is known."""

    answer: Any = None  # the answer; None before there is one
    error: str | None = None  # the reason if there can be no answer
    is_over: bool = False  # whether there is an answer or an error
    done: int = 0  # the number of finished parts of the work
    expected: int = 0  # the number of all parts; 0 if unknown

    def expect(self, number: int) -> None:
        """Add to the number of parts."""
        self.expected += number

    def advance(self, number: int) -> None:
        """Add to the number of parts that are done."""
        self.done += number


class Questions:
    """The questions about one run."""

    def __init__(self, ask: Ask, compared: CompareQuestion | None = None) -> None:
        self.compared = compared
        self._ask = ask
        self._asked: dict[Hashable, PendingAnswer] = {}
        self._lock = threading.Lock()
        self._one_by_one = threading.Lock()

    def about(self, question: Hashable) -> PendingAnswer:
        """Return the state of a question, and ask it if that is the first time."""
        with self._lock:
            pending = self._asked.get(question)
            if pending is None:
                pending = self._asked[question] = PendingAnswer()
                while len(self._asked) > _MAX_KEPT:
                    del self._asked[next(iter(self._asked))]
                work = threading.Thread(
                    target=self._answer, args=(question, pending), name="asking", daemon=True
                )
                work.start()
        return pending

    def comparison(self) -> PendingAnswer | None:
        """Return the state of the comparison, and ask for it; None if there is no other side."""
        return None if self.compared is None else self.about(self.compared)

    def _answer(self, question: Hashable, pending: PendingAnswer) -> None:
        with self._one_by_one:
            try:
                pending.answer = self._ask(question, pending)
            except TraceprofError as error:
                pending.error = f"{error.what}: {error.why}"
            except Exception:  # noqa: BLE001  (said in the page and in the log)
                _log.exception("cannot answer")
                pending.error = "an internal error, which the terminal that runs traceprof shows"
            finally:
                pending.is_over = True


_of_run: OrderedDict[int, tuple[Run, Questions]] = OrderedDict()
_lock = threading.Lock()


def answer_by(analysis: Analysis, ask: Ask | None, compared: CompareQuestion | None = None) -> None:
    """Let the process that analysed a run answer questions about it; by default, this one does."""
    with _lock:
        _keep(analysis.run, Questions(ask or _here(analysis), compared))


def questions_about(analysis: Analysis) -> Questions:
    """Return the questions about a run; this process answers if no other one does."""
    with _lock:
        run, questions = _of_run.get(id(analysis.run), (None, None))
        if run is not analysis.run or questions is None:
            questions = Questions(_here(analysis))
            _keep(analysis.run, questions)
        return questions


def _here(analysis: Analysis) -> Ask:
    def ask(question: Question, progress: Progress) -> object:
        with analysis.run.in_use():
            return answered(analysis, question, progress)

    return ask


def _keep(run: Run, questions: Questions) -> None:
    _of_run[id(run)] = run, questions
    while len(_of_run) > _MAX_RUNS:
        _of_run.popitem(last=False)
