"""The timelines of the other side of a comparison: its reports are opened on demand."""

from __future__ import annotations

import threading
import weakref
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from dashboards.asking.compare import steps_by_rank
from dashboards.asking.questions import questions_about
from dashboards.time_axis import Clock
from dashboards.timeline.source import TimelineSource
from dashboards.timeline.store import Timelines
from traceprof.run import opening
from traceprof.trace.open import open_trace

if TYPE_CHECKING:
    from dashboards.asking.compare import ComparedSide, ComparedSides
    from traceprof.analysis import Analysis
    from traceprof.execution.options import Options


class OtherSide:
    """Opens the other side of a run's comparison."""

    def __init__(self, analysis: Analysis) -> None:
        self._questions = questions_about(analysis)
        self._timelines: Timelines | None = None
        self._lock = threading.Lock()
        self._open = ExitStack()
        weakref.finalize(self, self._open.close)

    def timelines(self) -> Timelines | None:
        """Return the timelines of the other side; None while there is no comparison.

        Raises:
            TraceprofError: a report cannot be read any more.
        """
        question = self._questions.compared
        if question is None:
            return None
        compared: ComparedSides | None = self._questions.about(question).answer
        if compared is None or compared.before is None:
            return None
        with self._lock:
            if self._timelines is None:
                self._timelines = self._opened(compared.before, question.options)
            return self._timelines

    def _opened(self, side: ComparedSide, options: Options) -> Timelines:
        with ExitStack() as stack:
            traces = []
            for path in side.reports:
                traces.append(open_trace(Path(path)))
                stack.callback(traces[-1].close)
            run = opening.assemble_run(traces, [options.ranks_of(trace) for trace in traces])
            self._open.push(stack.pop_all())
        judged = {rank.rank: rank.judged for rank in side.ranks}
        return Timelines(TimelineSource(run, steps_by_rank(side), judged, Clock(0)))
