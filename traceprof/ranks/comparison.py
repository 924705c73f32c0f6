"""The ranks of a run on one clock: matched operations, and waits of ranks for each other.

The clocks of two machines are aligned by operations that all members leave together: their ends
differ by the difference of the clocks, and some microseconds that vary between operations. A line
through these differences gives offset and drift. The uncertainty is the size of the residuals, or,
if that is less, how much the line may be moved before a member would leave an operation before
another one came. The line is made of medians, so that single outliers do not matter (the slope is
Theil and Sen's: the median of the slopes between pairs; P. K. Sen, J. Am. Stat. Assoc. 63, 1968).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from traceprof.communication.messages import BETWEEN_TWO
from traceprof.intervals import Float64, Int64, Mask
from traceprof.ranks.arrivals import Arrivals
from traceprof.ranks.lateness import Lateness, lateness
from traceprof.ranks.matching import Group, Unmatched, match, spread
from traceprof.ranks.waits import (
    GroupWaits,
    RankWaits,
    Transfers,
    split_by_leaving,
    transfers,
    wait_matrix,
    waits_of,
    waits_of_rank,
)
from traceprof.run.opening import RunSummary
from traceprof.run.session_clocks import ONE_MACHINE_NS, Clocks, MachineClock
from traceprof.structs import Record
from traceprof.trace.grouping import (
    DISTANCE_TO_DEVIATION,
    OF_MEDIANS,
    distinct_values,
    median_of,
    quantiles_of,
)

# Crystals of servers keep time to some tens of millionths: a larger drift is not the clock's.
_MAX_DRIFT = 200e-6
# A slope between operations that are close together is noise.
_MIN_FOR_DRIFT = 12
_PAIRS = 4096
_MAX_TIMES_BEST = 3.0  # what residuals may be of those of the best group
_QUANTILE = 0.95
_UNSURE = ("order", "mpi")  # sources of groups
_NO_BOUND_NS = 1 << 60  # later or earlier than any time
_MIN_UNBUFFERED = 1 << 20  # bytes of a message whose sides end together: NCCL buffers less


class _Ends(NamedTuple):
    """Ends of a group's m operations on h machines, on clocks aligned by the sessions' starts."""

    # int64[3, m, h], the median of when the machine's members left, when the last of them came,
    # and when the first of them left
    times: Int64
    apart: Int64  # int64[m, h], how far apart they left
    column: dict[int, int]  # the column of each machine
    is_sure: bool  # whether more than the order tells that these are the same operations


def measured(clocks: Clocks, arrivals: Sequence[Arrivals], groups: Sequence[Group]) -> Clocks:
    """Return the clocks, aligned by operations that all members leave together.

    The machine of a run's first report is the reference of those that share operations with it, and
    so on. Operations that only their order matches join a machine where no others do.
    """
    sure: dict[int, list[_Ends]] = defaultdict(list)
    ends: dict[int, list[_Ends]] = defaultdict(list)
    for group_ends in _ends_by_machine(clocks, arrivals, groups):
        for machine in group_ends.column:
            ends[machine].append(group_ends)
            if group_ends.is_sure:
                sure[machine].append(group_ends)
    machines = list(clocks.hosts)
    reached = {
        index: MachineClock(machines[index].host, "reference", 0, 0.0, 0, 0, 0)
        for index in clocks.references
    }
    unsure, frontier = [*reached], [*reached]
    while unsure:
        known, shared = (frontier.pop(0), sure) if frontier else (unsure[0], ends)
        beside = {machine for group_ends in shared[known] for machine in group_ends.column}
        new = sorted(beside - reached.keys())
        if shared is ends:
            unsure, new = unsure[not new :], new[:1]
        for machine in new:
            of_both = _shared(shared[known], known, machine)
            reached[machine] = _fitted(machines[machine].host, of_both, reached[known])
        frontier += new
        unsure += new
    return replace(
        clocks, hosts=tuple(reached.get(index, clock) for index, clock in enumerate(machines))
    )


def _ends_by_machine(
    clocks: Clocks, arrivals: Sequence[Arrivals], groups: Sequence[Group]
) -> list[_Ends]:
    """When each group's members on each machine left, and the spread of their exits."""
    # The two sides of a message end together if it is too large to be buffered. Groups known by
    # their order alone may mix several communicators, and hosts leave calls of MPI far apart. Each
    # is used only for machines that nothing better connects, longest first.
    ends: list[_Ends] = []
    connected = [*range(len(clocks.hosts))]  # for each machine, the first one it is connected with
    ordered = sorted(
        groups,
        key=lambda group: (group.source in _UNSURE, bool(_messages(group).any()), -len(group)),
    )
    for group in ordered:
        of_messages = _messages(group)
        are_messages = bool(of_messages.any()) and all(
            arrivals[member].device is not None for member in group.members
        )
        shared = of_messages if are_messages else group.leaves_together
        together = group.chosen(shared & group.is_whole)
        members = [arrivals[member] for member in group.members]
        machine_of = [clocks.host_of[member.report] for member in members]
        column = {machine: index for index, machine in enumerate(dict.fromkeys(machine_of))}
        first_of = {connected[machine] for machine in column}
        is_superfluous = (group.source in _UNSURE or are_messages) and len(first_of) == 1
        if len(column) < 2 or len(together) == 0 or is_superfluous:
            continue
        end = together.times([member.end_ns + clocks.seeds_ns[member.report] for member in members])
        duration = together.times([member.end_ns - member.start_ns for member in members])
        times, apart = [], []
        connected = [min(first_of) if one in first_of else one for one in connected]
        for machine in column:
            indices = [index for index, other in enumerate(machine_of) if other == machine]
            left = end[:, indices]
            # With a single member, only the time that it was inside limits when it left.
            alone = duration[:, indices].min(axis=1)
            apart.append(alone if len(indices) == 1 else left.max(axis=1) - left.min(axis=1))
            # A sender may leave before the receiver has come: the message may be buffered.
            latest = (left - duration[:, indices]).max(axis=1) - are_messages * _NO_BOUND_NS
            first = left.min(axis=1) + are_messages * _NO_BOUND_NS
            times.append(np.stack((median_of(left, axis=1).astype(np.int64), latest, first)))
        is_sure = group.source not in _UNSURE
        ends.append(_Ends(np.stack(times, axis=2), np.stack(apart, axis=1), column, is_sure))
    return ends


