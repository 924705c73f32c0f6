"""Lateness of ranks: how often each arrives last at an operation, how late, and why.

**Causes.** The ranks were last together at the end of an earlier operation. From there to their
starts, each rank's time is computing, communicating, copying or idle for a reason
(`TIME_CATEGORIES`). These parts add up to the whole, so what the late rank spent beyond the median
of the others adds up to its lateness. A part that makes up half of it is the cause. If that part is
communication in which the rank waited for a third rank, the causes of that rank are looked for, and
so on back to one root.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from msgspec import Struct

from traceprof.communication.messages import ROOTED, are_one_of
from traceprof.findings import Count
from traceprof.intervals import Int64
from traceprof.ranks.arrivals import TIME_CATEGORIES, Arrivals
from traceprof.ranks.matching import LEAVE_TOGETHER
from traceprof.ranks.waits import GroupWaits
from traceprof.structs import Record
from traceprof.trace.grouping import mean_of, median_of, middle_of_others

# A smaller share of the operations is no habit.
MIN_SHARE = 0.5
# Standard deviations above the chance share, at which each of n ranks comes last in one of n
# operations (one balanced rank in 700 is above by chance).
_SIGMAS = 3.0


class Lateness(Struct, frozen=True):
    """Lateness of a rank at the operations that it shares with others."""

    member: int  # index of the rank
    num_operations: Annotated[
        Count, "Number of operations that no member can leave before the last one has arrived."
    ]
    coverage: float  # their share of all the rank's operations of these kinds
    num_last: int  # the operations to which it certainly came late, and last
    late_ns: Annotated[
        Count,
        "How much later than the median of the others it arrived: the median over the"
        " operations in which it was certainly late, and the last.",
    ]
    # the sum, over these, of how long the others waited for this rank alone, at their median:
    # after the rank before it had come, where no compute hid the wait
    total_ns: int
    uncertainty_ns: Annotated[
        Count | None, "Uncertainty of its clock against the others'; null if unknown."
    ]
    # int64[k, 3], to which it was last, latest first: group, row in it, column of the rank
    operations: Int64
    start_ns: Int64  # int64[k], when it came to each, in the time of its report
    cost_ns: Int64  # int64[k], what each adds to `total_ns`

    @property
    def share_last(self) -> float:
        """The share of operations to which it came last."""
        return self.num_last / self.num_operations


def is_habit(num_last: int, num: int, num_ranks: int) -> bool:
    """Whether `num_last` of `num` operations are more than a rank comes last to by chance."""
    chance = 1 / num_ranks
    sigma = float(np.sqrt(chance * (1 - chance) / max(num, 1)))
    return num_last >= max(num, 1) * max(MIN_SHARE, chance + _SIGMAS * sigma)


def lateness(waits: Sequence[GroupWaits], arrivals: Sequence[Arrivals]) -> list[Lateness]:
    """Return the lateness of each rank that shares operations with others."""
    results = []
    costs = [costs_of(group_waits, arrivals) for group_waits in waits]
    for member, of_member in enumerate(columns_of_members(waits, len(arrivals))):
        parts: list[tuple[Int64, ...]] = []
        unsure: list[int] = []
        num = 0
        for number, column in of_member:
            group_waits = waits[number]
            judged = group_waits.is_judged & group_waits.group.leaves_together
            num += int(np.count_nonzero(judged))
            unsure.append(int(group_waits.uncertainty_ns[column]))
            rows = np.flatnonzero(judged & group_waits.is_last[:, column])
            where = np.full(len(rows), number), rows, np.full(len(rows), column)
            start = arrivals[member].start_ns[group_waits.group.place[rows, column]]
            late, cost = group_waits.late_ns[rows, column], costs[number][rows, column]
            parts.append((late, cost, start, np.stack(where, axis=1)))
        if num == 0:
            continue
        lates, costs_ns, starts, operations = map(np.concatenate, zip(*parts, strict=True))
        order = np.argsort(-lates, kind="stable")
        of_rank = arrivals[member]
        candidates = are_one_of(of_rank.operation, of_rank.operations, LEAVE_TOGETHER)
        candidates &= of_rank.is_judged
        results.append(
            Lateness(
                member=member,
                num_operations=num,
                coverage=num / int(np.count_nonzero(candidates)),
                num_last=len(lates),
                late_ns=int(median_of(lates)) if len(lates) else 0,
                total_ns=int(costs_ns.sum()),
                uncertainty_ns=None if max(unsure) == np.iinfo(np.int64).max else max(unsure),
                operations=operations[order],
                start_ns=starts[order],
                cost_ns=costs_ns[order],
            )
        )
    return results


def columns_of_members(waits: Sequence[GroupWaits], num_ranks: int) -> list[list[tuple[int, int]]]:
    """For each rank: its groups, and its column in each."""
    columns: list[list[tuple[int, int]]] = [[] for _ in range(num_ranks)]
    for number, group_waits in enumerate(waits):
        for column, member in enumerate(group_waits.group.members):
            columns[member].append((number, column))
    return columns


def waited_for(waits: Sequence[GroupWaits], arrivals: Sequence[Arrivals]) -> Int64:
    """Median unhidden wait for each rank, summed over operations, int64[ranks].

    Only operations at which the rank certainly arrived last count.
    """
    cost = np.zeros(len(arrivals), np.int64)
    for group in waits:
        row = np.arange(len(group))
        chosen = group.is_judged & group.group.leaves_together & group.is_last[row, group.last]
        of_last = costs_of(group, arrivals)[row, group.last]
        np.add.at(cost, np.array(group.group.members)[group.last[chosen]], of_last[chosen])
    return cost


def costs_of(waits: GroupWaits, arrivals: Sequence[Arrivals]) -> Int64:
    """Median unhidden wait of the others for each member, up to its lateness, int64[m, r]."""
    members = [arrivals[member] for member in waits.group.members]
    unhidden = waits.group.times([member.unhidden_ns() for member in members])
    low, high = middle_of_others(np.minimum(waits.wait_ns, unhidden))
    late = np.maximum(waits.late_ns, 0)
    # A limit on all others is a limit on the two in the middle, too.
    return mean_of(np.minimum(low, late), np.minimum(high, late))


SLOWER, MORE_WORK, UNEXPLAINED = "slower kernels", "more kernels", "not explained"
SLOWER_COMPUTE, OUTSIDE = "slower compute", "outside the ranges"
"""Causes for ranks without a GPU: they have no kernels to count, and time outside all ranges."""
_ON_HOSTS = {"compute": SLOWER_COMPUTE, "other": OUTSIDE}
# If most ranks paused this long between two operations, all of them had work of their own to do.
_PAUSE_NS = 50_000
_FEW_MORE = 0.02  # share of kernels by which the same work may differ


class Cause(Record, frozen=True):
    """The cause of a rank's late arrival at one operation."""

    root: int  # index of the rank that caused it
    what: str  # one of `TIME_CATEGORIES`, or of this module's own causes
    late_ns: int  # how long after the rank before it the root came
    start_ns: int  # since when, in the time of the root's report
    end_ns: int  # when the root came, in the same time
    via: tuple[int, ...]  # the ranks on the way, the late one first, without the root


