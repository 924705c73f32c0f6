"""The text report's section on the ranks of several reports: clocks, who came last, who waited."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING

from rich.text import Text

from traceprof.errors import one_line
from traceprof.reports.tables import name_text, new_table
from traceprof.units import duration, percent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType
    from rich.table import Table

    from traceprof.analyses.collectives import OperationUse
    from traceprof.analyses.run_result import RunResult
    from traceprof.run.session_clocks import MachineClock

_MAX_RANKS = 32  # more than that nobody reads; the JSON has them all
_HEADINGS = ("rank", "host", "clock", "±", "came\nlast", "by", "waited", "made\nwait")
_TRANSFER_HEADINGS = (
    "operation", "communicator", "between", "count", "waited", "transfer", "bus\nbandwidth",
    "of peak", "latency", "rate\nbeyond it",
)  # fmt: skip
_SCOPES = {"intra-node": "ranks of a node", "inter-node": "nodes"}
_SOURCES = {
    "labels": "the labels of instrument",
    "nccl": "NCCL's payloads",
    "mpi": "MPI",
    "environment": "the environment of the processes",
    "file name": "the names of the files",
    "order": "their order: the reports do not contain them",
}


def ranks_on_one_clock(analysis: RunResult) -> Iterable[RenderableType]:
    """Return the section: a line for each rank, and what could not be matched."""
    comparison = analysis.ranks
    table = new_table(*_HEADINGS, left=("host",))
    late = {lateness.member: lateness for lateness in comparison.lateness}
    order = sorted(range(len(comparison.ranks)), key=lambda member: comparison.ranks[member])
    reports = {rank.rank: rank.report for rank in analysis.run.ranks}
    for member in order[:_MAX_RANKS]:
        clock, late_rank = comparison.clocks.of(reports[comparison.ranks[member]]), late.get(member)
        table.add_row(
            str(comparison.ranks[member]),
            name_text(comparison.machines[member]),
            *_clock(clock),
            "-" if late_rank is None else percent(late_rank.share_last),
            "-" if late_rank is None or not late_rank.num_last else duration(late_rank.late_ns),
            duration(int(comparison.matrix_ns[member].sum())),
            duration(int(comparison.matrix_ns[:, member].sum())),
        )
    yield table
    if len(order) > _MAX_RANKS:
        yield Text(f"… and {len(order) - _MAX_RANKS} ranks more: --format json has them all")
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
        ranks = ", ".join(str(rank) for rank in sorted(group.ranks)[:_MAX_RANKS])
        name = one_line(group.name) if group.name else "of no known communicator"
        yield Text(f"Operations {name} of the ranks {ranks} were not matched: {group.reason}.")


def transfer_table(analysis: RunResult) -> Table | None:
    """Return what operations took once all ranks were there; None where none was matched.

    One line for each operation and communicator, the one with the longest transfers first. The
    transfer is the same on all ranks; of their waits, the median is shown.
    """
    found: dict[tuple[str, str], list[OperationUse]] = defaultdict(list)
    for result in analysis.collectives:
        for use in result.uses:
            if use.num_matched:
                found[use.operation, use.communicator or ""].append(use)
    if not found:
        return None
    table = new_table(*_TRANSFER_HEADINGS, left=("communicator",))
    by_cost = sorted(found.items(), key=lambda item: (-(item[1][0].transfer_ns or 0), item[0]))
    for (operation, communicator), uses in by_cost[:_MAX_RANKS]:
        use = uses[0]
        is_told = not use.is_lower_bound
        table.add_row(
            name_text(operation),
            _short(communicator),
            "-" if use.scope is None else _SCOPES[use.scope],
            str(use.num_matched),
            duration(int(median(other.wait_ns or 0 for other in uses))),
            duration(use.transfer_ns or 0),
            _rate(use.busbw_gb_per_s if is_told else None),
            "-" if use.utilization is None or not is_told else percent(use.utilization),
            "-" if use.latency_ns is None else duration(use.latency_ns),
            _rate(use.rate_gb_per_s),
        )
    return table


def _short(communicator: str) -> Text:
    """Return the end of NCCL's ids, which tells them apart, and names as they are."""
    is_id = communicator.startswith("0x")
    return name_text(f"…{communicator[-8:]}" if is_id else communicator)


def _rate(gb_per_s: float | None) -> str:
    return "-" if gb_per_s is None else f"{gb_per_s:.3g} GB/s"


def _clock(clock: MachineClock) -> tuple[str, str]:
    """Return by how much a clock was set, and how well it is known."""
    known = "" if clock.uncertainty_ns is None else duration(clock.uncertainty_ns)
    if clock.source == "operations":
        sign = "-" if clock.offset_ns < 0 else "+"
        return f"{sign}{duration(abs(clock.offset_ns))}", known
    if clock.source == "reference":
        return "reference", ""
    return "UTC" if clock.source == "session start" else "unknown", known
