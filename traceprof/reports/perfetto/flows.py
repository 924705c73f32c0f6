"""Numbers shared by the events of an operation on different ranks."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from traceprof.communication.messages import messages
from traceprof.run.rank import CpuRank

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceprof.intervals import Int64
    from traceprof.ranks.comparison import RankComparison
    from traceprof.reports.perfetto.packets import Value
    from traceprof.run.rank import Rank

    Flows = Mapping[int, tuple[tuple[int, ...], Mapping[str, Value]]]


def first_flows(comparison: RankComparison) -> list[int]:
    """Return for each group of matched operations the number of its first: they count from 1."""
    lengths = [len(waits) for waits in comparison.waits]
    return [1, *(1 + np.cumsum(lengths)).tolist()][: len(lengths)]


def flows_of(rank: Rank, comparison: RankComparison) -> Flows:
    """Return the numbers of a rank's matched operations, and what is known of the meeting.

    Args:
        rank: the rank.
        comparison: of the run's ranks.

    Returns:
        By index of the kernel or, without a GPU, of the operation. `wait_ns` is the rank's wait for
        the last one; it is left out if it is unknown.
    """
    flows: dict[int, tuple[tuple[int, ...], dict[str, Value]]] = defaultdict(lambda: ((), {}))
    if rank.rank not in comparison.ranks:
        return flows
    index = _index_of_arrivals(rank)
    member = comparison.ranks.index(rank.rank)
    for first, waits in zip(first_flows(comparison), comparison.waits, strict=True):
        if member not in waits.group.members:
            continue
        column = waits.group.members.index(member)
        is_known = (waits.is_known & ~waits.is_unknown).tolist()
        operations = index[waits.group.place[:, column]].tolist()
        last = [comparison.ranks[waits.group.members[one]] for one in waits.last.tolist()]
        for row, (operation, wait_ns) in enumerate(
            zip(operations, waits.wait_ns[:, column].tolist(), strict=True)
        ):
            numbers, notes = flows[operation]
            if is_known[row]:
                notes = {"wait_ns": wait_ns, "last_rank": last[row]}
            flows[operation] = (*numbers, first + row), notes
    return flows


def _index_of_arrivals(rank: Rank) -> Int64:
    """Return which kernel or operation each of the rank's `Arrivals` is, int64[n]."""
    if isinstance(rank, CpuRank):
        return np.flatnonzero(rank.work.operations.is_over)
    return messages(rank).kernel
