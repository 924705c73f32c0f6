"""NCCL: time and bus bandwidth of each operation, a point for each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dashboards.figures.style import chart, plain, shortened
from dashboards.widgets.palette import BLUE, COMMUNICATION, GREY

if TYPE_CHECKING:
    from collections.abc import Sequence

    import plotly.graph_objects as go

    from traceprof.analyses.collectives import OperationUse

    Uses = Sequence[tuple[int, OperationUse]]

_ROW = 30


def operation_name(use: OperationUse, most: int = 48) -> str:
    """Return an operation and its communicator, as a chart names them."""
    communicator = f" · {use.communicator}" if use.communicator else ""
    return shortened(f"{use.operation}{communicator}", most)


def time(uses: Uses) -> go.Figure:
    """Return how long each operation took on each rank.

    Args:
        uses: by rank and operation.
    """
    figure = chart(_height(uses), "time in kernels, waiting included (ms)")
    figure.add_scatter(
        x=[use.total_ns / 1e6 for _, use in uses],
        y=[operation_name(use) for _, use in uses],
        mode="markers",
        marker={"size": 11, "color": COMMUNICATION, "opacity": 0.75},
        customdata=[
            [rank, use.count, use.median_ns / 1e3, plain(use.communicator_text or "not known")]
            for rank, use in uses
        ],
        hovertemplate="<b>%{y}</b><br>rank %{customdata[0]}: %{x:.3f} ms in %{customdata[1]}"
        " operations<br>median %{customdata[2]:.1f} µs<br>communicator %{customdata[3]}"
        "<extra></extra>",
    )
    figure.update_yaxes(autorange="reversed", type="category")
    figure.update_xaxes(rangemode="tozero")
    figure.update_layout(showlegend=False)
    return figure


def bus_bandwidth(uses: Uses) -> go.Figure:
    """Return the bus bandwidth of each operation on each rank, and the link's peak.

    Args:
        uses: those whose bandwidth is known.
    """
    figure = chart(_height(uses), "bus bandwidth (GB/s), a lower bound")
    figure.add_scatter(
        x=[use.busbw_gb_per_s for _, use in uses],
        y=[operation_name(use) for _, use in uses],
        mode="markers",
        name="bus bandwidth of a rank",
        marker={"size": 11, "color": BLUE, "opacity": 0.75},
        customdata=[[rank, use.count] for rank, use in uses],
        hovertemplate="<b>%{y}</b><br>rank %{customdata[0]}: %{x:.2f} GB/s over %{customdata[1]}"
        " operations<extra></extra>",
    )
    with_peak = [use for _, use in uses if use.peak_gb_per_s is not None]
    if with_peak:
        figure.add_scatter(
            x=[use.peak_gb_per_s for use in with_peak],
            y=[operation_name(use) for use in with_peak],
            mode="markers",
            name="peak of the link in one direction",
            marker={
                "symbol": "line-ns-open",
                "size": 20,
                "color": GREY,
                "line": {"width": 3},
            },
            hovertemplate="peak of the link: %{x:.1f} GB/s<extra></extra>",
        )
    figure.update_yaxes(autorange="reversed", type="category")
    figure.update_xaxes(rangemode="tozero")
    return figure


def _height(uses: Uses) -> int:
    return max(_ROW * len({operation_name(use) for _, use in uses}), 60)
