"""The rows of one rank: those of its GPU by stream and kind of work, and of its host threads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from dashboards.clock import OWN, RankClock
from dashboards.timeline import events as ev
from dashboards.timeline.rows import Row, Samples, merged
from dashboards.view import MAX_NAME, device_text
from traceprof.analyses.breakdown import StepMeasures, step_times
from traceprof.analyses.links.link_counters import link_samples
from traceprof.errors import one_line
from traceprof.host.rank_stalls import RankStalls
from traceprof.intervals import Int32, Int64
from traceprof.reports import tracks
from traceprof.run.opening import Rank
from traceprof.trace.grouping import groups
from traceprof.trace.model.host import ApiCalls, HostCode, ThreadSpans
from traceprof.trace.model.ranges import RangeTable
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
    # its process's NVTX ranges; None if there are none, or the host is not read
    ranges: RangeTable | None
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


def read_gpu(rank: Rank, steps: Sequence[StepMeasures], clock: RankClock = OWN) -> RankTimeline:
    """Return the timeline of a rank without the rows of its host, which take longer to read."""
    events, tracks = {ev.OPERATION: ev.operation_events(rank, clock)}, []
    if steps:
        events[ev.STEP] = ev.step_events(steps, clock)
        start, length = step_times(steps)
        index = np.arange(len(steps), dtype=np.int32)
        row = Row.of(clock.to_run(start), clock.to_run(start + length))
        tracks.append(Track("", "steps on the GPU", ev.STEPS, ev.STEP, index, row))
    tracks += _stream_tracks(rank, clock)
    return RankTimeline(rank, clock, tuple(tracks), events, None, tuple(steps))


def _stream_tracks(rank: Rank, clock: RankClock) -> Iterator[Track]:
    kernels, copies, memsets, graphs = rank.operations.groups
    compute, communication, copy = range(len(ev.GPU_KINDS))
    kinds = (
        rank.is_communication_kernel.astype(np.int8),
        np.where(rank.is_peer_copy, communication, copy),
        np.full(len(memsets), copy),
        np.full(len(graphs), compute),
    )
    pieces: dict[tuple[int, int], list[tuple[Int32, Int64, Int64]]] = defaultdict(list)
    first = 0
    for group, kind in zip((kernels, copies, memsets, graphs), kinds, strict=True):
        stream, start, length = group.stream, group.starts.values, group.packed_length
        for rows in groups(stream, kind) if len(group) else ():
            key = int(stream[rows[0]]), int(kind[rows[0]])
            begin = start[rows]
            pieces[key].append(((rows + first).astype(np.int32), begin, begin + length.at(rows)))
        first += len(group)
    for key in sorted(pieces):
        parts = pieces.pop(key)
        index, start, end = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        if len(parts) > 1:
            order = np.argsort(start, kind="stable")
            index, start, end = index[order], start[order], end[order]
        number, name = key[0], ev.GPU_KINDS[key[1]]
        row = Row.of(clock.to_run(start), clock.to_run(end))
        label = device_text(rank.device, rank.gpu)
        yield Track(label, f"stream {number} · {name}", name, ev.OPERATION, index, row)


_MAX_NESTED = 32  # Python's own stack, annotated, is as deep; what is deeper shares the last row
_MAX_PACKED = 8
_COUNTERS = "sampled counters of links"
_STALLED = "stalls of the host"
_OPEN_THREADS = 2  # the one that runs the forward pass, and autograd's


def with_host(timeline: RankTimeline, stalls: RankStalls | None = None) -> RankTimeline:
    """Return a timeline with the rows of the host below those of the GPU.

    The busiest threads come first, the main one before the others; the rest is folded.
    """
    rank, clock = timeline.rank, timeline.clock
    ranges = rank.trace.range_table(rank.process)
    events = timeline.events | ev.host_events(rank, clock, stalls)
    stalled = [_stall_track(stalls, clock)] if stalls is not None and ev.STALL in events else []
    busiest, others = _threads(rank, clock, ranges)
    folded = (replace(other, is_folded=True) for other in others)
    placed = []
    if ev.PLACE in events and timeline.tracks:
        spans = rank.cache.get(ev.place_spans, rank)
        group = timeline.tracks[-1].group
        placed = [_span_track(group, "place in the program", ev.PLACE, spans, clock, None)]
    counters = []
    for samples in (Samples.sampled(link, clock) for link in link_samples(rank)):
        index, row = np.arange(len(samples.row), dtype=np.int32), samples.row
        counters.append(
            Track(_COUNTERS, samples.label, ev.COUNTER, ev.SAMPLE, index, row, samples=samples)
        )
    tracks = (*timeline.tracks, *placed, *counters, *stalled, *busiest, *folded)
    return RankTimeline(rank, clock, tracks, events, ranges, timeline.steps, has_host=True)


def _threads(
    rank: Rank, clock: RankClock, ranges: RangeTable | None
) -> tuple[list[Track], list[Track]]:
    rows = _rows_by_thread(rank, clock, ranges)

    def busyness(thread: int) -> tuple[int, int, int]:
        num_calls, num_ranges = (
            len(rows[source][0].get(thread, ())) if source in rows else 0
            for source in (ev.CALL, ev.RANGE)
        )
        return -num_calls, -num_ranges, thread

    def tracks(threads: Sequence[int]) -> Iterator[Track]:
        for thread in threads:
            for by_thread, drawn in rows.values():
                if thread in by_thread:
                    yield from drawn(_thread_label(rank, thread), by_thread[thread])

    threads = sorted(set().union(*(by_thread for by_thread, _ in rows.values())), key=busyness)
    busiest, others = threads[:_OPEN_THREADS], threads[_OPEN_THREADS:]
    busiest.sort(key=lambda thread: rank.trace.thread_number(thread) != rank.pid)
    return list(tracks(busiest)), list(tracks(others))


def _rows_by_thread(
    rank: Rank, clock: RankClock, ranges: RangeTable | None
) -> dict[str, tuple[dict[int, Int32], Callable[[str, Int32], Iterable[Track]]]]:
    """Return, by source, the events of each thread, and what makes rows of them in a group."""
    calls, marks = rank.calls, rank.trace.marks(rank.process)
    is_of_torch = rank.trace.origin == "torch.profiler"
    named, marked = ("annotations", "marks") if is_of_torch else ("NVTX", "NVTX marks")
    is_hip = any(name.startswith("hip") for name in rank.trace.api_names.values())
    api = "HIP API" if is_hip else "CUDA API"

    def latest() -> int:
        """Return the end of the last operation or call."""
        ends = [group.last_end_ns for group in rank.operations.groups if len(group)]
        if calls is not None and len(calls):
            ends.append(int(calls.packed_length.add_to(calls.starts.values).max()))
        return max(ends, default=0)

    rows: dict[str, tuple[dict[int, Int32], Callable[[str, Int32], Iterable[Track]]]] = {}
    if marks is not None:
        time = clock.to_run(marks.time_ns)
        rows[ev.MARK] = (
            _by_thread(marks.thread),
            lambda group, index: [
                Track(group, marked, ev.MARKS, ev.MARK, index, Row.of(time[index], time[index]))
            ],
        )
    if ranges is not None:
        rows[ev.RANGE] = (
            _by_thread(ranges.thread),
            lambda group, index: _range_tracks(group, named, ranges, index, latest, clock),
        )
    sampled = rank.cache.get(ev.stack_spans, rank)
    rows[ev.STACK] = (
        _by_thread(sampled.thread),
        lambda group, index: [_span_track(group, "sampled", ev.STACK, sampled, clock, index)],
    )
    for label, kind, source, spans in (
        (api, ev.HOST, ev.CALL, calls),
        ("operators", ev.OPERATORS, ev.OPERATOR, rank.trace.operators(rank.process)),
        ("Python", ev.PYTHON, ev.PYTHON, rank.trace.python_functions(rank.process)),
    ):
        if spans is not None:
            drawn = partial(_nested_tracks, label, kind, source, spans, clock)
            rows[source] = _by_thread(spans.packed_thread.values), drawn
    return rows


def _range_tracks(
    group: str,
    named: str,
    ranges: RangeTable,
    index: Int32,
    latest: Callable[[], int],
    clock: RankClock,
) -> Iterator[Track]:
    start, end = ranges.start_ns[index], ranges.end_ns[index]
    is_open = end == OPEN_END
    if is_open.any():
        end = np.where(is_open, np.maximum(start, latest()), end)
    order = tracks.order(start, end)
    if order is not None:
        index, start, end = index[order], start[order], end[order]
    start, end = clock.to_run(start), clock.to_run(end)
    nests = ranges.nests[index]
    for chosen, label, split, most in (
        (~nests, f"{named} start/end", tracks.packed, _MAX_PACKED),
        (nests, named, tracks.nested, _MAX_NESTED),
    ):
        if chosen.any():
            lane = split(start[chosen], end[chosen], most)
            times = start[chosen], end[chosen]
            yield from _lanes(group, label, ev.NVTX, ev.RANGE, lane, index[chosen], *times)


def _nested_tracks(
    label: str,
    kind: str,
    source: str,
    spans: ApiCalls | HostCode,
    clock: RankClock,
    group: str,
    index: Int32,
) -> Iterator[Track]:
    """Yield the rows of a thread's calls, operators or functions; the latter two are folded."""
    rows = index.astype(np.int64)
    start, end = spans.starts.at(rows), spans.ends(rows)
    order = tracks.order(start, end)
    if order is not None:
        index, start, end = index[order], start[order], end[order]
    lane = tracks.nested(start, end, _MAX_NESTED)
    is_call = source == ev.CALL
    group = group if is_call else f"{group} · {label}"
    times = clock.to_run(start), clock.to_run(end)
    for track in _lanes(group, label, kind, source, lane, index, *times):
        yield track if is_call else replace(track, is_folded=True)


