"""Training steps: how long each took, and where its time went."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dashboards.figures.reduction import group_starts
from dashboards.figures.style import chart, rows
from dashboards.widgets.palette import GREY, INTENSITY, PARTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    import plotly.graph_objects as go

    from traceprof.analyses.breakdown import BreakdownResult
    from traceprof.intervals import Int64

    Float64 = npt.NDArray[np.float64]

MAX_BARS = 300  # of one rank: more would be thinner than three pixels
_BAR_ROW = 90
_ROW = 22


class StepBars(NamedTuple):
    """The steps of one rank as bars, each of one step or of several that follow each other.

    Attributes:
        first: int64[n], index of the first step of each bar.
        stop: int64[n], one past its last.
        position: float64[n], where on the axis.
        label: n texts, the steps' numbers.
        parts_ms: float64[n, 4], the mean over the bar's steps, in the order of `PARTS`.
        longest_ms: float64[n], the longest step of each bar.
        shortest_ms: float64[n], the shortest.
    """

    first: Int64
    stop: Int64
    position: Float64
    label: list[str]
    parts_ms: Float64
    longest_ms: Float64
    shortest_ms: Float64


def step_bars(result: BreakdownResult, most: int = MAX_BARS) -> StepBars:
    """Put the steps of a rank into at most so many bars."""
    steps = result.steps
    numbers = np.array([step.number for step in steps], np.int64)
    if (np.diff(numbers) <= 0).any():  # where numbers come again, the order counts
        numbers = np.arange(len(numbers))
    parts = np.array(
        [[getattr(step.measures, measure) for measure, *_ in PARTS] for step in steps], np.float64
    ).reshape(-1, len(PARTS))
    windows = np.array([step.measures.window_ns for step in steps], np.float64)
    first = group_starts(len(steps), most)
    stop = np.append(first[1:], len(steps))[: len(first)]
    if len(first) == 0:
        nothing = np.empty(0)
        return StepBars(first, stop, nothing, [], parts, nothing, nothing)
    label = [
        f"step {steps[a].number}"
        if b == a + 1
        else f"mean of steps {steps[a].number}-{steps[b - 1].number}"
        for a, b in zip(first.tolist(), stop.tolist(), strict=True)
    ]
    return StepBars(
        first=first,
        stop=stop,
        position=(numbers[first] + numbers[stop - 1]) / 2,
        label=label,
        parts_ms=np.add.reduceat(parts, first) / (stop - first)[:, None] / 1e6,
        longest_ms=np.maximum.reduceat(windows, first) / 1e6,
        shortest_ms=np.minimum.reduceat(windows, first) / 1e6,
    )


def stacked(results: Sequence[BreakdownResult], bars: Sequence[StepBars]) -> go.Figure:
    """Return the steps of each rank as bars of where their time went, a row for each rank.

    All rows have the same scale, so that ranks can be compared. The `meta` of a trace is its row.
    """
    figure = rows([f"rank {result.rank}" for result in results], _BAR_ROW, "step")
    for row, rank_bars in enumerate(bars):
        _add_row(figure, row, rank_bars)
    figure.update_layout(
        legend={"traceorder": "reversed"},
        barmode="stack",
        bargap=0.12 if len(bars[0].first) < 100 else 0,
    )
    figure.update_yaxes(title_text="ms", matches="y", rangemode="tozero")
    figure.update_xaxes(showgrid=False)
    return figure


def _add_row(figure: go.Figure, row: int, bars: StepBars) -> None:
    place = {"row": row + 1, "col": 1}
    whole = bars.parts_ms.sum(axis=1)
    is_group = bool((bars.stop - bars.first > 1).any())
    range_text = "<br>steps of %{customdata[1]:.3f} to %{customdata[2]:.3f} ms" if is_group else ""
    # Compute on top, so that what is lost stands on the axis.
    for index, (_, name, color) in reversed(list(enumerate(PARTS))):
        share = np.divide(bars.parts_ms[:, index], whole, out=np.zeros(len(whole)), where=whole > 0)
        figure.add_bar(
            x=bars.position,
            y=bars.parts_ms[:, index],
            name=name,
            legendgroup=name,
            showlegend=row == 0,
            marker={"color": color, "line": {"width": 0}},
            customdata=np.stack((100 * share, bars.shortest_ms, bars.longest_ms), axis=1),
            hovertext=bars.label,
            hovertemplate=f"<b>%{{hovertext}}</b><br>{name}: %{{y:.3f}} ms"
            f" (%{{customdata[0]:.1f}} %){range_text}<extra></extra>",
            meta=row,
            **place,
        )
    if is_group:
        figure.add_scatter(
            x=bars.position,
            y=bars.longest_ms,
            mode="markers",
            name="longest of the steps in a bar",
            legendgroup="longest",
            showlegend=row == 0,
            marker={"symbol": "line-ew-open", "size": 6, "color": GREY},
            hoverinfo="skip",
            meta=row,
            **place,
        )


def heat(results: Sequence[BreakdownResult], bars: Sequence[StepBars]) -> go.Figure:
    """Return the longest step of each bar, a row for each rank, dark where it took longest."""
    longest = max(len(bar.first) for bar in bars)
    values = np.full((len(bars), longest), np.nan)
    texts = np.full((len(bars), longest), "", object)
    for row, rank_bars in enumerate(bars):
        values[row, : len(rank_bars.first)] = rank_bars.longest_ms
        texts[row, : len(rank_bars.first)] = rank_bars.label
    figure = chart(max(_ROW * len(bars), 60), "step, in the order they ran")
    figure.add_heatmap(
        z=values,
        y=[f"rank {result.rank}" for result in results],
        text=texts,
        colorscale=INTENSITY,
        colorbar={"title": {"text": "ms"}, "thickness": 12, "outlinewidth": 0},
        hovertemplate="<b>%{y}, %{text}</b><br>longest: %{z:.3f} ms<extra></extra>",
        xgap=1 if longest < 120 else 0,
        ygap=1,
    )
    figure.update_yaxes(autorange="reversed", showgrid=False, type="category")
    figure.update_xaxes(showgrid=False)
    return figure
