"""Overlap: the time that it hides, its cost, and the kernels that become slower."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

from dashboards.figures.lanes import Lane, Series, lanes, shortened
from dashboards.widgets.palette import BLUE, COMMUNICATION, GREY
from traceprof.errors import one_line
from traceprof.kernel_names import function_name
from traceprof.units import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.analyses.kernels.by_signature import SignatureSlowdown
    from traceprof.analyses.overlap_slowdown import OverlapSlowdownResult

_ROW, _LOW_ROW = 22, 17
_MAX_HIGH = 8  # rows


def gain_and_cost(
    results: Sequence[OverlapSlowdownResult], others: Sequence[OverlapSlowdownResult] = ()
) -> dict[str, Any]:
    """Return the hidden time of each rank, to the right, and the cost of overlap, to the left.

    Args:
        results: of ranks that have a row each.
        others: of ranks that share the last row, which shows their means. Cost and net gain are of
            those whose kernels could be compared; without any they are not drawn.
    """
    hidden = Series("hidden behind compute", "bar", BLUE)
    cost = Series("cost: kernels run longer", "bar", COMMUNICATION)
    gain = Series("net gain", "diamond", None)
    for row, group in enumerate([*([result] for result in results), *([others] if others else [])]):
        hidden_ms = fmean(result.hidden_ns for result in group) / 1e6
        hidden.add(row, hidden_ms, f"overlap hides {hidden_ms:.3f} ms")
        known = [result for result in group if is_cost_known(result)]
        if not known:
            continue
        cost_ms = fmean(result.wall_excess_ns for result in known) / 1e6
        gain_ms = fmean(result.net_gain_ns for result in known) / 1e6
        cost.add(row, -cost_ms, f"kernels run {cost_ms:.3f} ms longer")
        gain.add(row, gain_ms, f"net gain {gain_ms:.3f} ms")
    rows = [Lane(f"rank {result.rank}", f"rank {result.rank}") for result in results]
    if others:
        rows.append(
            Lane(counted(len(others), "other"), f"{counted(len(others), 'other rank')}, the mean")
        )
    row_height = _ROW if len(rows) <= _MAX_HIGH else _LOW_ROW
    shown = [series for series in (hidden, cost, gain) if series.x]
    return lanes("time (ms)", rows, shown, row_height=row_height)


def is_cost_known(result: OverlapSlowdownResult) -> bool:
    """Return whether kernels could be compared, or there is no overlap with a cost."""
    return result.comparison.slowdown is not None or not result.hidden_ns


def alone_against_overlapped(
    rows: Sequence[tuple[int, SignatureSlowdown]], hrefs: Sequence[str]
) -> dict[str, Any]:
    """Return the mean durations of kernels alone and overlapped, joined by a line.

    Args:
        rows: rank and kernels, from top to bottom.
        hrefs: of each, the address that a click leads to.
    """
    several = len({rank for rank, _ in rows}) > 1
    alone = Series("alone", "ring", GREY)
    overlapped = Series("beside communication", "dot", COMMUNICATION)
    lines, joins = [], []
    for row, ((rank, signature), href) in enumerate(zip(rows, hrefs, strict=True)):
        name = one_line(function_name(signature.name))
        suffix = f" · rank {rank}" if several else ""
        # The number distinguishes kernels of the same name.
        lines.append(Lane(f"{row + 1}. {shortened(name)}{suffix}", name, href))
        before, after = signature.mean_alone_ns / 1e3, signature.mean_overlapped_ns / 1e3
        color = COMMUNICATION if after > before else BLUE
        joins.append({"row": row, "from": before, "to": after, "color": color})
        for series, mean, num in (
            (alone, before, signature.num_alone),
            (overlapped, after, signature.num_overlapped),
        ):
            series.add(
                row,
                mean,
                f"rank {rank}, grid {signature.grid}, block {signature.block}",
                f"{mean:.2f} µs on average, {series.name}, of {num}",
                f"excess {signature.excess_ns / 1e6:.3f} ms in all",
            )
    return lanes(
        "mean duration (µs, logarithmic)",
        lines,
        [alone, overlapped],
        row_height=_ROW,
        scale="log",
        joins=joins,
    )
