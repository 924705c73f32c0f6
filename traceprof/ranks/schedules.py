"""The schedule of a pipeline, by the order of its forwards and backwards: name and numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from traceprof.ranks.passes import BACKWARD, FORWARD, WEIGHTS
from traceprof.run.pipeline_orders import ORDERS, interleaved
from traceprof.structs import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.intervals import Int64
    from traceprof.ranks.passes import RankPasses
    from traceprof.ranks.pipelines import Pipeline
    from traceprof.run.pipeline_orders import Pass

ScheduleName = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]

_USUAL = 0.8  # of the steps must have one number of messages, or one order
_NONE = -1
_NAMES: tuple[ScheduleName, ...] = ("1f1b", "gpipe", "interleaved")


class Schedule(Record, frozen=True):
    """The schedule of a pipeline; None if it cannot be known.

    Attributes:
        name: `gpipe`, `1f1b`, `interleaved` or `zero-bubble`.
        num_micro_batches: of a step.
        num_chunks: parts of the model that each stage has.
        micro_batch: by stage int64[n], of each pass; -1 if that is unknown.
        chunk: by stage int64[n], the part of the model of each pass; -1 if that is unknown.
    """

    name: ScheduleName | None
    num_micro_batches: int | None
    num_chunks: int | None
    micro_batch: tuple[Int64, ...]
    chunk: tuple[Int64, ...]

    @property
    def ideal_fraction(self) -> float | None:
        """The bubble as a share of the time of the passes, if all stages were equal."""
        if self.num_micro_batches is None or self.num_chunks is None:
            return None
        if self.name == "zero-bubble":
            return None
        return (len(self.micro_batch) - 1) / (self.num_micro_batches * self.num_chunks)


def schedule_of(pipeline: Pipeline, passes: Sequence[RankPasses]) -> Schedule:
    """Return the schedule of a pipeline.

    Args:
        pipeline: its stages.
        passes: of each rank of the run.
    """
    stages = [passes[member] for member in pipeline.members]
    num_micro_batches, num_chunks = _numbers(pipeline, stages)
    unknown = tuple(np.full(len(stage), _NONE, np.int64) for stage in stages)
    if num_micro_batches is None or num_chunks is None:
        return Schedule(None, None, None, unknown, unknown)
    if any((stage.kind == WEIGHTS).any() for stage in stages):
        return Schedule("zero-bubble", num_micro_batches, num_chunks, unknown, unknown)
    for name in _NAMES:
        orders = _orders(name, len(stages), num_micro_batches, num_chunks)
        if orders is None:
            continue
        placed = [_placed(stage, order) for stage, order in zip(stages, orders, strict=True)]
        if all(share >= _USUAL for *_, share in placed):
            return Schedule(
                name,
                num_micro_batches,
                num_chunks,
                tuple(micro_batch for micro_batch, _, _ in placed),
                tuple(chunk for _, chunk, _ in placed),
            )
    return Schedule(None, num_micro_batches, num_chunks, unknown, unknown)


def _orders(
    name: str, num_stages: int, num_micro_batches: int, num_chunks: int
) -> list[list[Pass]] | None:
    """Return the passes of each stage in a step; None if there is no such order."""
    if name == "interleaved":
        if num_chunks == 1 or num_micro_batches % num_stages:
            return None
        return [
            interleaved(stage, num_stages, num_micro_batches, num_chunks)
            for stage in range(num_stages)
        ]
    if num_chunks > 1:
        return None
    return [ORDERS[name](stage, num_stages, num_micro_batches) for stage in range(num_stages)]


def _placed(stage: RankPasses, order: Sequence[Pass]) -> tuple[Int64, Int64, float]:
    """Return micro-batch and chunk of each pass, -1 if unknown, and the share of steps that fit."""
    kinds = np.array([FORWARD if pass_.is_forward else BACKWARD for pass_ in order], np.int64)
    numbers = np.array([(pass_.micro_batch, pass_.chunk) for pass_ in order], np.int64)
    placed = np.full((len(stage), 2), _NONE, np.int64)
    is_pass = (stage.kind != 0) & (stage.step >= 0)
    rows = np.flatnonzero(is_pass)
    limits = np.flatnonzero(np.append(True, np.diff(stage.step[rows]) != 0)) if len(rows) else rows
    fits = 0
    for place in np.split(rows, limits[1:]) if len(rows) else []:
        if len(place) == len(kinds) and (stage.kind[place] == kinds).all():
            placed[place] = numbers
            fits += 1
    return placed[:, 0], placed[:, 1], fits / len(limits) if len(limits) else 0.0


def _numbers(pipeline: Pipeline, stages: Sequence[RankPasses]) -> tuple[int | None, int | None]:
    """Return the number of micro-batches of a step, and of chunks of a stage; None if unknown."""
    first, num = stages[0], len(stages)
    knows_kinds = all((stage.kind == FORWARD).any() for stage in stages)
    sent = pipeline.between(0, 1)
    if sent is None or (num == 2 and not knows_kinds):
        return None, None
    forwards = _per_step(first, sent.producer, FORWARD if knows_kinds else None)
    wrapped = 0
    back = pipeline.between(num - 1, 0)
    if back is not None and (num > 2 or knows_kinds):
        num_back = _per_step(stages[-1], back.producer, FORWARD if knows_kinds else None)
        if num_back is None:
            return None, None
        wrapped = num_back
    # Each forward of the first stage is sent on; each but the last of a micro-batch comes back.
    if forwards is None or forwards <= wrapped or forwards % (forwards - wrapped):
        return None, None
    num_micro_batches = forwards - wrapped
    return num_micro_batches, forwards // num_micro_batches


def _per_step(stage: RankPasses, producers: Int64, kind: int | None) -> int | None:
    """Return how many messages a stage makes in most steps, by passes of a kind; None if unsure."""
    chosen = producers[producers >= 0]
    if kind is not None:
        chosen = chosen[stage.kind[chosen] == kind]
    if not len(chosen):
        return 0
    steps = stage.step[chosen]
    if (steps < 0).any():
        return None
    counts = np.unique(steps, return_counts=True)[1]
    values, how_often = np.unique(counts, return_counts=True)
    best = int(np.argmax(how_often))
    return int(values[best]) if how_often[best] >= _USUAL * len(counts) else None
