"""One collective on all of its ranks: when each came, how long it waited, and who came last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dashboards.timeline.model import OPERATION
from traceprof.communication.messages import messages

if TYPE_CHECKING:
    from traceprof.analysis import Analysis
    from traceprof.ranks.waits import GroupWaits
    from traceprof.run.opening import Rank

MAX_MEMBERS = 64  # that are listed one by one


def collective(analysis: Analysis, number: int, kernel: int) -> dict[str, Any] | None:
    """Return the members of the operation that a communication kernel is a part of.

    Args:
        analysis: of the run.
        number: the rank's.
        kernel: index into its kernels.

    Returns:
        None where the kernel communicates with nobody or was not matched; else `operation`,
        `group`, `last` (the rank that came last; None where the clocks leave that open),
        `num_members`, `num_reports` (each of which has a clock of its own) and
        `members`, by rank: `rank`, the `id` of its kernel, its `start` and `end` (in its report's
        time) and `wait` for the last one (ns, as text), None where that is not known.
    """
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
            return _described(analysis, by_number, waits, int(rows[0]))
    return None


def _message(rank: Rank, kernel: int) -> int | None:
    """Return which of a rank's messages a kernel is."""
    if kernel >= len(rank.operations.kernels):
        return None
    kernels = messages(rank).kernel
    place = int(np.searchsorted(kernels, kernel))
    return place if place < len(kernels) and kernels[place] == kernel else None


def _described(
    analysis: Analysis, by_number: dict[int, Rank], waits: GroupWaits, row: int
) -> dict[str, Any]:
    group = waits.group
    is_known = bool(waits.is_known[row]) and not bool(waits.is_unknown[row])
    members = []
    for column, member in enumerate(group.members[:MAX_MEMBERS]):
        rank = by_number[analysis.ranks.ranks[member]]
        kernel = np.array([int(messages(rank).kernel[group.place[row, column]])])
        start = int(rank.operations.kernels.starts.at(kernel)[0])
        length = int(rank.operations.kernels.packed_length.at(kernel)[0])
        members.append(
            {
                "rank": rank.rank,
                "id": f"{rank.rank}.{OPERATION}.{int(kernel[0])}",
                "start": str(start),
                "end": str(start + length),
                "wait": str(int(waits.wait_ns[row, column])) if is_known else None,
            }
        )
    last = analysis.ranks.ranks[group.members[int(waits.last[row])]]
    return {
        "operation": group.operations[int(group.operation[row])],
        "group": group.name,
        "last": last if is_known else None,
        "num_members": len(group.members),
        "num_reports": len({by_number[analysis.ranks.ranks[one]].report for one in group.members}),
        "members": sorted(members, key=lambda entry: entry["rank"]),
    }
