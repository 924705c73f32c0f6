"""Sends between ranks: queued behind each other on one stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.simulate import kernels
from traceprof.simulate.event_model import answers
from traceprof.simulate.event_model.actions import Communicator
from traceprof.simulate.event_model.program_writer import Host
from traceprof.simulate.scenarios.setup import Setup, finding
from traceprof.simulate.scenarios.training import COMPUTE, NCCL, stream

if TYPE_CHECKING:
    import numpy as np

    from traceprof.simulate.event_model.answers import Ranks
    from traceprof.simulate.scenarios.setup import Finding

_PIPELINE_STREAM = 24
_WORLD = Communicator(0x5EED_0000_0000_0010, "0", (0, 1, 2))
_TO_PEER = {
    peer: Communicator(0x5EED_0000_0000_0010 + peer, f"pp0{peer}", (0, peer)) for peer in (1, 2)
}
_ACTIVATIONS_BYTES = 256 << 20
_BUCKET_BYTES = 64 << 20
_LAYER = (kernels.QKV, kernels.ATTENTION, kernels.UP, kernels.DOWN)


def nccl_serialization(rng: np.random.Generator) -> Setup:
    """Return a run whose first rank sends to two others on one stream.

    The sends are on communicators of two ranks each and could run at the same time; the second
    waits behind the first, and so does its receiver. The two gradient buckets wait on
    one communicator, whose order is NCCL's own.
    """
    hosts = tuple(Host(rank, rng) for rank in _WORLD.processes)
    for host in hosts:
        compute, nccl = stream(host, COMPUTE), stream(host, NCCL)
        pipeline = stream(host, _PIPELINE_STREAM)
        for step in range(8):
            with host.step(step):
                with host.range("forward"):
                    host.operator(compute, "aten::linear", *_LAYER)
                    if host.process == 0:
                        for peer, pair in _TO_PEER.items():
                            host.send_recv(
                                "send", peer, pair, pipeline, _ACTIVATIONS_BYTES, after=compute
                            )
                    else:
                        pair = _TO_PEER[host.process]
                        host.send_recv("recv", 0, pair, pipeline, _ACTIVATIONS_BYTES)
                    host.follow(compute, pipeline)
                with host.range("backward"):
                    host.operator(compute, "aten::mm", *_LAYER)
                    for _ in range(2):
                        host.collective("all_reduce", _WORLD, nccl, _BUCKET_BYTES, after=compute)
                    host.operator(compute, "aten::mm", *_LAYER, *_LAYER)
                    host.follow(compute, nccl)
                with host.range("optimizer"):
                    host.operator(compute, "aten::_fused_adamw_", kernels.ADAM)
                host.synchronize(compute)
    return Setup(hosts, _serialized)


def _serialized(ranks: Ranks) -> list[Finding]:
    return [
        finding("nccl-serialization", rank, **answers.nccl_serialization(operations))
        for rank, operations in enumerate(ranks.operations)
    ]
