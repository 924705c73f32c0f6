"""Waiting and transfer: until the last rank arrives, the others wait for it.

A member's *wait* is from its own start to the last member's, on the run's clock; the rest of its
stay is *transfer*. The operation's own time is the median transfer of its members; the shortest of
many would be an outlier. If the clocks are too uncertain to measure waits, it is the shortest stay:
the last member to arrive waits for nobody, and its stay needs no clock but its own.

If one rank sends to all others, they wait for it and for no other. If all send to one rank, only
that one waits, for the last of them. Labels say which rank that is, the root; without labels the
waits of such operations are not known. A member that left a send or receive before the other came
did not wait for it. With MPI calls that run beside other work, a member waits from its `MPI_Wait`
on. A rank may wait for several others at once, on two streams or in one MPI_Waitall: how long it
waited for each counts every nanosecond once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

import numpy as np

from traceprof import intervals
from traceprof.communication.messages import BETWEEN_TWO, DISTINCT_SIZES, FROM_ROOT, ROOTED, TO_ROOT
from traceprof.intervals import Float64, Int64, Mask
from traceprof.ranks.arrivals import Arrivals
from traceprof.ranks.matching import Group, Unmatched
from traceprof.run.session_clocks import ONE_MACHINE_NS, Clocks
from traceprof.structs import Record
from traceprof.trace.columns import Rows
from traceprof.trace.grouping import (
    DISTANCE_TO_DEVIATION,
    OF_MEDIANS,
    distinct_values,
    median_of,
    medians_of_known,
    middle_of_others,
)
from traceprof.trace.model.special_values import UNKNOWN

Scope = Literal["intra-node", "inter-node"]

# The spread of when members leave an operation, as a share of its duration: in a ring of six GPUs
# on two machines, half of it.
_LEAVING = 0.5
_RESIDENT = 0.95  # of the operations must have had all members inside at one time


class GroupWaits(Record, frozen=True):
    """Waits of the r members of a group for each other, in the m operations that they all share."""

    group: Group  # the operations
    start_ns: Int64  # int64[m, r], on the run's clock
    end_ns: Int64  # int64[m, r]
    called_ns: Int64  # int64[m, r], begin of the launch, in each report's time; -1 if unknown
    wait_ns: Int64  # int64[m, r], each member's wait for the last one
    # int64[m], the median over the members; the shortest stay where clocks are more uncertain than
    # that
    transfer_ns: Int64
    clock_error_ns: float  # standard error of the clocks' alignment, which all `transfer_ns` share
    last: Int64  # int64[m], the column of the member that came last, or for which all others wait
    late_ns: Int64  # int64[m, r], how long after the median of the others each member came
    # int64[r], how well each member's clock compares with those of the others: the median of them;
    # the largest int64 where it does not
    uncertainty_ns: Int64
    # bool[m, r], whether a member was certainly late, and came last or so little before the last
    # that the clocks cannot distinguish them
    is_last: Mask
    is_inside: Mask  # bool[m], whether the operation is in the part of all members that is shown
    is_judged: Mask  # bool[m], whether it is in the part of all members that findings are about
    is_known: Mask  # bool[m], whether it is known who waits for whom; else no wait is counted

    def __len__(self) -> int:
        return len(self.last)

    @property
    def behind_ns(self) -> Int64:
        """The time since the member before each one came, int64[m, r]; 0 for the first."""
        order = np.argsort(self.start_ns, axis=1, kind="stable")
        ordered = np.take_along_axis(self.start_ns, order, axis=1)
        behind = np.empty_like(ordered)
        np.put_along_axis(behind, order, np.diff(ordered, axis=1, prepend=ordered[:, :1]), axis=1)
        return behind

    @property
    def is_unknown(self) -> Mask:
        """Mask of the operations for which clocks are too uncertain to say who waited, bool[m]."""
        between_machines = self.uncertainty_ns[self.last] > ONE_MACHINE_NS
        return self.is_known & between_machines & ~self.is_resolved

    @property
    def is_resolved(self) -> Mask:
        """Mask of the operations whose last member was certainly late, bool[m]."""
        row = np.arange(len(self))
        late = self.late_ns[row, self.last] > self.uncertainty_ns[self.last]
        return late & self.is_known


def split_by_leaving(group: Group, arrivals: Sequence[Arrivals], clocks: Clocks) -> list[Group]:
    """Split a group that was matched by order alone into members that leave together.

    Any other group is left as it is. Two communicators may have the same number of operations of
    the same sizes. Members of one communicator leave within the uncertainty of the clocks, or
    within a fraction of the duration.
    """
    whole = group.chosen(group.is_whole & group.leaves_together)
    if group.source != "order" or len(whole) == 0:
        return [group]
    members = [arrivals[member] for member in group.members]
    end = whole.times([clocks.to_run(member.report, member.end_ns) for member in members])
    stay = whole.times([member.end_ns - member.start_ns for member in members])
    between = np.minimum(_between(members, clocks), intervals.BEYOND_NS)
    left, groups = list(range(len(members))), []
    while left:
        first = left[0]
        apart = median_of(np.abs(end - end[:, first : first + 1]), axis=0)
        shortest = median_of(np.minimum(stay, stay[:, first : first + 1]), axis=0)
        leaves = apart <= np.maximum(between[first], shortest * _LEAVING)
        alike = [column for column in left if leaves[column]]
        left = [column for column in left if not leaves[column]]
        if len(alike) > 1:
            groups.append(group.of_members(alike))
    return groups


def waits_of(group: Group, arrivals: Sequence[Arrivals], clocks: Clocks) -> GroupWaits | Unmatched:
    """Separate waiting from transfer, or return why the operations cannot be the same ones."""
    whole = group.chosen(group.is_whole)
    members = [arrivals[member] for member in group.members]
    ranks = tuple(member.rank for member in members)
    if len(whole) == 0:
        why = "no operation was captured on all of its ranks"
        return Unmatched(group.name, ranks, why)
    start, end, blocked = (
        whole.times([clocks.to_run(member.report, getattr(member, name)) for member in members])
        for name in ("start_ns", "end_ns", "blocked_ns")
    )
    between, stay = _between(members, clocks), end - blocked
    # Clocks that are too uncertain for waits: `transfer_ns` needs none.
    is_coarse = bool(between.max() > median_of(stay.min(axis=1)))
    # Without GPUs a send may end before its receive begins: sockets buffer messages.
    is_on_gpus = not group.is_mpi and all(member.device is not None for member in members)
    overlaps = whole.leaves_together | (whole.is_one_of(BETWEEN_TWO) & is_on_gpus)
    together = (start.max(axis=1) - end.min(axis=1) <= between.max())[overlaps]
    if len(together) and together.mean() < _RESIDENT:
        why = (
            f"in {np.count_nonzero(~together)} of {len(together)} operations, some rank had left"
            " before another one came: they are not the same"
        )
        return Unmatched(group.name, ranks, why)
    low, high = middle_of_others(start)
    late, num = start - (low + (high - low) // 2), len(members)
    of_others = between[~np.eye(num, dtype=np.bool_)].reshape(num, num - 1)
    uncertainty = np.sort(of_others, axis=1)[:, (num - 1) // 2].copy()  # without the others
    root = _roots(whole, members)
    last = np.where(whole.is_one_of(FROM_ROOT) & (root >= 0), root, start.argmax(axis=1))
    before_last = start.max(axis=1, keepdims=True) - start
    # Only the column of the last matters, but each has its own uncertainty.
    tied = before_last <= between[start.argmax(axis=1)]
    tied[np.arange(len(last)), last] = True
    wait = _waited(whole, (start, blocked, end), last, root, between)
    inside, judged = (
        whole.times([getattr(member, name).astype(np.int64) for member in members])
        for name in ("is_inside", "is_judged")
    )
    return GroupWaits(
        group=whole,
        start_ns=start,
        end_ns=end,
        called_ns=whole.times([member.called_ns for member in members]),
        wait_ns=wait,
        transfer_ns=stay.min(axis=1) if is_coarse else _transfer(whole, stay, wait, root),
        clock_error_ns=0.0 if is_coarse else _clock_error(end, members, clocks),
        last=last,
        late_ns=late,
        uncertainty_ns=uncertainty,
        is_last=tied & (late > uncertainty),
        is_inside=np.all(inside > 0, axis=1),
        is_judged=np.all(judged > 0, axis=1),
        is_known=(root >= 0) | ~whole.is_one_of(ROOTED),
    )


def _roots(group: Group, members: Sequence[Arrivals]) -> Int64:
    """Column of each operation's root, int64[m]; -1 if there is none or unknown."""
    root = group.times([member.root for member in members])
    root = np.where((root == root[:, :1]).all(axis=1), root[:, 0], UNKNOWN)
    columns = np.full(len(group), UNKNOWN, np.int64)
    for column, member in enumerate(members):
        columns[(root == member.rank) & group.is_one_of(ROOTED)] = column
    return columns


