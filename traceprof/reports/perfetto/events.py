"""Events on tracks: those that overlap without lying inside each other get tracks of their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from traceprof.errors import one_line
from traceprof.reports.tracks import Category

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from traceprof.intervals import Int64
    from traceprof.reports.perfetto.flows import LaunchFlows
    from traceprof.reports.perfetto.packets import PacketWriter, Value
    from traceprof.reports.tracks import Track

CHUNK = 65_536  # events that are Python's at a time
MAX_NAME = 512
_ALONE: tuple[tuple[int, ...], None] = ((), None)


class Event(NamedTuple):
    """An event to be written; times are the run's."""

    start_ns: int
    end_ns: int
    name: str
    category: str
    flows: tuple[int, ...] = ()
    notes: Mapping[str, Value] | None = None


@dataclass(slots=True)
class _Lane:
    """A track, and the ends of the events on it that have not ended."""

    track: int
    open_ends: list[int] = field(default_factory=list)


def write_events(
    writer: PacketWriter, new_track: Callable[[], int], events: Iterable[Event]
) -> None:
    """Write events by start, longer ones first.

    Args:
        writer: writes them.
        new_track: adds a track: first for all, then for what neither follows what is on the others
            nor lies inside it.
        events: in that order.
    """
    lanes = [_Lane(new_track())]
    for event in events:
        for lane in lanes:
            open_ends = lane.open_ends
            while open_ends and open_ends[-1] <= event.start_ns:
                writer.end(lane.track, open_ends.pop())
            if not open_ends or event.end_ns <= open_ends[-1]:
                break
        else:
            lane = _Lane(new_track())
            lanes.append(lane)
        writer.begin(
            lane.track, event.start_ns, event.name, event.category, event.flows, event.notes
        )
        lane.open_ends.append(event.end_ns)
    for lane in lanes:
        while lane.open_ends:
            writer.end(lane.track, lane.open_ends.pop())


def write_instants(writer: PacketWriter, track: int, events: Iterable[Event]) -> None:
    """Write events that have no length on a track."""
    for event in events:
        writer.instant(track, event.start_ns, event.name, event.category)


def events_of(
    track: Track,
    to_run: Callable[[Int64], Int64],
    flows: Mapping[int, tuple[tuple[int, ...], Mapping[str, Value]]] | None = None,
    launches: LaunchFlows | None = None,
) -> Iterator[Event]:
    """Yield the events of a track.

    Args:
        track: of a rank, in its report's time.
        to_run: makes times of the run of them.
        flows: of operations by index, the numbers that they share with those of other ranks, and
            what is known of their meeting.
        launches: what calls launched.
    """
    shown: dict[int, str] = {}
    categories = [str(category) for category in Category]
    for first in range(0, len(track), CHUNK):
        part = track.chosen(slice(first, first + CHUNK))
        launched = [()] * len(part) if launches is None else launches.of(part)
        for start, end, name, category, operation, of_launch in zip(
            to_run(part.start_ns).tolist(),
            to_run(part.end_ns).tolist(),
            part.name.tolist(),
            part.category.tolist(),
            part.operation.tolist(),
            launched,
            strict=True,
        ):
            shared, notes = (flows or {}).get(operation, _ALONE)
            text = shown.get(name)
            if text is None:
                text = shown[name] = one_line(track.names[name], MAX_NAME)
            yield Event(start, end, text, categories[category], (*shared, *of_launch), notes)
