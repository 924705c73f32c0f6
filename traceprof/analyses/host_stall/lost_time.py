"""Time that GPUs lost to stalls of hosts: of the stalled rank, and of the ranks that waited for it.

A rank that comes last to an operation is late because it stalled as far as it had stalled since the
ranks were last together. The others waited for that as far as nothing hid it: they had nothing to
compute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.communication.messages import ROOTED
from traceprof.ranks.medians import mean_of, middle_of_others
from traceprof.structs import Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceprof.host.rank_stalls import RankStalls
    from traceprof.intervals import Int64, Intervals
    from traceprof.ranks.arrivals import Arrivals
    from traceprof.ranks.waits import GroupWaits


class LostTime(Record, frozen=True):
    """Time lost to the stalls of a run, by the index of the rank.

    Attributes:
        others_ns: how long others waited for each rank because it had stalled, at their median.
        waited: when each rank waited for others that had stalled, in the time of its report.
    """

    others_ns: Int64
    waited: tuple[Intervals, ...]


def lost_time(
    stalls: Mapping[int, RankStalls], waits: Sequence[GroupWaits], arrivals: Sequence[Arrivals]
) -> LostTime:
    """Return the time that the ranks of a run lost in waits for stalled ranks.

    Args:
        stalls: of the ranks, by their number.
        waits: the waits of all groups.
        arrivals: the arrivals of all ranks.
    """
    spans: list[list[tuple[Int64, Int64]]] = [[] for _ in arrivals]
    waited: list[list[tuple[Int64, Int64]]] = [[] for _ in arrivals]
    for group in waits:
        members = [arrivals[member] for member in group.group.members]
        cost = _cost(group, waits, arrivals, stalls)
        row = np.arange(len(group))
        for column, member in enumerate(group.group.members):
            start = members[column].start_ns[group.group.place[:, column]]
            waited[member].append((start, start + cost[:, column]))
        low, high = middle_of_others(cost)
        by_last = mean_of(low, high)[row, group.last]
        for column, member in enumerate(group.group.members):
            rows = np.flatnonzero((group.last == column) & (by_last > 0))
            start = members[column].start_ns[group.group.place[rows, column]]
            spans[member].append((start - by_last[rows], start))
    others_ns = [held_up.measure_ns for held_up in _unions(spans)]
    return LostTime(np.array(others_ns, np.int64), _unions(waited))


def _cost(
    waits: GroupWaits,
    groups: Sequence[GroupWaits],
    arrivals: Sequence[Arrivals],
    stalls: Mapping[int, RankStalls],
) -> Int64:
    """Return how long each member waited for a last one that had stalled, unhidden, int64[m, r]."""
    members = [arrivals[member] for member in waits.group.members]
    unhidden: Int64 = waits.group.times([member.unhidden_ns() for member in members])
    unhidden = np.minimum(waits.wait_ns, unhidden)
    unhidden[~(waits.is_judged & waits.is_resolved)] = 0
    stalled = np.zeros(len(waits), np.int64)
    for column, member in enumerate(members):
        of_member = stalls.get(member.rank)
        rows = np.flatnonzero((waits.last == column) & (unhidden > 0).any(axis=1))
        if of_member is None or not len(of_member) or not len(rows):
            continue
        start = member.start_ns[waits.group.place[rows, column]]
        ends = _left_together(waits, groups, waits.group.members[column], member)
        ends = np.append(member.start_ns[:1], ends)  # what was before the first is not known
        since = ends[np.maximum(np.searchsorted(ends, start, side="right") - 1, 0)]
        stalled[rows] = intervals.covered_within(of_member.stalled, np.minimum(since, start), start)
    return np.minimum(unhidden, stalled[:, np.newaxis])


def _left_together(
    waits: GroupWaits, groups: Sequence[GroupWaits], index: int, member: Arrivals
) -> Int64:
    """Return when a member left operations that all members of a group took part in, ascending."""
    needed = {*waits.group.members}
    ends = [np.empty(0, np.int64)]
    for other in groups:
        if needed <= {*other.group.members}:
            column = other.group.members.index(index)
            # After a broadcast and similar operations, each goes on when its own part is done.
            together = ~other.group.is_one_of(ROOTED)
            ends.append(member.end_ns[other.group.place[together, column]])
    return np.sort(np.concatenate(ends))


def _unions(spans: Sequence[Sequence[tuple[Int64, Int64]]]) -> tuple[Intervals, ...]:
    """Return the time that the spans of each rank cover."""
    nothing = np.empty(0, np.int64)
    return tuple(
        intervals.union(
            np.concatenate([nothing, *(start for start, _ in of_rank)]),
            np.concatenate([nothing, *(end for _, end in of_rank)]),
        )
        for of_rank in spans
    )
