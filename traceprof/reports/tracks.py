"""Rows of a rank's timeline: streams of the GPU, threads of the host, lanes for what overlaps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from traceprof.analyses.verdict.run_result import RunResult
from traceprof.errors import TraceprofError
from traceprof.execution.options import Options
from traceprof.findings import by_id, worst_of
from traceprof.intervals import Int32, Int64
from traceprof.run.guard import optional
from traceprof.run.rank import CpuRank, Rank
from traceprof.structs import Record
from traceprof.trace.columns import Rows
from traceprof.trace.grouping import groups
from traceprof.trace.model.kinds import CopyKind
from traceprof.trace.model.special_values import OPEN_END
from traceprof.trace.open import open_trace


def order(start_ns: Int64, end_ns: Int64) -> Int64 | None:
    """Return the order in which events nest: by start, longest first of several.

    None if they are in that order already, as calls of a thread nearly always are.
    """
    starts_after = start_ns[1:] > start_ns[:-1]
    is_tie = (start_ns[1:] == start_ns[:-1]) & (end_ns[1:] <= end_ns[:-1])
    if bool((starts_after | is_tie).all()):
        return None
    return np.lexsort((-end_ns, start_ns))


def nested(start_ns: Int64, end_ns: Int64, most: int) -> Int64:
    """Return the nesting depth of each event: int64[n].

    Starts ascend; of events that start together the longest is first. Deeper ones go into the last
    of `most` lanes.
    """
    lasts = end_ns > start_ns
    begun: Int64 = np.cumsum(lasts) - lasts
    ended = np.searchsorted(np.sort(end_ns[lasts]), start_ns, side="right")
    depth: Int64 = np.minimum(begun - ended, most - 1)
    return depth


def packed(start_ns: Int64, end_ns: Int64, most: int) -> Int64:
    """Return lanes in which no two events overlap, as few as possible: int64[n].

    Starts ascend; events that do not fit into the others go into the last of `most` lanes.
    """
    lane = np.full(len(start_ns), most - 1, np.int64)
    left = np.arange(len(start_ns))
    for number in range(most - 1):
        if len(left) == 0:
            break
        chosen = _chain(start_ns[left], end_ns[left])
        lane[left[chosen]] = number
        left = left[~chosen]
    return lane


def _chain(start_ns: Int64, end_ns: Int64) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return the events reached by going from the first to the next that starts after its end."""
    num = len(start_ns)
    after = np.searchsorted(start_ns, end_ns)
    # One more entry after the last, which points to itself.
    step = np.append(np.maximum(after, np.arange(1, num + 1)), num)
    chosen = np.zeros(num + 1, bool)
    chosen[0] = True
    # Each iteration doubles the number of steps that are followed.
    while not chosen[num]:
        chosen[step[chosen]] = True
        step = step[step]
    return chosen[:num]


OPERATORS = "operators"
_COPY_NAMES = {int(kind): f"{kind.label} copy" for kind in CopyKind}


