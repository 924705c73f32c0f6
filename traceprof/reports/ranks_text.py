"""The text report's section on several ranks: clocks, late ranks, waits."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from rich.text import Text

from traceprof.errors import one_line
from traceprof.reports.detail import MAX_RANKS
from traceprof.reports.tables import name_text, new_table
from traceprof.reports.time_text import where_all
from traceprof.trace.grouping import median_of
from traceprof.units import counted, duration, percent, three_digits

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from traceprof.analyses.collectives import OperationUse
    from traceprof.analyses.verdict.run_result import RunResult
    from traceprof.run.session_clocks import MachineClock

_HEADINGS = ("came\nlast", "by", "waited", "most of\nit for", "made\nwait")
_TRANSFER_HEADINGS = (
    "operation", "communicator", "between", "count", "waited", "transfer", "bus\nbandwidth",
    "of peak", "latency", "rate\nbeyond it",
)  # fmt: skip
_SCOPES = {"intra-node": "ranks of a node", "inter-node": "nodes"}
_SOURCES = {
    "labels": "the labels of instrument",
    "torch": "what torch.distributed gave the profiler",
    "nccl": "NCCL's payloads",
    "mpi": "MPI",
    "environment": "the environment of the processes",
    "file name": "the names of the files",
    "order": "their order: the reports do not contain them",
}


def has_several_ranks(analysis: RunResult) -> bool:
    """Say whether there are ranks to compare, in one report or in several.

    Ranks of one report that share no operation are not compared.
    """
    comparison = analysis.ranks
    if len(comparison.ranks) < 2:
        return False
    return len(analysis.run.reports) > 1 or bool(comparison.waits or comparison.unmatched)


def ranks_on_one_clock(analysis: RunResult, max_ranks: int = MAX_RANKS) -> Iterable[RenderableType]:
    """Return the section: a line for each rank, and what could not be matched.

    Args:
        analysis: what was found out.
        max_ranks: so many ranks are shown, those that made others wait longest.
    """
    comparison, matrix_ns = analysis.ranks, analysis.ranks.matrix_ns
    # Ranks of one report share a clock and a machine.
    is_one_report = len(analysis.run.reports) == 1
    of_machine = () if is_one_report else ("host", "clock", "±")
    table = new_table("rank", *of_machine, *_HEADINGS, left=("host",))
    late = {lateness.member: lateness for lateness in comparison.lateness}
    order = sorted(range(len(comparison.ranks)), key=lambda member: comparison.ranks[member])
    reports = {rank.rank: rank.report for rank in analysis.run.ranks}
    if max_ranks < min(len(order), MAX_RANKS):
        cost_ns = matrix_ns.sum(axis=0)
        late_first = sorted(order, key=lambda member: -int(cost_ns[member]))
        shown = sorted(late_first[:max_ranks], key=lambda member: comparison.ranks[member])
    else:
        shown = order[:max_ranks]
    for member in shown:
        clock, late_rank = comparison.clocks.of(reports[comparison.ranks[member]]), late.get(member)
        waited = matrix_ns[member]
        is_matched = any(member in waits.group.members for waits in comparison.waits)
        is_unknown = comparison.are_waits_unknown(member)
        machine = () if is_one_report else (name_text(comparison.machines[member]), *_clock(clock))
        table.add_row(
            str(comparison.ranks[member]),
            *machine,
            "-" if late_rank is None else percent(late_rank.share_last),
            "-" if late_rank is None or not late_rank.num_last else duration(late_rank.late_ns),
            _known(int(waited.sum()), is_unknown=is_unknown) if is_matched else "-",
            f"rank {comparison.ranks[int(waited.argmax())]}" if waited.any() else "-",
            _known(int(matrix_ns[:, member].sum()), is_unknown=is_unknown) if is_matched else "-",
        )
    yield table
    if len(order) > len(shown):
        yield Text(f"… and {counted(len(order) - len(shown), 'more rank')}{where_all(max_ranks)}")
    if not is_one_report:
        yield Text(f"The rank numbers come from {_SOURCES[analysis.run.rank_source]}.")
    if any(clock.source == "session start" for clock in comparison.clocks.hosts):
        yield Text(
            "Clocks marked UTC share no operation with the others: they are as exact as NTP."
        )
    for waits in comparison.waits:
        captured, there = len(waits.group.members), waits.group.num_ranks
        if captured < there:
            name = one_line(waits.group.name or "a communicator")
            yield Text(
                f"Of the {there} ranks of {name}, {captured} were captured: another one may have"
                " been later still."
            )
    for group in comparison.unmatched:
        ranks = ", ".join(str(rank) for rank in sorted(group.ranks)[:MAX_RANKS])
        name = one_line(group.name) if group.name else "of no known communicator"
        yield Text(f"Operations {name} of the ranks {ranks} were not matched: {group.reason}.")


def transfer_table(analysis: RunResult) -> Table | None:
    """Return what operations took once all ranks were there; None if none was matched.

    One line for each operation and communicator, the one with the longest transfers first. The
    transfer is the same on all ranks; of their waits, the median is shown.
    """
    by_group: dict[tuple[str, str], list[OperationUse]] = defaultdict(list)
    for result in analysis.collectives:
        for use in result.uses:
            if use.num_matched:
                by_group[use.operation, use.communicator or ""].append(use)
    if not by_group:
        return None
    table = new_table(*_TRANSFER_HEADINGS, left=("communicator",))
    by_cost = sorted(by_group.items(), key=lambda item: (-(item[1][0].transfer_ns or 0), item[0]))
    for (operation, communicator), uses in by_cost[:MAX_RANKS]:
        use = uses[0]
        is_told = not use.is_lower_bound
        table.add_row(
            name_text(operation),
            _short(communicator, use.description),
            "-" if use.scope is None else _SCOPES[use.scope],
            str(use.num_matched),
            _median_wait(uses),
            "-" if use.transfer_ns is None else duration(use.transfer_ns),
            _rate(use.busbw_gb_per_s if is_told else None),
            "-" if use.utilization is None or not is_told else percent(use.utilization),
            "-" if use.latency_ns is None else duration(use.latency_ns),
            _rate(use.rate_gb_per_s),
        )
    return table


def arrived_heading(analysis: RunResult) -> str:
    """Return the heading of what operations took: how many of their ranks are known to be there."""
    sizes = [
        (len(waits.group.members), max(waits.group.num_ranks, len(waits.group.members)))
        for waits in analysis.ranks.waits
    ]
    captured, there = max(sizes, key=lambda size: (size[1] - size[0], size[1]), default=(0, 0))
    if captured == there:
        return "Communication, after all ranks have arrived"
    return f"Communication, after the captured ranks have arrived: {captured} of {there}"


def _known(nanoseconds: int, *, is_unknown: bool) -> str:
    """Write a wait; nothing is unknown if the clocks are too coarse."""
    return "unknown" if is_unknown and nanoseconds == 0 else duration(nanoseconds)


def _median_wait(uses: Sequence[OperationUse]) -> str:
    waits = [use.wait_ns for use in uses if use.wait_ns is not None]
    return duration(int(median_of(waits))) if waits else "unknown"


def _short(communicator: str, description: str | None) -> Text:
    """Return the end of NCCL's ids, which distinguishes them, and names as they are."""
    is_id = communicator.startswith("0x")
    described = "" if description is None else f" ({description})"
    return name_text((f"…{communicator[-8:]}" if is_id else communicator) + described)


def _rate(gb_per_s: float | None) -> str:
    return "-" if gb_per_s is None else f"{three_digits(gb_per_s)} GB/s"


def _clock(clock: MachineClock) -> tuple[str, str]:
    """Return by how much a clock was set, and how well it is known."""
    known = "" if clock.uncertainty_ns is None else duration(clock.uncertainty_ns)
    if clock.source == "operations":
        sign = "-" if clock.offset_ns < 0 else "+"
        return f"{sign}{duration(abs(clock.offset_ns))}", known
    if clock.source == "reference":
        return "reference", ""
    return "UTC" if clock.source == "session start" else "unknown", known
