"""Watch: what `instrument.watch` wrote while a training ran: who came late, from which step on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from dash import html
from dash.development.base_component import Component

from dashboards.clock import Clock
from dashboards.pages.steps import MAX_BARS, StepGrid, heat_map, heat_row, late_scale
from dashboards.widgets import components as ui
from dashboards.widgets.charts import group_starts, plots
from dashboards.widgets.tables import IDENTIFIER, Column, table
from traceprof.documents.watched import Watched, Window, read_windows, watched
from traceprof.errors import one_line
from traceprof.reports.watched_text import verdicts
from traceprof.units import counted
from traceprof.version import __version__

TITLE = "Watch"

_VERDICTS = (
    Column("rank", "rank", IDENTIFIER, 60),
    Column("since_step", "since step", IDENTIFIER, 80),
    Column("until_step", "up to step", IDENTIFIER, 80, "empty where it goes on"),
    Column("line", "what was found"),
)


def layout(path: Path) -> Component:
    """Return the page of the file as it is now."""
    all_windows = read_windows(path)
    found = watched(path, all_windows)
    windows = [window for window in all_windows if window.ranks]
    restarts = f", {counted(found.num_restarts, 'restart')} between" * bool(found.num_restarts)
    about = f"{counted(found.num_windows, 'window')} of steps up to {found.last_step}{restarts}"
    parts = [f"{TITLE} of {one_line(path.name)}", about, f"traceprof {__version__}"]
    return html.Div(
        [
            ui.page(
                TITLE,
                f"{about}, by instrument.watch. While the training runs, reload the page for more.",
                _verdicts(found),
                _late(windows) if windows else None,
            ),
            html.P(" · ".join(parts), className="caption note"),
        ]
    )


def _verdicts(found: Watched) -> Component:
    rows = [verdict._asdict() for verdict in verdicts(found)]
    nothing = "No rank took longer than its peers by more than the noise, and all answered."
    return ui.card(
        "What was found",
        table("watched", _VERDICTS, rows, "watched.csv") if rows else ui.nothing(nothing),
    )


def _late(windows: Sequence[Window]) -> Component:
    """Return the excess of each rank over its peers: of several windows in a column the largest."""
    numbers = sorted({times.rank for window in windows for times in window.ranks})
    row_of = {number: row for row, number in enumerate(numbers)}
    excess_ns = np.full((len(numbers), len(windows)), np.nan)
    for column, window in enumerate(windows):
        for times in window.ranks:
            excess_ns[row_of[times.rank], column] = max(times.excess_ns, 0.0)
    starts = group_starts(len(windows), MAX_BARS)
    steps = np.array([window.step for window in windows])
    last = steps[np.append(starts[1:], len(windows)) - 1]
    labels = [f"the steps up to {step}" for step in last.tolist()]
    most_ns = np.fmax.reduceat(excess_ns, starts, axis=1)
    split = ui.worst_first(range(len(numbers)), lambda row: float(np.nansum(excess_ns[row])))
    rows = [*split.drawn, *split.others]
    nowhere = np.full((len(rows), len(starts)), -1)
    late_ns = most_ns[rows]
    grid = StepGrid(last.astype(np.float64), labels, late_ns, nowhere, nowhere)
    drawn_rows = [heat_row(f"rank {numbers[row]}", None, {}) for row in split.drawn]
    drawn = heat_map(drawn_rows, grid, late_ns, Clock(0), split.rest)
    notes = ("own time beyond the median of its peers, in a step", split.note("most of it"))
    chart = plots(
        "watched-heat",
        drawn | late_scale(late_ns, "not late"),
        "how late each rank was, by rank and step",
    )
    return ui.card("Late ranks", chart, note="; ".join(filter(None, notes)))
