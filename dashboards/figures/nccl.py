"""NCCL: time and bus bandwidth of each operation, a point for each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dashboards.figures.lanes import Lane, Series, lanes, shortened
from dashboards.widgets.palette import BLUE, COMMUNICATION, GREY
from traceprof.errors import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.analyses.collectives import OperationUse

    Uses = Sequence[tuple[int, OperationUse]]

_ROW = 30
_MAX_NAME = 48


def time(uses: Uses) -> dict[str, Any]:
    """Return how long each operation took on each rank.

    Args:
        uses: by rank and operation.
    """
    rows, row_of = _rows(uses)
    series = Series("time of a rank", "dot", COMMUNICATION)
    for (rank, use), row in zip(uses, row_of, strict=True):
        series.add(
            row,
            use.total_ns / 1e6,
            f"rank {rank}: {use.total_ns / 1e6:.3f} ms in {use.count} operations",
            f"median {use.median_ns / 1e3:.1f} µs",
            f"communicator {one_line(use.communicator_text or 'not known')}",
        )
    return lanes("time in kernels, waiting included (ms)", rows, [series], row_height=_ROW)


def bus_bandwidth(uses: Uses) -> dict[str, Any]:
    """Return the bus bandwidth of each operation on each rank, and the link's peak.

    Args:
        uses: those whose bandwidth is known.
    """
    rows, row_of = _rows(uses)
    rates = Series("bus bandwidth of a rank", "dot", BLUE)
    peaks = Series("peak of the link in one direction", "tick", GREY)
    for (rank, use), row in zip(uses, row_of, strict=True):
        if use.busbw_gb_per_s is not None:
            note = f"rank {rank}: {use.busbw_gb_per_s:.2f} GB/s over {use.count} operations"
            rates.add(row, use.busbw_gb_per_s, note)
    known = {
        (row, use.peak_gb_per_s)
        for (_, use), row in zip(uses, row_of, strict=True)
        if use.peak_gb_per_s is not None
    }
    for row, peak in sorted(known):
        peaks.add(row, peak, f"peak of the link: {peak:.1f} GB/s")
    series = [rates, peaks] if known else [rates]
    return lanes("bus bandwidth (GB/s), a lower bound", rows, series, row_height=_ROW)


def _rows(uses: Uses) -> tuple[list[Lane], list[int]]:
    """Return a row for each operation and communicator, in their order, and that of each use."""
    keys = dict.fromkeys((use.operation, use.communicator) for _, use in uses)
    row_of = {key: row for row, key in enumerate(keys)}
    names = [
        one_line(f"{operation} · {communicator}" if communicator else operation)
        for operation, communicator in row_of
    ]
    rows = [Lane(shortened(name, _MAX_NAME), name) for name in names]
    return rows, [row_of[use.operation, use.communicator] for _, use in uses]
