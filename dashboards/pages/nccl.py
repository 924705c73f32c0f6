"""NCCL: operations, their bytes and rates, and which waited behind others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dash import html

from dashboards.figures import nccl as figures
from dashboards.view import View
from dashboards.widgets.components import (
    card,
    evidence_list,
    folded,
    interval_address,
    missing,
    nothing,
    page,
)
from dashboards.widgets.plots import plots
from dashboards.widgets.tables import IDENTIFIER, Column, table
from dashboards.widgets.worst import MAX_DRAWN, sorted_worst_first, with_table
from traceprof.analyses import collectives, nccl_serialization
from traceprof.errors import one_line
from traceprof.units import duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dash.development.base_component import Component

    from dashboards.address import Address
    from traceprof.analyses.collectives import CollectivesResult, OperationUse
    from traceprof.analyses.nccl_serialization import SerializationResult
    from traceprof.analysis import Analysis

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
    Column("total", "time (ms)", 3, 110, "the sum of the kernels' durations, waiting included"),
    Column("median", "median (µs)", 1, 110),
    Column(
        "algbw",
        "algbw (GB/s)",
        2,
        110,
        "bytes over time, once all ranks had come where that is known; else a lower bound",
    ),
    Column("busbw", "busbw (GB/s)", 2, 110, "the same with nccl-tests' factor"),
    Column("peak", "peak (GB/s)", 1, 110, "of the link in one direction, by the GPU's name"),
    Column("utilization", "of the peak (%)", 1, 110),
)
_WAITS = (
    Column("rank", "rank", IDENTIFIER, 70),
    Column("num_operations", "operations", 0, 110),
    Column("num_judged", "with launch", 0, 110, "whose launch is in the capture"),
    Column("num_blocked", "waited", 0, 100, "behind the one before on their stream"),
    Column("blocked", "waited in all (ms)", 3, 130, "a sum over operations"),
    Column("longest", "longest wait (ms)", 3, 130),
    Column("independent", "behind independent ones (ms)", 3, 150),
    Column("queued", "something waited (ms)", 3, 140, "the union of the waits"),
    Column("avoidable", "avoidable and exposed (ms)", 3, 150, "what the finding costs"),
    Column("streams", "on compute streams", 0, 120, "operations that can never overlap compute"),
)


def layout(analysis: Analysis, address: Address) -> Component:
    """Return the page."""
    view = View(analysis, address)
    results: tuple[CollectivesResult, ...] = view.of(collectives)
    lead = (
        "A collective's kernel runs from its rank's arrival until the last rank has arrived and"
        " the operation is done: times include waiting. Bandwidths count from the last arrival"
        " where ranks could be compared; otherwise they are lower bounds."
    )
    gaps = missing(view.missing(*collectives.FINDINGS, *nccl_serialization.FINDINGS))
    uses = [(result.rank, use) for result in results for use in result.uses]
    if not uses:
        empty = nothing(
            "No communication kernel ran in this time.",
            "traceprof analyze --communication-kernel REGEX, where kernels of another name"
            " communicate",
        )
        return page(TITLE, lead, card("Operations", empty), gaps)
    return page(
        TITLE,
        lead,
        html.Div([_time(uses), _bandwidth(view, uses)], className="columns"),
        _operations(uses),
        _waits(view, view.of(nccl_serialization)),
        gaps,
    )


def _drawn(uses: Sequence[tuple[int, OperationUse]]) -> list[tuple[int, OperationUse]]:
    """Return the uses of the operations that took longest, these first."""
    totals: dict[tuple[str, str | None], int] = {}
    for _, use in uses:
        key = (use.operation, use.communicator)
        totals[key] = totals.get(key, 0) + use.total_ns
    order = sorted(totals, key=lambda key: -totals[key])[:_MAX_OPERATIONS]
    place = {key: index for index, key in enumerate(order)}
    kept = [(rank, use) for rank, use in uses if (use.operation, use.communicator) in place]
    return sorted(kept, key=lambda row: place[row[1].operation, row[1].communicator])


def _time(uses: Sequence[tuple[int, OperationUse]]) -> Component:
    points = _drawn(uses)
    note = "a point for each rank: the one that arrives first waits longest"
    if len({rank for rank, _ in points}) > MAX_DRAWN:
        note += f"; the {MAX_DRAWN} with most time, and the range of the others"
    chart = plots("nccl-time", figures.time(points), "time in each operation, by rank")
    return card("Time in each operation", chart, note=note)


def _bandwidth(view: View, uses: Sequence[tuple[int, OperationUse]]) -> Component:
    title = "Bus bandwidth against the peak"
    points = [row for row in _drawn(uses) if row[1].busbw_gb_per_s is not None]
    if not points:
        reasons = [gap for gap in view.missing(*collectives.FINDINGS) if gap.how_to_collect]
        why = f": {reasons[0].reason}" if reasons else ""
        how = reasons[0].how_to_collect if reasons else ""
        return card(title, nothing(f"No operation's rate is known{why}.", how))
    chart = plots(
        "nccl-bandwidth", figures.bus_bandwidth(points), "bus bandwidth of each operation, by rank"
    )
    has_peak = any(use.peak_gb_per_s is not None for _, use in points)
    note = None if has_peak else "no peak: no link that all ranks share is known"
    return card(title, chart, note=note)


def _operations(uses: Sequence[tuple[int, OperationUse]]) -> Component:
    rows = [
        {
            "rank": rank,
            "operation": one_line(use.operation),
            "communicator": use.communicator_text and one_line(use.communicator_text),
            "count": use.count,
            "bytes": use.bytes,
            "total": use.total_ns / 1e6,
            "median": use.median_ns / 1e3,
            "algbw": use.algbw_gb_per_s,
            "busbw": use.busbw_gb_per_s,
            "peak": use.peak_gb_per_s,
            "utilization": None if use.utilization is None else 100 * use.utilization,
        }
        for rank, use in sorted_worst_first(uses, lambda row: row[1].total_ns)
    ]
    return card("Operations", table("nccl-operations", _OPERATIONS, rows, "nccl.csv"))


def _waits(view: View, results: Sequence[SerializationResult]) -> Component:
    rows = [
        {
            "rank": result.rank,
            "num_operations": result.metrics.num_operations,
            "num_judged": result.num_judged,
            "num_blocked": result.metrics.num_blocked,
            "blocked": result.metrics.blocked_ns / 1e6,
            "longest": result.metrics.max_blocked_ns / 1e6,
            "independent": (
                (result.metrics.independent_blocked_ns or 0) / 1e6
                if result.metrics.known_blocked_ns
                else None
            ),
            "queued": result.waited_ns / 1e6,
            "avoidable": result.avoidable_ns / 1e6,
            "streams": result.metrics.num_on_compute_stream,
        }
        for result in sorted_worst_first(results, lambda result: result.avoidable_ns)
    ]
    parts: list[Any] = [with_table(table("nccl-waits", _WAITS, rows), len(rows))]
    worst = sorted(results, key=lambda result: (-result.avoidable_ns, -result.metrics.blocked_ns))
    listed = [result for result in worst if result.chains][:_MAX_CHAINS]
    for place, result in enumerate(listed):
        blocked = duration(result.metrics.blocked_ns)
        chains = map(view.clock.rank(result.rank).interval, result.chains)
        places = ((chain, interval_address(chain, result.rank, view.address)) for chain in chains)
        parts.append(
            folded(
                f"rank {result.rank}: {blocked} in all, the worst first",
                evidence_list(places, view.clock),
                opened=place == 0 or len(results) <= _MAX_CHAINS,
            )
        )
    if not listed:
        parts.append(nothing("No operation that was ready waited behind another one."))
    return card(
        "Who waited behind whom",
        *parts,
        note="operations that were launched and had their input while others ran on their stream",
    )