def _waited(
    group: Group, times: tuple[Int64, Int64, Int64], last: Int64, root: Int64, between: Int64
) -> Int64:
    """How long each member waited for the last, or the root, int64[m, r]."""
    start, blocked, end = times
    row, columns = np.arange(len(last)), np.arange(start.shape[1])
    came = start[row, last][:, np.newaxis]
    wait: Int64 = np.clip(came - blocked, 0, end - blocked)
    is_root = columns == root[:, np.newaxis]
    is_rooted = group.is_one_of(ROOTED)[:, np.newaxis]
    waits = ~is_rooted | (is_root & group.is_one_of(TO_ROOT)[:, np.newaxis])
    waits |= (root >= 0)[:, np.newaxis] & ~is_root & group.is_one_of(FROM_ROOT)[:, np.newaxis]
    had_left = group.is_one_of(BETWEEN_TWO)[:, np.newaxis] & (came - end > between[last])
    return np.where(waits & ~had_left, wait, 0)


def _clock_error(end: Int64, members: Sequence[Arrivals], clocks: Clocks) -> float:
    """Standard error of the alignment of the worst clock with the median member's.

    Clocks are aligned by the times at which members leave, which vary between operations. This
    error averages out over all operations by which the clock was measured, but not over those to
    which the same member came last. `end`: int64[m, r], on the run's clock.
    """
    machine = np.array([clocks.host_of[member.report] for member in members])
    hosts = distinct_values(machine).tolist()
    if len(hosts) < 2:
        return 0.0
    left = np.stack([median_of(end[:, machine == host], axis=1) for host in hosts], axis=1)
    apart = left - median_of(end, axis=1)[:, np.newaxis]
    distance = median_of(np.abs(apart - median_of(apart, axis=0)), axis=0)
    measured_by = np.array([clocks.hosts[host].num_operations for host in hosts])
    # The reference was compared with as many as the others were with it.
    measured_by[measured_by == 0] = max(measured_by.max(), 1)
    errors = DISTANCE_TO_DEVIATION * distance * np.sqrt(OF_MEDIANS / measured_by)
    return float(errors.max())


