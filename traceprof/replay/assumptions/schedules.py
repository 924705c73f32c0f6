"""Steps of a pipeline in other orders of its passes, slowed down by overlap.

A stage computes its passes one after the other. It asks for the input of a pass when the one before
is over, and sends its results in the order in which it has them, on one stream or two. What is sent
moves when both sides are there. Kernels are slower while something of the stage communicates,
waiting for its peer or not; the naive estimate leaves that out.
"""

from __future__ import annotations

from msgspec import Struct, field

from traceprof.run.pipeline_orders import ORDERS, Pass
from traceprof.structs import Record

_NUM_CHUNKS = 2  # parts of the model that a stage has where they are interleaved
_DONE_NS = 1e-6  # what is left of a pass by rounding


class StageCost(Record, frozen=True):
    """Time that one stage of a pipeline needs for a micro-batch, without overlap.

    Attributes:
        forward_ns: of the kernels of its forward pass.
        backward_ns: of the kernels of its backward pass.
    """

    forward_ns: float
    backward_ns: float


class PipelineModel(Record, frozen=True):
    """The stages of a pipeline, and the links between them.

    Attributes:
        stages: in order.
        num_micro_batches: of a step.
        activations_ns: how long those of one micro-batch move to the next stage.
        gradients_ns: how long the gradients move to the one before.
        slowdown: how many times as long kernels take while the stage communicates.
        sends_apart: whether activations and gradients are sent on a stream each.
    """

    stages: tuple[StageCost, ...]
    num_micro_batches: int
    activations_ns: float
    gradients_ns: float
    slowdown: float
    sends_apart: bool = False


class ScheduleTime(Record, frozen=True):
    """Time of a step with its passes in an order.

    Attributes:
        order: `1f1b`, `gpipe` or `interleaved`.
        step_ns: from the first pass to the last, None if the stages would wait for ever.
        naive_ns: the same if communication slowed nothing down.
    """

    order: str
    step_ns: int | None
    naive_ns: int | None


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
