"""The search for kernels, calls and ranges by name: how many there are, and which is next."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dashboards.timeline.detail import event_id
from traceprof.intervals import BEYOND_NS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dashboards.timeline.model import Int32, RankTimeline, Track
    from dashboards.timeline.names import NameTable
    from traceprof.intervals import Int64

_MAX_NAMES = 20
_MAX_COUNTED = 100_000  # PyTorch can number every operation in its range's name


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A place in the order of all events of some ranks: by start, then row, then place there.

    Attributes:
        start_ns: when.
        row: the row, counted through the ranks; -1 for before all that start at that time.
        place: which event of the row.
    """

    start_ns: int
    row: int = -1
    place: int = 0


_FIRST, _LAST = Place(-BEYOND_NS), Place(BEYOND_NS)


@dataclass(frozen=True, slots=True)
class _Matches:
    """The events of one row whose names match.

    Attributes:
        timeline: of the rank.
        number: the row's number within the rank.
        row: the row's number, counted through the ranks.
        track: the row.
        place: int64[m], the events' places in the row, ascending.
    """

    timeline: RankTimeline
    number: int
    row: int
    track: Track
    place: Int64

    @property
    def names(self) -> NameTable:
        """The names that theirs are among."""
        return self.timeline.events[self.track.source].names

    @property
    def number_of_name(self) -> Int32:
        """The number of each one's name, int32[m]."""
        events = self.timeline.events[self.track.source]
        return events.name[self.track.index[self.place]]

    def before(self, at: Place, *, inclusive: bool = False) -> int:
        """Return how many come before a place, or at it."""
        if self.row == at.row:
            return int(np.searchsorted(self.place, at.place + inclusive))
        # Of those that start at that time, those in the rows above come before it.
        until = at.start_ns + (self.row < at.row)
        return int(np.searchsorted(self.place, np.searchsorted(self.track.row.start_ns, until)))

    def at(self, index: int) -> Place:
        """Return where one of them is."""
        place = int(self.place[index])
        return Place(int(self.track.row.start_ns[place]), self.row, place)


def search(
    timelines: Sequence[RankTimeline], text: str, at: Place, *, backwards: bool = False
) -> dict[str, Any]:
    """Return how many events have a text in their names, in any case, and which is next.

    Args:
        timelines: of the ranks to search.
        text: what is searched for, not empty.
        at: where to go on from.
        backwards: whether to go on to the event before.

    Returns:
        `count` of the events; `num_names` and `names`, the twenty most frequent, each `label` with
        its `count`; and `next`: the `id`, `row`, `start` and `end` (ns, as text) of the next event,
        which after the last is the first again, and its `number` among all, from 1. None where
        nothing matches. No names are listed where there are a hundred thousand.
    """
    rows = _matches(timelines, text)
    counts, num_names = _names(rows)
    match = _following(rows, at, backwards=backwards)
    return {
        "count": sum(len(row.place) for row in rows),
        "num_names": num_names,
        "names": [{"label": label, "count": count} for label, count in counts],
        "next": match and _event(*match, rows),
    }


def place_of(timelines: Sequence[RankTimeline], rank: int, source: str, index: int) -> Place | None:
    """Return where an event is; None where it is not."""
    row = 0
    for timeline in timelines:
        if timeline.rank.rank == rank:
            location = timeline.find(source, index)
            if location is None:
                return None
            number, place = location
            return Place(int(timeline.tracks[number].row.start_ns[place]), row + number, place)
        row += len(timeline.tracks)
    return None


def _matches(timelines: Sequence[RankTimeline], text: str) -> list[_Matches]:
    """Return the matching events of each row that has some."""
    rows, first = [], 0
    for timeline in timelines:
        wanted = {}
        for source, events in timeline.events.items():
            wanted[source] = np.zeros(len(events.names), bool)
            wanted[source][events.names.matching(text)] = True
        for number, track in enumerate(timeline.tracks):
            is_wanted = wanted[track.source]
            if is_wanted.any():
                place = np.flatnonzero(is_wanted[timeline.events[track.source].name[track.index]])
                if len(place):
                    rows.append(_Matches(timeline, number, first + number, track, place))
        first += len(timeline.tracks)
    return rows


def _names(rows: Sequence[_Matches]) -> tuple[list[tuple[str, int]], int]:
    """Return the most frequent names of the matches, in short, with their counts; and how many."""
    counts: Counter[str] = Counter()
    names_of_rows = [
        (row.names, *np.unique(row.number_of_name, return_counts=True)) for row in rows
    ]
    num_names = sum(len(number) for _, number, _ in names_of_rows)
    if num_names > _MAX_COUNTED:
        return [], num_names
    for names, number, count in names_of_rows:
        for name, times in zip(number.tolist(), count.tolist(), strict=True):
            counts[names.label(name)] += times
    return counts.most_common(_MAX_NAMES), len(counts)


def _following(
    rows: Sequence[_Matches], at: Place, *, backwards: bool
) -> tuple[_Matches, int] | None:
    """Return the match after or before a place, going round; None where nothing matches."""
    for start in (at, _LAST if backwards else _FIRST):
        matches = []
        for row in rows:
            index = row.before(start) - 1 if backwards else row.before(start, inclusive=True)
            if 0 <= index < len(row.place):
                matches.append((row.at(index), row, index))
        if matches:
            chosen = (max if backwards else min)(matches, key=lambda one: one[0])
            return chosen[1], chosen[2]
    return None


def _event(matches: _Matches, index: int, rows: Sequence[_Matches]) -> dict[str, Any]:
    at, track = matches.at(index), matches.track
    return {
        "id": event_id(matches.timeline, track.source, int(track.index[at.place])),
        "row": f"{matches.timeline.rank.rank}.{matches.number}",
        "start": str(at.start_ns),
        "end": str(track.row.end_ns[at.place]),
        "number": 1 + sum(row.before(at) for row in rows),
    }
