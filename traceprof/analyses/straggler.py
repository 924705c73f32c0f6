"""Ranks that come last again and again, and why: the whole run on one clock.

Findings are about the root: where a rank is late because it waited for another one itself, the
other one is the straggler.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from traceprof.analyses import straggler_texts as texts
from traceprof.findings import (
    MAX_EVIDENCE,
    Evidence,
    Finding,
    Metric,
    NotApplicable,
    severity_of_cost,
)
from traceprof.ranks import arrivals as arrivals_of_ranks
from traceprof.ranks.causes import Cause, Causes
from traceprof.ranks.clocks import measured
from traceprof.ranks.lateness import Lateness, lateness
from traceprof.ranks.matching import Unmatched, match
from traceprof.ranks.transfers import Key, Transfer, transfers
from traceprof.ranks.waits import GroupWaits, split_by_leaving, wait_matrix, waits_of
from traceprof.units import duration, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.intervals import Int64
    from traceprof.ranks.arrivals import Arrivals
    from traceprof.run.opening import RunSummary
    from traceprof.run.session_clocks import Clocks

IDS: tuple[str, ...] = ("straggler",)
OF = arrivals_of_ranks
EXPLANATIONS = texts.EXPLANATIONS

# Operations whose causes are looked for, from the latest ones of each rank to the least late, so
# that their median is that of all: enough for a majority.
_MAX_CAUSES = 64


@dataclass(frozen=True)
class Straggler:
    """A rank that many waits go back to.

    Attributes:
        member: index of the rank, the root.
        lateness: of the rank that came last because of it, itself or another one.
        what: why the root was late, as `causes.Cause` tells.
        num_alike: how many of the operations looked at have this root and cause.
        num_looked_at: operations.
        late_ns: how late the root was at the median of these.
        worst: the latest of these.
    """

    member: int
    lateness: Lateness
    what: str
    num_alike: int
    num_looked_at: int
    late_ns: int
    worst: tuple[Cause, ...]


@dataclass(frozen=True)
class RanksResult:
    """How the ranks of a run met.

    Attributes:
        ranks: their numbers.
        hosts: of each rank, the name of its machine.
        clocks: of the run.
        waits: who waited for whom, by group.
        unmatched: operations that were not matched, and why.
        transfers: what operations took once all were there.
        matrix_ns: int64[ranks, ranks], how long the row's rank waited for the column's.
        lateness: of each rank that shares operations with others.
        stragglers: the ranks that others' waits go back to.
        window_ns: the median length of the ranks' windows.
    """

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    clocks: Clocks
    waits: tuple[GroupWaits, ...]
    unmatched: tuple[Unmatched, ...]
    transfers: dict[Key, Transfer]
    matrix_ns: Int64
    lateness: tuple[Lateness, ...]
    stragglers: tuple[Straggler, ...]
    window_ns: int


def run(run: RunSummary, measured_of: Sequence[Arrivals]) -> RanksResult:
    """Bring the ranks of a run onto one clock and see who waited for whom.

    Args:
        run: the reports and their ranks.
        measured_of: of the ranks that have the window asked for.
    """
    arrivals, seeds = measured_of, run.clocks
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
    waits = [each for each in checked if isinstance(each, GroupWaits)]
    unmatched += [each for each in checked if isinstance(each, Unmatched)]
    late = lateness(waits, arrivals)
    return RanksResult(
        ranks=tuple(arrival.rank for arrival in arrivals),
        hosts=tuple(clocks.of(arrival.report).host for arrival in arrivals),
        clocks=clocks,
        waits=tuple(waits),
        unmatched=tuple(unmatched),
        transfers=transfers(waits, arrivals, clocks),
        matrix_ns=wait_matrix(waits, len(arrivals)),
        lateness=tuple(late),
        stragglers=tuple(_stragglers(late, waits, arrivals)),
        window_ns=int(np.median([arrival.window_ns for arrival in arrivals])) if arrivals else 0,
    )


def transfers_of(result: RanksResult, rank: int) -> dict[tuple[str, str | None], Transfer]:
    """Return what the operations of a rank took, by operation and communicator.

    Args:
        result: of the run.
        rank: its number.
    """
    member = result.ranks.index(rank)
    return {
        (key.operation, key.communicator): transfer
        for key, transfer in result.transfers.items()
        if key.member == member
    }


def _stragglers(
    late: Sequence[Lateness], waits: Sequence[GroupWaits], arrivals: Sequence[Arrivals]
) -> list[Straggler]:
    """Return one straggler for each root, by the rank whose lateness costs most."""
    causes = Causes(waits, arrivals)
    by_root: dict[int, Straggler] = {}
    for each in sorted(late, key=lambda each: -each.total_ns):
        if not each.num_last or not each.is_habit(_num_others(each, waits) + 1):
            continue
        found = _root(each, causes)
        if found is not None and found.member not in by_root:
            by_root[found.member] = found
    return list(by_root.values())


def _num_others(late: Lateness, waits: Sequence[GroupWaits]) -> int:
    """Return with how many others the rank shares the operations to which it was last."""
    numbers = np.unique(late.operations[:, 0]).tolist()
    return max(len(waits[number].group.members) for number in numbers) - 1


def _root(late: Lateness, causes: Causes) -> Straggler | None:
    """Return what most of a rank's latenesses go back to, weighed by how late it was."""
    found: dict[tuple[int, str], list[Cause]] = defaultdict(list)
    looked_at = 0
    last = len(late.operations) - 1
    chosen = np.unique(np.linspace(0, last, min(last + 1, _MAX_CAUSES)).astype(np.int64))
    for number, row, column in late.operations[chosen].tolist():
        cause = causes.of(number, row, column)
        if cause is not None:
            found[cause.root, cause.what].append(cause)
            looked_at += 1
    if not found:
        return None
    (member, what), alike = max(
        found.items(), key=lambda item: sum(cause.late_ns for cause in item[1])
    )
    return Straggler(
        member=member,
        lateness=late,
        what=what,
        num_alike=len(alike),
        num_looked_at=looked_at,
        late_ns=int(np.median([each.late_ns for each in alike])),
        worst=tuple(alike[:MAX_EVIDENCE]),
    )