class Causes:
    """The causes of late arrivals in a run, found on demand."""

    def __init__(self, waits: Sequence[GroupWaits], arrivals: Sequence[Arrivals]) -> None:
        self._waits = waits
        self._arrivals = arrivals
        self._since = [_anchors(wait) for wait in waits]
        self._behind = [wait.behind_ns for wait in waits]
        self._columns = columns_of_members(waits, len(arrivals))
        self._spent: dict[tuple[int, int], tuple[Int64, Int64]] = {}

    def of(self, number: int, row: int, column: int) -> Cause | None:
        """Why a member was late; None if the capture begins after the ranks were last together."""
        return self._of(number, row, column, ())

    def _of(self, number: int, row: int, column: int, via: tuple[int, ...]) -> Cause | None:
        waits = self._waits[number]
        since = int(self._since[number][row])
        if since < 0:
            return None
        member = waits.group.members[column]
        late = int(self._behind[number][row, column])
        what = self._what(number, since, row, column)
        if what == "communication" and member not in via:
            cause = self._upstream(number, row, column, since, (*via, member))
            if cause is not None:
                return cause
        arrivals, place = self._arrivals[member], waits.group.place[:, column]
        return Cause(
            root=member,
            what=what,
            late_ns=late,
            start_ns=int(arrivals.end_ns[place[since]]),
            end_ns=int(arrivals.start_ns[place[row]]),
            via=via,
        )

    def _what(self, number: int, since: int, row: int, column: int) -> str:
        waits = self._waits[number]
        members = [self._arrivals[member] for member in waits.group.members]
        if (number, row) not in self._spent:  # the same for each member that comes late to it
            self._spent[number, row] = _spent_between(members, waits.group.place[[since, row]])
        own, others = (spent[:, column] for spent in self._spent[number, row])
        # Copying and waiting idle for a copy are one cause.
        parts = dict(zip(TIME_CATEGORIES, (own - others).tolist(), strict=False))
        parts["blocking copy"] += parts.pop("copy")
        largest = max(parts, key=lambda name: parts[name])
        if 2 * parts[largest] < int(waits.late_ns[row, column]):
            return UNEXPLAINED
        if all(member.device is None for member in members):
            return _ON_HOSTS.get(largest, largest)
        if largest != "compute":
            return largest
        num_kernels, of_others = int(own[-1]), int(others[-1])
        is_same = abs(num_kernels - of_others) <= _FEW_MORE * max(of_others, 1)
        return SLOWER if is_same else MORE_WORK

    def _upstream(
        self, number: int, row: int, column: int, since: int, via: tuple[int, ...]
    ) -> Cause | None:
        waits = self._waits[number]
        member = waits.group.members[column]
        arrivals, place = self._arrivals[member], waits.group.place[:, column]
        begin, stop = int(arrivals.end_ns[place[since]]), int(arrivals.start_ns[place[row]])
        longest, place_of_wait = 0, None
        for index, own_column in self._columns[member]:
            if index == number:
                continue
            others = self._waits[index]
            start = arrivals.start_ns[others.group.place[:, own_column]]
            waited = np.where(
                (start >= begin) & (start < stop) & (others.last != own_column),
                others.wait_ns[:, own_column],
                0,
            )
            if len(waited) and int(waited.max()) > longest:
                longest = int(waited.max())
                place_of_wait = index, int(waited.argmax())
        if place_of_wait is None:
            return None
        number, row = place_of_wait
        last = int(self._waits[number].last[row])
        # If the capture does not reach back far enough, the rank is known, but not the cause.
        return self._of(number, row, last, via) or self._unexplained(number, row, last, via)

    def _unexplained(self, number: int, row: int, column: int, via: tuple[int, ...]) -> Cause:
        waits = self._waits[number]
        member = waits.group.members[column]
        came = int(self._arrivals[member].start_ns[waits.group.place[row, column]])
        late = max(int(waits.late_ns[row, column]), 0)
        return Cause(member, UNEXPLAINED, late, came - late, came, via)


