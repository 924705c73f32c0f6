"""Training steps: how long each took, and where its time went."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dashboards.figures.reduction import group_starts
from dashboards.figures.style import chart, color_range, rows
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
_LEGIBLE = 60  # pixels, in which the scale of colours can be read


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


class StepGrid(NamedTuple):
    """The steps of several ranks in columns: of one step each, or of several that follow.

    Attributes:
        position: float64[columns], where on the axis: the step's number, or the steps' middle.
        label: the steps of each column.
        longest_ms: float64[ranks, columns], the longest step of each; NaN where there is none.
        first: int64[ranks, columns], index of the rank's first step of each; -1 where none.
        last: int64[ranks, columns], of the last.
    """

    position: Float64
    label: list[str]
    longest_ms: Float64
    first: Int64
    last: Int64


def step_grid(results: Sequence[BreakdownResult], most: int = MAX_BARS) -> StepGrid:
    """Put the steps of ranks into at most so many columns, by their numbers.

    Where a rank's numbers come again, which step is which is known by none of them, and the order
    in which they ran counts for all ranks.
    """
    numbers = [np.array([step.number for step in result.steps], np.int64) for result in results]
    if any((np.diff(row) <= 0).any() for row in numbers):
        numbers = [np.arange(len(row)) for row in numbers]
    known = np.unique(np.concatenate(numbers))
    starts = group_starts(len(known), most)
    stops = np.append(starts[1:], len(known))[: len(starts)]
    begin, end = known[starts], known[stops - 1]
    shape = len(results), len(starts)
    longest, first, last = np.full(shape, np.nan), np.full(shape, -1), np.full(shape, -1)
    for row, (result, of_rank) in enumerate(zip(results, numbers, strict=True)):
        column = np.searchsorted(begin, of_rank, side="right") - 1  # ascending, as the steps are
        windows = np.array([step.measures.window_ns for step in result.steps], np.float64)
        taken, place = np.unique(column, return_index=True)
        first[row, taken] = place
        last[row, taken] = np.append(place[1:], len(column)) - 1
        longest[row, taken] = np.maximum.reduceat(windows, place) / 1e6
    label = [
        f"step {a}" if a == b else f"longest of steps {a}-{b}"
        for a, b in zip(begin.tolist(), end.tolist(), strict=True)
    ]
    return StepGrid((begin + end) / 2, label, longest, first, last)


def heat(results: Sequence[BreakdownResult], grid: StepGrid) -> go.Figure:
    """Return the time of each step, a row for each rank, dark where it took longest."""
    figure = chart(max(_ROW * len(results), _LEGIBLE), "step")
    low, high = color_range(grid.longest_ms)
    figure.add_heatmap(
        z=grid.longest_ms,
        x=grid.position,
        y=[f"rank {result.rank}" for result in results],
        text=np.broadcast_to(np.array(grid.label, object), grid.longest_ms.shape),
        colorscale=INTENSITY,
        zmin=low,
        zmax=high,
        colorbar={"title": {"text": "ms"}, "thickness": 12, "outlinewidth": 0, "nticks": 3},
        hoverongaps=False,
        hovertemplate="<b>%{y}, %{text}</b><br>%{z:.3f} ms<extra></extra>",
        xgap=1 if len(grid.position) < 120 else 0,
        ygap=1,
    )
    figure.update_yaxes(autorange="reversed", showgrid=False, type="category")
    figure.update_xaxes(showgrid=False)
    return figure
