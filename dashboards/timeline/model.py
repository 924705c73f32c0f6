"""The parts of a timeline: events by their source, and rows of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from dashboards.timeline.kinds import GPU_KINDS
from dashboards.timeline.row import Row, merged

if TYPE_CHECKING:
    from dashboards.time_axis import RankClock
    from dashboards.timeline.events import Events
    from dashboards.timeline.samples import Samples
    from traceprof.analyses.breakdown import StepMeasures
    from traceprof.intervals import Int32
    from traceprof.run.opening import Rank
    from traceprof.trace.model.ranges import RangeTable


OPERATION, CALL, RANGE, MARK, STEP, SAMPLE = "op", "call", "range", "mark", "step", "sample"
OPERATOR, STALL = "operator", "stall"
"""The sources of events: see `dashboards.timeline.events`."""

SOURCES = (STEP, OPERATION, CALL, RANGE, MARK, OPERATOR, STALL)
"""Of events, in the order in which their rows stand on the screen; samples are no events."""


@dataclass(frozen=True, slots=True)
class Track:
    """One row of the timeline.

    Attributes:
        group: to which it belongs, such as a thread or the GPU.
        label: its name in the group; empty if it continues the row above.
        kind: of its events: `COMPUTE`, `COMMUNICATION`, `COPY`, `HOST`, `NVTX`, `MARKS`, `STEPS`,
            `COUNTER`, `OPERATORS` or `STALLS`.
        source: of its events.
        index: int32[n], the events in order of their start, as the source counts them.
        row: their times.
        is_folded: whether its group is folded at first.
        samples: of a counter; None of events.
    """

    group: str
    label: str
    kind: str
    source: str
    index: Int32
    row: Row
    is_folded: bool = False
    samples: Samples | None = None


@dataclass(frozen=True)
class RankTimeline:
    """The rows of one rank, and their events.

    Attributes:
        rank: the rank.
        clock: of the rank: rows and events are on the run's clock.
        tracks: its rows, from the top.
        events: the events of the rows, by source.
        ranges: its process's NVTX ranges; None if there are none, or the host is not read.
        steps: its training steps on the GPU.
        has_host: whether the rows of its host are included.
    """

    rank: Rank
    clock: RankClock
    tracks: tuple[Track, ...]
    events: dict[str, Events]
    ranges: RangeTable | None
    steps: tuple[StepMeasures, ...]
    has_host: bool = False

    @property
    def nbytes(self) -> int:
        """The size of its rows in bytes."""
        return sum(track.row.nbytes + track.index.nbytes for track in self.tracks)

    @cached_property
    def kind_rows(self) -> dict[str, Row]:
        """The times at which its GPU did each kind of work, on any of its streams."""
        rows = {}
        for kind in GPU_KINDS:
            of_kind = [track.row for track in self.tracks if track.kind == kind and len(track.row)]
            if of_kind:
                rows[kind] = of_kind[0] if len(of_kind) == 1 else merged(of_kind)
        return rows

    @cached_property
    def extent_ns(self) -> tuple[int, int] | None:
        """The first event's start and the last end; None without events."""
        rows = [track.row for track in self.tracks if len(track.row) and track.samples is None]
        if not rows:
            return None
        return (min(row.first_ns for row in rows), max(row.last_ns for row in rows))

    def operation(self, index: int) -> tuple[int, int]:
        """Return an operation's group in `RankOperations.groups`, and its index there."""
        within = index
        for number, group in enumerate(self.rank.operations.groups):
            if within < len(group):
                return number, within
            within -= len(group)
        return len(self.rank.operations.groups), within

    def neighbour(self, source: str, index: int, step: int) -> tuple[str, int] | None:
        """Return the event before or after one in its row, as source and index; None for none.

        Args:
            source: of the event.
            index: its number there.
            step: 1 for the next one, -1 for the one before.
        """
        location = self.find(source, index)
        if location is None:
            return None
        number, place = location
        track = self.tracks[number]
        if not 0 <= place + step < len(track.row):
            return None
        return track.source, int(track.index[place + step])

    def find(self, source: str, index: int) -> tuple[int, int] | None:
        """Return the row of an event and its index in that row; None if there is no such event."""
        for number, track in enumerate(self.tracks):
            if track.source == source:
                places = np.flatnonzero(track.index == index)
                if len(places):
                    return number, int(places[0])
        return None
