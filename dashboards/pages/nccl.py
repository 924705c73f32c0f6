"""NCCL: operations, their bytes and rates, and which waited behind others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from operator import itemgetter
from statistics import median
from typing import Any

from dash import html
from dash.development.base_component import Component

from dashboards.view import View
from dashboards.widgets import charts
from dashboards.widgets import components as ui
from dashboards.widgets.tables import IDENTIFIER, Column, record, table
from traceprof.analyses import collectives, nccl_serialization
from traceprof.analyses.collectives import CollectivesResult, OperationUse
from traceprof.analyses.nccl_serialization import SerializationResult
from traceprof.errors import one_line
from traceprof.structs import by_key
from traceprof.units import counted, duration

Uses = Sequence[tuple[int, OperationUse]]

PATH = "/nccl"
TITLE = "NCCL"

_MAX_OPERATIONS = 25  # drawn; the table has them all
_MAX_CHAINS = 3  # ranks whose chains are listed

_OPERATIONS = (
    Column("rank", "rank", IDENTIFIER, 70),
    Column("operation", "operation", None, 140),
    Column("communicator", "communicator", None, 170),
    Column("count", "operations", 0, 110),
    Column("bytes", "bytes", 0, 140, "of the messages, as NCCL counts them"),
    Column("total_ns", "time (ms)", 3, 110, "the sum of the kernels' durations, waiting included"),
    Column("median_ns", "median (µs)", 1, 110),
    Column(
        "algbw_gb_per_s",
        "algbw (GB/s)",
        2,
        110,
        "bytes over time, once all ranks had come where that is known; else a lower bound",
    ),
    Column("busbw_gb_per_s", "busbw (GB/s)", 2, 110, "the same with nccl-tests' factor"),
    Column("peak_gb_per_s", "peak (GB/s)", 1, 110, "of the link one way, by the GPU's name"),
    Column("utilization", "of the peak (%)", 1, 110),
)
_WAITS = (
    Column("rank", "rank", IDENTIFIER, 70),
    Column("num_operations", "operations", 0, 110),
    Column("num_judged", "with launch", 0, 110, "whose launch is in the capture"),
    Column("num_blocked", "waited", 0, 100, "behind the one before on their stream"),
    Column("blocked_ns", "waited in all (ms)", 3, 130, "a sum over operations"),
    Column("max_blocked_ns", "longest wait (ms)", 3, 130),
    Column("independent_blocked_ns", "behind independent ones (ms)", 3, 150),
    Column("waited_ns", "something waited (ms)", 3, 140, "the union of the waits"),
    Column("avoidable_ns", "avoidable and exposed (ms)", 3, 150, "what the finding costs"),
    Column("num_on_compute_stream", "on compute streams", 0, 120, "never overlap compute"),
)


def layout(view: View) -> Component:
    """Return the page."""
    results: tuple[CollectivesResult, ...] = view.of(collectives)
    lead = (
        "A collective's kernel runs from its rank's arrival until the last rank has arrived and"
        " the operation is done: times include waiting. Bandwidths count from the last arrival"
        " where ranks could be compared; otherwise they are lower bounds."
    )
    gaps = ui.missing(view.missing(*collectives.FINDINGS, *nccl_serialization.FINDINGS))
    uses = [(result.rank, use) for result in results for use in result.uses]
    if not uses:
        empty = ui.nothing(
            "No communication kernel ran in this time.",
            "traceprof analyze --communication-kernel REGEX, where kernels of another name"
            " communicate",
        )
        return ui.page(TITLE, lead, ui.card("Operations", empty), gaps)
    operations = [
        record(_OPERATIONS, use, rank=rank, communicator=one_line(use.communicator_text or ""))
        for rank, use in ui.sorted_worst_first(uses, lambda row: row[1].total_ns)
    ]
    return ui.page(
        TITLE,
        lead,
        html.Div([_time(uses), _bandwidth(view, uses)], className="columns"),
        ui.card("Operations", table("nccl-operations", _OPERATIONS, operations, "nccl.csv")),
        _waits(view, view.of(nccl_serialization)),
        gaps,
    )


def _drawn(uses: Uses) -> list[tuple[int, OperationUse]]:
    """Return the uses of the operations that took longest, these first."""
    order = sorted(
        _by_operation(uses).values(),
        key=lambda of: sum(use.total_ns for _, use in of),
        reverse=True,
    )
    return list(chain.from_iterable(order[:_MAX_OPERATIONS]))


def _time(uses: Uses) -> Component:
    points = _drawn(uses)
    note = "a point for each rank: the one that arrives first waits longest"
    if len({rank for rank, _ in points}) > ui.MAX_DRAWN:
        note += f"; the {ui.MAX_DRAWN} with most time, and the range of the others"
    chart = charts.plots("nccl-time", time(points), "time in each operation, by rank")
    return ui.card("Time in each operation", chart, note=note)


def _bandwidth(view: View, uses: Uses) -> Component:
    title = "Bus bandwidth against the peak"
    points = [row for row in _drawn(uses) if row[1].busbw_gb_per_s is not None]
    if not points:
        reasons = [gap for gap in view.missing(*collectives.FINDINGS) if gap.how_to_collect]
        why = f": {reasons[0].reason}" if reasons else ""
        how = reasons[0].how_to_collect if reasons else ""
        return ui.card(title, ui.nothing(f"No operation's rate is known{why}.", how))
    chart = charts.plots(
        "nccl-bandwidth", bus_bandwidth(points), "bus bandwidth of each operation, by rank"
    )
    has_peak = any(use.peak_gb_per_s is not None for _, use in points)
    note = None if has_peak else "no peak: no link that all ranks share is known"
    return ui.card(title, chart, note=note)


def _waits(view: View, results: Sequence[SerializationResult]) -> Component:
    rows = []
    for result in ui.sorted_worst_first(results, lambda result: result.avoidable_ns):
        metrics = result.metrics
        known_ns = (metrics.independent_blocked_ns or 0) if metrics.known_blocked_ns else None
        rows.append(record(_WAITS, result, metrics, independent_blocked_ns=known_ns))
    parts: list[Any] = [ui.with_table(table("nccl-waits", _WAITS, rows), len(rows))]
    worst = sorted(results, key=lambda result: (-result.avoidable_ns, -result.metrics.blocked_ns))
    listed = [result for result in worst if result.chains][:_MAX_CHAINS]
    for place, result in enumerate(listed):
        blocked = duration(result.metrics.blocked_ns)
        parts.append(
            ui.folded(
                f"rank {result.rank}: {blocked} in all, the worst first",
                ui.evidence_list(view, result.rank, result.chains),
                opened=place == 0 or len(results) <= _MAX_CHAINS,
            )
        )
    if not listed:
        parts.append(ui.nothing("No operation that was ready waited behind another one."))
    return ui.card(
        "Who waited behind whom",
        *parts,
        note="operations that were launched and had their input while others ran on their stream",
    )


_ROW = 30
_MAX_NAME = 48


def time(uses: Uses) -> dict[str, Any]:
    """Return the time of each operation on each rank."""

    def notes(rank: int, use: OperationUse) -> list[str]:
        return [
            f"rank {rank}: {use.total_ns / 1e6:.3f} ms in {counted(use.count, 'operation')}",
            f"median {use.median_ns / 1e3:.1f} µs",
            f"communicator {one_line(use.communicator_text or 'not known')}",
        ]

    series = charts.Series("time of a rank", "dot", charts.COMMUNICATION)
    rows, shown, ranges = _points(
        uses, series, lambda use: use.total_ns, lambda ns: f"{ns / 1e6:.3f} ms", notes
    )
    axis = "time in kernels, waiting included (ms)"
    return charts.lanes(axis, rows, shown, row_height=_ROW, per=1e6, joins=ranges)


def bus_bandwidth(uses: Uses) -> dict[str, Any]:
    """Return the bus bandwidth of each operation on each rank, and the link's peak."""

    def notes(rank: int, use: OperationUse) -> list[str]:
        return [f"rank {rank}: {_rate(use):.2f} GB/s over {counted(use.count, 'operation')}"]

    rates = charts.Series("bus bandwidth of a rank", "dot", charts.BLUE)
    rows, shown, ranges = _points(uses, rates, _rate, "{:.2f} GB/s".format, notes, sign=-1)
    peaks = charts.Series("peak of the link in one direction", "tick", charts.GREY)
    for row, of_row in enumerate(_by_operation(uses).values()):
        for peak in sorted({use.peak_gb_per_s for _, use in of_row if use.peak_gb_per_s}):
            peaks.add(row, peak, f"peak of the link: {peak:.1f} GB/s")
    shown += [peaks] if peaks.values else []
    bound = ", a lower bound" if any(use.is_lower_bound for _, use in uses) else ""
    axis = f"bus bandwidth (GB/s){bound}"
    return charts.lanes(axis, rows, shown, row_height=_ROW, joins=ranges)


