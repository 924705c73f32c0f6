"""NCCL: time and bus bandwidth of each operation, a point for each rank or the worst ranks."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from dashboards.figures.lanes import Lane, Series, lanes, shortened
from dashboards.widgets.palette import BLUE, COMMUNICATION, GREY
from dashboards.widgets.worst import worst_first
from traceprof.errors import one_line
from traceprof.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from traceprof.analyses.collectives import OperationUse

    Uses = Sequence[tuple[int, OperationUse]]

_ROW = 30
_MAX_NAME = 48


def time(uses: Uses) -> dict[str, Any]:
    """Return the time of each operation on each rank."""
    rows, row_of = _rows(uses)
    series = Series("time of a rank", "dot", COMMUNICATION)
    others = _Others("ms", 3)
    shown = _split(uses, row_of, lambda use: use.total_ns, others, lambda use: use.total_ns / 1e6)
    for rank, use, row in shown:
        series.add(
            row,
            use.total_ns / 1e6,
            f"rank {rank}: {use.total_ns / 1e6:.3f} ms in {counted(use.count, 'operation')}",
            f"median {use.median_ns / 1e3:.1f} µs",
            f"communicator {one_line(use.communicator_text or 'not known')}",
        )
    return lanes(
        "time in kernels, waiting included (ms)",
        rows,
        [series, *others.series],
        row_height=_ROW,
        joins=others.joins,
    )


def bus_bandwidth(uses: Uses) -> dict[str, Any]:
    """Return the bus bandwidth of each operation on each rank, and the link's peak.

    Args:
        uses: those whose bandwidth is known.
    """
    rows, row_of = _rows(uses)
    rates = Series("bus bandwidth of a rank", "dot", BLUE)
    peaks = Series("peak of the link in one direction", "tick", GREY)
    others = _Others("GB/s", 2)
    for rank, use, row in _split(uses, row_of, lambda use: -_rate(use), others, _rate):
        note = f"rank {rank}: {_rate(use):.2f} GB/s over {counted(use.count, 'operation')}"
        rates.add(row, _rate(use), note)
    known = {
        (row, use.peak_gb_per_s)
        for (_, use), row in zip(uses, row_of, strict=True)
        if use.peak_gb_per_s is not None
    }
    for row, peak in sorted(known):
        peaks.add(row, peak, f"peak of the link: {peak:.1f} GB/s")
    bound = ", a lower bound" if any(use.is_lower_bound for _, use in uses) else ""
    return lanes(
        f"bus bandwidth (GB/s){bound}",
        rows,
        [rates, *others.series, *([peaks] if known else [])],
        row_height=_ROW,
        joins=others.joins,
    )


def _rate(use: OperationUse) -> float:
    return use.busbw_gb_per_s or 0.0


class _Others:
    """What stands in a row for the ranks that have no point of their own: their range and middle.

    Args:
        unit: of the values.
        decimals: with which they are written.
    """

    def __init__(self, unit: str, decimals: int) -> None:
        self._unit, self._decimals = unit, decimals
        self._middle = Series("the others: range and median", "tick", GREY)
        self.joins: list[dict[str, Any]] = []

    def add(self, row: int, values: Sequence[float]) -> None:
        """Add the others of a row."""
        least, middle, most = (
            f"{value:.{self._decimals}f}" for value in (min(values), median(values), max(values))
        )
        note = (
            f"{counted(len(values), 'other rank')}: {least} to {most} {self._unit}, median {middle}"
        )
        self._middle.add(row, median(values), note)
        self.joins.append({"row": row, "from": min(values), "to": max(values), "color": GREY})

    @property
    def series(self) -> list[Series]:
        """The series of their middles; none where all ranks have a point."""
        return [self._middle] if self.joins else []


def _split(
    uses: Uses,
    row_of: Sequence[int],
    cost: Callable[[OperationUse], float],
    others: _Others,
    value: Callable[[OperationUse], float],
) -> list[tuple[int, OperationUse, int]]:
    """Return rank, use and row of those that have a point; add the others of each row.

    Args:
        uses: by rank and operation.
        row_of: the row of each.
        cost: how bad a rank's is: of many the worst have a point.
        others: to which the others are added.
        value: what is drawn.
    """
    points: list[int] = []
    for row in dict.fromkeys(row_of):
        of_row = [at for at, other in enumerate(row_of) if other == row]
        split = worst_first(of_row, lambda at: cost(uses[at][1]))
        points += split.drawn
        if split.others:
            others.add(row, [value(uses[at][1]) for at in split.others])
    return [(*uses[at], row_of[at]) for at in sorted(points)]


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
