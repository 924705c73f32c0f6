"""Pipelines with another schedule, or with more micro-batches, by a model of their passes.

No edge of the graph is such a change: passes come in another order, or are others. So the model of
`schedules` gives the step as it was and as it would be, and the difference is the answer. As far as
it misses the step that was measured, the answer may be off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from traceprof.analyses import breakdown, pipeline_bubble
from traceprof.analyses.steps.step_lengths import slowest_rank, step_ns
from traceprof.ranks.passes import OTHER
from traceprof.replay.assumptions.pipeline import pipeline_of
from traceprof.replay.assumptions.run_change import CannotChange
from traceprof.replay.assumptions.schedules import Stage, pipeline_ns
from traceprof.replay.assumptions.sends import sends_of
from traceprof.run.pipeline_orders import ORDERS
from traceprof.structs import Record
from traceprof.units import percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.execution.open_analysis import OpenAnalysis
    from traceprof.ranks.passes import RankPasses
    from traceprof.replay.assumptions.schedules import Pipeline
    from traceprof.replay.graph.run_graph import RunGraph

MAX_OFF = 0.05
"""The share of a step that the model may miss, as that of unexplained delays."""


class StepChange(Record, frozen=True):
    """The change of a step that a model gives.

    Attributes:
        change_ns: of the mean step.
        off_ns: how far that may be off, to either side.
    """

    change_ns: float
    off_ns: float


def with_schedule(analysis: OpenAnalysis, graph: RunGraph, name: str) -> StepChange | CannotChange:
    """Let the stages run their passes in another order.

    Args:
        analysis: of the run.
        graph: of it, weighed as measured.
        name: of `ORDERS`.
    """
    model = _model(analysis, graph)
    if isinstance(model, CannotChange):
        return model
    if model.order == name:
        return CannotChange("its passes ran in this order")
    return model.changed(model.pipeline, name)


def with_more_micro_batches(
    analysis: OpenAnalysis, graph: RunGraph, factor: float
) -> StepChange | CannotChange:
    """Divide the batch into more micro-batches, whose passes and messages are shorter by as much.

    Args:
        analysis: of the run.
        graph: of it, weighed as measured.
        factor: how many times as many there are.
    """
    model = _model(analysis, graph)
    if isinstance(model, CannotChange):
        return model
    was, num = model.pipeline, model.pipeline.num_micro_batches * factor
    if num != round(num):
        why = f"{was.num_micro_batches} micro-batches times {factor:g} is no whole number"
        return CannotChange(why)
    shorter = replace(
        was,
        stages=tuple(
            Stage(stage.forward_ns / factor, stage.backward_ns / factor) for stage in was.stages
        ),
        num_micro_batches=round(num),
        activations_ns=was.activations_ns / factor,
        gradients_ns=was.gradients_ns / factor,
    )
    return model.changed(shorter, model.order)


class _Model(Record, frozen=True):
    """A pipeline that ran, and what the model says of its step.

    Attributes:
        pipeline: with its passes as they were.
        order: that they ran in, of `ORDERS`.
        step_ns: of the passes, by the model.
        off_ns: by how much a step was longer or shorter.
    """

    pipeline: Pipeline
    order: str
    step_ns: float
    off_ns: float

    def changed(self, pipeline: Pipeline, order: str) -> StepChange | CannotChange:
        """Return by what a step changes with another pipeline in an order."""
        num_stages, num = len(pipeline.stages), pipeline.num_micro_batches
        if order == "interleaved" and num % num_stages:
            return CannotChange(f"{num} micro-batches are no multiple of {num_stages} stages")
        after_ns = pipeline_ns(pipeline, order, pipeline.slowdown)
        if after_ns is None:
            return CannotChange("the stages would wait for each other forever")
        return StepChange(after_ns - self.step_ns, self.off_ns)


def _model(analysis: OpenAnalysis, graph: RunGraph) -> _Model | CannotChange:
    """Return the model of a run's pipeline, if it fits the steps that were measured."""
    pipelines = pipeline_bubble.run(analysis.measured).pipelines
    if len(pipelines) != 1:
        how_many = "several pipelines ran side by side" if pipelines else pipeline_bubble.NO_STAGES
        return CannotChange(how_many)
    order = pipelines[0].schedule.name
    if order not in ORDERS:
        return CannotChange("the order of its passes is none that is known")
    sends = sends_of(analysis, graph)
    pipeline = None if sends is None else pipeline_of(analysis, graph, sends)
    if pipeline is None:
        return CannotChange("its stages do not send and receive in turn with their passes")
    passes_ns = pipeline_ns(pipeline, order, pipeline.slowdown)
    if passes_ns is None:
        return CannotChange("the stages would wait for each other forever")
    stages = [analysis.measured.passes[stage.member] for stage in pipelines[0].stages]
    measured_ns = step_ns(slowest_rank(analysis.measured.of(breakdown)))
    off_ns = abs(measured_ns - passes_ns - _rest_ns(stages))
    if off_ns > MAX_OFF * measured_ns:
        off = percent(off_ns / measured_ns)
        why = f"its passes and messages alone miss the measured step by {off}: it is late, too"
        return CannotChange(why)
    return _Model(pipeline, order, passes_ns, off_ns)


def _rest_ns(stages: Sequence[RankPasses]) -> float:
    """Return what a stage computes in a step that is no pass, the mean over the stages."""
    sums = []
    for stage in stages:
        inside = stage.step >= 0
        num = max(len(np.unique(stage.step[inside])), 1)
        sums.append(float(stage.compute_ns[inside & (stage.kind == OTHER)].sum()) / num)
    return float(np.mean(sums))
