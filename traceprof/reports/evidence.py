"""Operations and calls around the evidence of a finding, by streams and threads."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec.structs import replace

from traceprof.errors import TraceprofError
from traceprof.findings import by_id, worst_of
from traceprof.reports.tracks import EventKind, Track, gpu_tracks, host_tracks
from traceprof.run import lanes
from traceprof.structs import Record
from traceprof.trace.open import open_trace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceprof.analyses.verdict.run_result import RunResult
    from traceprof.execution.options import Options
    from traceprof.findings import Evidence, Finding
    from traceprof.run.rank import Rank

MAX_DRAWN = 2  # pieces of evidence of one finding
_MARGIN = 0.25  # of the evidence's length, on both sides
_MIN_MARGIN_NS = 2_000
_MAX_STREAMS, _MAX_THREADS, _MAX_DEPTH = 6, 2, 3


class Moment(NamedTuple):
    """Time of evidence.

    Attributes:
        rank: the rank's number.
        start_ns: in the report's time, as is the end.
        end_ns: one past its last nanosecond.
    """

    rank: int
    start_ns: int
    end_ns: int


class Scene(Record, frozen=True):
    """Operations and calls around a piece of evidence.

    Attributes:
        place: the evidence.
        start_ns: where the scene begins.
        end_ns: where it ends.
        rows: from the top: threads, then streams; those where something ran.
    """

    place: Moment
    start_ns: int
    end_ns: int
    rows: tuple[Track, ...]


def drawn_evidence(finding: Finding) -> Sequence[Evidence]:
    """Return the evidence of a finding that is drawn."""
    return finding.evidence[:MAX_DRAWN]


def scenes(analysis: RunResult, options: Options) -> dict[Moment, Scene]:
    """Read once more what ran where the costliest findings are.

    Args:
        analysis: what was found out. Its reports are opened again, as far as they can be.
        options: that it was analysed with.

    Returns:
        What ran around the evidence of each finding, of the rank that it costs most. Of a report
        that cannot be opened any more there is nothing.
    """
    wanted: dict[int, list[Moment]] = {}
    for group in by_id(analysis.findings):
        worst = worst_of(group)
        for item in drawn_evidence(worst):
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
                by_place |= {scene.place: scene for scene in _scenes(rank, of_rank)}
                rank.release()
    return by_place


def _scenes(rank: Rank, places: Sequence[Moment]) -> Iterator[Scene]:
    """Yield what ran around these places, each track unpacked once."""
    if not places:
        return
    spans = {place: _span(place) for place in places}
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
        gpu = sorted(streams[place], key=_busy)[-_MAX_STREAMS:]
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


def _span(place: Moment) -> tuple[int, int]:
    margin = max(round((place.end_ns - place.start_ns) * _MARGIN), _MIN_MARGIN_NS)
    return place.start_ns - margin, place.end_ns + margin


def _busy(track: Track) -> int:
    return int((track.end_ns - track.start_ns).sum())


def _by_depth(track: Track) -> Iterator[Track]:
    """Yield a row for each depth at which events of a thread lie inside each other."""
    split = lanes.nested if track.nests else lanes.packed
    depth = split(track.start_ns, track.end_ns, _MAX_DEPTH + 1)
    num = 1 if track.category[0] == EventKind.CALL else _MAX_DEPTH
    for number in range(num):
        chosen = depth == number
        if np.any(chosen):
            yield replace(track.chosen(chosen), label=track.label if number == 0 else "")
