"""The ranks of a run on one clock: matched operations, and waits of ranks for each other."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import field

from traceprof.ranks.clocks import measured
from traceprof.ranks.lateness import lateness
from traceprof.ranks.matching import Unmatched, match
from traceprof.ranks.transfers import transfers
from traceprof.ranks.waits import (
    GroupWaits,
    RankWaits,
    mpi_matrix,
    mpi_waits,
    split_by_leaving,
    wait_matrix,
    waits_of,
    waits_of_rank,
)
from traceprof.structs import Record
from traceprof.trace.grouping import median_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceprof.intervals import Int64
    from traceprof.ranks.arrivals import Arrivals
    from traceprof.ranks.lateness import Lateness
    from traceprof.ranks.transfers import OperationKind, Transfer
    from traceprof.ranks.waits import MpiWaits
    from traceprof.run.opening import RunSummary
    from traceprof.run.session_clocks import Clocks


class RankComparison(Record, frozen=True, dict=True):
    """The ranks of a run compared: matched operations, waits and lateness."""

    ranks: tuple[int, ...]  # the numbers of the ranks
    reports: tuple[int, ...]  # for each rank, the index of its report
    machines: tuple[str, ...]  # for each rank, the name of its machine
    clocks: Clocks  # the clocks of the run
    waits: tuple[GroupWaits, ...]  # waits of ranks for each other, by group
    unmatched: tuple[Unmatched, ...]  # operations that were not matched, and why
    # times and rates of operations once all ranks were there
    transfers: dict[OperationKind, Transfer]
    lateness: tuple[Lateness, ...]  # the lateness of each rank that shares operations with others
    window_ns: int  # the median length of the windows of ranks with operations; 0 without any
    # of ranks with calls of MPI that were matched, by their number
    mpi_waits: Mapping[int, MpiWaits] = field(default_factory=dict)
    # int64[ranks, ranks], the part of `matrix_ns` in MPI; None without any
    mpi_matrix_ns: Int64 | None = None

    @property
    def matrix_ns(self) -> Int64:
        """How long the row's rank waited for the column's, int64[ranks, ranks]; not kept."""
        others = [wait for wait in self.waits if not wait.group.is_mpi]
        matrix = wait_matrix(others, len(self.ranks))
        if self.mpi_matrix_ns is not None:
            matrix += self.mpi_matrix_ns
        return matrix

    def are_waits_unknown(self, member: int) -> bool:
        """Whether the clocks leave open who waited in most of a rank's operations."""
        of_member = [wait for wait in self.waits if member in wait.group.members]
        num_unknown = sum(int((wait.is_unknown & wait.is_inside).sum()) for wait in of_member)
        return 2 * num_unknown > sum(int(wait.is_inside.sum()) for wait in of_member)

    def transfers_of(self, rank: int) -> dict[tuple[str, str | None], Transfer]:
        """Return the transfers of a rank, by operation and communicator."""
        return self._transfers_by_rank.get(rank, {})

    @cached_property
    def _transfers_by_rank(self) -> dict[int, dict[tuple[str, str | None], Transfer]]:
        by_rank: dict[int, dict[tuple[str, str | None], Transfer]] = {}
        for key, transfer in self.transfers.items():
            of_rank = by_rank.setdefault(self.ranks[key.member], {})
            of_rank[key.operation, key.communicator] = transfer
        return by_rank

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
    certain = [
        part
        for group in groups
        for part in (
            split_by_leaving(group, arrivals, clocks) if group.source == "order" else [group]
        )
    ]
    checked = [waits_of(group, arrivals, clocks) for group in certain]
    waits = [result for result in checked if isinstance(result, GroupWaits)]
    unmatched += [result for result in checked if isinstance(result, Unmatched)]
    in_mpi = [wait for wait in waits if wait.group.is_mpi]
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
        mpi_waits=mpi_waits(in_mpi, arrivals),
        mpi_matrix_ns=mpi_matrix(in_mpi, arrivals) if in_mpi else None,
        lateness=tuple(lateness(waits, arrivals)),
        window_ns=int(median_of(windows)) if windows else 0,
    )
