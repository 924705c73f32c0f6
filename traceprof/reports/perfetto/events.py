"""Events on tracks, in columns: those that cross each other get tracks of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.reports.tracks import EventKind
from traceprof.structs import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from traceprof.intervals import Int64, Mask
    from traceprof.reports.perfetto.flows import LaunchFlows, MatchedFlows, Special, Value
    from traceprof.reports.tracks import Track

    Span = tuple[int, int, str, str, Mapping[str, Value]]

_CATEGORIES = tuple(str(category) for category in EventKind)


class Events(Record, frozen=True):
    """Events to be written, by start, longer ones first.

    Attributes:
        start_ns: int64[n], on the run's clock.
        end_ns: int64[n].
        name: int[n], indices into `names`.
        names: of the events.
        category: int[n], indices into `categories`.
        categories: of the events.
        flow: int64[n], a number that the event shares with others: arrows go from one to the next;
            0 for none.
        shared: int64[n], a second one, which comes first.
        notes: numbers that are shown of some: int64[n] by name, and bool[n], which have it.
        special: by index, instead of all these, the flows and notes of events that have others.
    """

    start_ns: Int64
    end_ns: Int64
    name: npt.NDArray[np.integer]
    names: Sequence[str]
    category: npt.NDArray[np.integer]
    categories: Sequence[str]
    flow: Int64
    shared: Int64
    notes: Mapping[str, tuple[Int64, Mask]]
    special: Special

    def __len__(self) -> int:
        return len(self.start_ns)

    def chosen(self, index: Mask) -> Events:
        """Return some of the events: bool[n]."""
        new = np.cumsum(index) - 1
        special = {int(new[row]): said for row, said in self.special.items() if index[row]}
        return Events(
            self.start_ns[index], self.end_ns[index], self.name[index], self.names,
            self.category[index], self.categories, self.flow[index], self.shared[index],
            {key: (values[index], known[index]) for key, (values, known) in self.notes.items()},
            special,
        )  # fmt: skip


def noted(spans: Sequence[Span], to_run: Callable[[Int64], Int64] | None = None) -> Events:
    """Return a few events.

    Args:
        spans: start, end, name, category and notes of each; of those that begin at one time,
            longer ones first.
        to_run: makes times of the run of them, if they are not.
    """
    ordered = sorted(spans, key=lambda span: span[0])
    times = np.array([span[:2] for span in ordered], np.int64).reshape(-1, 2)
    start, end = (times if to_run is None else to_run(times)).T
    number, none = np.arange(len(ordered)), np.zeros(len(ordered), np.int64)
    return Events(
        start, end, number, [span[2] for span in ordered],
        number, [span[3] for span in ordered], none, none, {},
        {index: ((), span[4]) for index, span in enumerate(ordered) if span[4]},
    )  # fmt: skip


def events_of(
    track: Track,
    to_run: Callable[[Int64], Int64],
    flows: MatchedFlows | None = None,
    launches: LaunchFlows | None = None,
) -> Events:
    """Return the events of a track.

    Args:
        track: of a rank, in its report's time.
        to_run: makes times of the run of them.
        flows: of the rank's matched operations, where these are events.
        launches: what calls launched.
    """
    flow = shared = np.zeros(len(track), np.int64)
    notes: Mapping[str, tuple[Int64, Mask]] = {}
    special: Special = {}
    if launches is not None:
        flow, special = launches.of(track)
    if flows is not None:
        shared, notes, special = flows.of(track, flow)
    return Events(
        to_run(track.start_ns), to_run(track.end_ns), track.name, track.names, track.category,
        _CATEGORIES, flow, shared, notes, special,
    )  # fmt: skip
