"""Questions about a run that take long to answer, and their answers so far."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dashboards.asking.compare import CompareQuestion, compared_with
from dashboards.asking.critical_path import PathQuestion, critical_path
from dashboards.asking.what_if import WhatIfQuestion, replayed
from traceprof.errors import TraceprofError

if TYPE_CHECKING:
    from traceprof.analysis import Analysis
    from traceprof.progress import Progress
    from traceprof.run.opening import Run

Ask = Callable[[Any, "Progress"], Any]  # a question in, its answer out
Question = WhatIfQuestion | CompareQuestion | PathQuestion

_log = logging.getLogger("traceprof.dashboard")
_MAX_KEPT = 64  # answers
_MAX_RUNS = 2


def answered(analysis: Analysis, question: Question, progress: Progress) -> object:
    """Answer a question about a run with open reports.

    Args:
        analysis: of the run.
        question: about it.
        progress: receives the progress of the answer, if it is known.

    Raises:
        TraceprofError: it cannot be answered.
    """
    if isinstance(question, CompareQuestion):
        return compared_with(analysis, question)
    if isinstance(question, PathQuestion):
        return critical_path(analysis, question)
    return replayed(analysis, question, progress)


@dataclass
class PendingAnswer:
    """A question, and its answer once it is known.

    Attributes:
        answer: the answer; None before there is one.
        error: the reason if there can be no answer.
        is_over: whether there is an answer or an error.
        done: the number of finished parts of the work.
        expected: the number of all parts; 0 if unknown.
    """

    answer: Any = None
    error: str | None = None
    is_over: bool = False
    done: int = 0
    expected: int = 0

    def expect(self, number: int) -> None:
        """Add to the number of parts."""
        self.expected += number

    def advance(self, number: int) -> None:
        """Add to the number of parts that are done."""
        self.done += number


class Questions:
    """The questions about one run.

    Args:
        ask: answers a question; may take long.
        compared: the other side of the run's comparison, if there is one.
    """

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
    """Let the process that analysed a run answer questions about it.

    Args:
        analysis: the run.
        ask: answers a question; by default, this process answers.
        compared: the other side of the run's comparison.
    """
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
