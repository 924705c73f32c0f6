"""Lateness of ranks: how often each comes last to an operation, and how late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import numpy as np
from msgspec import Struct

from traceprof.findings import Count
from traceprof.intervals import Int64
from traceprof.ranks.matching import LEAVE_TOGETHER
from traceprof.ranks.medians import mean_of, middle_of_others
from traceprof.trace.grouping import is_in, median_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.ranks.arrivals import Arrivals
    from traceprof.ranks.waits import GroupWaits

# A smaller share of the operations is no habit.
MIN_SHARE = 0.5
# Standard deviations above the chance share, at which each of n ranks comes last in one of n
# operations (one balanced rank in 700 is above by chance).
_SIGMAS = 3.0


class Lateness(Struct, frozen=True):
    """Lateness of a rank at the operations that it shares with others.

    Attributes:
        member: index of the rank.
        coverage: their share of all the rank's operations of these kinds.
        num_last: the operations to which it certainly came late, and last.
        total_ns: the sum, over these, of how long the others waited for this rank alone, at their
            median: after the rank before it had come, as far as no compute hid the wait.
        operations: int64[k, 3], the operations to which it was last, latest first: index of the
            group, row in it, column of the rank.
        start_ns: int64[k], when it came to each, in the time of its report.
        cost_ns: int64[k], what each adds to `total_ns`.
    """

    member: int
    num_operations: Annotated[
        Count, "Number of operations that no member can leave before the last one has arrived."
    ]
    coverage: float
    num_last: int
    late_ns: Annotated[
        Count,
        "How much later than the median of the others it arrived: the median over the"
        " operations in which it was certainly late, and the last.",
    ]
    total_ns: int
    uncertainty_ns: Annotated[
        Count | None, "Uncertainty of its clock against the others'; null if unknown."
    ]
    operations: Int64
    start_ns: Int64
    cost_ns: Int64

    @property
    def share_last(self) -> float:
        """The share of operations to which it came last."""
        return self.num_last / self.num_operations


def is_habit(num_last: int, num: int, num_ranks: int) -> bool:
    """Return whether a rank comes last more often than by chance.

    Args:
        num_last: how often it does.
        num: of how many times.
        num_ranks: the number of ranks that take part, itself among them.
    """
    chance = 1 / num_ranks
    sigma = float(np.sqrt(chance * (1 - chance) / max(num, 1)))
    return num_last >= max(num, 1) * max(MIN_SHARE, chance + _SIGMAS * sigma)


def lateness(waits: Sequence[GroupWaits], arrivals: Sequence[Arrivals]) -> list[Lateness]:
    """Return the lateness of each rank that shares operations with others."""
    results = []
    costs = [costs_of(group_waits, arrivals) for group_waits in waits]
    for member, of_member in enumerate(columns_of_members(waits, len(arrivals))):
        late: list[Int64] = []
        cost: list[Int64] = []
        where: list[Int64] = []
        start: list[Int64] = []
        unsure: list[int] = []
        num = 0
        for number, column in of_member:
            group_waits = waits[number]
            judged = group_waits.is_judged & group_waits.group.leaves_together
            num += int(np.count_nonzero(judged))
            unsure.append(int(group_waits.uncertainty_ns[column]))
            rows = np.flatnonzero(judged & group_waits.is_last[:, column])
            late.append(group_waits.late_ns[rows, column])
            cost.append(costs[number][rows, column])
            fixed = np.full(len(rows), number), rows, np.full(len(rows), column)
            where.append(np.stack(fixed, axis=1))
            start.append(arrivals[member].start_ns[group_waits.group.place[rows, column]])
        if num == 0:
            continue
        lates, costs_ns = np.concatenate(late), np.concatenate(cost)
        order = np.argsort(-lates, kind="stable")
        beyond = int(np.iinfo(np.int64).max)
        results.append(
            Lateness(
                member=member,
                num_operations=num,
                coverage=num / _num_candidates(arrivals[member]),
                num_last=len(lates),
                late_ns=int(median_of(lates)) if len(lates) else 0,
                total_ns=int(costs_ns.sum()),
                uncertainty_ns=None if max(unsure) == beyond else max(unsure),
                operations=np.concatenate(where)[order],
                start_ns=np.concatenate(start)[order],
                cost_ns=costs_ns[order],
            )
        )
    return results


def _num_candidates(arrivals: Arrivals) -> int:
    """Return the number of a rank's operations that could be judged if all were matched."""
    known = arrivals.operations
    kinds = [known.index(name) for name in LEAVE_TOGETHER if name in known]
    chosen = arrivals.is_judged & is_in(arrivals.operation, np.array(kinds, np.int64))
    return int(np.count_nonzero(chosen))


def columns_of_members(waits: Sequence[GroupWaits], num_ranks: int) -> list[list[tuple[int, int]]]:
    """Return for each rank the groups that it is a member of, and its column in each.

    Args:
        waits: the waits of all groups.
        num_ranks: the number of ranks of the run.
    """
    columns: list[list[tuple[int, int]]] = [[] for _ in range(num_ranks)]
    for number, group_waits in enumerate(waits):
        for column, member in enumerate(group_waits.group.members):
            columns[member].append((number, column))
    return columns


def waited_for(waits: Sequence[GroupWaits], arrivals: Sequence[Arrivals]) -> Int64:
    """Return how long the others waited for each rank, unhidden and at their median, int64[ranks].

    Only operations count to which it certainly came last.
    """
    cost = np.zeros(len(arrivals), np.int64)
    for group in waits:
        row = np.arange(len(group))
        chosen = group.is_judged & group.group.leaves_together & group.is_last[row, group.last]
        of_last = costs_of(group, arrivals)[row, group.last]
        np.add.at(cost, np.array(group.group.members)[group.last[chosen]], of_last[chosen])
    return cost


def costs_of(waits: GroupWaits, arrivals: Sequence[Arrivals]) -> Int64:
    """Return the median of how long the others waited, unhidden, for each member, int64[m, r].

    Their waits count as far as the member was late.
    """
    members = [arrivals[member] for member in waits.group.members]
    unhidden = waits.group.times([member.unhidden_ns() for member in members])
    low, high = middle_of_others(np.minimum(waits.wait_ns, unhidden))
    late = np.maximum(waits.late_ns, 0)
    # A limit on all others is a limit on the two in the middle, too.
    return mean_of(np.minimum(low, late), np.minimum(high, late))