def _transfer(group: Group, stay: Int64, wait: Int64, root: Int64) -> Int64:
    without_wait = stay - wait
    took: Int64 = median_of(without_wait, axis=1).astype(np.int64)
    row = np.arange(len(root))
    to_root = group.is_one_of(TO_ROOT) & (root >= 0)
    took[to_root] = without_wait[row, root][to_root]
    # Receivers that came late see only the rest of the transfer: those that waited see all of it.
    from_root = np.flatnonzero(group.is_one_of(FROM_ROOT) & (root >= 0))
    if len(from_root):
        received = np.arange(stay.shape[1]) != root[from_root, np.newaxis]
        waited = received & (wait[from_root] > 0)
        chosen = np.where(waited.any(axis=1, keepdims=True), waited, received)
        took[from_root] = medians_of_known(np.where(chosen, without_wait[from_root], np.nan))
    return took


def wait_matrix(waits: Sequence[GroupWaits], num_ranks: int) -> Int64:
    """How long each rank waited for each other, int64[ranks, ranks]: row waits for column.

    Each wait is attributed to the member that came last, where the clocks show which that was. Of
    waits at once, the one that began first counts; of those, the one that ended first.
    """
    matrix = np.zeros((num_ranks, num_ranks), np.int64)
    spans: dict[int, list[tuple[Int64, ...]]] = defaultdict(list)
    for group_waits in waits:
        members = np.array(group_waits.group.members)
        certain = group_waits.is_resolved & group_waits.is_inside
        for column, member in enumerate(members.tolist()):
            chosen = np.flatnonzero(certain & (group_waits.wait_ns[:, column] > 0))
            last = group_waits.last[chosen]
            came, left = group_waits.start_ns[chosen, last], group_waits.end_ns[chosen, column]
            end = np.minimum(came, left)
            spans[member].append((end - group_waits.wait_ns[chosen, column], end, members[last]))
    for member, of_member in spans.items():
        start, end, last = map(np.concatenate, zip(*of_member, strict=True))
        order = np.lexsort((end, start))
        start, end, last = start[order], end[order], last[order]
        counted = np.maximum.accumulate(np.append(start[:1], end[:-1]))
        np.add.at(matrix[member], last, np.maximum(end - np.maximum(start, counted), 0))
    return matrix


