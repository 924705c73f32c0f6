"""All ranks together: collectives, how far the ranks are apart, and critical paths of steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dashboards.timeline.events import OPERATION
from dashboards.timeline.store import Timelines
from traceprof.analyses.breakdown import StepMeasures, step_times
from traceprof.analysis import Analysis
from traceprof.communication.messages import messages
from traceprof.errors import one_line
from traceprof.findings import Evidence
from traceprof.intervals import Int64
from traceprof.ranks.comparison import RankComparison
from traceprof.ranks.waits import GroupWaits
from traceprof.replay.results import StepPath
from traceprof.run.opening import Rank
from traceprof.trace.grouping import groups, median_of

MAX_MEMBERS = 64  # that are listed one by one


def collective(store: Timelines, number: int, kernel: int) -> dict[str, Any] | None:
    """Return the collective of a communication kernel; None if it was not matched between ranks.

    `Collective` in assets/timeline/types.d.ts: `last` and `wait` are null where the clocks leave
    them open, `row` where the kernel has none.
    """
    analysis = store.analysis
    if analysis is None:
        return None
    rank = store.ranks[number]
    if rank.device is None or number not in analysis.ranks.ranks:
        return None
    message = _message(rank, kernel)
    member = analysis.ranks.ranks.index(number)
    if message is None:
        return None
    for waits in analysis.ranks.waits:
        if member not in waits.group.members:
            continue
        column = waits.group.members.index(member)
        rows = np.flatnonzero(waits.group.place[:, column] == message)
        if len(rows):
            return _described(store, analysis.ranks, waits, int(rows[0]))
    return None


def operation_id(rank: Rank, interval: Evidence) -> str | None:
    """Return the communication kernel that starts as an interval ends, if there is one.

    That is the operation to which a straggler came late.
    """
    if rank.device is None:
        return None
    kernels = messages(rank).kernel
    at = np.flatnonzero(rank.operations.kernels.starts.at(kernels) == interval.end_ns)
    return f"{rank.rank}.{OPERATION}.{int(kernels[at[0]])}" if len(at) else None


def _message(rank: Rank, kernel: int) -> int | None:
    if kernel >= len(rank.operations.kernels):
        return None
    kernels = messages(rank).kernel
    place = int(np.searchsorted(kernels, kernel))
    return place if place < len(kernels) and kernels[place] == kernel else None


def _described(
    store: Timelines, ranks: RankComparison, waits: GroupWaits, row: int
) -> dict[str, Any]:
    group = waits.group
    is_known = bool(waits.is_known[row]) and not bool(waits.is_unknown[row])
    members = []
    for column, member in enumerate(group.members[:MAX_MEMBERS]):
        rank = store.ranks[ranks.ranks[member]]
        clock = store.clock(rank.rank)
        kernel = int(messages(rank).kernel[group.place[row, column]])
        start = int(rank.operations.kernels.starts.at(np.array([kernel]))[0])
        length = int(rank.operations.kernels.packed_length.at(np.array([kernel]))[0])
        location = store.gpu(rank.rank).find(OPERATION, kernel)
        members.append(
            {
                "rank": rank.rank,
                "id": f"{rank.rank}.{OPERATION}.{kernel}",
                "start": str(clock.at(start)),
                "end": str(clock.at(start + length)),
                "row": None if location is None else f"{rank.rank}.{location[0]}",
                "wait": str(int(waits.wait_ns[row, column])) if is_known else None,
            }
        )
    last = ranks.ranks[group.members[int(waits.last[row])]]
    return {
        "operation": group.operations[int(group.operation[row])],
        "group": group.name,
        "last": last if is_known else None,
        "num_members": len(group.members),
        "members": sorted(members, key=lambda entry: entry["rank"]),
    }


MAX_SPREADS = 5000  # collectives, those whose ranks came furthest apart


def spreads(store: Timelines) -> list[dict[str, Any]]:
    """Return how long the ranks took by step, and who came latest; without steps by collective.

    `Spread[]` in types.d.ts. Only of ranks on the run's clock, and of operations that no rank can
    leave before all have come.
    """
    last = _last_arrivals(store)
    columns = []
    for number in store.numbers:
        clock, steps = store.clock(number), store.steps(number)
        if steps and not clock.panel:
            begin, length = step_times(steps)
            numbers = [step.number for step in steps]
            columns.append(np.stack((numbers, clock.to_run(begin), length, [number] * len(steps))))
    if not columns:
        furthest = last[:, np.argsort(-last[_SPAN], kind="stable")[:MAX_SPREADS]]
        return [_apart(store, one) for one in furthest[:, np.argsort(furthest[_AT])].T.tolist()]
    by_lateness = last[:, np.argsort(last[_LATE], kind="stable")]
    latest = {one[_STEP]: _late(one) for one in by_lateness.T.tolist()}
    step, start, length, rank = np.concatenate(columns, axis=1)
    found = []
    for rows in groups(step):
        first, middle = int(median_of(start[rows])), int(median_of(length[rows]))
        found.append(
            {
                "name": f"step {step[rows[0]]}",
                "start": str(first),
                "end": str(first + middle),
                "least": int(length[rows].min()),
                "median": middle,
                "most": int(length[rows].max()),
                "rank": int(rank[rows[length[rows].argmax()]]),
                "late": latest.get(int(step[rows[0]])),
            }
        )
    return sorted(found, key=lambda one: int(one["start"]))


_RANK, _KERNEL, _AT, _LATE, _SPAN, _MIDDLE, _STEP, _GROUP, _ROW = range(9)


def _last_arrivals(store: Timelines) -> Int64:
    """Return each last arrival at an operation, int64[9, k].

    The rank and its kernel, when it came, how long after the median of the others (0 where the
    clocks leave it open), how long after the first, when half of all had come after the first, the
    rank's step, the group and the row in it.
    """
    compared = None if store.analysis is None else store.analysis.ranks
    found = [np.empty((9, 0), np.int64)]
    for number, waits in enumerate(() if compared is None else compared.waits):
        chosen = waits.is_known & ~waits.is_unknown & waits.group.leaves_together
        for column in np.unique(waits.last[chosen]).tolist():
            rank = store.ranks[compared.ranks[waits.group.members[column]]]  # type: ignore[union-attr]
            clock = store.clock(rank.rank)
            if rank.device is None or waits.group.is_mpi or clock.panel:
                continue
            rows = np.flatnonzero(chosen & (waits.last == column))
            kernel = messages(rank).kernel[waits.group.place[rows, column]]
            at = clock.to_run(rank.operations.kernels.starts.at(kernel))
            after = waits.start_ns[rows] - waits.start_ns[rows].min(axis=1, keepdims=True)
            late = np.where(waits.is_last[rows, column], waits.late_ns[rows, column], 0)
            middle = median_of(after, axis=1).astype(np.int64)
            of_rank, of_group = np.full(len(rows), rank.rank), np.full(len(rows), number)
            step = store.steps_at(rank.rank, at)
            parts = (of_rank, kernel, at, late, after[:, column], middle, step, of_group, rows)
            found.append(np.stack(parts))
    return np.concatenate(found, axis=1)


def _late(one: Sequence[int]) -> dict[str, Any] | None:
    if one[_LATE] <= 0:
        return None
    event = f"{one[_RANK]}.{OPERATION}.{one[_KERNEL]}"
    return {"rank": one[_RANK], "length": one[_LATE], "id": event}


def _apart(store: Timelines, one: Sequence[int]) -> dict[str, Any]:
    analysis: Analysis = store.analysis  # type: ignore[assignment]  # it compared them
    group = analysis.ranks.waits[one[_GROUP]].group
    operation = group.operations[int(group.operation[one[_ROW]])]
    return {
        "name": f"{operation} of {group.name}" if group.name else operation,
        "start": str(one[_AT] - one[_SPAN]),
        "end": str(one[_AT]),
        "least": 0,
        "median": one[_MIDDLE],
        "most": one[_SPAN],
        "rank": one[_RANK],
        "late": _late(one),
    }


MAX_PARTS = 5000  # that are drawn, the longest of all
_MAX_NAME = 200  # characters


MAX_STEPS = 10  # whose critical path is drawn together


def steps_within(
    steps: Sequence[StepMeasures], start_ns: int, end_ns: int
) -> tuple[int, int] | None:
    """Return the first and the last step whose middle is in a time; None without steps.

    Where there is none, or more than `MAX_STEPS`, both are the step nearest to its middle.
    """
    middles = {
        step.number: step.measures.window_start_ns + step.measures.window_ns // 2 for step in steps
    }
    inside = [number for number, middle in middles.items() if start_ns <= middle < end_ns]
    if 0 < len(inside) <= MAX_STEPS:
        return inside[0], inside[-1]
    time_ns = (start_ns + end_ns) // 2

    def distance(step: StepMeasures) -> int:
        span = step.measures
        return max(span.window_start_ns - time_ns, time_ns - (span.window_end_ns - 1), 0)

    nearest = min(steps, key=distance).number if steps else None
    return None if nearest is None else (nearest, nearest)


def drawn_path(store: Timelines, path: StepPath) -> dict[str, Any]:
    """Return a critical path, of many parts the longest: `PathReply` in types.d.ts."""
    kinds: dict[str, int] = {}
    for part in path.parts:
        kinds[part.kind] = kinds.get(part.kind, 0) + part.end_ns - part.start_ns
    kept = list(path.parts)
    if len(kept) > MAX_PARTS:
        least = sorted((part.end_ns - part.start_ns for part in kept), reverse=True)[MAX_PARTS - 1]
        kept = [part for part in kept if part.end_ns - part.start_ns >= least][:MAX_PARTS]
    rows = {
        (rank, track.label): f"{rank}.{index}"
        for rank in {part.rank for part in kept}
        for index, track in enumerate(store.gpu(rank).tracks)
        if track.source == OPERATION
    }
    return {
        "rank": path.rank,
        "length": str(path.length_ns),
        "kinds": {kind: str(kinds[kind]) for kind in sorted(kinds, key=lambda kind: -kinds[kind])},
        "num_parts": len(path.parts),
        "parts": [
            {
                "rank": part.rank,
                "kind": part.kind,
                "name": one_line(part.name, _MAX_NAME),
                "start": str(store.clock(part.rank).at(part.start_ns)),
                "length": part.end_ns - part.start_ns,
                "row": None
                if part.kind in {"host", "delay"}
                else rows.get((part.rank, f"stream {part.stream} · {part.kind}")),
            }
            for part in kept
        ],
    }
