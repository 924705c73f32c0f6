"""The text report's section on the ranks of several reports: clocks, who came last, who waited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from traceprof.errors import one_line
from traceprof.units import duration, percent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from traceprof.analysis import Analysis
    from traceprof.clocks import HostClock

_MOST_RANKS = 32  # more than that nobody reads; the JSON has them all
_HEADINGS = ("rank", "host", "clock", "±", "came\nlast", "by", "waited", "made\nwait")
_SOURCES = {
    "labels": "the labels of instrument",
    "nccl": "NCCL's payloads",
    "mpi": "MPI",
    "environment": "the environment of the processes",
    "file name": "the names of the files",
    "order": "their order: the reports do not tell them",
}


def ranks_on_one_clock(analysis: Analysis) -> Iterable[RenderableType]:
    """Return the section: a line for each rank, and what could not be matched."""
    met = analysis.ranks
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for heading in _HEADINGS:
        is_text = heading == "host"
        table.add_column(heading, justify="left" if is_text else "right", vertical="bottom")
    late = {each.member: each for each in met.lateness}
    order = sorted(range(len(met.ranks)), key=lambda member: met.ranks[member])
    reports = {rank.rank: rank.report for rank in analysis.run.ranks}
    for member in order[:_MOST_RANKS]:
        clock, own = met.clocks.of(reports[met.ranks[member]]), late.get(member)
        table.add_row(
            str(met.ranks[member]),
            one_line(met.hosts[member]),
            *_clock(clock),
            "-" if own is None else percent(own.share_last),
            "-" if own is None or not own.num_last else duration(own.late_ns),
            duration(int(met.matrix_ns[member].sum())),
            duration(int(met.matrix_ns[:, member].sum())),
        )
    yield table
    if len(order) > _MOST_RANKS:
        yield Text(f"… and {len(order) - _MOST_RANKS} ranks more: --format json has them all")
    yield Text(f"The ranks' numbers are told by {_SOURCES[analysis.run.rank_source]}.")
    if any(clock.source == "session start" for clock in met.clocks.hosts):
        yield Text(
            "Clocks marked UTC could be compared by no common operation: they are as good as NTP."
        )
    for waits in met.waits:
        captured, there = len(waits.group.members), waits.group.num_ranks
        if captured < there:
            name = one_line(waits.group.name or "a communicator")
            yield Text(
                f"Of the {there} ranks of {name}, {captured} were captured: whether another one"
                " was later still is not known."
            )
    for each in met.unmatched:
        ranks = ", ".join(str(rank) for rank in sorted(each.ranks)[:_MOST_RANKS])
        name = one_line(each.name) if each.name else "of no known communicator"
        yield Text(f"Operations {name} of the ranks {ranks} were not matched: {each.reason}.")


def _clock(clock: HostClock) -> tuple[str, str]:
    """Return by how much a clock was set, and how well it is known."""
    known = "" if clock.uncertainty_ns is None else duration(clock.uncertainty_ns)
    if clock.source == "operations":
        sign = "-" if clock.offset_ns < 0 else "+"
        return f"{sign}{duration(abs(clock.offset_ns))}", known
    if clock.source == "reference":
        return "reference", ""
    return "UTC" if clock.source == "session start" else "unknown", known
