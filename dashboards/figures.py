"""Pure functions from results to plotly figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import plotly.graph_objects as go

from dashboards.palette import PARTS

if TYPE_CHECKING:
    from traceprof.analysis import Analysis
    from traceprof.rank import Rank

_ROW_HEIGHT = 44


def breakdown(analysis: Analysis) -> go.Figure:
    """Return one bar for each rank: the parts of its window in milliseconds."""
    ranks = {rank.rank: rank for rank in analysis.run.ranks}
    names = [f"rank {result.rank} · {_device(ranks[result.rank])}" for result in analysis.breakdown]
    figure = go.Figure()
    for measure, name, color in PARTS:
        values = [getattr(result.whole, measure) for result in analysis.breakdown]
        windows = [result.whole.window_ns for result in analysis.breakdown]
        shares = [
            value / window if window else 0.0 for value, window in zip(values, windows, strict=True)
        ]
        figure.add_bar(
            y=names,
            x=[value / 1e6 for value in values],
            name=name,
            orientation="h",
            marker_color=color,
            customdata=shares,
            hovertemplate=f"{name}: %{{x:.3f}} ms (%{{customdata:.1%}})<extra>%{{y}}</extra>",
        )
    figure.update_layout(
        barmode="stack",
        height=120 + _ROW_HEIGHT * len(names),
        margin={"l": 10, "r": 10, "t": 10, "b": 10},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
        xaxis={"title": "time in the window (ms)"},
        yaxis={"autorange": "reversed", "automargin": True},
        template="plotly_white",
    )
    return figure


def _device(rank: Rank) -> str:
    return "CPU" if rank.device is None else f"GPU {rank.device}"