def _messages(group: Group) -> Mask:
    """Messages between two ranks that no buffer holds, bool[m]."""
    large: Mask = group.is_one_of(BETWEEN_TWO) & (group.bytes >= _MIN_UNBUFFERED)
    large |= group.source == "ends"
    return large if len(group.members) == 2 else large & False


def _shared(ends: Sequence[_Ends], known: int, machine: int) -> tuple[Int64, Int64, Int64]:
    """Times of shared operations on the known clock and on the other, int64[3, n], and `apart`."""
    shared = [
        (
            one.times[..., one.column[known]],
            one.times[..., one.column[machine]],
            np.maximum(one.apart[:, one.column[known]], one.apart[:, one.column[machine]]),
        )
        for one in ends
        if known in one.column and machine in one.column
    ]
    # Operations that were matched wrongly do not end together: groups with large residuals are left
    # out.
    residuals = [
        spread((reference[0] - measured[0]).astype(np.float64)) for reference, measured, _ in shared
    ]
    limit = _MAX_TIMES_BEST * min(residuals) + ONE_MACHINE_NS
    groups = [group for group, residual in zip(shared, residuals, strict=True) if residual <= limit]
    reference, measured, apart = (
        np.concatenate(parts, axis=-1) for parts in zip(*groups, strict=True)
    )
    order = np.argsort(reference[0], kind="stable")
    return reference[:, order], measured[:, order], apart[order]


def _fitted(host: str, shared: tuple[Int64, Int64, Int64], known: MachineClock) -> MachineClock:
    reference, measured, members_apart = known.corrected(shared[0]), *shared[1:]
    at = int(median_of(measured[0]))
    apart = (reference[0] - measured[0]).astype(np.float64)
    since = (measured[0] - at).astype(np.float64)
    drift = _slope(since, apart)
    residuals = apart - drift * since - median_of(apart - drift * since)
    unsure = _unsure_slope(since, residuals)
    if 2 * unsure > _MAX_DRIFT:  # which noise may be
        drift = 0.0
    offset = float(median_of(apart - drift * since))
    distance = np.abs(apart - drift * since - offset)
    # One or two operations do not show how much ends vary: the spread on one machine does.
    residual = float(quantiles_of(distance, (_QUANTILE,))[0])
    if len(since) < 3:
        residual = max(residual, float(median_of(members_apart)))
    # No member leaves before the last has come, on whatever machine: as request and reply bound
    # clocks in NTP (RFC 5905), so do they. Threads leave further apart than that, GPUs seldom do.
    slack = unsure * np.abs(since) + ONE_MACHINE_NS
    low = float((reference[1] - measured[2] - drift * since - slack).max())
    high = float((reference[2] - measured[1] - drift * since + slack).min())
    if low <= high:
        middle, offset = offset, min(max(offset, low), high)
        bound = max(high - offset, offset - low, abs(middle - offset))
        bound += unsure * float(np.abs(since).max())
        residual = min(residual, bound)
    uncertainty = float(np.hypot(residual, known.uncertainty_ns or 0))
    return MachineClock(
        host, "operations", round(offset), drift, at, max(round(uncertainty), 1), len(since)
    )


