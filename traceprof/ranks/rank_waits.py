"""Waits of one rank for others, operation by operation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.communication.messages import BETWEEN_TWO
from traceprof.structs import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.intervals import Int64
    from traceprof.ranks.waits import GroupWaits
    from traceprof.run.session_clocks import Clocks

_NO_COMPARISON = int(np.iinfo(np.int64).max)


class RankWaits(Record, frozen=True):
    """The operations of one rank that were matched with those of all ranks taking part, n of them.

    Attributes:
        place: int64[n], ascending: indices into the rank's `Arrivals`.
        wait_ns: int64[n], the wait until the last rank came.
        last: int64[n], that rank's place among the run's ranks.
        uncertainty_ns: int64[n], how well the clocks of the two compare; 0 within one report, the
            largest int64 where they do not compare.
    """

    place: Int64
    wait_ns: Int64
    last: Int64
    uncertainty_ns: Int64

    def __len__(self) -> int:
        return len(self.place)


def waits_of_rank(
    member: int, waits: Sequence[GroupWaits], reports: Sequence[int], clocks: Clocks
) -> RankWaits:
    """Return how long a rank waited in the operations whose ranks were all recorded.

    Args:
        member: the rank's place among the run's ranks.
        waits: the waits of all groups.
        reports: for each rank of the run, the index of its report.
        clocks: the clocks of the run.
    """
    columns: list[tuple[Int64, ...]] = [(np.empty(0, np.int64),) * 4]
    for group_waits in waits:
        group = group_waits.group
        if member not in group.members or group.num_ranks > len(group.members):
            continue
        column = group.members.index(member)
        rows = np.flatnonzero(group_waits.is_known)
        last = group_waits.last[rows]
        limits = np.zeros(len(group.members), np.int64)
        for other in np.flatnonzero(np.bincount(last)).tolist():
            limits[other] = _uncertainty(clocks, reports, member, group.members[other])
        uncertainty = limits[last]
        wait = group_waits.wait_ns[rows, column].copy()
        # On one clock it is certain: a rank that left before the other came did not wait.
        came = group_waits.start_ns[rows, last]
        has_left = (uncertainty == 0) & (came >= group_waits.end_ns[rows, column])
        wait[has_left & group.is_one_of(BETWEEN_TWO)[rows]] = 0
        columns.append(
            (group.place[rows, column], wait, np.array(group.members)[last], uncertainty)
        )
    place, wait, last, uncertainty = map(np.concatenate, zip(*columns, strict=True))
    order = np.argsort(place, kind="stable")
    return RankWaits(place[order], wait[order], last[order], uncertainty[order])


def _uncertainty(clocks: Clocks, reports: Sequence[int], first: int, second: int) -> int:
    if reports[first] == reports[second]:
        return 0
    limit = clocks.uncertainty_ns(reports[first], reports[second])
    return _NO_COMPARISON if limit is None else limit
