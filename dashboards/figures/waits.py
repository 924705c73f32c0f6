"""Who waited for whom, as a figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dashboards.figures.style import chart
from dashboards.view import MAX_NAME
from dashboards.widgets.palette import INTENSITY
from traceprof.errors import one_line
from traceprof.units import duration

if TYPE_CHECKING:
    from collections.abc import Collection

    import plotly.graph_objects as go

    from traceprof.ranks.comparison import RankComparison

_CELL = 34
_MIN_HEIGHT = 150  # in which the title of the y axis is not cut
_MAX_WRITTEN = 24  # with more ranks the cells are too small for text


def wait_matrix(comparison: RankComparison, shown: Collection[int]) -> go.Figure | None:
    """Return how long each rank waited in collectives for each other one; None where none did.

    Args:
        comparison: of the ranks of the run.
        shown: the numbers of the ranks to draw.
    """
    order = sorted(
        (number, member) for member, number in enumerate(comparison.ranks) if number in shown
    )
    members = [member for _, member in order]
    waited = comparison.matrix_ns[np.ix_(members, members)]
    if not waited.any():
        return None
    names = [f"rank {number}" for number, _ in order]
    hosts = [one_line(comparison.machines[member], MAX_NAME) for member in members]
    hover = [
        [
            f"{names[row]} ({hosts[row]}) waited {duration(int(waited_ns))} for"
            f" {names[column]} ({hosts[column]})"
            for column, waited_ns in enumerate(of_rank)
        ]
        for row, of_rank in enumerate(waited)
    ]
    height = max(_CELL * len(members), _MIN_HEIGHT)
    figure = chart(height, "the rank that came last")
    is_written = len(members) <= _MAX_WRITTEN
    figure.add_heatmap(
        z=np.where(waited > 0, waited / 1e6, np.nan),
        x=names,
        y=names,
        text=[
            [duration(int(waited_ns)) if waited_ns else "" for waited_ns in of_rank]
            for of_rank in waited
        ],
        texttemplate="%{text}" if is_written else None,
        hovertext=hover,
        colorscale=INTENSITY,
        zmin=0,
        # Half of the scale, on which the cells' text can be read.
        zmax=2 * float(waited.max()) / 1e6,
        showscale=False,  # the cells say it
        hovertemplate="%{hovertext}<extra></extra>",
        xgap=1,
        ygap=1,
    )
    figure.update_yaxes(
        autorange="reversed", type="category", showgrid=False, title="the rank that waited"
    )
    figure.update_xaxes(type="category", showgrid=False)
    return figure
