"""What a timeline is made of: events by their source, and rows of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from dashboards.timeline.names import NameTable
    from dashboards.timeline.viewport import Row
    from traceprof.analyses.breakdown import StepMeasures
    from traceprof.run.opening import Rank
    from traceprof.trace.model.ranges import RangeTable

    Int32 = npt.NDArray[np.int32]

OPERATION, CALL, RANGE, STEP = "op", "call", "range", "step"
"""Where an event is found: see `Events`."""

COMPUTE, COMMUNICATION, COPY, HOST, NVTX, STEPS = (
    "compute", "communication", "copy", "host", "nvtx", "step",
)  # fmt: skip
"""What a row holds, and with it its colour."""


@dataclass(frozen=True, slots=True)
class Events:
    """All events of one source: a rank's operations, its calls, its ranges or its steps.

    Operations are counted through the rank's kernels, copies, memory sets and graphs.

    Attributes:
        names: by number.
        name: int32[n], the number of each event's name.
    """

    names: NameTable
    name: Int32

    def name_of(self, index: int) -> str:
        """Return the full name of an event."""
        return self.names.names[int(self.name[index])]

    def label_of(self, index: int) -> str:
        """Return the short name of an event."""
        return self.names.label(int(self.name[index]))


@dataclass(frozen=True, slots=True)
class Track:
    """One row of the timeline.

    Attributes:
        group: what it belongs to, such as a thread or the GPU.
        label: what it is called there; empty where it goes on with the row above.
        kind: what it holds: `COMPUTE`, `COMMUNICATION`, `COPY`, `HOST`, `NVTX` or `STEPS`.
        source: where its events are found.
        index: int32[n], the events in order of their start, as the source counts them.
        row: their times.
        is_folded: whether its group is closed at first.
    """

    group: str
    label: str
    kind: str
    source: str
    index: Int32
    row: Row
    is_folded: bool = False


@dataclass(frozen=True)
class RankTimeline:
    """What can be drawn of one rank.

    Attributes:
        rank: the rank.
        tracks: its rows, from the top.
        events: what the rows refer to, by source.
        ranges: its process's NVTX ranges, None where it has none.
        steps: its training steps on the GPU.
    """

    rank: Rank
    tracks: tuple[Track, ...]
    events: dict[str, Events]
    ranges: RangeTable | None
    steps: tuple[StepMeasures, ...]

    @property
    def num_events(self) -> int:
        """How many events its rows hold."""
        return sum(len(track.row) for track in self.tracks)

    @cached_property
    def extent_ns(self) -> tuple[int, int] | None:
        """From the first event's start to the last end; None where there is nothing."""
        rows = [track.row for track in self.tracks if len(track.row)]
        if not rows:
            return None
        return (
            min(int(row.start_ns[0]) for row in rows),
            max(int(row.reach_ns[-1]) for row in rows),
        )

    def operation(self, index: int) -> tuple[int, int]:
        """Return the group of `RankOperations.groups` that an operation is in, and where there."""
        within = index
        for number, group in enumerate(self.rank.operations.groups):
            if within < len(group):
                return number, within
            within -= len(group)
        return len(self.rank.operations.groups), within

    def find(self, source: str, index: int) -> tuple[int, int] | None:
        """Return the row of an event and its place in that row; None where there is no such."""
        for number, track in enumerate(self.tracks):
            if track.source == source:
                places = np.flatnonzero(track.index == index)
                if len(places):
                    return number, int(places[0])
        return None
