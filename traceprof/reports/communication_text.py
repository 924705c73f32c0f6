"""Communication in the text report: process groups and gradient buckets."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, TypeVar

from traceprof.reports.tables import name_text, new_table
from traceprof.trace.grouping import median_of
from traceprof.units import counted, duration, ranks_text, size_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.table import Table

    from traceprof.analyses.collectives import OperationUse
    from traceprof.analyses.gradients.buckets import BucketUse
    from traceprof.analyses.verdict.run_result import RunResult

_MAX_ROWS = 24  # more than that nobody reads; the JSON has them all

Key = TypeVar("Key")
Use = TypeVar("Use")


def communication_tables(analysis: RunResult) -> Iterator[tuple[str, Table]]:
    """Yield headings and tables: of process groups without a GPU, and of DDP's buckets."""
    uses = [
        ((use.communicator or "", _operation(use)), result.rank, use)
        for result in analysis.measured.shown_process_groups
        for use in result.uses
    ]
    if uses:
        yield "Communication by process group", _groups(_by_key(uses))
    buckets = [
        ((-1 if use.index is None else use.index, use.bytes or 0), result.rank, use)
        for result in analysis.buckets
        for use in result.uses
    ]
    if buckets:
        yield "Gradient buckets", _buckets(_by_key(buckets))


def _by_key(uses: Iterable[tuple[Key, int, Use]]) -> dict[Key, list[tuple[int, Use]]]:
    """Put together what several ranks have alike: (rank, use) by what they are known by."""
    by_key: dict[Key, list[tuple[int, Use]]] = defaultdict(list)
    for key, rank, use in uses:
        by_key[key].append((rank, use))
    return by_key


def _operation(use: OperationUse) -> str:
    if use.peer is None:
        return use.operation
    return f"{use.operation} {'to' if use.operation == 'Send' else 'from'} {use.peer}"


def _groups(rows: dict[tuple[str, str], list[tuple[int, OperationUse]]]) -> Table:
    table = new_table(
        "group", "operation", "ranks", "operations\nper rank", "bytes\nper rank",
        "median\noperation", "mean\noperation", left=("group", "operation"),
    )  # fmt: skip
    ordered = sorted(rows.items(), key=lambda row: -sum(use.total_ns for _, use in row[1]))
    for (_, operation), of_ranks in ordered[:_MAX_ROWS]:
        uses = [use for _, use in of_ranks]
        sizes = [use.bytes for use in uses if use.bytes is not None]
        mean_ns = sum(use.total_ns for use in uses) // sum(use.count for use in uses)
        table.add_row(
            name_text((uses[0].communicator_text or "-").removeprefix("group ")),
            name_text(operation),
            _numbers(of_ranks),
            _span([use.count for use in uses]),
            size_text(max(sizes)) if len(sizes) == len(uses) else "-",
            duration(int(median_of([use.median_ns for use in uses]))),
            duration(mean_ns),
        )
    return _with_rest(table, len(ordered))


def _buckets(rows: dict[tuple[int, int], list[tuple[int, BucketUse]]]) -> Table:
    table = new_table("bucket", "bytes", "ranks", "times\nper rank", "ready to\nreduced")
    for (index, size), of_ranks in sorted(rows.items())[:_MAX_ROWS]:
        uses = [use for _, use in of_ranks]
        done = [
            use.median_ready_to_done_ns for use in uses if use.median_ready_to_done_ns is not None
        ]
        table.add_row(
            str(index) if index >= 0 else "-",
            size_text(size) if size else "-",
            _numbers(of_ranks),
            _span([use.count for use in uses]),
            duration(int(median_of(done))) if done else "-",
        )
    return _with_rest(table, len(rows))


def _numbers(of_ranks: Iterable[tuple[int, object]]) -> str:
    return ranks_text([rank for rank, _ in of_ranks]).partition(" ")[2]


def _span(counts: list[int]) -> str:
    least, most = min(counts), max(counts)
    return str(most) if least == most else f"{least}-{most}"


def _with_rest(table: Table, num_rows: int) -> Table:
    if num_rows > _MAX_ROWS:
        table.caption = (
            f"… and {counted(num_rows - _MAX_ROWS, 'more row')}: --format json has them all"
        )
    return table
