"""The rows of one rank: those of its GPU by stream and kind of work, and of its host threads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dashboards.clock import OWN, RankClock
from dashboards.timeline import events as ev
from dashboards.timeline.rows import Row, Samples, merged
from dashboards.view import MAX_NAME, device_text
from traceprof.analyses.breakdown import StepMeasures
from traceprof.analyses.links.link_counters import link_samples
from traceprof.errors import one_line
from traceprof.intervals import Int32, Int64
from traceprof.reports import tracks
from traceprof.run.opening import Rank
from traceprof.trace.grouping import groups
from traceprof.trace.model.special_values import OPEN_END


@dataclass(frozen=True, slots=True)
class Track:
    """One row of the timeline."""

    group: str  # to which it belongs, such as a thread or the GPU
    label: str  # its name in the group; empty if it continues the row above
    # of its events: `COMPUTE`, `COMMUNICATION`, `COPY`, `HOST`, `NVTX`, `MARKS`, `STEPS`,
    # `COUNTER`, `OPERATORS`, `PLACE`, `PYTHON`, `STACK` or `STALLS`
    kind: str
    source: str  # of its events
    index: Int32  # int32[n], the events in order of their start, as the source counts them
    row: Row  # their times
    is_folded: bool = False  # whether its group is folded at first
    samples: Samples | None = None  # of a counter; None of events


@dataclass(frozen=True)
class RankTimeline:
    """The rows of one rank, and their events."""

    rank: Rank  # the rank
    clock: RankClock  # of the rank: rows and events are on the run's clock
    tracks: tuple[Track, ...]  # its rows, from the top
    events: dict[str, ev.Events]  # the events of the rows, by source
    steps: tuple[StepMeasures, ...]  # its training steps on the GPU
    has_host: bool = False  # whether the rows of its host are included

    @property
    def nbytes(self) -> int:
        """The size of its rows in bytes."""
        return sum(track.row.nbytes + track.index.nbytes for track in self.tracks)

    @cached_property
    def kind_rows(self) -> dict[str, Row]:
        """The times at which its GPU did each kind of work, on any of its streams."""
        rows = {}
        for kind in ev.GPU_KINDS:
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
        """Return source and index of the event after one in its row (step 1) or before it (-1)."""
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


def gpu_timeline(
    rank: Rank,
    steps: Sequence[StepMeasures],
    events: Mapping[str, ev.Events],
    clock: RankClock = OWN,
) -> RankTimeline:
    """Return the timeline of a rank without the rows of its host, which take longer to read."""
    tracks = []
    if ev.STEP in events:
        tracks.append(_only_row(events, ev.STEP, "", "steps on the GPU"))
    group = device_text(rank.device, rank.gpu)
    tracks += _streams(group, events[ev.OPERATION], clock)
    return RankTimeline(rank, clock, tuple(tracks), {**events}, tuple(steps))


def _streams(group: str, events: ev.Events, clock: RankClock) -> Iterator[Track]:
    pieces: dict[tuple[int, int], list[tuple[Int32, Int64, Int64]]] = defaultdict(list)
    first = 0
    for part in events.parts:
        assert part.streams is not None  # noqa: S101  (operations have one)
        number = np.full(len(part), ev.GPU_KINDS.index(part.kind))
        if part.communicates is not None:
            number[part.communicates()] = ev.GPU_KINDS.index(ev.COMMUNICATION)
        stream, start = part.streams.values, part.spans.starts.values
        for rows in groups(stream, number):
            key = int(stream[rows[0]]), int(number[rows[0]])
            end = start[rows] + part.spans.packed_length.at(rows)
            pieces[key].append(((rows + first).astype(np.int32), start[rows], end))
        first += len(part)
    for key in sorted(pieces):
        parts = pieces.pop(key)
        index, start, end = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        if len(parts) > 1:
            order = np.argsort(start, kind="stable")
            index, start, end = index[order], start[order], end[order]
        kind, row = ev.GPU_KINDS[key[1]], Row.of(clock.to_run(start), clock.to_run(end))
        yield Track(group, f"stream {key[0]} · {kind}", kind, ev.OPERATION, index, row)


_MAX_NESTED = 32  # Python's own stack, annotated, is as deep; what is deeper shares the last row
_MAX_PACKED = 8
_COUNTERS = "sampled counters of links"
_STALLED = "stalls of the host"
_OPEN_THREADS = 2  # the one that runs the forward pass, and autograd's
_FOLDED = {ev.OPERATOR: "operators", ev.PYTHON: "Python"}
"""Sources whose rows are a folded group of their own, by their label."""


def with_host(timeline: RankTimeline, events: Mapping[str, ev.Events]) -> RankTimeline:
    """Return a timeline with the rows of the host below those of the GPU.

    The busiest threads come first, the main one before the others; the rest is folded.
    """
    rank, clock = timeline.rank, timeline.clock
    tracks = [*timeline.tracks]
    if ev.PLACE in events and tracks:
        tracks.append(_only_row(events, ev.PLACE, tracks[-1].group, "place in the program"))
    for link in link_samples(rank):
        samples = Samples.sampled(link, clock)
        index, row = np.arange(len(samples.row), dtype=np.int32), samples.row
        tracks.append(
            Track(_COUNTERS, samples.label, ev.COUNTER, ev.SAMPLE, index, row, samples=samples)
        )
    if ev.STALL in events:
        tracks.append(_only_row(events, ev.STALL, _STALLED, "stalled"))
    tracks += _threads(rank, events)
    return RankTimeline(rank, clock, tuple(tracks), {**events}, timeline.steps, has_host=True)


def _only_row(events: Mapping[str, ev.Events], source: str, group: str, label: str) -> Track:
    """Return all events of a source in one row."""
    (part,) = events[source].parts
    start, end = part.spans.start_ns, part.spans.end_ns
    index = np.lexsort((end, start)).astype(np.int32)
    row = Row.of(part.clock.to_run(start[index]), part.clock.to_run(end[index]))
    return Track(group, label, part.kind, source, index, row)


def _threads(rank: Rank, events: Mapping[str, ev.Events]) -> Iterator[Track]:
    """Yield the rows of all threads, by the sources of their events."""
    by_source = {
        source: (of_source.parts[0], _by_thread(of_source.parts[0].threads.values))
        for source, of_source in events.items()
        if source != ev.PLACE
    }

    def busyness(thread: int) -> tuple[int, int, int]:
        num_calls, num_ranges = (
            len(by_source[source][1].get(thread, ())) if source in by_source else 0
            for source in (ev.CALL, ev.RANGE)
        )
        return -num_calls, -num_ranges, thread

    ordered = sorted({thread for _, of in by_source.values() for thread in of}, key=busyness)
    busiest, others = ordered[:_OPEN_THREADS], ordered[_OPEN_THREADS:]
    busiest.sort(key=lambda thread: rank.trace.thread_number(thread) != rank.pid)
    is_of_torch = rank.trace.origin == "torch.profiler"
    is_hip = any(name.startswith("hip") for name in rank.trace.api_names.values())
    labels = {
        ev.MARK: "marks" if is_of_torch else "NVTX marks",
        ev.RANGE: "annotations" if is_of_torch else "NVTX",
        ev.STACK: "sampled",
        ev.CALL: "HIP API" if is_hip else "CUDA API",
        **_FOLDED,
    }
    for thread in (*busiest, *others):
        group = _thread_label(rank, thread)
        for source, (part, of_source) in by_source.items():
            if thread in of_source:
                label, is_folded = labels[source], source in _FOLDED
                of_thread = f"{group} · {label}" if is_folded else group
                is_folded |= thread in others
                for track in _nested(part, source, of_thread, label, of_source[thread], rank):
                    yield replace(track, is_folded=is_folded)


def _nested(
    part: ev.EventPart, source: str, group: str, label: str, index: Int32, rank: Rank
) -> Iterator[Track]:
    """Yield the rows of a thread's events, those that lie inside others below them."""
    rows = index.astype(np.int64)
    start, end = part.spans.starts.at(rows), part.spans.ends(rows)
    is_open = end == OPEN_END
    if is_open.any():
        end = np.where(is_open, np.maximum(start, _latest_ns(rank)), end)
    order = tracks.order(start, end)
    if order is not None:
        index, start, end = index[order], start[order], end[order]
    nests = part.nesting(index)
    for chosen, name, split, most in (
        (~nests, f"{label} start/end", tracks.packed, _MAX_PACKED),
        (nests, label, tracks.nested, _MAX_NESTED),
    ):
        lane = split(start[chosen], end[chosen], most)
        for number in np.flatnonzero(np.bincount(lane)).tolist():
            in_lane = np.flatnonzero(chosen)[lane == number]
            row = Row.of(part.clock.to_run(start[in_lane]), part.clock.to_run(end[in_lane]))
            level = f"{name} · level {number + 1}" if number else name
            yield Track(group, level, part.kind, source, index[in_lane], row)


def _latest_ns(rank: Rank) -> int:
    """Return the end of the last operation or call."""
    ends = [group.last_end_ns for group in rank.operations.groups if len(group)]
    if rank.calls is not None and len(rank.calls):
        ends.append(int(rank.calls.packed_length.add_to(rank.calls.starts.values).max()))
    return max(ends, default=0)


def _by_thread(thread: Int64) -> dict[int, Int32]:
    return {int(thread[rows[0]]): rows.astype(np.int32) for rows in groups(thread)}


def _thread_label(rank: Rank, thread: int) -> str:
    name = rank.trace.thread_names.get(thread)
    number = rank.trace.thread_number(thread)
    label = f"thread {number}"
    if not name:
        return label
    named = one_line(name, MAX_NAME)  # which torch.profiler begins with the number
    return named if named.startswith(label) else f"{label} · {named}"