def _between(members: Sequence[Arrivals], clocks: Clocks) -> Int64:
    """Uncertainty of comparing times of two members, int64[r, r]."""
    machine = np.array([clocks.host_of[member.report] for member in members])
    known = [clock.uncertainty_ns for clock in clocks.hosts]
    limits = [np.inf if limit is None else limit for limit in known]
    of_member = np.array(limits)[machine]
    apart = np.hypot(of_member[:, np.newaxis], of_member[np.newaxis, :])
    between = np.where(np.isfinite(apart), np.rint(np.minimum(apart, 1 << 60)), 0).astype(np.int64)
    between[~np.isfinite(apart)] = np.iinfo(np.int64).max
    between[machine[:, np.newaxis] == machine[np.newaxis, :]] = ONE_MACHINE_NS
    return between


_NO_COMPARISON = int(np.iinfo(np.int64).max)


class RankWaits(Rows, frozen=True):
    """Operations of one rank that were matched on all ranks taking part, n of them."""

    place: Int64  # int64[n], ascending: indices into the rank's `Arrivals`
    start_ns: Int64  # int64[n], when it came, on the run's clock
    wait_ns: Int64  # int64[n], the wait until the last rank came
    last: Int64  # int64[n], that rank's place among the run's ranks
    # int64[n], how well the clocks of the two compare; 0 within one report, the largest int64
    # where they do not compare
    uncertainty_ns: Int64


def waits_of_rank(
    member: int, waits: Sequence[GroupWaits], reports: Sequence[int], clocks: Clocks
) -> RankWaits:
    """Return how long the `member`-th rank waited in operations whose ranks were all recorded."""
    columns: list[tuple[Int64, ...]] = [(np.empty(0, np.int64),) * 5]
    for group_waits in waits:
        group = group_waits.group
        if member not in group.members or group.is_partial:
            continue
        column = group.members.index(member)
        rows = np.flatnonzero(group_waits.is_known)
        last = group_waits.last[rows]
        limits, own = np.zeros(len(group.members), np.int64), reports[member]
        for other in np.flatnonzero(np.bincount(last)).tolist():
            report = reports[group.members[other]]
            if report != own:
                limit = clocks.uncertainty_ns(own, report)
                limits[other] = _NO_COMPARISON if limit is None else limit
        uncertainty = limits[last]
        wait = group_waits.wait_ns[rows, column].copy()
        # On one clock it is certain: a rank that left before the other came did not wait.
        came = group_waits.start_ns[rows, last]
        has_left = (uncertainty == 0) & (came >= group_waits.end_ns[rows, column])
        wait[has_left & group.is_one_of(BETWEEN_TWO)[rows]] = 0
        place, start = group.place[rows, column], group_waits.start_ns[rows, column]
        columns.append((place, start, wait, np.array(group.members)[last], uncertainty))
    joined = [*map(np.concatenate, zip(*columns, strict=True))]
    order = np.argsort(joined[0], kind="stable")
    return RankWaits(*(column[order] for column in joined))


# Fewer times do not show how much they vary.
_MIN_TIMES = 4
_MIN_STRAYING = 0.01
# Degrees of freedom of a median distance for each time: its efficiency as a deviation
# (Rousseeuw and Croux, J. Am. Stat. Assoc. 88, 1993).
_FREEDOM = 0.37
_SURE = 2.0  # standard errors, within which 95 % lie
# nccl-tests, doc/PERFORMANCE.md. Sizes of these are of one rank; the total counts.
_OF_ALL_RANKS = ("AllGather", "ReduceScatter", "AlltoAll")


class Transfer(Record, frozen=True):
    """Waits, times and rates of a rank's matched operations of one kind on one communicator."""

    num_matched: int  # the number of operations
    wait_ns: int | None  # the sum of this rank's waits; None if clocks leave most of them open
    transfer_ns: int  # the sum of the operations' own times
    algbw_gb_per_s: float | None  # rate of operations of known size, 1e9 bytes per second
    busbw_gb_per_s: float | None  # the same times nccl-tests' factor
    latency_ns: int | None  # the latency of the model; None if it cannot be fitted
    latency_uncertainty_ns: int | None  # half of its interval of 95 %; None if it cannot be fitted
    rate_gb_per_s: float | None  # of the model, for the size that algorithm bandwidth counts
    scope: Scope | None  # whether all members are on one machine; None if that is unknown


