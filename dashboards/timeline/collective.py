"""One collective on all of its ranks: arrivals, waits, and the last rank to arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dashboards.timeline.model import OPERATION
from traceprof.communication.messages import messages

if TYPE_CHECKING:
    from dashboards.timeline.store import Timelines
    from traceprof.findings import Evidence
    from traceprof.ranks.comparison import RankComparison
    from traceprof.ranks.waits import GroupWaits
    from traceprof.run.opening import Rank

MAX_MEMBERS = 64  # that are listed one by one


def collective(store: Timelines, number: int, kernel: int) -> dict[str, Any] | None:
    """Return the members of the operation to which a communication kernel belongs.

    Args:
        store: of the timelines of an analysed run.
        number: the rank's.
        kernel: index into its kernels.

    Returns:
        None if the kernel has no partner or was not matched; else `operation`, `group`, `last` (the
        rank that came last; None if the clocks leave that open), `num_members` and `members`, by
        rank: `rank`, the `id` of its kernel, its `row`, None where it has none, its `start` and
        `end` and its `wait` for the last one (ns, as text), None where that is not known.
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
    """Return a rank's communication kernel that starts at the end of an interval of its report.

    That is the operation to which a straggler came late; None if it is not of the GPU.
    """
    if rank.device is None:
        return None
    kernels = messages(rank).kernel
    at = np.flatnonzero(rank.operations.kernels.starts.at(kernels) == interval.end_ns)
    return f"{rank.rank}.{OPERATION}.{int(kernels[at[0]])}" if len(at) else None


def _message(rank: Rank, kernel: int) -> int | None:
    """Return which of a rank's messages a kernel is."""
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
        kernel = np.array([int(messages(rank).kernel[group.place[row, column]])])
        start = int(rank.operations.kernels.starts.at(kernel)[0])
        length = int(rank.operations.kernels.packed_length.at(kernel)[0])
        members.append(
            {
                "rank": rank.rank,
                "id": f"{rank.rank}.{OPERATION}.{int(kernel[0])}",
                "start": str(clock.at(start)),
                "end": str(clock.at(start + length)),
                "row": _row(store, rank.rank, int(kernel[0])),
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


def _row(store: Timelines, number: int, kernel: int) -> str | None:
    location = store.gpu(number).find(OPERATION, kernel)
    return None if location is None else f"{number}.{location[0]}"
