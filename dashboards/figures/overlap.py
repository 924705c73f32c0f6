"""Overlap: what it hides, what it costs, and which kernels pay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dashboards.figures.style import chart, log_axis, plain, shortened
from dashboards.widgets.palette import BLUE, COMMUNICATION, GREY
from traceprof.kernel_names import function_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    import plotly.graph_objects as go

    from traceprof.analyses.kernels.by_signature import SignatureSlowdown
    from traceprof.analyses.overlap_slowdown import OverlapSlowdownResult

_ROW = 26


def gain_and_cost(results: Sequence[OverlapSlowdownResult]) -> go.Figure:
    """Return for each rank what overlap hides, to the right, and what it costs, to the left."""
    names = [f"rank {result.rank}" for result in results]
    figure = chart(max(_ROW * len(results), 60), "time (ms)")
    figure.add_bar(
        y=names,
        x=[result.hidden_ns / 1e6 for result in results],
        orientation="h",
        name="hidden behind compute",
        marker_color=BLUE,
        hovertemplate="<b>%{y}</b><br>overlap hides %{x:.3f} ms<extra></extra>",
    )
    figure.add_bar(
        y=names,
        x=[-result.wall_excess_ns / 1e6 for result in results],
        orientation="h",
        name="cost: kernels run longer",
        marker_color=COMMUNICATION,
        customdata=[result.wall_excess_ns / 1e6 for result in results],
        hovertemplate="<b>%{y}</b><br>kernels run %{customdata:.3f} ms longer<extra></extra>",
    )
    figure.add_scatter(
        y=names,
        x=[result.net_gain_ns / 1e6 for result in results],
        mode="markers",
        name="net gain",
        marker={
            "symbol": "diamond",
            "size": 9,
            "color": "white",
            "line": {"width": 2, "color": "#333"},
        },
        hovertemplate="<b>%{y}</b><br>net gain %{x:.3f} ms<extra></extra>",
    )
    figure.update_layout(barmode="relative")
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    figure.update_xaxes(zeroline=True)
    return figure


def alone_against_overlapped(rows: Sequence[tuple[int, SignatureSlowdown]]) -> go.Figure:
    """Return the median durations of kernels alone and overlapped, joined by a line.

    Args:
        rows: rank and kernels, from top to bottom.
    """
    several = len({rank for rank, _ in rows}) > 1
    # The number distinguishes kernels of the same name.
    suffixes = [f" · rank {rank}" if several else "" for rank, _ in rows]
    names = [
        f"{position}. {shortened(function_name(signature.name))}{suffix}"
        for position, ((_, signature), suffix) in enumerate(zip(rows, suffixes, strict=True), 1)
    ]
    alone = [signature.median_alone_ns / 1e3 for _, signature in rows]
    overlapped = [signature.median_overlapped_ns / 1e3 for _, signature in rows]
    titles = [
        f"<b>{plain(function_name(signature.name))}</b><br>"
        f"rank {rank}, grid {signature.grid}, block {signature.block}"
        for rank, signature in rows
    ]
    figure = chart(_ROW * len(rows), "median duration (µs, logarithmic)")
    for name, slower, before, after in zip(
        names,
        (b > a for a, b in zip(alone, overlapped, strict=True)),
        alone,
        overlapped,
        strict=True,
    ):
        figure.add_scatter(
            x=[before, after],
            y=[name, name],
            mode="lines",
            line={"width": 3, "color": COMMUNICATION if slower else BLUE},
            opacity=0.45,
            showlegend=False,
            hoverinfo="skip",
        )
    for label, values, symbol, color, num in (
        ("alone", alone, "circle-open", GREY, "num_alone"),
        ("beside communication", overlapped, "circle", COMMUNICATION, "num_overlapped"),
    ):
        figure.add_scatter(
            x=values,
            y=names,
            mode="markers",
            name=label,
            marker={"symbol": symbol, "size": 10, "color": color, "line": {"width": 2}},
            hovertext=titles,
            customdata=[
                [getattr(signature, num), signature.excess_ns / 1e6] for _, signature in rows
            ],
            hovertemplate=f"%{{hovertext}}<br>%{{x:.2f}} µs at the median, {label}, of"
            " %{customdata[0]}<br>excess %{customdata[1]:.3f} ms in all<extra></extra>",
            meta=0,
        )
    figure.update_yaxes(autorange="reversed", type="category")
    log_axis(figure, [*alone, *overlapped])
    return figure
