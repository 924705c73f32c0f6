"""Several ranks: clocks, late ranks, waits, what operations took, process groups, buckets."""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from traceprof.analyses import rank_work
from traceprof.errors import one_line
from traceprof.reports.blocks import MAX_NAME, MAX_RANKS, paragraph, section, table
from traceprof.trace.grouping import median_of
from traceprof.units import counted, duration, percent, ranks_text, size_text, three_digits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from traceprof.analyses.collectives import OperationUse
    from traceprof.analyses.verdict.run_result import RunResult
    from traceprof.reports.blocks import Block, Section, TableBlock
    from traceprof.run.session_clocks import MachineClock

_HEADINGS = ("came\nlast", "by", "waited", "most of\nit for", "made\nwait")
_WORK_HEADINGS = (
    "rank",
    "stage",
    "compute",
    "a\nforward",
    "a\nbackward",
    "beyond\nits peers",
    "noise",
)
_TRANSFER_HEADINGS = (
    "operation",
    "communicator",
    "between",
    "count",
    "waited",
    "transfer",
    "bus\nbandwidth",
    "of peak",
    "latency",
    "rate\nbeyond it",
)
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


def rank_sections(analysis: RunResult) -> Iterator[Section]:
    """Yield sections on ranks against each other, and on process groups and DDP's buckets."""
    is_one_report = len(analysis.run.reports) == 1
    compared = analysis.ranks
    # Ranks of one report that share no operation are not compared.
    shares_work = not is_one_report or bool(compared.waits or compared.unmatched)
    if len(compared.ranks) > 1 and shares_work:
        heading = "Who waited for whom" if is_one_report else "Ranks on one clock"
        yield section(heading, *_ranks_on_one_clock(analysis))
        # Of one report the JSON has it: who waited says more in less room.
        transferred = None if is_one_report else _transfer_table(analysis)
        if transferred is not None:
            yield section(_arrived_heading(analysis), transferred)
    work = _work_table(analysis)
    if work is not None:
        yield section("Compute of each rank in a step, against its peers", work)
    yield from _groups(analysis)
    yield from _buckets(analysis)


def _work_table(analysis: RunResult) -> TableBlock | None:
    """Return what ranks compute in a step, those that stand out first; None without peers."""
    rows = {row.rank: row for row in rank_work.run(analysis.measured).ranks}
    if all(row.excess_ns is None for row in rows.values()):
        return None
    shown = list(rows)
    if len(rows) > MAX_RANKS:
        noted = (rank for rank in rank_work.by_note(analysis.measured) if rank in rows)
        shown = list(islice(noted, MAX_RANKS))
    lines = []
    for row in (rows[rank] for rank in shown):
        sign = "" if row.excess_ns is None else "-" if row.excess_ns < 0 else "+"
        lines.append(
            (
                str(row.rank),
                "-" if row.stage is None else str(row.stage),
                duration(row.compute_ns),
                *("-" if ns is None else duration(ns) for ns in (row.forward_ns, row.backward_ns)),
                "-" if row.excess_ns is None else f"{sign}{duration(abs(row.excess_ns))}",
                "-" if row.noise_ns is None else duration(row.noise_ns),
            )
        )
    return table(_WORK_HEADINGS, lines)