class EventKind(IntEnum):
    """Kind of an event, by which it is coloured."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2
    CALL = 3
    RANGE = 4
    MARK = 5

    def __str__(self) -> str:
        return self.name.lower()


_COMPUTE, _COMMUNICATION, _COPY = map(
    np.int8, (EventKind.COMPUTE, EventKind.COMMUNICATION, EventKind.COPY)
)


class Track(Rows, frozen=True):
    """Events of one stream, or of one kind on one thread, by start, longer ones first."""

    label: str  # such as `stream 7`
    number: int  # of the stream or, as the operating system has it, of the thread
    is_host: bool  # whether it is a thread's
    nests: bool  # whether events may lie inside each other, as calls do; else none is to overlap
    start_ns: Int64  # int64[n], in the report's time
    end_ns: Int64
    name: Int32  # int32[n], indices into `names`
    names: Sequence[str]  # of the events
    category: npt.NDArray[np.int8]  # int8[n], values of `EventKind`
    # int32[n], indices into the rank's kernels or, without a GPU, into what it communicated; -1
    # for what is neither
    operation: Int32
    # int32[n], indices into all operations of the rank's GPU, one kind after the other, or into
    # the calls of its process; -1 for what is neither
    row: Int32


class _Events(Record, frozen=True):
    """All events of one kind of a rank, from which tracks are chosen."""

    start_ns: Int64
    end_ns: Int64
    name: Int32 | Int64  # indices into `names`
    names: Sequence[str]
    category: EventKind | npt.NDArray[np.int8]

    def track(
        self, label: str, number: int, rows: Int64, *, nests: bool = False, has_rows: bool = False
    ) -> Track:
        """Return a track of a thread, with these rows; `has_rows`: they are those of calls."""
        order = rows[np.lexsort((-self.end_ns[rows], self.start_ns[rows]))]
        none = np.full(len(order), -1, np.int32)
        return Track(
            label,
            number,
            True,
            nests,
            self.start_ns[order],
            self.end_ns[order],
            self.name[order].astype(np.int32),
            self.names,
            np.broadcast_to(np.asarray(self.category, np.int8), self.start_ns.shape)[order],
            none,
            order.astype(np.int32) if has_rows else none,
        )

    def of_threads(self, rank: Rank, thread: Int64, what: str) -> Iterator[Track]:
        """Yield a track of each thread, int64[n] of the events."""
        nests, has_rows = self.category != EventKind.MARK, self.category == EventKind.CALL
        for rows in groups(thread):
            number = rank.trace.thread_number(int(thread[rows[0]]))
            label = f"thread {number}: {what}"
            yield self.track(label, number, rows, nests=nests, has_rows=has_rows)


def gpu_tracks(rank: Rank) -> Iterator[Track]:
    """Yield what each stream of a rank's GPU did: kernels, copies, memory sets, CUDA graphs."""
    names: list[str] = []
    columns: list[tuple[npt.NDArray[Any], ...]] = []
    kernels, copies, memsets, graphs = rank.operations.groups
    for operations, name, texts, category in (
        (
            kernels,
            rank.operations.kernels.name,
            rank.kernel_names,
            np.where(rank.is_communication_kernel, _COMMUNICATION, _COMPUTE),
        ),
        (
            copies,
            rank.operations.copies.kind,
            _COPY_NAMES,
            np.where(rank.is_peer_copy, _COMMUNICATION, _COPY),
        ),
        (memsets, None, {0: "memset"}, np.full(len(memsets), _COPY)),
        (graphs, None, {0: "CUDA graph"}, np.full(len(graphs), _COMPUTE)),
    ):
        keys = np.zeros(len(operations), np.int64) if name is None else name
        index, of_group = _numbered(keys, texts, "unknown", len(names))
        names += of_group
        number = np.full(len(operations), -1, np.int32)
        if operations is kernels:
            number = np.arange(len(operations), dtype=np.int32)
        columns.append(
            (operations.stream, operations.start_ns, operations.end_ns, index, category, number)
        )
    stream, start, end, index, category, number = map(np.concatenate, zip(*columns, strict=True))
    columns.clear()  # what is in memory twice is much
    events = _Events(start, end, index, names, category)
    for rows in groups(stream):
        of_stream = int(stream[rows[0]])
        track = events.track(f"stream {of_stream}", of_stream, rows, has_rows=True)
        yield replace(track, is_host=False, operation=number[track.row])


def communication_track(rank: CpuRank) -> Track:
    """Return the communication of a rank without a GPU, from the ranges of `instrument`."""
    operations, labels = rank.work.operations, rank.trace.label_ranges[rank.process]
    spans = operations.start_ns, operations.end_ns
    events = _Events(*spans, operations.text, labels.texts, EventKind.COMMUNICATION)
    track = events.track("communication", 0, np.arange(len(operations)), has_rows=True)
    return replace(track, operation=track.row, row=track.operation)


def host_tracks(rank: Rank) -> Iterator[Track]:
    """Yield the ranges and API calls of each thread of a rank's process.

    A range that was open when the capture ended is given the end of the last closed one.
    """
    yield from _range_tracks(rank)
    calls = None if isinstance(rank, CpuRank) and not rank.trace.api_names else rank.calls
    if calls is None or len(calls) == 0:
        return
    index, names = _numbered(calls.name, rank.trace.api_names, "(unnamed call)")
    events = _Events(calls.start_ns, calls.end_ns, index, names, EventKind.CALL)
    yield from events.of_threads(rank, calls.thread, "CUDA calls")


def _range_tracks(rank: Rank) -> Iterator[Track]:
    table = rank.trace.range_table(rank.process)
    if len(table) == 0:
        return
    is_open = table.end_ns == OPEN_END
    over = table.end_ns[~is_open]
    latest = max(int(over.max()) if len(over) else 0, int(table.start_ns.max()))
    end = np.where(is_open, latest, table.end_ns)
    events = _Events(table.start_ns, end, table.name, table.names, EventKind.RANGE)
    for rows in groups(table.thread, table.nests.astype(np.int64)):
        number = rank.trace.thread_number(int(table.thread[rows[0]]))
        nests = bool(table.nests[rows[0]])
        what = "ranges" if nests else "ranges started and ended"
        yield events.track(f"thread {number}: {what}", number, rows, nests=nests)


def operator_tracks(rank: Rank) -> Iterator[Track]:
    """Yield the operators of each thread of a rank's process, as torch.profiler records them."""
    table = rank.trace.operators(rank.process)
    if table is not None:
        name, spans = table.packed_name.values, (table.start_ns, table.end_ns)
        events = _Events(*spans, name, table.names, EventKind.RANGE)
        yield from events.of_threads(rank, table.packed_thread.values, OPERATORS)


def mark_tracks(rank: Rank) -> Iterator[Track]:
    """Yield the marks of each thread of a rank's process, as events without length."""
    marks = rank.trace.marks(rank.process)
    events = _Events(marks.time_ns, marks.time_ns, marks.name, marks.names, EventKind.MARK)
    yield from events.of_threads(rank, marks.thread, "marks")


