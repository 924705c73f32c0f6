"""Sends between ranks: queued behind each other on one stream."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sample_traces.simulator import kernels
from sample_traces.simulator.event_model import answers
from sample_traces.simulator.event_model.actions import Communicator
from sample_traces.simulator.scenarios.setup import Setup
from sample_traces.simulator.scenarios.training import of_each_rank, optimize, programs

if TYPE_CHECKING:
    import numpy as np

    from sample_traces.simulator.event_model.program_writer import Host

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