def _spent_between(members: Sequence[Arrivals], places: Int64) -> tuple[Int64, Int64]:
    """What each of r members spent between two operations, and the median of the others.

    `places`: int64[2, r], both operations of each. The results are int64[12, r]: the time by
    `TIME_CATEGORIES` from the end of the first to the start of the second, and compute kernels.
    """
    spent = [
        [
            *(of.cumulative_ns_at_start[last] - of.cumulative_ns_at_start[first])
            - of.spent_inside_ns[first],
            of.kernels_at_start[last] - of.kernels_at_end[first],
        ]
        for of, first, last in zip(members, *places.tolist(), strict=True)
    ]
    columns = np.array(spent, np.int64).T
    return columns, mean_of(*middle_of_others(columns))


def _anchors(waits: GroupWaits) -> Int64:
    """For each operation the one at whose end the members were last together, else -1.

    An operation that starts right after another one on most members does not count: it was queued
    behind the other, and is as late as that one.
    """
    pause = median_of(waits.start_ns[1:] - waits.end_ns[:-1], axis=1)
    # After a broadcast and similar operations, each member goes on when its own part is done.
    is_together = ~waits.group.is_one_of(ROOTED)[:-1]
    before = np.where((pause > _PAUSE_NS) & is_together, np.arange(len(pause)), -1)
    anchors = np.full(len(waits), -1, np.int64)
    anchors[1:] = np.maximum.accumulate(before)
    return anchors
