"""A model of passes: what a step would take if stages or ranks computed equally long.

It needs no launches and no event records. Nodes are the passes of all ranks (compute between
messages, or between collectives) and what hands over between them: messages and collectives, each
with the time that it took once all sides were there. Each rank keeps its order of passes. The
model answers only if its own run takes as long as the recorded one, within `MAX_OFF`.

Kernels that end together on all ranks although they begin far apart wait for each other inside (a
norm of gradients over all stages): the shortest shows what they take themselves.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from traceprof.analyses import breakdown, pipeline_bubble, rank_work
from traceprof.analyses.measurements import MeasuredRun
from traceprof.analyses.steps import slowest_rank, step_ns
from traceprof.analyses.verdict.savings import RESOLUTION
from traceprof.execution.open_reports import OpenAnalysis
from traceprof.intervals import Float64, Int64, Mask
from traceprof.ranks.bubbles import Meetings, Walk, meetings_of
from traceprof.ranks.passes import OTHER
from traceprof.ranks.pipelines import Pipeline, pipelines
from traceprof.replay.results import Refusal
from traceprof.run.guard import optional
from traceprof.structs import Record
from traceprof.trace.grouping import groups, numbered_rows, places
from traceprof.units import percent

MAX_OFF = 0.05
"""Largest difference between the model's own run and the recorded one, as a share of that."""
MAX_PASSES = 1_000_000
"""Passes of a run up to which it is modelled."""
EQUAL = ("equal-kernels", "equal-stages")
"""The assumptions that the model answers."""
_TOGETHER = 0.2  # spread of ends over spread of begins, where passes end together


class ModelAnswer(Record, frozen=True):
    """A step by the model."""

    step_ns: int  # as it was measured
    equal_ns: int  # what it would take
    off: float  # the model's own run over the recorded one, less 1

    @property
    def sentence(self) -> str:
        """Where the answer comes from."""
        return (
            "it comes from a model of passes and messages, whose own run is"
            f" {percent(abs(self.off))} off the recorded one"
        )


def no_equal_stages(analysis: OpenAnalysis) -> Refusal:
    """Return why no replay answers `equal-stages`: the model does, or why nothing does."""
    return why_no_stages(analysis.measured) or Refusal("only the model of passes answers it")


def why_no_stages(measured: MeasuredRun) -> Refusal | None:
    """Return why the model has no answer to `equal-stages`; None if it has one."""
    pipelines = pipeline_bubble.run(measured).pipelines
    if not pipelines:
        return Refusal(pipeline_bubble.NO_STAGES)
    stages = [measured.passes[stage.member] for one in pipelines for stage in one.stages]
    if not all((stage.kind != OTHER).any() for stage in stages):
        why = (
            "on some stage it is unknown which kernels belong to a forward and which to a backward"
        )
        return Refusal(why, pipeline_bubble.HOW_TO_COLLECT)
    if equal_step(measured, "equal-stages") is None:
        return Refusal("a model of its passes does not take as long as the recorded run")
    return None


def equal_step(measured: MeasuredRun, what: str) -> ModelAnswer | None:
    """Return a step with `equal-kernels` or `equal-stages`; None if the model cannot say."""
    return measured.cache.get(_answer, measured, what)


@optional("replay", otherwise=lambda *_: None)
def _answer(measured: MeasuredRun, what: str) -> ModelAnswer | None:
    model = measured.cache.get(_model, measured)
    if model is None:
        return None
    equal = model.equal_stages() if what == "equal-stages" else model.equal_kernels()
    if equal is None:
        return None
    now = step_ns(slowest_rank(measured.of(breakdown)))
    length = model.run_ns(equal)
    gained = max(1 - length / model.own_ns, 0.0) * (1 + RESOLUTION)
    return ModelAnswer(now, round(now * (1 - gained)), model.off)


class _Model(Record, frozen=True):
    """The passes of all ranks, and what holds them back."""

    walk: Walk
    length_ns: Int64  # int64[n], of all passes, rank by rank
    rank: Int64  # int64[n], the index of the rank
    keys: Int64  # int64[3, n]: kind, number among its kind in the step, and step
    pipeline: Int64  # int64[ranks], which pipeline a rank is a stage of; -1 for none
    alike: Int64  # int64[ranks], a number that ranks with the same kernels share
    slower: Float64  # float64[ranks], by which factor a rank is always slower; 1 for most
    is_changing: bool  # whether another rank is the longest each time
    own_ns: float  # how long the model's run takes
    off: float

    def run_ns(self, length_ns: Int64) -> float:
        """Return how long the run takes with passes of these lengths."""
        starts = self.walk.starts(length_ns, moves=True)
        return float((starts + length_ns).max())

    def equal_stages(self) -> Int64 | None:
        """Return passes that take their mean over the stages of their pipeline."""
        if not (self.keys[0] != OTHER).any() or not (self.pipeline >= 0).any():
            return None
        return self._means(self.pipeline[self.rank], self.pipeline[self.rank] >= 0)

    def equal_kernels(self) -> Int64 | None:
        """Return passes that take what they take on the other ranks; None if none are uneven."""
        if self.is_changing:
            return self._means(self.alike[self.rank], np.ones(len(self.rank), np.bool_))
        if (self.slower > 1).any():
            return np.rint(self.length_ns / self.slower[self.rank]).astype(np.int64)
        return None

    def _means(self, group: Int64, chosen: Mask) -> Int64:
        """Return the means of passes of the same kind, number, step and group."""
        keys = np.concatenate((group[np.newaxis], self.keys))[:, chosen]
        at = numbered_rows(*keys)
        means = np.bincount(at, self.length_ns[chosen]) / np.bincount(at)
        equal = self.length_ns.copy()
        equal[chosen] = np.rint(means[at]).astype(np.int64)
        return equal


