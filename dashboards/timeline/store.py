"""The timelines of the most recently requested ranks, each made once for all requests.

A request for a finished rank must not wait for another rank that is being made. Only one thread at
a time reads a report, as its file has one reader.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from dashboards.clock import Clock, RankClock
from dashboards.questions import ComparedSide, ComparedSides, questions_about
from dashboards.timeline.events import Events, gpu_events, host_events
from dashboards.timeline.tracks import RankTimeline, gpu_timeline, with_host
from traceprof import intervals
from traceprof.analyses.breakdown import StepMeasures, step_times
from traceprof.analysis import Analysis
from traceprof.errors import TraceprofError
from traceprof.execution.options import Options
from traceprof.intervals import Int64
from traceprof.run import opening
from traceprof.run.opening import Run
from traceprof.trace.model.special_values import NULL
from traceprof.trace.open import open_trace

Span = tuple[int, int]


_log = logging.getLogger("traceprof.dashboard")


class EventReader:
    """Reads the events of ranks on threads of its own, each rank once."""

    def __init__(self, read: Callable[[int], object]) -> None:
        self._read = read
        self._asked: dict[int, Future[object]] = {}
        self._lock = threading.Lock()

    def finish(self, numbers: Iterable[int], timeout_s: float) -> bool:
        """Wait until ranks are read; return whether they all are, or raise why one is not."""
        wanted = list(numbers)
        with self._lock:
            new = [number for number in wanted if number not in self._asked]
            self._asked |= {number: Future() for number in new}
        if new:
            work = threading.Thread(target=self._work, args=(new,), name="reading events")
            work.daemon = True
            work.start()
        done, waiting = wait([self._asked[number] for number in wanted], timeout_s)
        for one in done:
            one.result()
        return not waiting

    def _work(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            asked = self._asked[number]
            try:
                asked.set_result(self._read(number))
            except TraceprofError as error:
                asked.set_exception(error)
            except Exception:  # noqa: BLE001  (said in the page and in the log)
                _log.exception("cannot read the events of rank %s", number)
                why = "an internal error, which the terminal that runs traceprof shows"
                asked.set_exception(TraceprofError("cannot search", why, "report it"))


MAX_WAIT_S = 0.2
"""Past which a search answers with what is read."""

_MAX_BYTES = 600_000_000  # of the rows that are kept


class Timelines:
    """The timelines of a run with open reports; numbers of ranks are those of `numbers`."""

    def __init__(
        self,
        run: Run,
        steps: Mapping[int, Sequence[StepMeasures]],
        judged: Mapping[int, Span],
        clock: Clock,
        analysis: Analysis | None = None,
    ) -> None:
        self.run = run
        self.analysis = analysis  # without it, there are no findings, collectives, critical paths
        # start and end of the time that findings judge (ns of the rank's report), by rank
        self.judged = judged
        self.ranks = {rank.rank: rank for rank in sorted(run.ranks, key=lambda rank: rank.rank)}
        measured = () if analysis is None else analysis.result.measured.stalls
        self._stalls = {stalls.rank: stalls for stalls in measured}
        self._clock = clock
        self._steps = steps
        self._kept: OrderedDict[int, RankTimeline] = OrderedDict()
        self._events: dict[int, Mapping[str, Events]] = {}
        self._of_gpu: dict[int, Mapping[str, Events]] = {}
        self._event_reader = EventReader(self._read_events)
        self._lock = threading.Lock()  # of what is kept; never held while something is made
        self._making: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)
        self._reading: defaultdict[int, threading.RLock] = defaultdict(threading.RLock)

    @classmethod
    def of(cls, analysis: Analysis) -> Timelines:
        """Return those of an analysis."""
        results = {result.rank: result for result in analysis.result.breakdown}
        judged = {rank: result.judged for rank, result in results.items()}
        return cls(
            analysis.run,
            {rank: result.steps for rank, result in results.items()},
            {rank: (time.window_start_ns, time.window_end_ns) for rank, time in judged.items()},
            Clock.of(analysis),
            analysis,
        )

    @property
    def numbers(self) -> Collection[int]:
        """Of the run's ranks, ascending."""
        return self.ranks.keys()

    def steps(self, number: int) -> Sequence[StepMeasures]:
        """Return the training steps of a rank on its GPU."""
        return self._steps.get(number, ())

    def steps_at(self, number: int, times_ns: Int64) -> Int64:
        """Return the numbers of a rank's steps at times on the run's clock; `NULL` for none."""
        found = np.full(len(times_ns), NULL)
        if steps := self.steps(number):
            start, length = step_times(steps)
            begin = self.clock(number).to_run(start)
            at = intervals.holder(begin, begin + length, times_ns)
            numbers = np.array([step.number for step in steps], np.int64)
            found = np.where(at < 0, NULL, numbers[at])
        return found

    def clock(self, number: int) -> RankClock:
        """Return the clock of a rank."""
        return self._clock.rank(number)

    def gpu(self, number: int) -> RankTimeline:
        """Return what is made of a rank's timeline: at least the rows of its GPU."""
        return self._timeline(number, needs_host=False)

    def whole(self, number: int) -> RankTimeline:
        """Return a rank's timeline with the rows of its host."""
        return self._timeline(number, needs_host=True)

    def _timeline(self, number: int, *, needs_host: bool) -> RankTimeline:
        timeline = self._kept.get(number)
        if timeline is None or needs_host > timeline.has_host:
            with self._lock:
                making = self._making[number]
            with making:  # another thread may have made it meanwhile
                timeline = self._kept.get(number) or gpu_timeline(
                    self.ranks[number],
                    self.steps(number),
                    self._gpu_events(number),
                    self.clock(number),
                )
                if needs_host > timeline.has_host:
                    with self._reader(number):
                        timeline = with_host(timeline, self.events(number))
                self._keep(number, timeline)
        else:
            self._keep(number, timeline)
        return timeline

    def _keep(self, number: int, timeline: RankTimeline) -> None:
        with self._lock:
            self._kept[number] = timeline
            self._kept.move_to_end(number)
            while (
                len(self._kept) > 1
                and sum(kept.nbytes for kept in self._kept.values()) > _MAX_BYTES
            ):
                self._kept.popitem(last=False)

    def searchable(self, numbers: Sequence[int]) -> tuple[dict[int, Mapping[str, Events]], bool]:
        """Return the events of ranks that are read so far, and whether these are all.

        Operations of GPUs are ready soon; calls and ranges are read in the background.
        """
        missing = [number for number in numbers if number not in self._events]
        is_all = self._event_reader.finish(missing, MAX_WAIT_S)
        until = time.monotonic() + MAX_WAIT_S
        events: dict[int, Mapping[str, Events]] = {}
        for number in numbers:
            known = self._events.get(number) or self._of_gpu.get(number)
            if known is None and (not events or time.monotonic() < until):
                known = self._gpu_events(number)
            if known is not None:
                events[number] = known
        return events, is_all

    def _gpu_events(self, number: int) -> Mapping[str, Events]:
        known = self._of_gpu.get(number)
        if known is None:
            known = gpu_events(self.ranks[number], self.steps(number), self.clock(number))
        return self._of_gpu.setdefault(number, known)

    def events(self, number: int) -> Mapping[str, Events]:
        """Return the events of a rank by source, which may take a second."""
        known = self._events.get(number)
        if known is None:
            with self._reader(number):
                stalls, clock = self._stalls.get(number), self.clock(number)
                of_host = host_events(self.ranks[number], clock, stalls)
                known = {**self._gpu_events(number), **of_host}
        return self._events.setdefault(number, known)

    def _read_events(self, number: int) -> None:
        with self.run.in_use():
            self.events(number)

    def _reader(self, number: int) -> threading.RLock:
        with self._lock:
            return self._reading[self.ranks[number].report]


class OtherSide:
    """Opens the other side of a run's comparison."""

    def __init__(self, analysis: Analysis) -> None:
        self._questions = questions_about(analysis)
        self._timelines: Timelines | None = None
        self._lock = threading.Lock()
        self._open = ExitStack()
        weakref.finalize(self, self._open.close)

    def timelines(self) -> Timelines | None:
        """Return the timelines of the other side; None while there is no comparison."""
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
        steps = {rank.rank: rank.steps for rank in side.ranks}
        judged = {rank.rank: rank.judged for rank in side.ranks}
        return Timelines(run, steps, judged, Clock(0))