def _ranks_on_one_clock(analysis: RunResult) -> Iterator[Block]:
    """Yield a line for each rank, those that made others wait longest, and what is unmatched."""
    comparison, matrix_ns = analysis.ranks, analysis.ranks.matrix_ns
    # Ranks of one report share a clock and a machine.
    is_one_report = len(analysis.run.reports) == 1
    of_machine = () if is_one_report else ("host", "clock", "±")
    rows: list[tuple[str, ...]] = []
    late = {lateness.member: lateness for lateness in comparison.lateness}
    order = sorted(range(len(comparison.ranks)), key=lambda member: comparison.ranks[member])
    reports = {rank.rank: rank.report for rank in analysis.run.ranks}
    shown = order
    if len(order) > MAX_RANKS:
        place = {rank: member for member, rank in enumerate(comparison.ranks)}
        noted = (place[rank] for rank in rank_work.by_note(analysis.measured) if rank in place)
        shown = list(islice(noted, MAX_RANKS))
    for member in shown:
        clock, late_rank = comparison.clocks.of(reports[comparison.ranks[member]]), late.get(member)
        waited = matrix_ns[member]
        is_matched = any(member in waits.group.members for waits in comparison.waits)
        is_unknown = comparison.are_waits_unknown(member)
        host = one_line(comparison.machines[member], MAX_NAME)
        machine = () if is_one_report else (host, *_clock(clock))
        rows.append(
            (
                str(comparison.ranks[member]),
                *machine,
                "-" if late_rank is None else percent(late_rank.share_last),
                "-" if late_rank is None or not late_rank.num_last else duration(late_rank.late_ns),
                _known(int(waited.sum()), is_unknown=is_unknown) if is_matched else "-",
                f"rank {comparison.ranks[int(waited.argmax())]}" if waited.any() else "-",
                _known(int(matrix_ns[:, member].sum()), is_unknown=is_unknown)
                if is_matched
                else "-",
            )
        )
    yield table(("rank", *of_machine, *_HEADINGS), rows, text=("host",))
    if len(order) > len(shown):
        more = counted(len(order) - len(shown), "more rank")
        yield paragraph(f"… and {more}: --format json has them all")
    if not is_one_report:
        yield paragraph(f"The rank numbers come from {_SOURCES[analysis.run.rank_source]}.")
    if any(clock.source == "session start" for clock in comparison.clocks.hosts):
        yield paragraph(
            "Clocks marked UTC share no operation with the others: they are as exact as NTP."
        )
    for waits in comparison.waits:
        captured, there = len(waits.group.members), waits.group.num_ranks
        if captured < there:
            name = one_line(waits.group.name or "a communicator")
            yield paragraph(
                f"Of the {there} ranks of {name}, {captured} were captured: another one may have"
                " been later still."
            )
    for group in comparison.unmatched:
        ranks = ", ".join(str(rank) for rank in sorted(group.ranks)[:MAX_RANKS])
        name = one_line(group.name) if group.name else "of no known communicator"
        yield paragraph(f"Operations {name} of the ranks {ranks} were not matched: {group.reason}.")


