"""Steps of a pipeline in other orders of its passes, slowed down by overlap.

A stage computes its passes one after the other. It asks for the input of a pass when the one before
is over, and sends its results in the order in which it has them, on one stream or two. What is sent
moves when both sides are there. Kernels are slower while something of the stage communicates,
waiting for its peer or not; the naive estimate leaves that out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from traceprof.analyses import breakdown, overlap_slowdown, pipeline_bubble
from traceprof.analyses.kernels.beside_communication import slowed_kernels
from traceprof.analyses.steps.step_means import slowest_rank, step_ns
from traceprof.communication.messages import RECEIVES, SENDS
from traceprof.ranks.passes import BACKWARD, FORWARD, OTHER
from traceprof.replay.assumptions.run_change import CannotChange
from traceprof.replay.assumptions.sends import sends_of
from traceprof.replay.graph.longest_path import EdgeKind
from traceprof.replay.results import ScheduleTime
from traceprof.run.pipeline_orders import ORDERS, Pass
from traceprof.structs import Record
from traceprof.trace.grouping import distinct_values, median_of
from traceprof.units import counted, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.execution.open_reports import OpenAnalysis
    from traceprof.intervals import Mask
    from traceprof.ranks.passes import RankPasses
    from traceprof.replay.assumptions.sends import Sends
    from traceprof.replay.graph.run_graph import RunGraph
    from traceprof.run.opening import Rank

_NUM_CHUNKS = 2  # parts of the model that a stage has where they are interleaved
_DONE_NS = 1e-6  # what is left of a pass by rounding


class StageCost(Record, frozen=True):
    """Time that one stage of a pipeline needs for a micro-batch, without overlap."""

    forward_ns: float  # of the kernels of its forward pass
    backward_ns: float  # of the kernels of its backward pass


class PipelineModel(Record, frozen=True):
    """The stages of a pipeline, and the links between them."""

    stages: tuple[StageCost, ...]  # in order
    num_micro_batches: int  # of a step
    activations_ns: float  # how long those of one micro-batch move to the next stage
    gradients_ns: float  # how long the gradients move to the one before
    slowdown: float  # how many times as long kernels take while the stage communicates
    sends_apart: bool = False  # whether activations and gradients are sent on a stream each


class _Message(Record, frozen=True):
    """The input of a pass, sent by another part of the model; `part` is the receiving one."""

    is_forward: bool
    micro_batch: int
    part: int


class _Progress(Struct):
    """The state of a stage."""

    passes: list[Pass]
    parts: list[int]  # of the model, of each pass
    place: int = 0
    left_ns: float = 0.0
    is_computing: bool = False
    awaited: _Message | None = None
    sends: list[_Message] = field(default_factory=list)


def schedule_times(pipeline: PipelineModel) -> tuple[ScheduleTime, ...]:
    """Return the times of the same stages in each possible order.

    Interleaved, each stage has two halves of what it has, so that twice as much is sent.
    """
    num_stages = len(pipeline.stages)
    times = []
    for name in ORDERS:
        if name == "interleaved" and pipeline.num_micro_batches % num_stages:
            continue
        took = [pipeline_ns(pipeline, name, slowdown) for slowdown in (pipeline.slowdown, 1.0)]
        rounded = [None if time is None else round(time) for time in took]
        times.append(ScheduleTime(name, rounded[0], rounded[1]))
    return tuple(times)


def pipeline_ns(pipeline: PipelineModel, order: str, slowdown: float) -> float | None:
    """Return how long the passes take in an order; None if stages wait for ever.

    Args:
        pipeline: of the passes.
        order: a key of `ORDERS`.
        slowdown: how many times as long kernels take while their stage communicates.
    """
    num_chunks = _NUM_CHUNKS if order == "interleaved" else 1
    run = _Run(pipeline, order, num_chunks)
    now = 0.0
    while True:
        run.start_moving(now)
        rates = [slowdown if stage.sends or stage.awaited else 1.0 for stage in run.stages]
        ends = [
            now + stage.left_ns * rate
            for stage, rate in zip(run.stages, rates, strict=True)
            if stage.is_computing
        ]
        ends += run.moving.values()
        if not ends:
            return now if run.is_over else None
        then = min(ends)
        run.compute([(then - now) / rate for rate in rates])
        run.stop_moving(then)
        now = then


class _Run:
    """The stages of a pipeline while they compute.

    Attributes:
        stages: as far as they have got.
        moving: what is under way, and when it arrives.
    """

    def __init__(self, pipeline: PipelineModel, order: str, num_chunks: int) -> None:
        self._pipeline, self._num_chunks = pipeline, num_chunks
        self._num_stages = num_stages = len(pipeline.stages)
        self._num_parts = num_stages * num_chunks
        self.stages: list[_Progress] = []
        self.moving: dict[_Message, float] = {}
        for number, cost in enumerate(pipeline.stages):
            passes = ORDERS[order](number, num_stages, pipeline.num_micro_batches)
            stage = _Progress(passes, [pass_.chunk * num_stages + number for pass_ in passes])
            _begin(stage, cost, self._num_parts, num_chunks)
            self.stages.append(stage)

    @property
    def is_over(self) -> bool:
        """Whether all passes are done."""
        return all(stage.place == len(stage.passes) for stage in self.stages)

    def start_moving(self, now: float) -> None:
        """Start the transfers whose two sides are ready."""
        for stage in self.stages:
            for head in self._heads(stage):
                receiver = self.stages[head.part % self._num_stages]
                if receiver.awaited == head and head not in self.moving:
                    pipeline = self._pipeline
                    took = pipeline.activations_ns if head.is_forward else pipeline.gradients_ns
                    self.moving[head] = now + took

    def _heads(self, stage: _Progress) -> list[_Message]:
        """Return the sends of a stage that are the first of their stream."""
        if not self._pipeline.sends_apart:
            return stage.sends[:1]
        ways = ([send for send in stage.sends if send.is_forward == way] for way in (True, False))
        return [send for way in ways for send in way[:1]]

    def compute(self, done_ns: list[float]) -> None:
        """Advance the stages by these times, and begin the next pass where one is done."""
        for stage, cost, done in zip(self.stages, self._pipeline.stages, done_ns, strict=True):
            if not stage.is_computing:
                continue
            stage.left_ns -= done
            if stage.left_ns <= _DONE_NS:
                _end(stage, self._num_parts)
                _begin(stage, cost, self._num_parts, self._num_chunks)

    def stop_moving(self, then: float) -> None:
        """Deliver the messages that arrive by then."""
        for message in [message for message, end in self.moving.items() if end <= then]:
            del self.moving[message]
            sender = message.part + (-1 if message.is_forward else 1)
            self.stages[sender % self._num_stages].sends.remove(message)
            receiver = self.stages[message.part % self._num_stages]
            receiver.awaited, receiver.is_computing = None, True


def _begin(stage: _Progress, cost: StageCost, num_parts: int, num_chunks: int) -> None:
    """Let a stage begin its next pass, or request its input."""
    if stage.place == len(stage.passes):
        return
    pass_, part = stage.passes[stage.place], stage.parts[stage.place]
    stage.left_ns = (cost.forward_ns if pass_.is_forward else cost.backward_ns) / num_chunks
    has_input = part > 0 if pass_.is_forward else part < num_parts - 1
    stage.awaited = _Message(pass_.is_forward, pass_.micro_batch, part) if has_input else None
    stage.is_computing = not has_input


def _end(stage: _Progress, num_parts: int) -> None:
    """End the pass of a stage, and have its result sent."""
    pass_, part = stage.passes[stage.place], stage.parts[stage.place]
    following = part + 1 if pass_.is_forward else part - 1
    if 0 <= following < num_parts:
        stage.sends.append(_Message(pass_.is_forward, pass_.micro_batch, following))
    stage.is_computing = False
    stage.place += 1


MAX_OFF = 0.05
"""The share of a step that the model may miss, as that of unexplained delays."""


class StepChange(Record, frozen=True):
    """The change of a step that a model gives."""

    change_ns: float  # of the mean step
    off_ns: float  # how far that may be off, to either side


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
        why = (
            f"{counted(was.num_micro_batches, 'micro-batch')} times {factor:g}"
            " is not a whole number"
        )
        return CannotChange(why)
    shorter = replace(
        was,
        stages=tuple(
            StageCost(stage.forward_ns / factor, stage.backward_ns / factor) for stage in was.stages
        ),
        num_micro_batches=round(num),
        activations_ns=was.activations_ns / factor,
        gradients_ns=was.gradients_ns / factor,
    )
    return model.changed(shorter, model.order)


class _Model(Record, frozen=True):
    """A recorded pipeline, and the model of its step."""

    pipeline: PipelineModel  # with its passes as they were
    order: str  # that they ran in, of `ORDERS`
    step_ns: float  # of the passes, by the model
    off_ns: float  # by how much a step was longer or shorter

    def changed(self, pipeline: PipelineModel, order: str) -> StepChange | CannotChange:
        """Return the change of a step with another pipeline in an order."""
        num_stages, num = len(pipeline.stages), pipeline.num_micro_batches
        if order == "interleaved" and num % num_stages:
            return CannotChange(
                f"the number of micro-batches ({num}) is not a multiple of that of stages"
                f" ({num_stages})"
            )
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
        return CannotChange("its passes follow no known order")
    sends = sends_of(analysis, graph)
    pipeline = None if sends is None else pipeline_model(analysis, graph, sends)
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
        why = (
            f"its passes and messages alone are {off} off the measured step: something else"
            " delays it"
        )
        return CannotChange(why)
    return _Model(pipeline, order, passes_ns, off_ns)


def _rest_ns(stages: Sequence[RankPasses]) -> float:
    """Return the compute time of a stage outside of passes in a step, mean over the stages."""
    sums = []
    for stage in stages:
        inside = stage.step >= 0
        num = max(len(distinct_values(stage.step[inside])), 1)
        sums.append(float(stage.compute_ns[inside & (stage.kind == OTHER)].sum()) / num)
    return float(np.mean(sums))


def pipeline_model(analysis: OpenAnalysis, graph: RunGraph, sends: Sends) -> PipelineModel | None:
    """Return the pipeline of a run; None without one, or without ranges of its passes.

    Each stage has one rank, and sends to the next one and the one before.
    """
    order = _stages(analysis, sends)
    if order is None:
        return None
    place = np.full(len(analysis.run.ranks), -1, np.int64)
    place[order] = np.arange(len(order))
    numbers = {rank.rank: index for index, rank in enumerate(analysis.run.ranks)}
    peer = place[np.array([numbers[int(number)] for number in sends.peer.tolist()])]
    is_forward = peer > place[sends.rank]
    is_send = sends.direction == SENDS
    edges = graph.edges
    moved = np.full(graph.plan.num_nodes, np.nan)
    transfers = np.flatnonzero(edges.kind == EdgeKind.TRANSFER)
    moved[edges.target[transfers]] = graph.weights.of(0)[transfers]
    of_send = moved[sends.node + 1]
    first = is_send & is_forward & (sends.rank == order[0])
    per_step = np.unique(sends.step[first], return_counts=True)[1]
    passes = {of_rank.rank: of_rank for of_rank in analysis.measured.passes}
    ranks = [analysis.run.ranks[index] for index in order]
    stages = [_stage(rank, passes[rank.rank]) for rank in ranks]
    if len(per_step) == 0 or not (is_send & ~is_forward).any():
        return None
    known = [stage for stage in stages if stage is not None]
    if len(known) < len(stages):
        return None
    return PipelineModel(
        stages=tuple(known),
        num_micro_batches=int(median_of(per_step)),
        activations_ns=float(median_of(of_send[is_send & is_forward])),
        gradients_ns=float(median_of(of_send[is_send & ~is_forward])),
        slowdown=_slowdown(analysis),
        sends_apart=not _share_streams(sends, is_send, is_forward),
    )


def _stages(analysis: OpenAnalysis, sends: Sends) -> list[int] | None:
    """Return the ranks in order of their stages, as indices; None if they make no line."""
    numbers = {rank.rank: index for index, rank in enumerate(analysis.run.ranks)}
    peers: dict[int, set[int]] = {}
    for rank, peer in zip(sends.rank.tolist(), sends.peer.tolist(), strict=True):
        peers.setdefault(rank, set()).add(numbers[peer])
    ends = [rank for rank, others in peers.items() if len(others) == 1]
    if len(ends) != 2 or any(len(others) > 2 for others in peers.values()):
        return None
    # The first stage begins a step: it sends before it receives anything.
    begins = [rank for rank in ends if _sends_first(sends, rank)]
    if len(begins) != 1:
        return None
    order = begins
    while len(order) < len(peers):
        following = peers[order[-1]] - set(order)
        if not following:
            return None
        order.append(following.pop())
    return order


def _sends_first(sends: Sends, rank: int) -> bool:
    of_rank = np.flatnonzero(
        (sends.rank == rank) & (sends.step == sends.step[sends.rank == rank][0])
    )
    first = {
        direction: [row for row in of_rank.tolist() if sends.direction[row] == direction]
        for direction in (SENDS, RECEIVES)
    }
    if not first[SENDS] or not first[RECEIVES]:
        return False
    start = [int(sends.start_ns[rows].min()) for rows in (first[SENDS], first[RECEIVES])]
    return start[0] < start[1]


def _share_streams(sends: Sends, is_send: Mask, is_forward: Mask) -> bool:
    """Return whether a send to the next stage and one to the stage before follow each other."""
    both = sends.follows[1:] & is_send[1:] & is_send[:-1]
    return bool((both & (is_forward[1:] != is_forward[:-1])).any())


def _stage(rank: Rank, passes: RankPasses) -> StageCost | None:
    """Return the times of a rank's forward and backward without communication beside them."""
    if not len(passes) or rank.calls is None:
        return None
    kernels, launched_by = rank.operations.kernels, rank.launched_by[0]
    length = kernels.packed_length.values.astype(np.float64)
    slowed = slowed_kernels(rank)
    length[slowed.kernel] -= slowed.rate * slowed.beside_ns
    length[rank.is_communication_kernel | (launched_by < 0)] = 0.0
    place = np.searchsorted(passes.launched_ns, rank.calls.start_ns[launched_by], side="right") - 1
    inside = place >= 0
    spent = np.bincount(place[inside], length[inside], len(passes))
    took = []
    for kind in (FORWARD, BACKWARD):
        of_kind = spent[(passes.kind == kind) & (spent > 0)]
        if not len(of_kind):
            return None
        took.append(float(median_of(of_kind)))
    return StageCost(*took)


def _slowdown(analysis: OpenAnalysis) -> float:
    """Return the slowdown of kernels beside communication; 1 if none were seen."""
    known = [
        result.comparison.slowdown
        for result in analysis.measured.of(overlap_slowdown)
        if result.comparison.slowdown is not None
    ]
    return max(float(median_of(known)), 1.0) if known else 1.0