def _numbered(
    keys: Int64, texts: Mapping[int, str], unknown: str, first: int = 0
) -> tuple[Int32, list[str]]:
    """Return places of names, from `first` on, instead of their keys, and the names."""
    distinct, index = np.unique(keys, return_inverse=True)
    return (index.reshape(-1) + first).astype(np.int32), [
        texts.get(key, unknown) for key in distinct.tolist()
    ]


MAX_DRAWN = 2  # pieces of evidence of one finding
_MARGIN = 0.25  # of the evidence's length, on both sides
_MIN_MARGIN_NS = 2_000
_MAX_STREAMS, _MAX_THREADS, _MAX_DEPTH = 6, 2, 3


class Moment(NamedTuple):
    """Time of evidence."""

    rank: int  # the rank's number
    start_ns: int  # in the report's time, as is the end
    end_ns: int  # one past its last nanosecond


class Scene(Record, frozen=True):
    """Operations and calls around a piece of evidence."""

    place: Moment  # the evidence
    start_ns: int  # where the scene begins
    end_ns: int  # where it ends
    rows: tuple[Track, ...]  # from the top: threads, then streams; those where something ran


@optional("pictures", otherwise=lambda *_: {})
def scenes(analysis: RunResult, options: Options) -> dict[Moment, Scene]:
    """Read again what ran around the evidence of each finding, on the rank where it costs most.

    A report that can no longer be opened has no scenes.
    """
    wanted: dict[int, list[Moment]] = {}
    for group in by_id(analysis.findings):
        worst = worst_of(group)
        for item in worst.evidence[:MAX_DRAWN]:
            wanted.setdefault(worst.rank, []).append(Moment(worst.rank, item.start_ns, item.end_ns))
    by_report: dict[int, list[int]] = {}
    for index, rank in enumerate(analysis.run.ranks):
        if rank.rank in wanted:
            by_report.setdefault(rank.report, []).append(index)
    by_place: dict[Moment, Scene] = {}
    for report, indices in by_report.items():
        places = {
            (rank.process, rank.device): wanted[rank.rank]
            for rank in (analysis.run.ranks[index] for index in indices)
        }
        path = analysis.run.reports[report].path
        # The report was readable before; if it is gone, the findings stand without pictures.
        with suppress(TraceprofError), closing(open_trace(path)) as trace:
            for rank in options.ranks_of(trace):
                of_rank = places.get((rank.process, rank.device), [])
                by_place |= {scene.place: scene for scene in rank_scenes(rank, of_rank)}
                rank.release()
    return by_place


def rank_scenes(rank: Rank, places: Sequence[Moment]) -> Iterator[Scene]:
    """Yield what ran around these places, each track unpacked once."""
    if not places:
        return
    spans = {}
    for place in places:
        margin = max(round((place.end_ns - place.start_ns) * _MARGIN), _MIN_MARGIN_NS)
        spans[place] = place.start_ns - margin, place.end_ns + margin
    streams: dict[Moment, list[Track]] = {place: [] for place in places}
    threads: dict[Moment, list[Track]] = {place: [] for place in places}
    for rows, tracks in ((streams, gpu_tracks(rank)), (threads, host_tracks(rank))):
        for track in tracks:
            for place, span in spans.items():
                inside = track.chosen((track.start_ns < span[1]) & (track.end_ns > span[0]))
                if len(inside):
                    rows[place].append(inside)
    for place, (start_ns, end_ns) in spans.items():
        host = _busiest_threads(threads[place])
        gpu = sorted(streams[place], key=lambda track: int((track.end_ns - track.start_ns).sum()))
        gpu = gpu[-_MAX_STREAMS:]
        gpu.sort(key=lambda track: track.number)
        rows_of = [row for track in host for row in _by_depth(track)]
        yield Scene(place, start_ns, end_ns, (*rows_of, *gpu))


def _busiest_threads(tracks: Sequence[Track]) -> list[Track]:
    """Return ranges and calls of the threads that make the most calls, the main thread first."""

    def num_events(thread: int, category: EventKind) -> int:
        of_thread = (track for track in tracks if track.number == thread)
        return sum(len(track) for track in of_thread if track.category[0] == category)

    threads = sorted(
        {track.number for track in tracks},
        key=lambda thread: (
            -num_events(thread, EventKind.CALL),
            -num_events(thread, EventKind.RANGE),
            thread,
        ),
    )
    kept = [track for track in tracks if track.number in threads[:_MAX_THREADS]]
    return sorted(kept, key=lambda track: (track.number, -track.category[0]))


def _by_depth(track: Track) -> Iterator[Track]:
    split = nested if track.nests else packed
    depth = split(track.start_ns, track.end_ns, _MAX_DEPTH + 1)
    num = 1 if track.category[0] == EventKind.CALL else _MAX_DEPTH
    for number in range(num):
        chosen = depth == number
        if np.any(chosen):
            yield replace(track.chosen(chosen), label=track.label if number == 0 else "")
