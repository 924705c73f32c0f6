"""Geometry of drawings: what templates write as SVG. Lengths are pixels."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from traceprof import intervals
from traceprof.analyses import pipeline_bubble
from traceprof.analyses.breakdown import StepMeasures
from traceprof.analyses.measurements import MeasuredRun
from traceprof.errors import one_line
from traceprof.intervals import Int64, Mask
from traceprof.kernel_names import function_name
from traceprof.ranks.bubbles import PipelineBubbles, StageGaps
from traceprof.ranks.comparison import RankComparison
from traceprof.ranks.passes import BACKWARD, FORWARD, WEIGHTS
from traceprof.reports.blocks import PARTS
from traceprof.reports.tracks import EventKind, Scene, Track
from traceprof.run.guard import optional
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, median_of
from traceprof.units import duration

WIDTH, LABELS = 900, 190  # of a drawing; of it, for the names of its rows
ROW, BAR = 20, 15  # of a row, and of what is drawn in it
CHART_HEIGHT = 140
MAX_COLUMNS = 160  # of steps; of more, several make a column
_CHARACTER = 6.2  # wide, at the size of the labels
_MIN_LABEL = 24  # shorter events are not named
_FINE = 2  # parts of a pixel that are distinguished


class DrawnText(Record, frozen=True):
    """A text in a drawing, from its left end on."""

    x: float
    y: float
    text: str


class DrawnRow(Record, frozen=True):
    """A row of a drawing."""

    y: int  # its top
    name: str  # what it shows
    shapes: tuple[tuple[str, str], ...]  # SVG path data by category
    labels: tuple[DrawnText, ...]  # names of the events that have room for one


class Timeline(Record, frozen=True):
    """Drawing of the events around a piece of evidence."""

    full_width: int  # of the drawing
    height: int  # of the drawing
    rows: tuple[DrawnRow, ...]  # from the top
    left: float  # where the evidence begins
    width: float  # of the evidence
    ticks: tuple[DrawnText, ...]  # times, from the evidence's start on


def timeline(scene: Scene, full_width: int = WIDTH) -> Timeline:
    """Return the drawing of a scene."""
    scale = (full_width - LABELS) / (scene.end_ns - scene.start_ns)
    rows = tuple(_row(track, number * ROW, scene, scale) for number, track in enumerate(scene.rows))
    height = len(rows) * ROW
    left = LABELS + (scene.place.start_ns - scene.start_ns) * scale
    width = max((scene.place.end_ns - scene.place.start_ns) * scale, 1.0)
    length = scene.place.end_ns - scene.place.start_ns
    ticks = [DrawnText(round(left, 1), height + 14, "0")]
    if length:
        ticks.append(DrawnText(round(left + width, 1), height + 14, duration(length)))
    return Timeline(full_width, height, rows, round(left, 1), round(width, 1), tuple(ticks))


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
    """Parts of each step of a rank, as columns."""

    shapes: tuple[tuple[str, str], ...]  # SVG path data by part
    ticks: tuple[DrawnText, ...]  # names of the axes' ends
    median_y: float  # where the median is
    median: str  # the median
    steps_per_column: int  # of more than one step, a column shows the mean


def step_chart(steps: Sequence[StepMeasures]) -> StepChart:
    """Return the drawing of the steps of a rank, at least one."""
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


CLASSES = {
    "forward": "forward",
    "backward": "backward",
    "other_pass": "other passes",
    "warm_up": "waits: fill and drain",
    "imbalance": "waits: unequal stages",
    "transfer": "waits: transfer",
    "late": "waits: lateness",
}
"""What is drawn: class, name."""
_KINDS = {FORWARD: "forward", BACKWARD: "backward", WEIGHTS: "backward"}
WAIT_PARTS = ("warm_up", "imbalance", "transfer", "late")
"""Classes of the parts of waits, as `StageGaps` numbers them."""
_ROW, _BAR, _BETWEEN = 22, 18, 26
_MIN_NUMBER = 9  # pixels that a micro-batch's number needs
_LEGEND_CHARACTER, _AFTER = (
    6,
    30,
)  # of the names of what is drawn: their width, and the space between two
_MAX_DRAWN = 4  # pipelines of a run
MAX_BOXES = 6_000
"""The passes and waits of a drawing that can be distinguished."""


class Box(Record, frozen=True):
    """A pass, or a part of a wait."""

    x: float  # its left end, in pixels, as all lengths
    y: float  # its top
    width: float  # of it
    kind: str  # of `CLASSES`
    text: str  # the micro-batch's number, empty without room


class PipelineDrawing(Record, frozen=True):
    """Drawing of one step of a pipeline."""

    height: int  # of the drawing
    boxes: tuple[Box, ...]  # passes and waits
    labels: tuple[DrawnText, ...]  # names of rows, and times
    # where each class that is drawn has its colour and its name: class, x, name
    legend: tuple[tuple[str, int, str], ...]
    caption: str  # what it shows


@optional("pictures", otherwise=lambda *_: [])
def pipeline_drawings(
    measured: MeasuredRun, shown: Container[int] | None = None
) -> list[PipelineDrawing]:
    """Return the drawings of the pipelines of a run, of the first few.

    `shown`: numbers of ranks; pipelines without any of them are not drawn. None for all.
    """
    result = pipeline_bubble.run(measured)
    chosen = [
        pipeline
        for pipeline in result.pipelines
        if shown is None
        or any(result.ranks.ranks[stage.member] in shown for stage in pipeline.stages)
    ]
    drawings = (pipeline_drawing(pipeline, result.ranks) for pipeline in chosen[:_MAX_DRAWN])
    return [drawing for drawing in drawings if drawing is not None]


def pipeline_drawing(pipeline: PipelineBubbles, ranks: RankComparison) -> PipelineDrawing | None:
    """Return the drawing of a step; None if its pipeline is too large to be legible."""
    begin, end, step = _span(pipeline)
    inside = [
        (stage.start_ns + stage.shift_ns < end) & (stage.end_ns + stage.shift_ns > begin)
        for stage in pipeline.stages
    ]
    if sum(int(rows.sum()) for rows in inside) * 3 > MAX_BOXES or end <= begin:
        return None
    scale = (WIDTH - LABELS) / (end - begin)
    boxes: list[Box] = []
    labels = [DrawnText(0, 12, "As it ran")]
    ideal_y = _BETWEEN + len(inside) * _ROW
    labels.append(DrawnText(0, ideal_y + 14, "Equal stages, no transfer"))
    first_ns = min(  # a step has a pass of the first stage
        int(stage.ideal_start_ns[chosen].min())
        for stage, chosen in zip(pipeline.stages, inside, strict=True)
        if chosen.any()
    )
    for number, (stage, chosen) in enumerate(zip(pipeline.stages, inside, strict=True)):
        name = f"stage {number}, rank {ranks.ranks[stage.member]}"
        micro_batch = pipeline.schedule.micro_batch[number]
        start, stop = stage.start_ns + stage.shift_ns, stage.end_ns + stage.shift_ns
        y = 18 + number * _ROW
        labels.append(DrawnText(0, y + 13, name))
        boxes += _pass_boxes(start - begin, stop - begin, chosen, stage, micro_batch, y, scale)
        boxes += _wait_boxes(stage, begin, end, y, scale)
        y = ideal_y + 20 + number * _ROW
        labels.append(DrawnText(0, y + 13, name))
        ideal, over = stage.ideal_start_ns - first_ns, stage.ideal_end_ns - first_ns
        boxes += _pass_boxes(ideal, over, chosen, stage, micro_batch, y, scale)
    height = ideal_y + 20 + len(inside) * _ROW + 18
    labels.append(DrawnText(LABELS, height - 4, "0"))
    labels.append(DrawnText(WIDTH - 50, height - 4, duration(end - begin)))
    legend, x, kinds = [], 0, {box.kind for box in boxes}
    for kind, name in CLASSES.items():
        if kind in kinds:
            legend.append((kind, x, name))
            x += len(name) * _LEGEND_CHARACTER + _AFTER
    what = "The pipeline" if step is None else f"The pipeline in step {step}"
    caption = (
        f"{what}: passes with the numbers of their micro-batches, and waits by reason. How much of"
        " a wait each reason makes up is measured; their order within a wait is not."
    )
    return PipelineDrawing(height + _ROW, tuple(boxes), tuple(labels), tuple(legend), caption)


def _span(pipeline: PipelineBubbles) -> tuple[int, int, int | None]:
    first = pipeline.stages[0]
    steps = distinct_values(first.step[first.step >= 0])
    if not len(steps):
        return pipeline.start_ns, pipeline.end_ns, None
    begins = np.array([int(first.start_ns[first.step == step].min()) for step in steps])
    ends = np.append(begins[1:], pipeline.end_ns)
    lengths = ends - begins
    middle = int(np.argsort(lengths, kind="stable")[len(lengths) // 2])
    return int(begins[middle]), int(ends[middle]), int(steps[middle])


def _pass_boxes(
    start: Int64,
    end: Int64,
    chosen: Mask,
    stage: StageGaps,
    micro_batch: Int64,
    y: int,
    scale: float,
) -> Iterator[Box]:
    for place in np.flatnonzero(chosen).tolist():
        left = LABELS + max(int(start[place]), 0) * scale
        right = min(LABELS + int(end[place]) * scale, WIDTH)
        number = int(micro_batch[place])
        fits = number >= 0 and right - left >= _MIN_NUMBER
        kind = _KINDS.get(int(stage.kind[place]), "other_pass")
        if right > left:
            yield Box(round(left, 1), y, round(right - left, 2), kind, str(number) if fits else "")


def _wait_boxes(stage: StageGaps, begin: int, end: int, y: int, scale: float) -> Iterator[Box]:
    """Yield the parts of the waits of a stage, those of each wait one after the other."""
    start, end_ns, part = stage.waits
    low = np.maximum(start + stage.shift_ns, begin)
    high = np.minimum(end_ns + stage.shift_ns, end)
    for place in np.flatnonzero(high > low).tolist():
        x = LABELS + (int(low[place]) - begin) * scale
        width = int(high[place] - low[place]) * scale
        yield Box(round(x, 1), y, round(width, 2), WAIT_PARTS[int(part[place])], "")
