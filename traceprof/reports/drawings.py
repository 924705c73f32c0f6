"""Geometry of the HTML report's drawings: what templates write as SVG. Lengths are pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof import intervals
from traceprof.errors import one_line
from traceprof.kernel_names import function_name
from traceprof.reports.tracks import EventKind
from traceprof.structs import Record
from traceprof.trace.grouping import median_of
from traceprof.units import duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from traceprof.analyses.breakdown import StepMeasures
    from traceprof.reports.evidence import Scene
    from traceprof.reports.tracks import Track

WIDTH, LABELS = 900, 190  # of a drawing; of it, for the names of its rows
ROW, BAR = 20, 15  # of a row, and of what is drawn in it
CHART_HEIGHT = 140
MAX_COLUMNS = 160  # of steps; of more, several make a column
PARTS = {
    "compute_ns": "compute",
    "exposed_communication_ns": "exposed communication",
    "exposed_copy_ns": "exposed copy",
    "idle_ns": "idle",
}
"""Parts of a window: field of `Measures`, name."""
_CHARACTER = 6.2  # wide, at the size of the labels
_MIN_LABEL = 24  # shorter events are not named
_FINE = 2  # parts of a pixel that are distinguished


class DrawnText(Record, frozen=True):
    """A text in a drawing, from its left end on."""

    x: float
    y: float
    text: str


class DrawnRow(Record, frozen=True):
    """A row of a drawing.

    Attributes:
        y: its top.
        name: what it shows.
        shapes: SVG path data by category.
        labels: names of the events that have room for one.
    """

    y: int
    name: str
    shapes: tuple[tuple[str, str], ...]
    labels: tuple[DrawnText, ...]


class Timeline(Record, frozen=True):
    """Drawing of what ran around a piece of evidence.

    Attributes:
        height: of the drawing.
        rows: from the top.
        left: where the evidence begins.
        width: of the evidence.
        ticks: times, from the evidence's start on.
    """

    height: int
    rows: tuple[DrawnRow, ...]
    left: float
    width: float
    ticks: tuple[DrawnText, ...]


def timeline(scene: Scene) -> Timeline:
    """Return the drawing of a scene."""
    scale = (WIDTH - LABELS) / (scene.end_ns - scene.start_ns)
    rows = tuple(_row(track, number * ROW, scene, scale) for number, track in enumerate(scene.rows))
    height = len(rows) * ROW
    left = LABELS + (scene.place.start_ns - scene.start_ns) * scale
    width = max((scene.place.end_ns - scene.place.start_ns) * scale, 1.0)
    length = scene.place.end_ns - scene.place.start_ns
    ticks = [DrawnText(round(left, 1), height + 14, "0")]
    if length:
        ticks.append(DrawnText(round(left + width, 1), height + 14, duration(length)))
    return Timeline(height, rows, round(left, 1), round(width, 1), tuple(ticks))


def _row(track: Track, y: int, scene: Scene, scale: float) -> DrawnRow:
    fine = scale * _FINE
    start = np.maximum(track.start_ns - scene.start_ns, 0) * fine
    end = np.minimum(track.end_ns - scene.start_ns, scene.end_ns - scene.start_ns) * fine
    first = np.floor(start).astype(np.int64)
    stop = np.maximum(np.ceil(end).astype(np.int64), first + 1)
    stop -= stop - first > 2 * _FINE  # a gap between what follows one another
    shapes = []
    for category in EventKind:
        chosen = track.category == category
        if chosen.any():
            # What is too near to be distinguished is one shape, so that drawings stay small.
            spans = intervals.union(first[chosen], stop[chosen])
            shapes.append((str(category), _path(spans.start_ns, spans.end_ns, y)))
    return DrawnRow(y, one_line(track.label, 30), tuple(shapes), _labels(track, start, end, y))


def _path(first: intervals.Int64, stop: intervals.Int64, y: int) -> str:
    top = y + (ROW - BAR) / 2
    return "".join(
        f"M{LABELS + left / _FINE:g} {top:g}h{width / _FINE:g}v{BAR}h-{width / _FINE:g}z"
        for left, width in zip(first.tolist(), (stop - first).tolist(), strict=True)
    )


def _labels(
    track: Track, start: npt.NDArray[np.float64], end: npt.NDArray[np.float64], y: int
) -> tuple[DrawnText, ...]:
    labels = []
    for index in np.flatnonzero(end - start >= _MIN_LABEL * _FINE).tolist():
        name = track.names[int(track.name[index])]
        if track.operation[index] >= 0:
            name = function_name(name)
        room = int((end[index] - start[index]) / _FINE / _CHARACTER) - 1
        if room > 1:
            x = round(LABELS + float(start[index]) / _FINE + 3, 1)
            labels.append(DrawnText(x, y + 14, one_line(name, room)))
    return tuple(labels)


class StepChart(Record, frozen=True):
    """Parts of each step of a rank, as columns.

    Attributes:
        shapes: SVG path data by part.
        ticks: names of the axes' ends.
        median_y: where the median is.
        median: the median.
        steps_per_column: of more than one step, a column shows the mean.
    """

    shapes: tuple[tuple[str, str], ...]
    ticks: tuple[DrawnText, ...]
    median_y: float
    median: str
    steps_per_column: int


def step_chart(steps: Sequence[StepMeasures]) -> StepChart:
    """Return the drawing of the steps of a rank, of which there is at least one."""
    per_column = -(-len(steps) // MAX_COLUMNS)
    first = np.arange(0, len(steps), per_column)
    counts = np.diff(np.append(first, len(steps)))
    lengths = np.array([step.measures.window_ns for step in steps], np.float64)
    parts = np.array([[getattr(step.measures, part) for step in steps] for part in PARTS], float)
    means = np.add.reduceat(parts, first, axis=1) / counts
    highest = float(means.sum(axis=0).max()) or 1.0
    width = (WIDTH - LABELS) / len(first)
    edges = CHART_HEIGHT * (1 - np.cumsum(np.vstack([np.zeros(len(first)), means]), 0) / highest)
    shapes = []
    for number, part in enumerate(PARTS):
        below, above = edges[number], edges[number + 1]
        shapes.append(
            (
                part,
                "".join(
                    f"M{LABELS + column * width:.1f} {top:.1f}h{width * 0.9:.1f}"
                    f"V{bottom:.1f}h-{width * 0.9:.1f}z"
                    for column, (top, bottom) in enumerate(
                        zip(above.tolist(), below.tolist(), strict=True)
                    )
                    if bottom - top >= 0.05
                ),
            )
        )
    middle = float(median_of(lengths))
    last = steps[-1].number
    ticks = [
        DrawnText(LABELS, CHART_HEIGHT + 15, f"step {steps[0].number}"),
        DrawnText(WIDTH, CHART_HEIGHT + 15, f"step {last}" if len(steps) > 1 else ""),
        DrawnText(0, 11, duration(round(highest))),
        DrawnText(0, CHART_HEIGHT, "0"),
    ]
    median_y = max(CHART_HEIGHT * (1 - middle / highest), 0.0)
    return StepChart(
        tuple(shapes), tuple(ticks), round(median_y, 1), duration(round(middle)), per_column
    )
