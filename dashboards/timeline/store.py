"""The timelines of the most recently requested ranks, each made once for all requests.

A request for a finished rank must not wait for another rank that is being made. Only one thread at
a time reads a report, as its file has one reader.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING

from dashboards.timeline.event_reader import EventReader
from dashboards.timeline.events import (
    call_events,
    mark_events,
    operation_events,
    operator_events,
    range_events,
    stall_events,
    step_events,
)
from dashboards.timeline.gpu_rows import read_gpu
from dashboards.timeline.host_rows import with_host
from dashboards.timeline.model import CALL, MARK, OPERATION, OPERATOR, RANGE, STALL, STEP
from dashboards.timeline.names import NameTable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from dashboards.time_axis import RankClock
    from dashboards.timeline.events import Events
    from dashboards.timeline.model import RankTimeline
    from dashboards.timeline.source import TimelineSource
    from traceprof.analyses.breakdown import StepMeasures
    from traceprof.run.opening import Rank
    from traceprof.trace.model.marks import Marks
    from traceprof.trace.model.ranges import RangeTable

MAX_WAIT_S = 0.2
"""Past which a search answers with what is read."""

_MAX_BYTES = 600_000_000  # of the rows that are kept


class Timelines:
    """The timelines of a run; numbers of ranks are those of `numbers`."""

    def __init__(self, source: TimelineSource) -> None:
        self.source = source
        self._ranks = {
            rank.rank: rank for rank in sorted(source.run.ranks, key=lambda rank: rank.rank)
        }
        self._steps = source.steps
        self._kept: OrderedDict[int, RankTimeline] = OrderedDict()
        self._events: dict[int, Mapping[str, Events]] = {}
        self._of_gpu: dict[int, Mapping[str, Events]] = {}
        self._range_names: dict[int, NameTable] = {}
        self._event_reader = EventReader(self._read_events)
        self._lock = threading.Lock()  # of what is kept; never held while something is made
        self._making: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)
        self._reading: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)

    @property
    def numbers(self) -> Collection[int]:
        """The numbers of the run's ranks, ascending."""
        return self._ranks.keys()

    def steps(self, number: int) -> Sequence[StepMeasures]:
        """Return the training steps of a rank on its GPU."""
        return self._steps.get(number, ())

    def clock(self, number: int) -> RankClock:
        """Return the clock of a rank."""
        return self.source.clock.rank(number)

    def gpu(self, number: int) -> RankTimeline:
        """Return a rank's timeline as far as it is made: at least the rows of its GPU."""
        rank = self._ranks[number]
        return self._made(number, lambda _: True, lambda _: self._read_gpu(rank))

    def whole(self, number: int) -> RankTimeline:
        """Return a rank's timeline with the rows of its host."""
        rank = self._ranks[number]

        def complete(known: RankTimeline | None) -> RankTimeline:
            timeline = known or self._read_gpu(rank)
            with self._reader(rank):
                return with_host(timeline, self._names(rank), self.source.stalls.get(number))

        return self._made(number, lambda timeline: timeline.has_host, complete)

    def searchable(self, numbers: Sequence[int]) -> tuple[dict[int, Mapping[str, Events]], bool]:
        """Return the events of ranks that are read so far, and whether these are all.

        Operations of GPUs are ready soon; calls and ranges are read in the background. Some ranks
        may have no events yet.
        """
        with self._lock:
            missing = [number for number in numbers if number not in self._events]
        is_all = self._event_reader.finish(missing, MAX_WAIT_S)
        until = time.monotonic() + MAX_WAIT_S
        events: dict[int, Mapping[str, Events]] = {}
        for number in numbers:
            with self._lock:
                known = self._events.get(number) or self._of_gpu.get(number)
            if known is None and (not events or time.monotonic() < until):
                known = self._gpu_events(number)
            if known is not None:
                events[number] = known
        return events, is_all

    def _gpu_events(self, number: int) -> Mapping[str, Events]:
        """Return the events of a rank's GPU and its steps, which are in memory."""
        with self._lock:
            known = self._of_gpu.get(number)
        if known is None:
            clock = self.clock(number)
            known = {OPERATION: operation_events(self._ranks[number], clock)}
            if self._steps.get(number):
                known[STEP] = step_events(self._steps[number], clock)
            with self._lock:
                self._of_gpu[number] = known
        return known

    def events(self, number: int) -> Mapping[str, Events]:
        """Return the events of a rank by their source, even if its rows are not made yet.

        The first call reads the ranges of the report, which can take a second.
        """
        rank = self._ranks[number]
        with self._lock:
            known = self._events.get(number)
        if known is not None:
            return known
        with self._reader(rank):
            events = dict(self._gpu_events(number))
            calls, names, clock = rank.calls, self._names(rank), self.clock(number)
            if calls is not None:
                events[CALL] = call_events(calls, rank.trace.api_names, clock)
            ranges = rank.trace.range_table(rank.process)
            if ranges is not None and names is not None:
                events[RANGE] = range_events(ranges, names, clock)
            marks = rank.trace.marks(rank.process)
            if marks is not None and names is not None:
                events[MARK] = mark_events(marks, names, clock)
            operators = rank.trace.operators(rank.process)
            if operators is not None:
                events[OPERATOR] = operator_events(operators, clock)
            stalls = self.source.stalls.get(number)
            if stalls is not None and len(stalls.start_ns):
                events[STALL] = stall_events(stalls, clock)
        with self._lock:
            return self._events.setdefault(number, events)

    def _read_events(self, number: int) -> None:
        """Read the events of a rank in a thread that nobody waits for."""
        with self.source.run.in_use():
            self.events(number)

    def _made(
        self,
        number: int,
        is_enough: Callable[[RankTimeline], bool],
        make: Callable[[RankTimeline | None], RankTimeline],
    ) -> RankTimeline:
        """Return what is kept of a rank where it is enough, else what is made of it."""
        timeline = self._known(number)
        if timeline is not None and is_enough(timeline):
            return timeline
        with self._lock:
            making = self._making[number]
        with making:
            timeline = self._known(number)  # another thread may have made it meanwhile
            if timeline is not None and is_enough(timeline):
                return timeline
            timeline = make(timeline)
            self._keep(number, timeline)
            return timeline

    def _known(self, number: int) -> RankTimeline | None:
        with self._lock:
            if number in self._kept:
                self._kept.move_to_end(number)
            return self._kept.get(number)

    def _keep(self, number: int, timeline: RankTimeline) -> None:
        with self._lock:
            self._kept[number] = timeline
            self._kept.move_to_end(number)
            while len(self._kept) > 1 and self._nbytes > _MAX_BYTES:
                self._kept.popitem(last=False)

    @property
    def _nbytes(self) -> int:
        return sum(timeline.nbytes for timeline in self._kept.values())

    def _reader(self, rank: Rank) -> threading.Lock:
        """Return the lock that readers of a report hold."""
        with self._lock:
            return self._reading[rank.report]

    def _read_gpu(self, rank: Rank) -> RankTimeline:
        return read_gpu(rank, self._steps.get(rank.rank, ()), self.clock(rank.rank))

    def _names(self, rank: Rank) -> NameTable | None:
        """Return the names of a report's ranges and marks, which its ranks share."""
        if rank.report not in self._range_names:
            named: RangeTable | Marks | None = rank.trace.range_table(rank.process)
            if named is None:
                named = rank.trace.marks(rank.process)
            if named is None:
                return None
            self._range_names[rank.report] = NameTable(named.names)
        return self._range_names[rank.report]
