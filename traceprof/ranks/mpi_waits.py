"""Waits of ranks for each other in calls of MPI.

One call may wait for several requests, as MPI_Waitall does: each nanosecond counts once, for the
rank that came first of those it still waits for.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.structs import Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceprof.intervals import Int64, Intervals
    from traceprof.ranks.arrivals import Arrivals
    from traceprof.ranks.waits import GroupWaits


class MpiWaits(Record, frozen=True):
    """Waits of one rank in calls of MPI, in its report's time.

    Attributes:
        matched: when it was in calls that were matched with those of all ranks taking part.
        waiting: when it waited in them for a rank that came later.
    """

    matched: Intervals
    waiting: Intervals


def mpi_waits(waits: Sequence[GroupWaits], arrivals: Sequence[Arrivals]) -> Mapping[int, MpiWaits]:
    """Return the waits of each rank that has calls of MPI that were matched, by its number.

    Where clocks leave open who waited in most calls of a group, the group is left out; so is one of
    which some ranks were not captured: they may have come later still.
    """
    spans: dict[int, list[tuple[Int64, ...]]] = defaultdict(list)
    for group_waits in waits:
        group = group_waits.group
        if group.num_ranks > len(group.members) or 2 * group_waits.is_unknown.sum() > len(group):
            continue
        known = np.flatnonzero(group_waits.is_known)
        for column, member in enumerate(group.members):
            place = group.place[known, column]
            blocked = arrivals[member].blocked_ns[place]
            wait = np.where(group_waits.is_resolved, group_waits.wait_ns[:, column], 0)[known]
            spans[member].append((blocked, blocked + wait, arrivals[member].end_ns[place]))
    return {
        arrivals[member].rank: MpiWaits(
            intervals.union(blocked, end), intervals.union(blocked, came)
        )
        for member, of_member in spans.items()
        for blocked, came, end in [map(np.concatenate, zip(*of_member, strict=True))]
    }


def mpi_matrix(waits: Sequence[GroupWaits], arrivals: Sequence[Arrivals]) -> Int64:
    """Return how long each rank waited for each other in MPI, int64[ranks, ranks].

    Args:
        waits: of the groups of calls of MPI.
        arrivals: of all ranks.

    Returns:
        The row waits for the column.
    """
    matrix = np.zeros((len(arrivals), len(arrivals)), np.int64)
    spans: dict[int, list[tuple[Int64, ...]]] = defaultdict(list)
    for group_waits in waits:
        chosen = np.flatnonzero(group_waits.is_resolved & group_waits.is_inside)
        last = np.array(group_waits.group.members)[group_waits.last[chosen]]
        for column, member in enumerate(group_waits.group.members):
            blocked = arrivals[member].blocked_ns[group_waits.group.place[chosen, column]]
            spans[member].append((blocked, blocked + group_waits.wait_ns[chosen, column], last))
    for member, of_member in spans.items():
        start, end, last = map(np.concatenate, zip(*of_member, strict=True))
        order = np.lexsort((end, start))
        start, end, last = start[order], end[order], last[order]
        counted = np.maximum.accumulate(np.append(start[:1], end[:-1]))
        np.add.at(matrix[member], last, np.maximum(end - np.maximum(start, counted), 0))
    return matrix
