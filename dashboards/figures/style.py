"""How all charts look; `assets/style.css` gives text and lines the theme's colours."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboards.widgets.palette import GREY

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

FONT = {"family": "system-ui, 'Segoe UI', 'Liberation Sans', sans-serif", "size": 12}
_CLEAR = "rgba(0,0,0,0)"
_AXIS = {"automargin": True, "zeroline": False, "title": {"standoff": 8}}
_HEADROOM = 36  # of the legend
_FOOT = 48  # of the x axis and its title
_GAP = 26  # between rows, where their titles stand
_TITLE = 18  # of a row
_MAX_DECADES = 5  # of a logarithmic axis, with three labels each


def rows(titles: Sequence[str], row_height: int, x_title: str) -> go.Figure:
    """Return an empty chart of rows above each other, each with a title, and one x axis for all.

    Args:
        titles: of the rows.
        row_height: in pixels.
        x_title: of the axis, with its unit.
    """
    num = len(titles)
    height = num * row_height + (num - 1) * _GAP
    figure = make_subplots(rows=num, cols=1, shared_xaxes=True, vertical_spacing=_GAP / height)
    _styled(figure, height, x_title)
    for row, title in enumerate(titles, start=1):
        figure.add_annotation(
            text=plain(title),
            font={"size": 11},
            x=0,
            xref="x domain",
            xanchor="left",
            y=1,
            yref="y domain",
            yanchor="bottom",
            showarrow=False,
            row=row,
            col=1,
        )
    figure.update_layout(legend={"y": 1 + _TITLE / height}, margin={"t": _HEADROOM + _TITLE})
    figure.layout.height += _TITLE
    return figure


def limit(figure: go.Figure, row: int, value: float, text: str) -> None:
    """Draw a dashed line at a value of a row, counted from 0, and say what it is."""
    figure.add_hline(
        y=value,
        line={"color": GREY, "width": 1.5, "dash": "dash"},
        row=row + 1,
        col=1,
    )
    figure.add_annotation(
        text=plain(text),
        font={"size": 11},
        x=1,
        xref="x domain",
        xanchor="right",
        y=1,
        yref="y domain",
        yanchor="bottom",
        showarrow=False,
        row=row + 1,
        col=1,
    )


def chart(plot_height: int, x_title: str, y_title: str = "") -> go.Figure:
    """Return an empty chart.

    Args:
        plot_height: of what is between the axes, in pixels.
        x_title: of the axis, with its unit.
        y_title: likewise; empty where names stand there.
    """
    figure = _styled(go.Figure(), plot_height, x_title)
    figure.update_yaxes(title_text=y_title)
    return figure


def _styled(figure: go.Figure, plot_height: int, x_title: str) -> go.Figure:
    figure.update_layout(
        template="none",
        height=plot_height + _HEADROOM + _FOOT,
        margin={"l": 8, "r": 16, "t": _HEADROOM, "b": _FOOT},
        paper_bgcolor=_CLEAR,
        plot_bgcolor=_CLEAR,
        font=FONT,
        hoverlabel={"align": "left", "font": FONT},
        legend={
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 1,
            "yanchor": "bottom",
            "traceorder": "normal",
            "bgcolor": _CLEAR,
        },
        bargap=0.25,
        dragmode="zoom",
    )
    figure.update_xaxes(showgrid=True, **_AXIS)
    figure.update_yaxes(showgrid=True, **_AXIS)
    *_, last = figure.select_xaxes()
    last.title.text = x_title
    return figure


def color_range(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the values from which and up to which a scale of colours goes.

    These are the extremes, but none that lies further outside of the middle half of the values
    than 1.5 times its width: one step that takes a hundred times as long would leave one colour to
    all others. The scale is no narrower than 2 % of the median, or noise would look like much.

    Args:
        values: float64 of any shape; NaN is no value.
    """
    known = values[~np.isnan(values)]
    if len(known) == 0:
        return 0.0, 1.0
    lower, median, upper = np.percentile(known, (25, 50, 75))
    margin = max(1.5 * (upper - lower), 0.01 * abs(median))
    low = max(float(known.min()), lower - margin)
    high = min(float(known.max()), upper + margin)
    narrowest = 0.02 * abs(median)
    return float(low), float(max(high, low + narrowest, np.nextafter(low, np.inf)))


def log_axis(figure: go.Figure, values: Sequence[float]) -> None:
    """Make the x axis logarithmic, with whole numbers at 1, 2 and 5: `5 · 10 · 20`.

    Args:
        figure: the chart.
        values: what is drawn, above 0.
    """
    positive = [value for value in values if value > 0]
    least, most = min(positive, default=1.0), max(positive, default=1.0)
    first, last = math.floor(math.log10(least)), math.ceil(math.log10(most))
    ticks = [digit * 10.0**power for power in range(first, last + 1) for digit in (1, 2, 5)]
    if last - first > _MAX_DECADES:  # the labels would lie upon each other
        ticks = ticks[::3]
    figure.update_xaxes(type="log", tickvals=ticks, ticktext=[f"{tick:,g}" for tick in ticks])


def plain(text: str) -> str:
    """Return text that plotly shows as it is: it takes `<b>` and `&lt;` for markup otherwise."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def shortened(name: str, most: int = 42) -> str:
    """Return a name of at most so many characters, its middle left out, as plotly shows it."""
    if len(name) > most:
        head = (most - 1) // 2
        name = f"{name[:head]}…{name[len(name) - (most - 1 - head) :]}"
    return plain(name)