Transfers = dict[tuple[str, str | None], Transfer]
"""By the operation's name and the communicator's, as in `analyses.collectives`."""


class Fit(Record, frozen=True):
    """The time of an operation by its size."""

    # the time at size 0; None if it is not significant against the noise of times
    latency_ns: int | None
    uncertainty_ns: int | None  # half of the latency's interval of 95 %
    rate_gb_per_s: float  # bytes per ns beyond the latency


def transfers(
    waits: Sequence[GroupWaits], arrivals: Sequence[Arrivals], machines: Sequence[str | None]
) -> dict[int, Transfers]:
    """Times and rates of operations whose ranks were all recorded, by the number of the rank."""
    parts: dict[tuple[int, str, str | None], list[tuple[GroupWaits, int, Int64]]]
    parts = defaultdict(list)
    for wait in waits:
        if wait.group.is_partial:
            continue  # nobody knows when the last rank came
        inside = np.flatnonzero(wait.is_inside & wait.is_known)
        for kind in distinct_values(wait.group.operation[inside]).tolist():
            chosen = inside[wait.group.operation[inside] == kind]
            for column, member in enumerate(wait.group.members):
                place = int(wait.group.place[chosen[0], column])
                name = arrivals[member].communicator_name(place)
                key = arrivals[member].rank, wait.group.operations[kind], name
                parts[key].append((wait, column, chosen))
    by_rank: dict[int, Transfers] = defaultdict(dict)
    for (rank, operation, communicator), of_key in parts.items():
        by_rank[rank][operation, communicator] = _transfer_of(operation, of_key, arrivals, machines)
    return by_rank


def counted_bytes(operation: str, size: Int64, num_ranks: Int64) -> tuple[Float64, Float64]:
    """Sizes that algorithm and bus bandwidth count, NaN where unknown, float64[n].

    `size`: one rank's message as NCCL counts it. `num_ranks`: of the communicator. Both are -1 if
    unknown.
    """
    known = np.where(size != UNKNOWN, size, np.nan)
    ranks = np.where(num_ranks > 0, num_ranks, np.nan)
    total = known * ranks if operation in _OF_ALL_RANKS else known
    factor = np.full(len(size), np.nan)
    if operation == "AllReduce":
        factor = 2 * (ranks - 1) / ranks
    elif operation in _OF_ALL_RANKS:
        factor = (ranks - 1) / ranks
    elif operation in ("Broadcast", "Reduce", "SendRecv"):
        factor = np.ones(len(size))
    return total, total * factor


def rate(size: Float64, durations: Int64) -> float | None:
    """Return the known sizes over their durations, in GB/s; None if there are none."""
    known = ~np.isnan(size)
    took = intervals.total(durations[known])
    return float(size[known].sum()) / took if took else None


def latency_and_rate(size: Float64, took: Int64, shared_error_ns: float = 0.0) -> Fit | None:
    """Fit t = latency + S ÷ rate to sizes in bytes and times in ns, n each.

    Each size counts once, by the median of its times. Relative errors are minimised, so that small
    messages count as much as large ones. The variance of the latency follows from the variance of
    times of one size and of the medians around the line (least squares: the covariance is (XᵀX)⁻¹
    Xᵀ diag(σ²) X (XᵀX)⁻¹). `shared_error_ns`, the standard error of what all times have in common,
    is added: it is all latency. A latency that is not significant is None, and so is the fit if the
    sizes are too similar, the times too few, or times do not grow with size.
    """
    known = ~np.isnan(size) & (took > 0) & (size > 0)
    sizes, which, count = np.unique(size[known], return_inverse=True, return_counts=True)
    if len(sizes) < 2 or sizes[-1] < DISTINCT_SIZES * sizes[0] or len(which) < _MIN_TIMES:
        return None
    times = np.array([median_of(took[known][which == index]) for index in range(len(sizes))])
    columns = np.stack((1 / times, sizes / times), axis=1)
    (latency, per_byte), *_ = np.linalg.lstsq(columns, np.ones(len(sizes)), rcond=None)
    misfit = 1 - columns @ np.array([latency, per_byte])
    inverse = np.linalg.pinv(columns)
    error = _SURE * float(np.sqrt(inverse[0] ** 2 @ _variance(took[known], which, count, times)))
    if len(sizes) > 2:  # two points are always on a line
        freedom = len(sizes) - 2
        squares = np.full(len(sizes), (misfit**2).sum() / freedom)
        student = 1.0
        if len(sizes) == len(which):  # the misfit is all that shows how times vary
            # Not by as much for all sizes: HC3 of MacKinnon and White (J. Econometrics 29, 1985).
            free = np.maximum(1 - (columns.T * inverse).sum(axis=0), np.finfo(np.float64).eps)
            squares = np.maximum(squares, (misfit / free) ** 2)
            student = float(_student(np.array(freedom)))
        error = max(error, _SURE * student * float(np.sqrt(inverse[0] ** 2 @ squares)))
    error = float(np.hypot(error, _SURE * shared_error_ns))
    if latency > error:
        is_growing = per_byte > 0
        return Fit(round(latency), round(error), 1 / float(per_byte)) if is_growing else None
    ratio = sizes / times  # no latency to be seen: all is rate
    return Fit(None, None, float((ratio**2).sum() / ratio.sum()))


