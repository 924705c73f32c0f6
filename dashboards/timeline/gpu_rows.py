"""The rows of one rank's GPU: its training steps, and its streams by kind of work."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from dashboards.time_axis import OWN
from dashboards.timeline.events import operation_events, step_events
from dashboards.timeline.kinds import GPU_KINDS, STEPS
from dashboards.timeline.model import OPERATION, STEP, RankTimeline, Track
from dashboards.timeline.row import Row
from dashboards.view import MAX_NAME
from traceprof.errors import one_line
from traceprof.trace.grouping import groups

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dashboards.time_axis import RankClock
    from traceprof.analyses.breakdown import StepMeasures
    from traceprof.intervals import Int32, Int64
    from traceprof.run.opening import Rank


def read_gpu(rank: Rank, steps: Sequence[StepMeasures], clock: RankClock = OWN) -> RankTimeline:
    """Return the timeline of a rank without the rows of its host, which take longer to read.

    Args:
        rank: the rank.
        steps: its training steps.
        clock: of the rank.

    Raises:
        TraceFormatError: the report is damaged in a part that the analysis has not read.
    """
    events, tracks = {OPERATION: operation_events(rank, clock)}, []
    if steps:
        events[STEP] = step_events(steps, clock)
        start = np.array([step.measures.window_start_ns for step in steps], np.int64)
        length = np.array([step.measures.window_ns for step in steps], np.int64)
        index = np.arange(len(steps), dtype=np.int32)
        row = Row.of(clock.to_run(start), clock.to_run(start + length))
        tracks.append(Track("", "steps on the GPU", STEPS, STEP, index, row))
    tracks += _stream_tracks(rank, clock)
    return RankTimeline(rank, clock, tuple(tracks), events, None, tuple(steps))


def _stream_tracks(rank: Rank, clock: RankClock) -> Iterator[Track]:
    """Yield the rows of each stream: what computes, what communicates, what copies."""
    kernels, copies, memsets, graphs = rank.operations.groups
    compute, communication, copy = range(len(GPU_KINDS))
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
        number, name = key[0], GPU_KINDS[key[1]]
        row = Row.of(clock.to_run(start), clock.to_run(end))
        yield Track(_gpu_label(rank), f"stream {number} · {name}", name, OPERATION, index, row)


def _gpu_label(rank: Rank) -> str:
    return f"GPU {rank.device}" + (f" · {one_line(rank.gpu, MAX_NAME)}" if rank.gpu else "")
