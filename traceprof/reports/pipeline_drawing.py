"""Drawing of a pipeline: a step of each stage, with its bubbles by reason, and the ideal below."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.analyses import pipeline_bubble
from traceprof.ranks.passes import BACKWARD, FORWARD, WEIGHTS
from traceprof.reports.drawings import LABELS, WIDTH, DrawnText
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values
from traceprof.units import duration

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from traceprof.analyses.measurements.measured import MeasuredRun
    from traceprof.intervals import Int64, Mask
    from traceprof.ranks.bubbles import PipelineBubbles, StageGaps
    from traceprof.ranks.comparison import RankComparison

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
PARTS = ("warm_up", "imbalance", "transfer", "late")
"""Classes of the parts of waits, as `StageGaps` numbers them."""
_ROW, _BAR, _BETWEEN = 22, 18, 26
_MIN_NUMBER = 9  # pixels that a micro-batch's number needs
_CHARACTER, _AFTER = 6, 30  # of the names of what is drawn: their width, and the space between two
_MAX_DRAWN = 4  # pipelines of a run
MAX_BOXES = 6_000
"""The passes and waits of a drawing that can be distinguished."""


class Box(Record, frozen=True):
    """A pass, or a part of a wait.

    Attributes:
        x: its left end, in pixels, as all lengths.
        y: its top.
        width: of it.
        kind: of `CLASSES`.
        text: the micro-batch's number, empty without room.
    """

    x: float
    y: float
    width: float
    kind: str
    text: str


class PipelineDrawing(Record, frozen=True):
    """Drawing of one step of a pipeline.

    Attributes:
        height: of the drawing.
        boxes: passes and waits.
        labels: names of rows, and times.
        legend: where each class that is drawn has its colour and its name: class, x, name.
        caption: what it shows.
    """

    height: int
    boxes: tuple[Box, ...]
    labels: tuple[DrawnText, ...]
    legend: tuple[tuple[str, int, str], ...]
    caption: str


def pipeline_drawings(
    measured: MeasuredRun, shown: Container[int] | None = None
) -> list[PipelineDrawing]:
    """Return the drawings of the pipelines of a run, of the first few.

    Args:
        measured: the run.
        shown: numbers of ranks; pipelines without any of them are not drawn. None for all.
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
    """Return the drawing of a step; None of a pipeline too large to be seen."""
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
    first_ns = min(
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
        boxes += _passes(start - begin, stop - begin, chosen, stage, micro_batch, y, scale)
        boxes += _waits(stage, begin, end, y, scale)
        y = ideal_y + 20 + number * _ROW
        labels.append(DrawnText(0, y + 13, name))
        ideal, over = stage.ideal_start_ns - first_ns, stage.ideal_end_ns - first_ns
        boxes += _passes(ideal, over, chosen, stage, micro_batch, y, scale)
    height = ideal_y + 20 + len(inside) * _ROW + 18
    labels.append(DrawnText(LABELS, height - 4, "0"))
    labels.append(DrawnText(WIDTH - 50, height - 4, duration(end - begin)))
    legend, x, kinds = [], 0, {box.kind for box in boxes}
    for kind, name in CLASSES.items():
        if kind in kinds:
            legend.append((kind, x, name))
            x += len(name) * _CHARACTER + _AFTER
    what = "The pipeline" if step is None else f"The pipeline in step {step}"
    caption = (
        f"{what}: passes with the numbers of their micro-batches, and waits by reason. How much of"
        " a wait each reason makes up is measured; their order within a wait is not."
    )
    return PipelineDrawing(height + _ROW, tuple(boxes), tuple(labels), tuple(legend), caption)


def _span(pipeline: PipelineBubbles) -> tuple[int, int, int | None]:
    """Return begin and end of the step of middle length, and its index; of all without steps."""
    first = pipeline.stages[0]
    steps = distinct_values(first.step[first.step >= 0])
    if not len(steps):
        return pipeline.start_ns, pipeline.end_ns, None
    begins = np.array([int(first.start_ns[first.step == step].min()) for step in steps])
    ends = np.append(begins[1:], pipeline.end_ns)
    lengths = ends - begins
    middle = int(np.argsort(lengths, kind="stable")[len(lengths) // 2])
    return int(begins[middle]), int(ends[middle]), int(steps[middle])


def _passes(
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


def _waits(stage: StageGaps, begin: int, end: int, y: int, scale: float) -> Iterator[Box]:
    """Yield the parts of the waits of a stage, those of each wait one after the other."""
    start, end_ns, part = stage.waits
    low = np.maximum(start + stage.shift_ns, begin)
    high = np.minimum(end_ns + stage.shift_ns, end)
    for place in np.flatnonzero(high > low).tolist():
        x = LABELS + (int(low[place]) - begin) * scale
        width = int(high[place] - low[place]) * scale
        yield Box(round(x, 1), y, round(width, 2), PARTS[int(part[place])], "")