def _transfer_table(analysis: RunResult) -> TableBlock | None:
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
    rows: list[tuple[str, ...]] = []
    by_cost = sorted(by_group.items(), key=lambda item: (-(item[1][0].transfer_ns or 0), item[0]))
    for (operation, communicator), uses in by_cost[:MAX_RANKS]:
        use = uses[0]
        is_told = not use.is_lower_bound
        rows.append(
            (
                one_line(operation, MAX_NAME),
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
        )
    return table(_TRANSFER_HEADINGS, rows, text=("communicator",))


def _arrived_heading(analysis: RunResult) -> str:
    """Return the heading of the transfer table: it says how many of the ranks were captured."""
    sizes = [
        (len(waits.group.members), max(waits.group.num_ranks, len(waits.group.members)))
        for waits in analysis.ranks.waits
    ]
    captured, there = max(sizes, key=lambda size: (size[1] - size[0], size[1]), default=(0, 0))
    if captured == there:
        return "Communication, after all ranks have arrived"
    return f"Communication, after the captured ranks have arrived: {captured} of {there}"


def _known(nanoseconds: int, *, is_unknown: bool) -> str:
    """Write a wait. No wait is unknown where clocks are too coarse to see one."""
    return "unknown" if is_unknown and nanoseconds == 0 else duration(nanoseconds)


def _median_wait(uses: Sequence[OperationUse]) -> str:
    waits = [use.wait_ns for use in uses if use.wait_ns is not None]
    return duration(int(median_of(waits))) if waits else "unknown"


def _short(communicator: str, description: str | None) -> str:
    """Shorten NCCL's ids to their end, which distinguishes them; names stay whole."""
    is_id = communicator.startswith("0x")
    described = "" if description is None else f" ({description})"
    return one_line((f"…{communicator[-8:]}" if is_id else communicator) + described, MAX_NAME)


def _rate(gb_per_s: float | None) -> str:
    return "-" if gb_per_s is None else f"{three_digits(gb_per_s)} GB/s"


def _clock(clock: MachineClock) -> tuple[str, str]:
    known = "" if clock.uncertainty_ns is None else duration(clock.uncertainty_ns)
    if clock.source == "operations":
        sign = "-" if clock.offset_ns < 0 else "+"
        return f"{sign}{duration(abs(clock.offset_ns))}", known
    if clock.source == "reference":
        return "reference", ""
    return "UTC" if clock.source == "session start" else "unknown", known


_GROUP_HEADINGS = (
    "group",
    "operation",
    "ranks",
    "operations\nper rank",
    "bytes\nper rank",
    "median\noperation",
    "mean\noperation",
)
_MAX_ROWS = 24  # more than that nobody reads; the JSON has them all

Key = TypeVar("Key")
Use = TypeVar("Use")


def _by_key(uses: Iterable[tuple[Key, int, Use]]) -> dict[Key, list[tuple[int, Use]]]:
    by_key: dict[Key, list[tuple[int, Use]]] = defaultdict(list)
    for key, rank, use in uses:
        by_key[key].append((rank, use))
    return by_key


def _operation(use: OperationUse) -> str:
    if use.peer is None:
        return use.operation
    return f"{use.operation} {'to' if use.operation == 'Send' else 'from'} {use.peer}"


def _groups(analysis: RunResult) -> Iterator[Section]:
    """Yield what ranks without a GPU communicated, by process group."""
    uses_by_key = _by_key(
        ((use.communicator or "", _operation(use)), result.rank, use)
        for result in analysis.measured.shown_process_groups
        for use in result.uses
    )
    ordered = sorted(uses_by_key.items(), key=lambda row: -sum(use.total_ns for _, use in row[1]))
    rows = []
    for (_, operation), of_ranks in ordered[:_MAX_ROWS]:
        uses = [use for _, use in of_ranks]
        sizes = [use.bytes for use in uses if use.bytes is not None]
        mean_ns = sum(use.total_ns for use in uses) // sum(use.count for use in uses)
        rows.append(
            (
                one_line((uses[0].communicator_text or "-").removeprefix("group "), MAX_NAME),
                one_line(operation, MAX_NAME),
                _numbers(of_ranks),
                _span([use.count for use in uses]),
                size_text(max(sizes)) if len(sizes) == len(uses) else "-",
                duration(int(median_of([use.median_ns for use in uses]))),
                duration(mean_ns),
            )
        )
    if rows:
        shown = table(_GROUP_HEADINGS, rows, text=("group", "operation"))
        yield section("Communication by process group", shown, _rest(len(ordered)))


def _buckets(analysis: RunResult) -> Iterator[Section]:
    uses_by_key = _by_key(
        ((-1 if use.index is None else use.index, use.bytes or 0), result.rank, use)
        for result in analysis.buckets
        for use in result.uses
    )
    rows = []
    for (index, size), of_ranks in sorted(uses_by_key.items())[:_MAX_ROWS]:
        uses = [use for _, use in of_ranks]
        done = [
            use.median_ready_to_done_ns for use in uses if use.median_ready_to_done_ns is not None
        ]
        rows.append(
            (
                str(index) if index >= 0 else "-",
                size_text(size) if size else "-",
                _numbers(of_ranks),
                _span([use.count for use in uses]),
                duration(int(median_of(done))) if done else "-",
            )
        )
    headings = ("bucket", "bytes", "ranks", "times\nper rank", "ready to\nreduced")
    if rows:
        yield section("Gradient buckets", table(headings, rows), _rest(len(uses_by_key)))


def _numbers(of_ranks: Iterable[tuple[int, object]]) -> str:
    return ranks_text([rank for rank, _ in of_ranks]).partition(" ")[2]


def _span(counts: list[int]) -> str:
    least, most = min(counts), max(counts)
    return str(most) if least == most else f"{least}-{most}"


def _rest(num_rows: int) -> str | None:
    more = num_rows - _MAX_ROWS
    return f"… and {counted(more, 'more row')}: --format json has them all" if more > 0 else None