def _variance(took: Int64, which: Int64, count: Int64, times: Float64) -> Float64:
    """Relative variance of the median time of each size, float64[sizes].

    `which`: the size of each of n times. `count` and `times`: number and median of each size.
    """
    apart = np.abs(took - times[which])
    residual = np.array([median_of(apart[which == index]) for index in range(len(count))]) / times
    few, enough = np.flatnonzero(count < _MIN_TIMES), np.flatnonzero(count >= _MIN_TIMES)
    residual[enough] *= _student((_FREEDOM * count[enough]).astype(np.float64))
    # Few times of one size do not show how they vary: those of other sizes do.
    if len(enough):  # larger sizes vary at least as much in ns, smaller ones in shares
        beside = enough[np.minimum(np.searchsorted(enough, few), len(enough) - 1)]
        residual[few] = residual[beside] * np.maximum(times[beside] / times[few], 1)
    elif len(took) > len(count):  # each size took one median from its times; one time shows nothing
        freedom, shown = len(took) - len(count), count[which] > 1
        share, left = median_of((apart / times[which])[shown]), median_of(apart[shown])
        correction = np.sqrt(shown.sum() / freedom) * _student(np.array(_FREEDOM * freedom))
        residual = np.maximum(share, left / times) * correction
    sigma = np.maximum(DISTANCE_TO_DEVIATION * residual, _MIN_STRAYING)
    return sigma**2 * np.where(count > 2, OF_MEDIANS, 1) / count


def _student(freedom: Float64) -> Float64:
    """Student's quantile of 97.5 % over the normal one, by degrees of freedom."""
    # The first terms of its series: Abramowitz and Stegun, 26.7.5.
    return 1 + 1.21 / freedom + 1.44 / freedom**2


def _transfer_of(
    operation: str,
    parts: Sequence[tuple[GroupWaits, int, Int64]],
    arrivals: Sequence[Arrivals],
    machines: Sequence[str | None],
) -> Transfer:
    size = np.concatenate([waits.group.bytes[chosen] for waits, _, chosen in parts])
    took = np.concatenate([waits.transfer_ns[chosen] for waits, _, chosen in parts])
    num_ranks = np.concatenate(
        [
            np.full(len(chosen), max(waits.group.num_ranks, len(waits.group.members)))
            for waits, _, chosen in parts
        ]
    )
    total, bus = counted_bytes(operation, size, num_ranks)
    fit = latency_and_rate(total, took, max(waits.clock_error_ns for waits, *_ in parts))
    reports = {arrivals[member].report for waits, *_ in parts for member in waits.group.members}
    hosts = {machines[report] for report in reports}
    scope: Scope = "intra-node" if len(hosts) == 1 else "inter-node"
    num_unknown = sum(int(waits.is_unknown[chosen].sum()) for waits, _, chosen in parts)
    waited = [intervals.total(waits.wait_ns[chosen, column]) for waits, column, chosen in parts]
    return Transfer(
        num_matched=len(took),
        wait_ns=None if 2 * num_unknown > len(took) else sum(waited),
        transfer_ns=intervals.total(took),
        algbw_gb_per_s=rate(total, took),
        busbw_gb_per_s=rate(bus, took),
        latency_ns=None if fit is None else fit.latency_ns,
        latency_uncertainty_ns=None if fit is None else fit.uncertainty_ns,
        rate_gb_per_s=None if fit is None else fit.rate_gb_per_s,
        scope=None if len(reports) > 1 and None in hosts else scope,
    )
