"""The launch queue: how deep it was over time, and when the host was blocked by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dashboards.figures.reduction import MAX_POINTS, covered_share, edges, envelope
from dashboards.figures.style import limit, rows
from dashboards.widgets.palette import BLUE, COMMUNICATION

if TYPE_CHECKING:
    import numpy.typing as npt
    import plotly.graph_objects as go

    from dashboards.time_axis import Clock
    from traceprof.intervals import Int64, Intervals

_ROW = 110


@dataclass(frozen=True, slots=True)
class QueueRow:
    """The queue of one rank's process.

    Attributes:
        rank: the rank's number.
        start_ns: of what is shown.
        end_ns: likewise.
        times_ns: int64[k], when the depth changed, ascending.
        depth: int[k], how many launches were pending from then on.
        blocked: when a launch for this rank was blocked.
        cap: pending launches at which a launch blocks, None where that is not known.
        cap_scope: whether that is of one `stream` or of the whole `process`.
    """

    rank: int
    start_ns: int
    end_ns: int
    times_ns: Int64
    depth: npt.NDArray[np.int32]
    blocked: Intervals
    cap: int | None
    cap_scope: str | None


def depth_over_time(queues: list[QueueRow], clock: Clock) -> go.Figure:
    """Return the depth of each queue over time, a row for each, and the stalls behind it."""
    figure = rows([f"rank {queue.rank}" for queue in queues], _ROW, clock.title)
    for row, queue in enumerate(queues):
        _add_stalls(figure, row, queue, clock)
        _add_depth(figure, row, queue, clock)
        if queue.cap is not None:
            whose = "a stream" if queue.cap_scope == "stream" else "the process"
            limit(figure, row, queue.cap, f"limit of {whose}: {queue.cap}")
    figure.update_yaxes(title_text="launches", rangemode="tozero")
    start, end = min(queue.start_ns for queue in queues), max(queue.end_ns for queue in queues)
    figure.update_xaxes(range=[clock.second(start), clock.second(end)])
    figure.update_layout(meta={"base": str(clock.base_ns)}, bargap=0)
    return figure


def _add_stalls(figure: go.Figure, row: int, queue: QueueRow, clock: Clock) -> None:
    """Shade the pieces of time in which the host was blocked, as strongly as it was."""
    limits = edges(queue.start_ns, queue.end_ns, MAX_POINTS)
    share = covered_share(queue.blocked, limits)
    hit = np.flatnonzero(share > 0)
    top = max(int(queue.depth.max(initial=1)), queue.cap or 0) * 1.05
    figure.add_bar(
        x=clock.seconds((limits[hit] + limits[hit + 1]) // 2),
        y=np.full(len(hit), top),
        width=np.diff(limits)[hit] / 1e9,
        name="host blocked in a launch",
        legendgroup="blocked",
        showlegend=row == 0,
        marker={
            "color": COMMUNICATION,
            "opacity": 0.08 + 0.27 * share[hit],
            "line": {"width": 0},
        },
        customdata=100 * share[hit],
        hovertemplate="host blocked for %{customdata:.1f} % of this time<extra></extra>",
        row=row + 1,
        col=1,
    )


def _add_depth(figure: go.Figure, row: int, queue: QueueRow, clock: Clock) -> None:
    drawn = envelope(queue.times_ns, queue.depth, queue.start_ns, queue.end_ns)
    times = clock.seconds(np.append(drawn.start_ns, queue.end_ns))
    least, most = (np.append(depth, depth[-1:]) for depth in (drawn.least, drawn.most))
    place = {"row": row + 1, "col": 1}
    line = {"color": BLUE, "width": 1.2, "shape": "hv"}
    if not drawn.is_exact:
        figure.add_scatter(
            x=times,
            y=least,
            mode="lines",
            line=line | {"width": 0},
            showlegend=False,
            hoverinfo="skip",
            **place,
        )
    figure.add_scatter(
        x=times,
        y=most,
        customdata=least,
        mode="lines",
        name="launches pending" if drawn.is_exact else "launches pending, least to most",
        legendgroup="depth",
        showlegend=row == 0,
        line=line,
        fill=None if drawn.is_exact else "tonexty",
        fillcolor="rgba(0,114,178,0.25)",
        hovertemplate="%{x:.6f} s: %{y} pending<extra></extra>"
        if drawn.is_exact
        else "%{x:.6f} s: %{customdata} to %{y} pending<extra></extra>",
        **place,
    )
