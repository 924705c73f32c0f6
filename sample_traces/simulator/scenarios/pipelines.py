"""Pipelines of any number of stages, in any order of their passes, and the truth about bubbles.

The truth comes from running the same program again: with equal stages and links that take no time,
with its own stages, and with its own links. What each adds to the gap before a pass is a part of
that gap; the rest is lateness.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

import numpy as np
from msgspec import structs

from sample_traces.simulator import kernels
from sample_traces.simulator.event_model.actions import Communicator, Event, KernelWork, Stream
from sample_traces.simulator.event_model.answers import Ranks
from sample_traces.simulator.event_model.engine import Result
from sample_traces.simulator.event_model.program_writer import COMPUTE, COPY, EvenHost, Host, Rates
from sample_traces.simulator.kernels import Kernel
from sample_traces.simulator.machine import HOST_TABLES
from sample_traces.simulator.scenarios.setup import Finding, Scenario, Setup, finding
from traceprof.ranks.pipelines import ORDERS, Pass

Interval = tuple[int, int]

_BACKWARD = (*kernels.BACKWARD, kernels.INPUT_GRADIENT)
_OPTIMIZER = kernels.ADAM
_SENDS, _RECEIVES = (24, 26), 25  # stream ids: activations and gradients are sent side by side
_USUAL, _NO_TIME = Rates(), Rates(nccl=Fraction(10**9), nccl_latency_ns=1, peer=Fraction(10**9))
PARTS = ("warm_up_ns", "imbalance_ns", "transfer_ns", "late_ns")


@dataclass(frozen=True, slots=True)
class Plan:
    order: str = "1f1b"  # of its passes, a key of `ORDERS`
    num_stages: int = 4  # at least 2
    num_micro_batches: int = 8  # of a step
    # of each stage, how many times as much as usual it computes; empty for equal stages
    work: tuple[float, ...] = ()
    num_steps: int = 4  # how often it is repeated
    late_ns: int = 0  # how long the first stage waits for data before each step
    is_copying: bool = False  # stages are GPUs of one process that copy, without NCCL
    # all sends of a stage are on one stream: gradients overtake activations that were ready first
    has_one_stream: bool = False
    is_gradient_first: bool = True  # whether they do overtake; else sends come as they are ready
    # receives are posted as soon as the one before is over, else when the stage has computed what
    # comes before
    is_prefetching: bool = False
    is_labelled: bool = True  # whether the ranges of `instrument` are there
    rates: Rates = _USUAL  # of the links
    is_even: bool = False  # whether all passes of a kind are equal: no kernel varies
    num_bytes: int = 96 << 20  # of a message

    @property
    def num_chunks(self) -> int:
        """Parts of the model that each stage has."""
        return 2 if self.order == "interleaved" else 1

    def passes(self, stage: int) -> list[Pass]:
        return ORDERS[self.order](stage, self.num_stages, self.num_micro_batches)

    def source(self, stage: int, pass_: Pass) -> tuple[int, Pass] | None:
        """Return the stage and the pass that make the input of a pass; None if it needs none."""
        return self._beside(stage, pass_, -1 if pass_.is_forward else 1)

    def destination(self, stage: int, pass_: Pass) -> tuple[int, Pass] | None:
        """Return the stage and the pass that need the result of a pass; None if none does."""
        return self._beside(stage, pass_, 1 if pass_.is_forward else -1)

    def sends_in_order(self, stage: int) -> list[Pass]:
        """Return the passes of a stage whose results are sent, in the order of the only stream."""
        sends: list[Pass] = []
        passes = self.passes(stage)
        for before, pass_ in zip([None, *passes], passes, strict=False):
            if self.destination(stage, pass_) is not None:
                overtakes = not pass_.is_forward and before is not None and before.is_forward
                overtakes &= self.is_gradient_first and stage < self.num_stages - 1
                sends.insert(len(sends) - overtakes, pass_)
        return sends

    def _beside(self, stage: int, pass_: Pass, distance: int) -> tuple[int, Pass] | None:
        part = pass_.chunk * self.num_stages + stage + distance
        if not 0 <= part < self.num_stages * self.num_chunks:
            return None
        chunk, other = divmod(part, self.num_stages)
        return other, structs.replace(pass_, chunk=chunk)

    def kernels(self, stage: int, pass_: Pass) -> list[Kernel]:
        scale = (self.work[stage] if self.work else 1.0) / self.num_chunks
        return [
            replace(kernel, duration_ns=round(kernel.duration_ns * scale))
            for kernel in (kernels.FORWARD if pass_.is_forward else _BACKWARD)
        ]


def pipeline(rng: np.random.Generator, plan: Plan) -> Setup:
    """Return a pipeline; its truth is the bubbles of its stages."""
    seed = int(rng.integers(1 << 32))

    def build(changed: Plan) -> Setup:
        make = copying if plan.is_copying else sending
        return make(np.random.default_rng(seed), changed)

    def truth(ranks: Ranks) -> list[Finding]:
        mean = sum(plan.work) / len(plan.work) if plan.work else 1.0
        equal = replace(plan, work=(mean,) * plan.num_stages, rates=_NO_TIME, late_ns=0)
        levels = [
            build(changed).run()
            for changed in (
                replace(equal, is_even=True),
                replace(plan, rates=_NO_TIME, late_ns=0),
                replace(plan, late_ns=0),
            )
        ]
        return bubbles(plan, [*levels, ranks.result])

    return replace(build(plan), findings=truth)


def bubbles(plan: Plan, levels: list[Result]) -> list[Finding]:
    """Return the bubble of each stage, and its parts.

    Args:
        plan: of the pipeline.
        levels: the runs: with equal stages and no time between them, with its own stages, with
            its own links, and as it is.
    """
    gaps = [_gaps(plan, result) for result in levels]
    findings = []
    for stage in range(plan.num_stages):
        parts = [0] * len(PARTS)
        for lengths in zip(*(of_run[stage] for of_run in gaps), strict=True):
            done = 0
            for place, length in enumerate(lengths):
                level = max(done, min(length, lengths[-1]))
                parts[place] += level - done
                done = level
        findings.append(
            finding(
                "pipeline-bubble",
                stage,
                bubble_ns=sum(parts),
                **dict(zip(PARTS, parts, strict=True)),
                num_stages=plan.num_stages,
                num_micro_batches=plan.num_micro_batches,
                ideal_fraction=(plan.num_stages - 1) / (plan.num_micro_batches * plan.num_chunks),
            )
        )
    return findings


def _gaps(plan: Plan, result: Result) -> list[list[int]]:
    """Return by stage the gaps before passes that need an input, and the one at the end."""
    spans = [_spans(plan, result, stage) for stage in range(plan.num_stages)]
    begin = min(start for of_stage in spans for start, *_ in of_stage)
    end = max(end for of_stage in spans for _, end, _ in of_stage)
    gaps = []
    for of_stage in spans:
        reached, lengths = begin, []
        for start, stop, needs_input in of_stage:
            if needs_input:
                lengths.append(start - reached)
            reached = stop
        gaps.append([*lengths, end - reached])
    return gaps


def _spans(plan: Plan, result: Result, stage: int) -> list[tuple[int, int, bool]]:
    device = stage
    computed = sorted(
        (operation.start_ns, operation.end_ns)
        for operation in result.operations
        if isinstance(operation.work, KernelWork) and operation.stream.device == device
    )
    spans, place = [], 0
    for _ in range(plan.num_steps):
        for pass_ in [*plan.passes(stage), None]:
            num = 1 if pass_ is None else len(kernels.FORWARD if pass_.is_forward else _BACKWARD)
            inside = computed[place : place + num]
            place += num
            needs_input = pass_ is not None and plan.source(stage, pass_) is not None
            spans.append((inside[0][0], inside[-1][1], needs_input))
    return spans


# -- programs -------------------------------------------------------------------------------------


def sending(rng: np.random.Generator, plan: Plan) -> Setup:
    """Return a pipeline with a process for each stage, which send by NCCL; without its truth."""
    hosts = tuple(_host(plan, stage, rng) for stage in range(plan.num_stages))
    for stage, host in enumerate(hosts):
        for step in range(plan.num_steps):
            if stage == 0:
                _load(host, plan)
            with host.step(step):
                _stage(host, plan, stage)
                with host.range("optimizer step"):
                    host.operator(host.compute, "aten::_fused_adamw_", _OPTIMIZER)
                host.synchronize(host.compute)
    return Setup(hosts, lambda _: [])


def _stage(host: Host, plan: Plan, stage: int) -> None:
    receives = host.stream(_RECEIVES)
    left = plan.sends_in_order(stage) if plan.has_one_stream else []
    ready: dict[Pass, Event] = {}

    def send(pass_: Pass, stream: Stream, after: Stream | None = None) -> None:
        destination = plan.destination(stage, pass_)
        assert destination is not None
        way = _way(stage, destination[0], pass_)
        host.send_recv("send", destination[0], way, stream, plan.num_bytes, after=after)

    for pass_ in plan.passes(stage):
        source = plan.source(stage, pass_)
        if source is not None:
            way = _way(source[0], stage, pass_)
            after = None if plan.is_prefetching else host.compute
            host.send_recv("recv", source[0], way, receives, plan.num_bytes, after=after)
            host.follow(host.compute, receives)
        _compute(host, host.compute, plan, stage, pass_)
        if pass_ in left:
            ready[pass_] = host.record(host.compute)
        elif plan.destination(stage, pass_) is not None:
            send(pass_, host.stream(_SENDS[pass_.is_forward]), after=host.compute)
        while left and left[0] in ready:
            host.wait(host.stream(_SENDS[0]), ready[left[0]])
            send(left.pop(0), host.stream(_SENDS[0]))


def _way(source: int, destination: int, pass_: Pass) -> Communicator:
    """Return the communicator of the activations or gradients from one stage to another."""
    low, high = sorted((source, destination))
    number = 0x5EED_0000_0000_1000 + 256 * source + 2 * destination + pass_.is_forward
    return Communicator(number, f"pp{source}{destination}{'bf'[pass_.is_forward]}", (low, high))


def copying(rng: np.random.Generator, plan: Plan) -> Setup:
    """Return a pipeline on the GPUs of one process, with a copy engine for each peer.

    Copies need no receiver, and none waits for another one. The truth is left out.
    """
    host = _host(plan, 0, rng)
    compute = [Stream(0, stage, COMPUTE + 8 * stage) for stage in range(plan.num_stages)]
    for step in range(plan.num_steps):
        _load(host, plan)
        with host.step(step):
            sent: dict[tuple[int, Pass], Event] = {}
            for stage, pass_ in _in_launch_order(plan):
                if (stage, pass_) in sent:
                    host.wait(compute[stage], sent[stage, pass_])
                _compute(host, compute[stage], plan, stage, pass_)
                destination = plan.destination(stage, pass_)
                if destination is not None:
                    copies = Stream(0, stage, COPY + 20 * (stage + 1) + pass_.is_forward)
                    host.follow(copies, compute[stage])
                    host.peer_copy(copies, plan.num_bytes, stage, destination[0])
                    sent[destination] = host.record(copies)
            with host.range("optimizer step"):
                for stream in compute:
                    host.operator(stream, "aten::_fused_adamw_", _OPTIMIZER)
            for stream in compute:
                host.synchronize(stream)
    return Setup((host,), lambda _: [], devices=(tuple(range(plan.num_stages)),))


def _in_launch_order(plan: Plan) -> list[tuple[int, Pass]]:
    """Return the passes of all stages, each after its input, as one thread launches them."""
    left = [plan.passes(stage) for stage in range(plan.num_stages)]
    launched: dict[tuple[int, Pass], None] = {}
    while any(left):
        for stage, passes in enumerate(left):
            if passes and plan.source(stage, passes[0]) in (None, *launched):
                launched[stage, passes.pop(0)] = None
    return list(launched)


def _host(plan: Plan, process: int, rng: np.random.Generator) -> Host:
    make = EvenHost if plan.is_even else Host
    return make(process, rng, plan.rates, is_labelled=plan.is_labelled)


def _load(host: Host, plan: Plan) -> None:
    if plan.late_ns:
        with host.range("data loading"), host.purpose("data_loading_ns"):
            host.sleep(plan.late_ns, "poll", spread=0)


def _compute(host: Host, stream: Stream, plan: Plan, stage: int, pass_: Pass) -> None:
    operator = "aten::linear" if pass_.is_forward else "aten::mm"
    if not plan.is_labelled:
        host.launch(stream, *plan.kernels(stage, pass_))
        return
    with host.range("forward" if pass_.is_forward else "backward"):
        host.operator(stream, operator, *plan.kernels(stage, pass_))


SENDS = Plan("1f1b", 4, 4, num_steps=3, has_one_stream=True)
"""Activations wait behind gradients for another rank, which are not ready yet."""
COPIES = Plan("1f1b", 4, 4, num_steps=3, is_copying=True)
_BUBBLE = Plan("1f1b", 3, 4, (1.0, 1.3, 1.0), num_steps=2, late_ns=3_000_000)

SCENARIOS = {
    "pipeline-sends": Scenario(
        "A pipeline of four ranks whose sends wait behind those to another rank.",
        partial(sending, plan=SENDS),
        silent=("launch-queue-stall", "overlap-slowdown", "pageable-copy", "small-collectives"),
        host_tables=HOST_TABLES,
    ),
    "pipeline-copies": Scenario(
        "The same pipeline in one process, whose copies wait for nothing.",
        partial(copying, plan=COPIES),
        silent=("launch-queue-stall", "overlap-slowdown", "pageable-copy", "nccl-serialization"),
        host_tables=HOST_TABLES,
    ),
    "pipeline-bubble": Scenario(
        "Three stages, one of them slower; the first waits for data in each step.",
        partial(pipeline, plan=_BUBBLE),
        silent=("launch-queue-stall", "overlap-slowdown", "pageable-copy", "small-collectives"),
    ),
}