def findings(result: RanksResult) -> list[Finding | NotApplicable]:
    """Judge the stragglers by what the others' waiting costs."""
    found: list[Finding | NotApplicable] = []
    for straggler in result.stragglers:
        late = straggler.lateness
        impact = min(late.total_ns, result.window_ns)
        fraction = impact / result.window_ns if result.window_ns else 0.0
        severity = severity_of_cost(fraction)
        if severity is None:
            continue
        rank = result.ranks[straggler.member]
        via = straggler.worst[0].via
        metrics: dict[str, Metric] = {
            "rank": rank,
            "lateness_ns": straggler.late_ns,
            "share_last": late.share_last,
            "clock_uncertainty_ns": late.uncertainty_ns,
            "cause": straggler.what,
            "num_operations": late.num_operations,
            "host": result.hosts[straggler.member],
            "coverage": late.coverage,
        }
        held_up = f", and holds up rank {result.ranks[via[0]]}, which comes last" if via else ""
        found.append(
            Finding(
                IDS[0],
                severity,
                rank,
                f"On {result.hosts[straggler.member]}, it comes {duration(straggler.late_ns)} later"
                f" than the others{held_up}: last in {percent(late.share_last)} of"
                f" {late.num_operations} operations; {texts.BECAUSE[straggler.what]}",
                impact,
                fraction,
                metrics,
                tuple(
                    Evidence(
                        cause.start_ns,
                        cause.end_ns,
                        f"{duration(cause.late_ns)} late: {texts.BECAUSE[cause.what]}",
                    )
                    for cause in straggler.worst
                ),
                texts.ADVICE[straggler.what],
            )
        )
    return found or _not_resolvable(result)


def _not_resolvable(result: RanksResult) -> list[Finding | NotApplicable]:
    """Say where the clocks leave open whether a rank is late by what would be worth a word."""
    unsure: dict[str, int | None] = {}
    for waits in result.waits:
        judged = waits.is_inside & waits.group.leaves_together
        row = np.arange(len(waits))
        latest = waits.late_ns[row, waits.last]
        beneath = judged & ~waits.is_resolved
        if not result.window_ns or beneath.sum() * 2 < judged.sum():
            continue
        if severity_of_cost(int(np.maximum(latest[beneath], 0).sum()) / result.window_ns) is None:
            continue
        for column in range(len(waits.group.members)):
            host = result.hosts[waits.group.members[column]]
            own = int(waits.uncertainty_ns[column])
            is_known = own < np.iinfo(np.int64).max
            unsure[host] = max(unsure.get(host) or 0, own) if is_known else None
    if not unsure:
        return []
    known = [each for each in unsure.values() if each is not None]
    how_well = f"to {duration(max(known))}" if known else "not at all"
    return [
        NotApplicable(
            IDS[0],
            f"not resolvable: the clocks of {', '.join(sorted(unsure))} compare {how_well}, and the"
            " ranks arrive closer to each other than that",
            "synchronize the machines with PTP (NTP is good to tens of ms), or capture more"
            " operations that all ranks take part in",
        )
    ]
