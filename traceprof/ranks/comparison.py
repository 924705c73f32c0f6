"""The ranks of a run on one clock: which operations belong together, and who waited for whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traceprof.ranks.clocks import measured
from traceprof.ranks.lateness import lateness
from traceprof.ranks.matching import Unmatched, match
from traceprof.ranks.transfers import transfers
from traceprof.ranks.waits import GroupWaits, split_by_leaving, wait_matrix, waits_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.intervals import Int64
    from traceprof.ranks.arrivals import Arrivals
    from traceprof.ranks.lateness import Lateness
    from traceprof.ranks.transfers import Key, Transfer
    from traceprof.run.opening import RunSummary
    from traceprof.run.session_clocks import Clocks


@dataclass(frozen=True)
class RankComparison:
    """How the ranks of a run met.

    Attributes:
        ranks: their numbers.
        machines: of each rank, the name of its machine.
        clocks: of the run.
        waits: who waited for whom, by group.
        unmatched: operations that were not matched, and why.
        transfers: what operations took once all ranks were there.
        matrix_ns: int64[ranks, ranks], how long the row's rank waited for the column's.
        lateness: of each rank that shares operations with others.
        window_ns: the median length of the ranks' windows.
    """

    ranks: tuple[int, ...]
    machines: tuple[str, ...]
    clocks: Clocks
    waits: tuple[GroupWaits, ...]
    unmatched: tuple[Unmatched, ...]
    transfers: dict[Key, Transfer]
    matrix_ns: Int64
    lateness: tuple[Lateness, ...]
    window_ns: int

    def transfers_of(self, rank: int) -> dict[tuple[str, str | None], Transfer]:
        """Return what the operations of a rank took, by operation and communicator.

        Args:
            rank: its number.
        """
        member = self.ranks.index(rank)
        return {
            (key.operation, key.communicator): transfer
            for key, transfer in self.transfers.items()
            if key.member == member
        }


def compare_ranks(run: RunSummary, arrivals: Sequence[Arrivals]) -> RankComparison:
    """Bring the ranks of a run onto one clock and see who waited for whom.

    Args:
        run: the reports and their ranks.
        arrivals: of the ranks that have the window asked for.
    """
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
    return RankComparison(
        ranks=tuple(arrival.rank for arrival in arrivals),
        machines=tuple(clocks.of(arrival.report).host for arrival in arrivals),
        clocks=clocks,
        waits=tuple(waits),
        unmatched=tuple(unmatched),
        transfers=transfers(waits, arrivals, clocks),
        matrix_ns=wait_matrix(waits, len(arrivals)),
        lateness=tuple(lateness(waits, arrivals)),
        window_ns=int(np.median([arrival.window_ns for arrival in arrivals])) if arrivals else 0,
    )