def _unsure_slope(since: Float64, residuals: Float64) -> float:
    span = float(np.ptp(since))
    if len(since) < _MIN_FOR_DRIFT or span <= 0:
        return _MAX_DRIFT
    # Each of two halves has n ÷ 2 points, half the span apart.
    sigma = DISTANCE_TO_DEVIATION * float(median_of(np.abs(residuals)))
    error = np.sqrt(OF_MEDIANS * 2 * sigma**2 / (len(since) / 2)) / (span / 2)
    return min(2 * float(error), _MAX_DRIFT)


def _slope(x: Float64, y: Float64) -> float:
    if len(x) < _MIN_FOR_DRIFT:
        return 0.0
    half = len(x) // 2
    index = distinct_values(np.linspace(0, half - 1, min(half, _PAIRS)).astype(np.int64))
    run = x[index + half] - x[index]
    rising = run > 0
    slope = float(median_of((y[index + half] - y[index])[rising] / run[rising]))
    return slope if abs(slope) <= _MAX_DRIFT else 0.0


class RankComparison(Record, frozen=True):
    """The ranks of a run compared: matched operations, waits and lateness."""

    ranks: tuple[int, ...]  # the numbers of the ranks
    reports: tuple[int, ...]  # for each rank, the index of its report
    machines: tuple[str, ...]  # for each rank, the name of its machine
    clocks: Clocks  # the clocks of the run
    waits: tuple[GroupWaits, ...]  # waits of ranks for each other, by group
    unmatched: tuple[Unmatched, ...]  # operations that were not matched, and why
    # times and rates once all ranks were there, by rank, then by operation and communicator
    transfers: Mapping[int, Transfers]
    lateness: tuple[Lateness, ...]  # the lateness of each rank that shares operations with others
    window_ns: int  # the median length of the windows of ranks with operations; 0 without any

    @property
    def matrix_ns(self) -> Int64:
        """How long the row's rank waited for the column's, int64[ranks, ranks]; not kept."""
        return wait_matrix(self.waits, len(self.ranks))

    def are_waits_unknown(self, member: int) -> bool:
        """Whether the clocks leave open who waited in most of a rank's operations."""
        of_member = [wait for wait in self.waits if member in wait.group.members]
        num_unknown = sum(int((wait.is_unknown & wait.is_inside).sum()) for wait in of_member)
        return 2 * num_unknown > sum(int(wait.is_inside.sum()) for wait in of_member)

    def waits_of(self, rank: int) -> RankWaits:
        """Return how long a rank waited in each kernel or range matched on all of its ranks."""
        waits = [wait for wait in self.waits if not wait.group.is_mpi]
        return waits_of_rank(self.ranks.index(rank), waits, self.reports, self.clocks)


def compare_ranks(run: RunSummary, arrivals: Sequence[Arrivals]) -> RankComparison:
    """Bring the ranks of a run onto one clock, and measure their waits for each other."""
    seeds = run.clocks
    groups, unmatched = match(
        arrivals,
        [seeds.seeds_ns[arrival.report] for arrival in arrivals],
        [seeds.host_of[arrival.report] for arrival in arrivals],
        [run.run_numbers[arrival.report] for arrival in arrivals],
    )
    clocks = measured(seeds, arrivals, groups)
    checked = [
        waits_of(part, arrivals, clocks)
        for group in groups
        for part in split_by_leaving(group, arrivals, clocks)
    ]
    waits = [result for result in checked if isinstance(result, GroupWaits)]
    unmatched += [result for result in checked if isinstance(result, Unmatched)]
    others = [wait for wait in waits if not wait.group.is_mpi]
    machines = run.machines
    windows = [arrival.window_ns for arrival in arrivals if len(arrival)]
    return RankComparison(
        ranks=tuple(arrival.rank for arrival in arrivals),
        reports=tuple(arrival.report for arrival in arrivals),
        machines=tuple(
            machines[arrival.report] or clocks.of(arrival.report).host for arrival in arrivals
        ),
        clocks=clocks,
        waits=tuple(waits),
        unmatched=tuple(unmatched),
        transfers=transfers(others, arrivals, machines),
        lateness=tuple(lateness(waits, arrivals)),
        window_ns=int(median_of(windows)) if windows else 0,
    )
