"""Links between ranks: the members of a collective, and the critical path of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dashboards.timeline.events import OPERATION
from traceprof.communication.messages import messages
from traceprof.errors import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dashboards.timeline.store import Timelines
    from traceprof.analyses.breakdown import StepMeasures
    from traceprof.findings import Evidence
    from traceprof.ranks.comparison import RankComparison
    from traceprof.ranks.waits import GroupWaits
    from traceprof.replay.results import StepPath
    from traceprof.run.opening import Rank

MAX_MEMBERS = 64  # that are listed one by one


def collective(store: Timelines, number: int, kernel: int) -> dict[str, Any] | None:
    """Return the collective of a communication kernel; None if it was not matched between ranks.

    `Collective` in assets/timeline/types.d.ts: `last` and `wait` are null where the clocks leave
    them open, `row` where the kernel has none.
    """
    analysis = store.source.analysis
    if analysis is None:
        return None
    by_number = {rank.rank: rank for rank in analysis.run.ranks}
    rank = by_number[number]
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
            return _described(store, analysis.ranks, by_number, waits, int(rows[0]))
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
    store: Timelines, ranks: RankComparison, by_number: dict[int, Rank], waits: GroupWaits, row: int
) -> dict[str, Any]:
    group = waits.group
    is_known = bool(waits.is_known[row]) and not bool(waits.is_unknown[row])
    members = []
    for column, member in enumerate(group.members[:MAX_MEMBERS]):
        rank = by_number[ranks.ranks[member]]
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


MAX_PARTS = 5000  # that are drawn, the longest of all
_MAX_NAME = 200  # characters


def step_at(steps: Sequence[StepMeasures], time_ns: int) -> int | None:
    """Return the number of the step nearest to a time; None without steps."""

    def distance(step: StepMeasures) -> int:
        start = step.measures.window_start_ns
        return max(start - time_ns, time_ns - (start + step.measures.window_ns - 1), 0)

    return min(steps, key=distance).number if steps else None


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
        "step": path.step,
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
