"""A model in four stages and four micro-batches a step, one forward and one backward in turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from sample_traces.simulator import kernels
from sample_traces.simulator.event_model import answers
from sample_traces.simulator.event_model.actions import Communicator, Event, Stream
from sample_traces.simulator.event_model.program_writer import COMPUTE, COPY, Host
from sample_traces.simulator.machine import HOST_TABLES
from sample_traces.simulator.scenarios.setup import Scenario, Setup
from sample_traces.simulator.scenarios.training import of_each_rank, optimize, programs
from traceprof.ranks.pipelines import Pass, one_forward_one_backward

NUM_STAGES, NUM_MICRO_BATCHES, NUM_STEPS = 4, 4, 4
SENDS, RECEIVES = 24, 25  # stream ids
_BYTES = 96 << 20
_BACKWARD = (*kernels.BACKWARD, kernels.INPUT_GRADIENT)


@dataclass(frozen=True, slots=True)
class Send:
    """A message of a stage: activations to the next one, or gradients to the one before."""

    is_forward: bool  # whether it carries activations
    micro_batch: int


def pair(source: int, destination: int) -> Communicator:
    """Return the communicator of one direction between two stages."""
    low, high = sorted((source, destination))
    number = 0x5EED_0000_0000_0200 + 16 * source + destination
    return Communicator(number, f"pp{source}{destination}", (low, high))


def sends_of(stage: int) -> list[Send]:
    """Return the messages of a stage in a step, in the order of the scenario.

    Gradients overtake activations that were ready first: the sender prefers gradients.
    """
    passes = one_forward_one_backward(stage, NUM_STAGES, NUM_MICRO_BATCHES)
    sends: list[Send] = []
    for before, pass_ in zip([None, *passes], passes, strict=False):
        if _is_sent(stage, pass_):
            goes_first = not pass_.is_forward and before is not None and before.is_forward
            is_before = goes_first and stage < NUM_STAGES - 1
            sends.insert(len(sends) - is_before, Send(pass_.is_forward, pass_.micro_batch))
    return sends


def nccl_pipeline(
    rng: np.random.Generator,
    sends: Mapping[int, Sequence[Send]] | None = None,
    num_steps: int = NUM_STEPS,
) -> Setup:
    """Return a pipeline of four ranks with all sends of a rank on one stream.

    Activations wait behind gradients for another rank, which are not ready yet; and a send runs
    until its receiver arrives, which computes first.
    """
    hosts = tuple(Host(rank, rng) for rank in range(NUM_STAGES))
    for host in hosts:
        order = list(sends_of(host.process) if sends is None else sends[host.process])
        for step in range(num_steps):
            with host.step(step):
                _stage(host, list(order))
                with host.range("optimizer"):
                    host.operator(host.compute, "aten::_fused_adamw_", kernels.ADAM)
                host.synchronize(host.compute)
    return Setup(hosts, lambda _: [])


def _stage(host: Host, order: list[Send]) -> None:
    stage = host.process
    sends, receives = host.stream(SENDS), host.stream(RECEIVES)
    done: dict[Send, Event] = {}
    for pass_ in one_forward_one_backward(stage, NUM_STAGES, NUM_MICRO_BATCHES):
        source = stage - 1 if pass_.is_forward else stage + 1
        if 0 <= source < NUM_STAGES:
            host.send_recv(
                "recv", source, pair(source, stage), receives, _BYTES, after=host.compute
            )
            host.follow(host.compute, receives)
        _compute(host, host.compute, pass_)
        if _is_sent(stage, pass_):
            done[Send(pass_.is_forward, pass_.micro_batch)] = host.record(host.compute)
        while order and order[0] in done:
            send = order.pop(0)
            destination = stage + 1 if send.is_forward else stage - 1
            host.wait(sends, done[send])
            host.send_recv("send", destination, pair(stage, destination), sends, _BYTES)


def _compute(host: Host, stream: Stream, pass_: Pass) -> None:
    with host.range("forward" if pass_.is_forward else "backward"):
        if pass_.is_forward:
            host.operator(stream, "aten::linear", *kernels.FORWARD)
        else:
            host.operator(stream, "aten::mm", *_BACKWARD)


def _is_sent(stage: int, pass_: Pass) -> bool:
    return stage < NUM_STAGES - 1 if pass_.is_forward else stage > 0


def copying_pipeline(rng: np.random.Generator, num_steps: int = NUM_STEPS) -> Setup:
    """Return the same pipeline on four GPUs of one process, with a copy engine for each peer.

    Copies need no receiver, and each has a stream of its own: none waits for another.
    """
    host = Host(0, rng)
    compute = [Stream(0, stage, COMPUTE + 8 * stage) for stage in range(NUM_STAGES)]
    for step in range(num_steps):
        with host.step(step):
            sent: dict[tuple[int, Send], Stream] = {}
            for stage, pass_ in _in_launch_order():
                source = stage - 1 if pass_.is_forward else stage + 1
                received = sent.get((source, Send(pass_.is_forward, pass_.micro_batch)))
                if received is not None:
                    host.follow(compute[stage], received)
                _compute(host, compute[stage], pass_)
                if _is_sent(stage, pass_):
                    destination = stage + 1 if pass_.is_forward else stage - 1
                    copy = Stream(0, stage, COPY + 20 * (stage + 1) + pass_.is_forward)
                    host.follow(copy, compute[stage])
                    host.peer_copy(copy, _BYTES, stage, destination)
                    sent[stage, Send(pass_.is_forward, pass_.micro_batch)] = copy
            for stream in compute:
                host.operator(stream, "aten::_fused_adamw_", kernels.ADAM)
            for stream in compute:
                host.synchronize(stream)
    return Setup((host,), lambda _: [], devices=(tuple(range(NUM_STAGES)),))


def _in_launch_order() -> list[tuple[int, Pass]]:
    """Return the passes of all stages, each after its inputs, as one thread launches them."""
    left = [
        one_forward_one_backward(stage, NUM_STAGES, NUM_MICRO_BATCHES)
        for stage in range(NUM_STAGES)
    ]
    launched: list[tuple[int, Pass]] = []
    while any(left):
        for stage, passes in enumerate(left):
            if passes:
                source = stage - 1 if passes[0].is_forward else stage + 1
                if not 0 <= source < NUM_STAGES or (source, passes[0]) in launched:
                    launched.append((stage, passes.pop(0)))
    return launched


_PIPELINE_STREAM = 24
_WORLD = Communicator(0x5EED_0000_0000_0010, "0", (0, 1, 2))
_TO_PEER = {
    peer: Communicator(0x5EED_0000_0000_0010 + peer, f"pp0{peer}", (0, peer)) for peer in (1, 2)
}
_ACTIVATIONS_BYTES = 256 << 20
_BUCKET_BYTES = 64 << 20


def nccl_serialization(rng: np.random.Generator) -> Setup:
    """Return a run whose first rank sends to two others on one stream.

    The sends are on communicators of two ranks each and could run at the same time; the second
    waits behind the first, and so does its receiver. The two gradient buckets wait on
    one communicator, whose order is NCCL's own.
    """

    def step(host: Host) -> None:
        pipeline = host.stream(_PIPELINE_STREAM)
        with host.range("forward"):
            host.operator(host.compute, "aten::linear", *kernels.FORWARD)
            if host.process == 0:
                for peer, pair in _TO_PEER.items():
                    size = _ACTIVATIONS_BYTES
                    host.send_recv("send", peer, pair, pipeline, size, after=host.compute)
            else:
                pair = _TO_PEER[host.process]
                host.send_recv("recv", 0, pair, pipeline, _ACTIVATIONS_BYTES)
            host.follow(host.compute, pipeline)
        with host.range("backward"):
            host.operator(host.compute, "aten::mm", *kernels.FORWARD)
            for _ in range(2):
                host.collective("all_reduce", _WORLD, host.nccl, _BUCKET_BYTES, after=host.compute)
            host.operator(host.compute, "aten::mm", *kernels.FORWARD * 2)
            host.follow(host.compute, host.nccl)
        optimize(host)
        host.synchronize(host.compute)

    findings = partial(of_each_rank, "nccl-serialization", answers.nccl_serialization)
    return Setup(programs(rng, 8, step, processes=_WORLD.processes), findings)


SCENARIOS = {
    "nccl-serialization": Scenario(
        "Sends to two peers wait behind each other on one stream.",
        nccl_serialization,
        silent=("launch-queue-stall", "overlap-slowdown", "pageable-copy", "small-collectives"),
    ),
    "pipeline-sends": Scenario(
        "A pipeline of four ranks whose sends wait behind those to another rank.",
        partial(nccl_pipeline, num_steps=3),
        silent=("launch-queue-stall", "overlap-slowdown", "pageable-copy", "small-collectives"),
        host_tables=HOST_TABLES,
    ),
    "pipeline-copies": Scenario(
        "The same pipeline in one process, whose copies wait for nothing.",
        partial(copying_pipeline, num_steps=3),
        silent=("launch-queue-stall", "overlap-slowdown", "pageable-copy", "nccl-serialization"),
        host_tables=HOST_TABLES,
    ),
}
