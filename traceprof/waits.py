"""Waiting told from transfer: until the last rank arrives, the others wait for it.

A member's *wait* is from its own start to the last member's, on the run's clock; the rest of its
stay is *transfer*. What an operation itself takes is the median transfer of its members, as
nccl-tests give the mean of all ranks; the shortest one would be the outlier of many. Where the
clocks are too far apart to tell waits, it is the shortest stay: that of the last to arrive, who
waits for nobody and needs no clock but its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.clocks import ONE_MACHINE_NS
from traceprof.matching import Unmatched

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.analyses.arrivals import Arrivals
    from traceprof.clocks import Clocks
    from traceprof.intervals import Int64
    from traceprof.matching import Group
    from traceprof.run import Mask

# How far apart members leave an operation, as a share of the time that it takes: in a ring of six
# GPUs on two machines, half of it.
_LEAVING = 0.5
_RESIDENT = 0.95  # of the operations must have had all members inside at one time


@dataclass(frozen=True)
class Waits:
    """Who waited for whom in the operations of a group: m operations that all r members share.

    Attributes:
        group: the operations.
        start_ns: int64[m, r], on the run's clock.
        end_ns: int64[m, r].
        wait_ns: int64[m, r], each member's wait for the last one.
        transfer_ns: int64[m], the median over the members; the shortest stay where clocks differ
            by more than that.
        last: int64[m], the column of the member that came last.
        late_ns: int64[m, r], how long after the median of the others each member came.
        uncertainty_ns: int64[r], how well each member's clock compares with those of the others:
            the median of them; the largest int64 where it does not.
        is_last: bool[m, r], whether a member was certainly late, and came last or so little
            before the last that the clocks cannot tell.
        is_inside: bool[m], whether the operation is in the window of all members.
    """

    group: Group
    start_ns: Int64
    end_ns: Int64
    wait_ns: Int64
    transfer_ns: Int64
    last: Int64
    late_ns: Int64
    uncertainty_ns: Int64
    is_last: Mask
    is_inside: Mask

    def __len__(self) -> int:
        return len(self.last)

    @property
    def is_resolved(self) -> Mask:
        """Whether it is certain that the last was late, bool[m]."""
        row = np.arange(len(self))
        resolved: Mask = self.late_ns[row, self.last] > self.uncertainty_ns[self.last]
        return resolved


def split_by_leaving(group: Group, arrivals: Sequence[Arrivals], clocks: Clocks) -> list[Group]:
    """Split members that are known by their order alone into those that leave together.

    Two communicators may have as many operations of the same sizes. Members of one of them leave
    within what the clocks tell or within a fraction of the time that the operation takes.

    Args:
        group: matched operations.
        arrivals: of all ranks.
        clocks: of the run.
    """
    whole = group.chosen(group.is_whole & group.leaves_together)
    if len(whole) == 0:
        return [group]
    members = [arrivals[member] for member in group.members]
    end = whole.times([clocks.to_run(each.report, each.end_ns) for each in members])
    stay = whole.times([each.end_ns - each.start_ns for each in members])
    between = np.minimum(_between(members, clocks), intervals.BEYOND_NS)
    left, found = list(range(len(members))), []
    while left:
        first = left[0]
        apart = np.median(np.abs(end - end[:, first : first + 1]), axis=0)
        shortest = np.median(np.minimum(stay, stay[:, first : first + 1]), axis=0)
        leaves = apart <= np.maximum(between[first], shortest * _LEAVING)
        alike = [column for column in left if leaves[column]]
        left = [column for column in left if not leaves[column]]
        if len(alike) > 1:
            found.append(group.of_members(alike))
    return found


def waits_of(group: Group, arrivals: Sequence[Arrivals], clocks: Clocks) -> Waits | Unmatched:
    """Tell waiting from transfer, or say why the operations cannot be the same ones.

    Args:
        group: matched operations.
        arrivals: of all ranks.
        clocks: of the run.
    """
    whole = group.chosen(group.is_whole)
    members = [arrivals[member] for member in group.members]
    if len(whole) == 0:
        return Unmatched(
            group.name,
            tuple(each.rank for each in members),
            "no operation was captured on all of its ranks",
        )
    start, end = (
        whole.times([clocks.to_run(each.report, column) for each, column in columns])
        for columns in (
            [(each, each.start_ns) for each in members],
            [(each, each.end_ns) for each in members],
        )
    )
    between = _between(members, clocks)
    judged = whole.leaves_together
    together = (start.max(axis=1) - end.min(axis=1) <= between.max())[judged]
    if len(together) and together.mean() < _RESIDENT:
        return Unmatched(
            group.name,
            tuple(each.rank for each in members),
            f"in {np.count_nonzero(~together)} of {len(together)} operations, some rank had left"
            " before another one came: they are not the same",
        )
    last = start.argmax(axis=1)
    before_last = start.max(axis=1, keepdims=True) - start
    late = start - _medians_of_others(start)
    uncertainty = _of_others(between)
    # Only the column of the last matters, but each has its own uncertainty.
    tied = before_last <= between[last]
    tied[np.arange(len(last)), last] = True
    stay = end - start
    wait = np.clip(before_last, 0, stay)
    shortest = stay.min(axis=1)
    is_clocked = between.max() <= np.median(shortest)
    inside = whole.times([each.is_inside.astype(np.int64) for each in members])
    return Waits(
        group=whole,
        start_ns=start,
        end_ns=end,
        wait_ns=wait,
        transfer_ns=np.median(stay - wait, axis=1).astype(np.int64) if is_clocked else shortest,
        last=last,
        late_ns=late,
        uncertainty_ns=uncertainty,
        is_last=tied & (late > uncertainty),
        is_inside=np.all(inside > 0, axis=1),
    )


def wait_matrix(waits: Sequence[Waits], num_ranks: int) -> Int64:
    """Return who made whom wait and for how long, int64[ranks, ranks]: row waits for column.

    Each wait is laid to the member that came last, where the clocks tell who that was.
    """
    matrix = np.zeros((num_ranks, num_ranks), np.int64)
    for each in waits:
        members = np.array(each.group.members)
        chosen = each.is_resolved & each.is_inside
        last = members[each.last[chosen]]
        for column, member in enumerate(each.group.members):
            np.add.at(matrix[member], last, each.wait_ns[chosen, column])
    return matrix


def _between(members: Sequence[Arrivals], clocks: Clocks) -> Int64:
    """Return how well times of two members compare, int64[r, r]."""
    host = np.array([clocks.host_of[each.report] for each in members])
    known = [clock.uncertainty_ns for clock in clocks.hosts]
    own = np.array([np.inf if each is None else each for each in known])[host]
    apart = np.hypot(own[:, np.newaxis], own[np.newaxis, :])
    between = np.where(np.isfinite(apart), np.rint(np.minimum(apart, 1 << 60)), 0).astype(np.int64)
    between[~np.isfinite(apart)] = np.iinfo(np.int64).max
    between[host[:, np.newaxis] == host[np.newaxis, :]] = ONE_MACHINE_NS
    return between


def _medians_of_others(values: Int64) -> Int64:
    """Return for each entry the median of the others in its row, int64[m, r]."""
    num_others = values.shape[1] - 1
    order = np.argsort(values, axis=1, kind="stable")
    ordered = np.take_along_axis(values, order, axis=1)
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(values.shape[1])[np.newaxis, :], axis=1)

    def of_others(index: int) -> Int64:
        """Return what is at this place once the entry itself is taken out."""
        shifted = np.where(place <= index, index + 1, index)
        taken: Int64 = np.take_along_axis(ordered, shifted, axis=1)
        return taken

    low, high = of_others((num_others - 1) // 2), of_others(num_others // 2)
    middle: Int64 = low + (high - low) // 2
    return middle


def _of_others(between: Int64) -> Int64:
    """Return the median of each row without its diagonal, int64[r]."""
    num = len(between)
    others = between[~np.eye(num, dtype=np.bool_)].reshape(num, num - 1)
    middle: Int64 = np.sort(others, axis=1)[:, (num - 1) // 2]
    return middle
