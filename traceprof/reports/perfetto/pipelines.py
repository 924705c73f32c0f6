"""Tracks of pipelines: the passes of each stage, its waits by reason, and the ideal below."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from traceprof.ranks.passes import BACKWARD, FORWARD, OTHER, WEIGHTS
from traceprof.reports.perfetto.events import Events
from traceprof.reports.pipeline_drawing import CLASSES, PARTS

if TYPE_CHECKING:
    from traceprof.analyses.pipeline_bubble import PipelineBubbleResult
    from traceprof.intervals import Int64
    from traceprof.ranks.bubbles import StageGaps
    from traceprof.reports.perfetto.packets import PacketWriter

_NO_PARENT = 0
_KINDS = {OTHER: "pass", FORWARD: "forward", BACKWARD: "backward", WEIGHTS: "weight gradients"}
_CATEGORIES = ("pass", "bubble")


def write_pipelines(writer: PacketWriter, result: PipelineBubbleResult) -> None:
    """Write the stages of each pipeline above all ranks, in the run's time, as their kernels are.

    The ideal, equal stages whose messages take no time, begins when the pipeline does.
    """
    for number, pipeline in enumerate(result.pipelines):
        name = "pipeline" if len(result.pipelines) == 1 else f"pipeline {number}"
        actual = writer.track(_NO_PARENT, name)
        ideal = writer.track(_NO_PARENT, f"{name}: equal stages, no transfer")
        for place, stage in enumerate(pipeline.stages):
            title = f"stage {place}, rank {result.ranks.ranks[stage.member]}"
            micro_batch = pipeline.schedule.micro_batch[place]
            waits, nothing = stage.waits, (np.empty(0, np.int64),) * 3
            begin = pipeline.start_ns
            for parent, start, end, waiting in (
                (actual, stage.start_ns, stage.end_ns, waits),
                (ideal, begin + stage.ideal_start_ns, begin + stage.ideal_end_ns, nothing),
            ):
                events = _events(stage, start, end, micro_batch, waiting)
                writer.slices(partial(writer.track, parent, title, place), events)


def _events(
    stage: StageGaps,
    start: Int64,
    end: Int64,
    micro_batch: Int64,
    waits: tuple[Int64, Int64, Int64],
) -> Events:
    """Return the passes of a stage and its waits; names are what it waits for, and of passes."""
    named, name = np.unique(np.stack((stage.kind, micro_batch)), axis=1, return_inverse=True)
    names = [
        *(CLASSES[part] for part in PARTS),
        *(
            _KINDS[kind] + (f" {number}" if number >= 0 else "")
            for kind, number in named.T.tolist()
        ),
    ]
    starts, ends = np.append(start, waits[0]), np.append(end, waits[1])
    order = np.lexsort((-ends, starts))
    is_wait = np.repeat([False, True], [len(start), len(waits[0])])
    none = np.zeros(len(starts), np.int64)
    step = np.append(stage.step, np.full(len(waits[0]), -1))[order]
    return Events(
        starts[order], ends[order], np.append(name.reshape(-1) + len(PARTS), waits[2])[order],
        names, is_wait[order].astype(np.int64), _CATEGORIES, none, none,
        {"step": (step, step >= 0)}, {},
    )  # fmt: skip