def _model(measured: MeasuredRun) -> _Model | None:
    """Return the model of a run, if it fits what was recorded."""
    passes, ranks = measured.passes, measured.ranks
    num = np.array([len(of_rank) for of_rank in passes])
    if len(passes) < 2 or not num.all() or num.sum() > MAX_PASSES:
        return None
    arrivals = [packed.unpacked for packed in measured.arrivals]
    runs = [measured.run.run_numbers[of_rank.report] for of_rank in passes]
    of_pipelines = pipelines(ranks, passes, arrivals, runs)
    messages = {pair: way for one in of_pipelines for pair, way in one.messages.items()}
    everyone = Pipeline(tuple(range(len(passes))), messages)
    limits = np.cumsum([0, *num.tolist()])
    rank = np.repeat(np.arange(len(passes)), num)
    kind, step = (
        np.concatenate([getattr(of_rank, name) for of_rank in passes]) for name in ("kind", "step")
    )
    spans = [
        [ranks.clocks.to_run(of_rank.report, times) for times in (of_rank.start_ns, of_rank.end_ns)]
        for of_rank in passes
    ]
    start, end = (np.concatenate(times) for times in zip(*spans, strict=True))
    keys = np.stack((kind, places(rank, step, kind)[0], step))
    meetings = meetings_of(everyone, ranks, arrivals, passes, limits, are_in_order=True)
    pipeline = np.full(len(passes), -1)
    for index, one in enumerate(of_pipelines):
        pipeline[list(one.members)] = index
    is_stage = (pipeline >= 0)[rank]
    length, meetings = _waiting_inside(start, end, keys, is_stage, meetings)
    walk = Walk(limits, meetings)
    if not walk.is_possible:
        return None
    starts = walk.starts(length, moves=True)
    last = limits[1:] - 1
    recorded = end[last] - start[limits[:-1]]
    own_ns, recorded_ns = float((starts + length).max()), float(recorded.max())
    if not abs(own_ns - recorded_ns) <= MAX_OFF * recorded_ns or not recorded_ns:
        return None
    off = own_ns / recorded_ns - 1
    return _Model(walk, length, rank, keys, pipeline, *_unevenness(measured), own_ns, off)


def _waiting_inside(
    start: Int64, end: Int64, keys: Int64, is_stage: Mask, meetings: Meetings
) -> tuple[Int64, Meetings]:
    """Return lengths without waits inside passes, and the meetings that these are.

    Passes that are neither forward nor backward wait inside where their ends, on all stages, are
    close together and their begins are not.
    """
    length = end - start
    num = len(meetings.transfer_ns)
    inputs, outputs = [meetings.inputs], [meetings.outputs]
    rows = np.flatnonzero((keys[0] == OTHER) & is_stage)
    for alike in groups(*keys[:, rows]):
        at = rows[alike]
        apart_ns = float(np.std(start[at]))
        if len(at) < 2 or float(np.std(end[at])) > _TOGETHER * apart_ns:
            continue
        if apart_ns <= _TOGETHER * float(length[at].min()):
            continue
        length[at] = length[at].min()
        before = at[at > 0] - 1
        inputs.append(np.stack((before, np.full(len(before), num)), axis=1))
        outputs.append(np.stack((np.full(len(at), num), at), axis=1))
        num += 1
    added = np.zeros(num - len(meetings.transfer_ns), np.int64)
    return length, replace(
        meetings,
        transfer_ns=np.concatenate((meetings.transfer_ns, added)),
        inputs=np.concatenate(inputs),
        outputs=np.concatenate(outputs),
    )


def _unevenness(measured: MeasuredRun) -> tuple[Int64, Float64, bool]:
    """Return which ranks run the same kernels, which are slower, and whether that changes."""
    work = rank_work.run(measured)
    place = {of_rank.rank: index for index, of_rank in enumerate(measured.passes)}
    alike = np.arange(len(place)) + len(work.alike)
    for row, number in zip(work.ranks, work.alike, strict=True):
        alike[place[row.rank]] = number
    slower = np.ones(len(place))
    for rank, factor in work.slower.items():
        slower[place[rank]] = factor
    return alike, slower, work.is_changing