def _rate(use: OperationUse) -> float:
    return use.busbw_gb_per_s or 0.0


def _by_operation(uses: Uses) -> dict[tuple[str, str | None], list[tuple[int, OperationUse]]]:
    return by_key(uses, lambda item: (item[1].operation, item[1].communicator))


def _points(
    uses: Uses,
    series: charts.Series,
    value: Callable[[OperationUse], float],
    written: Callable[[float], str],
    notes: Callable[[int, OperationUse], list[str]],
    sign: int = 1,
) -> tuple[list[charts.Lane], list[charts.Series], list[dict[str, Any]]]:
    """Return a row for each operation and communicator, with the points of ranks in a series.

    Of many ranks those with the largest values times `sign` have points, and a second series and
    lines show the medians and ranges of the others.
    """
    rows: list[charts.Lane] = []
    ranges: list[dict[str, Any]] = []
    medians = charts.Series("the others: range and median", "tick", charts.GREY)
    for row, ((operation, communicator), of_row) in enumerate(_by_operation(uses).items()):
        name = one_line(f"{operation} · {communicator}" if communicator else operation)
        rows.append(charts.Lane(charts.shortened(name, _MAX_NAME), name))
        split = ui.worst_first(of_row, lambda item: sign * value(item[1]))
        for rank, use in sorted(split.drawn, key=itemgetter(0)):
            series.add(row, value(use), *notes(rank, use))
        values = [value(use) for _, use in split.others]
        if values:
            least, middle, most = min(values), median(values), max(values)
            span = f"{written(least)} to {written(most)}, median {written(middle)}"
            medians.add(row, middle, f"{counted(len(values), 'other rank')}: {span}")
            ranges.append({"row": row, "from": least, "to": most, "color": charts.GREY})
    return rows, [series, medians] if ranges else [series], ranges
