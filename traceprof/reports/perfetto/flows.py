"""Numbers shared by events: of an operation on different ranks, of a launch and what it starts."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from traceprof.communication.messages import messages
from traceprof.run.rank import CpuRank

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceprof.intervals import Int64
    from traceprof.ranks.comparison import RankComparison
    from traceprof.reports.perfetto.packets import Value
    from traceprof.reports.tracks import Track
    from traceprof.run.rank import Rank

    Flows = Mapping[int, tuple[tuple[int, ...], Mapping[str, Value]]]


def first_flows(comparison: RankComparison) -> list[int]:
    """Return for each group of matched operations the number of its first: they count from 1."""
    lengths = [len(waits) for waits in comparison.waits]
    return [1, *(1 + np.cumsum(lengths)).tolist()][: len(lengths)]


def flows_of(rank: Rank, comparison: RankComparison) -> Flows:
    """Return the numbers of a rank's matched operations, and what is known of the meeting.

    Args:
        rank: the rank.
        comparison: of the run's ranks.

    Returns:
        By index of the kernel or, without a GPU, of the operation. `wait_ns` is the rank's wait for
        the last one; it is left out if it is unknown.
    """
    flows: dict[int, tuple[tuple[int, ...], dict[str, Value]]] = defaultdict(lambda: ((), {}))
    if rank.rank not in comparison.ranks:
        return flows
    index = _index_of_arrivals(rank)
    member = comparison.ranks.index(rank.rank)
    for first, waits in zip(first_flows(comparison), comparison.waits, strict=True):
        if member not in waits.group.members:
            continue
        column = waits.group.members.index(member)
        is_known = (waits.is_known & ~waits.is_unknown).tolist()
        operations = index[waits.group.place[:, column]].tolist()
        last = [comparison.ranks[waits.group.members[one]] for one in waits.last.tolist()]
        for row, (operation, wait_ns) in enumerate(
            zip(operations, waits.wait_ns[:, column].tolist(), strict=True)
        ):
            numbers, notes = flows[operation]
            if is_known[row]:
                notes = {"wait_ns": wait_ns, "last_rank": last[row]}
            flows[operation] = (*numbers, first + row), notes
    return flows


def _index_of_arrivals(rank: Rank) -> Int64:
    """Return which kernel or operation each of the rank's `Arrivals` is, int64[n]."""
    if isinstance(rank, CpuRank):
        return np.flatnonzero(rank.work.operations.is_over)
    return messages(rank).kernel


@dataclass(frozen=True, slots=True)
class LaunchFlows:
    """Numbers that operations of a rank's GPU share with the calls that launched them.

    Attributes:
        number: int64[n] of operations, one kind after the other; 0 for those without a call.
        by_call: int64[m], those of all ranks of the process, in the order of the calls.
        call: int64[m], ascending, the call of each.
    """

    number: Int64
    by_call: Int64
    call: Int64

    def of(self, track: Track) -> list[tuple[int, ...]]:
        """Return the numbers of the events of a track."""
        if len(track) == 0 or track.row[0] < 0:
            return [()] * len(track)
        if not track.is_host:
            return [(number,) if number else () for number in self.number[track.row].tolist()]
        first, stop = (np.searchsorted(self.call, track.row, side).tolist() for side in _SIDES)
        return [
            tuple(self.by_call[begin:end].tolist()) if begin < end else ()
            for begin, end in zip(first, stop, strict=True)
        ]


_SIDES: tuple[Literal["left"], Literal["right"]] = "left", "right"


def launch_flows(rank: Rank, ranks: Sequence[Rank], comparison: RankComparison) -> LaunchFlows:
    """Return the numbers of a rank's launches: they follow those of matched operations.

    Args:
        rank: the rank.
        ranks: of the run, in an order that is the same for each of them.
        comparison: of the run's ranks.
    """
    base = 1 + sum(len(waits) for waits in comparison.waits)
    own = np.empty(0, np.int64)
    calls, numbers = [own], [own]
    for other in ranks:
        if not isinstance(other, CpuRank):
            if (other.report, other.process) == (rank.report, rank.process):
                call = np.concatenate(other.launched_by)
                number = np.where(call >= 0, base + np.arange(len(call)), 0)
                own = number if other is rank else own
                calls.append(call[call >= 0])
                numbers.append(number[call >= 0])
            base += len(other.operations)
    call, number = np.concatenate(calls), np.concatenate(numbers)
    order = np.argsort(call, kind="stable")
    return LaunchFlows(own, number[order], call[order])
