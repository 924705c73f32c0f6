"""The rows of one rank's timeline: NVTX ranges and API calls by thread, and the GPU's streams.

What ran is found through the columns that the analysis holds anyway; a row keeps the indices of its
events, and what `viewport` needs to show them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dashboards.timeline import lanes, viewport
from dashboards.timeline.model import (
    CALL,
    COMMUNICATION,
    COMPUTE,
    COPY,
    HOST,
    NVTX,
    OPERATION,
    RANGE,
    STEP,
    STEPS,
    Events,
    RankTimeline,
    Track,
)
from dashboards.timeline.names import NameTable
from dashboards.view import MAX_NAME
from traceprof.errors import one_line
from traceprof.trace.grouping import groups
from traceprof.trace.model.kinds import CopyKind
from traceprof.trace.model.special_values import OPEN_END

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dashboards.timeline.model import Int32
    from traceprof.analyses.breakdown import StepMeasures
    from traceprof.intervals import Int64
    from traceprof.run.opening import Rank
    from traceprof.trace.model.host import ApiCalls
    from traceprof.trace.model.ranges import RangeTable

_GPU_KINDS = (COMPUTE, COMMUNICATION, COPY)
_MAX_NESTED = 32  # Python's own stack, annotated, is as deep; what is deeper shares the last row
_MAX_PACKED = 8
_OPEN_THREADS = 2  # the one that runs the forward pass, and autograd's


def read(
    rank: Rank, steps: Sequence[StepMeasures], range_names: NameTable | None = None
) -> RankTimeline:
    """Sort what a rank did into rows.

    Args:
        rank: the rank.
        steps: its training steps.
        range_names: the names of the report's NVTX ranges, where they are shared with other ranks.

    Raises:
        TraceFormatError: the report is damaged where the analysis had not read it yet.
    """
    calls, ranges = rank.calls, rank.trace.range_table(rank.process)
    ends = [group.end_ns for group in rank.operations.groups]
    ends += [] if calls is None else [calls.end_ns]
    latest = max((int(end.max()) for end in ends if len(end)), default=0)
    events = {OPERATION: _operations(rank)}
    tracks: list[Track] = []
    if steps:
        events[STEP] = _named([f"step {step.number}" for step in steps])
        start = np.array([step.measures.window_start_ns for step in steps], np.int64)
        length = np.array([step.measures.window_ns for step in steps], np.int64)
        index = np.arange(len(steps), dtype=np.int32)
        row = viewport.Row.of(start, start + length)
        tracks.append(Track("", "steps on the GPU", STEPS, STEP, index, row))
    if ranges is not None:
        events[RANGE] = Events(range_names or NameTable(ranges.names), ranges.name.astype(np.int32))
    if calls is not None:
        events[CALL] = _calls(rank, calls)
    busiest, others = _threads(rank, calls, ranges, latest)
    # The GPU stands below the threads that keep it busy, and is not lost below all the others.
    tracks += [*busiest, *_gpu_tracks(rank), *(replace(other, is_folded=True) for other in others)]
    return RankTimeline(rank, tuple(tracks), events, ranges, tuple(steps))


# -- names ----------------------------------------------------------------------------------------


def _named(names: Sequence[str]) -> Events:
    return Events(NameTable(names), np.arange(len(names), dtype=np.int32))


def _numbered(ids: Int64, names: dict[int, str], unknown: str) -> tuple[Int64, list[str]]:
    """Return numbers in place of ids of names, and the names by number."""
    distinct, number = np.unique(ids, return_inverse=True)
    return number.reshape(-1), [names.get(identifier, unknown) for identifier in distinct.tolist()]


def _operations(rank: Rank) -> Events:
    kernels, copies, memsets, graphs = rank.operations.groups
    kernel, kernel_names = _numbered(
        rank.operations.kernels.name, dict(rank.kernel_names), "(unnamed kernel)"
    )
    kinds = {int(kind): f"{kind.label} copy" for kind in CopyKind}
    copy, copy_names = _numbered(rank.operations.copies.kind, kinds, "unknown copy")
    first = len(kernel_names)
    memset = first + len(copy_names)
    name = np.empty(sum(map(len, rank.operations.groups)), np.int32)
    begin = np.cumsum([0, len(kernels), len(copies), len(memsets), len(graphs)]).tolist()
    name[begin[0] : begin[1]] = kernel
    name[begin[1] : begin[2]] = copy + first
    name[begin[2] : begin[3]] = memset
    name[begin[3] : begin[4]] = memset + 1
    names = [*kernel_names, *copy_names, "memset", "CUDA graph"]
    return Events(NameTable(names, num_kernels=len(kernel_names)), name)


def _calls(rank: Rank, calls: ApiCalls) -> Events:
    number, names = _numbered(calls.name, dict(rank.trace.api_names), "(unnamed call)")
    return Events(NameTable(names), number.astype(np.int32))


# -- the host -------------------------------------------------------------------------------------


def _threads(
    rank: Rank, calls: ApiCalls | None, ranges: RangeTable | None, latest: int
) -> tuple[list[Track], list[Track]]:
    """Return the rows of the busiest threads, the main one first, and those of the others."""
    calls_of = _by_thread(calls.thread) if calls is not None else {}
    ranges_of = _by_thread(ranges.thread) if ranges is not None else {}
    nothing = np.empty(0, np.int32)

    def busyness(thread: int) -> tuple[int, int, int]:
        num_calls = len(calls_of.get(thread, nothing))
        return -num_calls, -len(ranges_of.get(thread, nothing)), thread

    def tracks(threads: Sequence[int]) -> Iterator[Track]:
        for thread in threads:
            group = _thread_label(rank, thread)
            if ranges is not None and thread in ranges_of:
                yield from _range_tracks(group, ranges, ranges_of[thread], latest)
            if calls is not None and thread in calls_of:
                yield from _call_tracks(group, calls, calls_of[thread])

    threads = sorted({*calls_of, *ranges_of}, key=busyness)
    busiest, others = threads[:_OPEN_THREADS], threads[_OPEN_THREADS:]
    busiest.sort(key=lambda thread: rank.trace.thread_number(thread) != rank.pid)
    return list(tracks(busiest)), list(tracks(others))


def _call_tracks(group: str, calls: ApiCalls, index: Int32) -> Iterator[Track]:
    start, end = calls.start_ns[index], calls.end_ns[index]
    order = np.lexsort((-end, start))
    index, start, end = index[order], start[order], end[order]
    lane = lanes.nested(start, end, _MAX_NESTED)
    yield from _lanes(group, "CUDA API", HOST, CALL, lane, index, start, end)


def _range_tracks(group: str, ranges: RangeTable, index: Int32, latest: int) -> Iterator[Track]:
    start, end = ranges.start_ns[index], ranges.end_ns[index]
    end = np.where(end == OPEN_END, np.maximum(start, latest), end)
    order = np.lexsort((-end, start))
    index, start, end = index[order], start[order], end[order]
    nests = ranges.nests[index]
    for chosen, label, split, most in (
        (~nests, "NVTX start/end", lanes.packed, _MAX_PACKED),
        (nests, "NVTX", lanes.nested, _MAX_NESTED),
    ):
        if chosen.any():
            lane = split(start[chosen], end[chosen], most)
            times = start[chosen], end[chosen]
            yield from _lanes(group, label, NVTX, RANGE, lane, index[chosen], *times)


def _lanes(
    group: str, label: str, kind: str, source: str, lane: Int64, index: Int32, start: Int64,
    end: Int64,
) -> Iterator[Track]:  # fmt: skip
    """Yield a row for each lane."""
    for number in np.unique(lane).tolist():
        in_lane = lane == number
        row = viewport.Row.of(start[in_lane], end[in_lane])
        yield Track(group, "" if number else label, kind, source, index[in_lane], row)


def _by_thread(thread: Int64) -> dict[int, Int32]:
    if len(thread) == 0:
        return {}
    return {int(thread[rows[0]]): rows.astype(np.int32) for rows in groups(thread)}


def _thread_label(rank: Rank, thread: int) -> str:
    name = rank.trace.thread_names.get(thread)
    number = rank.trace.thread_number(thread)
    return f"thread {number} · {one_line(name, MAX_NAME)}" if name else f"thread {number}"


# -- the GPU --------------------------------------------------------------------------------------


def _gpu_tracks(rank: Rank) -> Iterator[Track]:
    """Yield the rows of each stream: what computes, what communicates, what copies."""
    kernels, copies, memsets, graphs = rank.operations.groups
    kinds = (
        rank.is_communication_kernel.astype(np.int64),
        np.where(rank.is_peer_copy, _GPU_KINDS.index(COMMUNICATION), _GPU_KINDS.index(COPY)),
        np.full(len(memsets), _GPU_KINDS.index(COPY)),
        np.full(len(graphs), _GPU_KINDS.index(COMPUTE)),
    )
    pieces: dict[tuple[int, int], list[tuple[Int32, Int64, Int64]]] = defaultdict(list)
    first = 0
    for group, kind in zip((kernels, copies, memsets, graphs), kinds, strict=True):
        for rows in groups(group.stream, kind) if len(group) else ():
            key = int(group.stream[rows[0]]), int(kind[rows[0]])
            index = (rows + first).astype(np.int32)
            pieces[key].append((index, group.start_ns[rows], group.end_ns[rows]))
        first += len(group)
    for key in sorted(pieces):
        parts = pieces.pop(key)
        index, start, end = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        if len(parts) > 1:
            order = np.argsort(start, kind="stable")
            index, start, end = index[order], start[order], end[order]
        stream, name = key[0], _GPU_KINDS[key[1]]
        row = viewport.Row.of(start, end)
        yield Track(_gpu_label(rank), f"stream {stream} · {name}", name, OPERATION, index, row)


def _gpu_label(rank: Rank) -> str:
    return f"GPU {rank.device}" + (f" · {one_line(rank.gpu, MAX_NAME)}" if rank.gpu else "")