def _span_track(
    group: str, label: str, kind: str, spans: ThreadSpans, clock: RankClock, index: Int32 | None
) -> Track:
    if index is None:
        index = np.arange(len(spans), dtype=np.int32)
    row = Row.of(clock.to_run(spans.start_ns[index]), clock.to_run(spans.end_ns[index]))
    return Track(group, label, kind, kind, index, row)


def _stall_track(stalls: RankStalls, clock: RankClock) -> Track:
    order = np.lexsort((stalls.end_ns, stalls.start_ns)).astype(np.int32)
    row = Row.of(clock.to_run(stalls.start_ns[order]), clock.to_run(stalls.end_ns[order]))
    return Track(_STALLED, "stalled", ev.STALLS, ev.STALL, order, row)


def _lanes(
    group: str,
    label: str,
    kind: str,
    source: str,
    lane: Int64,
    index: Int32,
    start: Int64,
    end: Int64,
) -> Iterator[Track]:
    numbers = np.flatnonzero(np.bincount(lane)).tolist()
    for number in numbers:
        in_lane = lane == number if len(numbers) > 1 else slice(None)
        row = Row.of(start[in_lane], end[in_lane])
        name = f"{label} · level {number + 1}" if number else label
        yield Track(group, name, kind, source, index[in_lane], row)


def _by_thread(thread: Int64) -> dict[int, Int32]:
    if len(thread) == 0:
        return {}
    return {int(thread[rows[0]]): rows.astype(np.int32) for rows in groups(thread)}


def _thread_label(rank: Rank, thread: int) -> str:
    name = rank.trace.thread_names.get(thread)
    number = rank.trace.thread_number(thread)
    label = f"thread {number}"
    if not name:
        return label
    named = one_line(name, MAX_NAME)  # which torch.profiler begins with the number
    return named if named.startswith(label) else f"{label} · {named}"
