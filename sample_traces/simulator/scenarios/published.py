"""A published experiment on RTX 3090: copies and NCCL sends alone, and beside compute.

Ten tensors of 64 MiB go from GPU 0 to GPU 2, or in turns to GPUs 2 and 3, without NVLink. Each step
is one of its runs. The inputs of the model are the durations of single transfers and of the compute
alone, and the slowdown of kernels during NCCL. The times of two streams, and of compute with sends,
are its results.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from sample_traces.simulator import kernels
from sample_traces.simulator.boards import RTX_3090
from sample_traces.simulator.event_model import answers
from sample_traces.simulator.event_model.actions import Communicator, Stream
from sample_traces.simulator.event_model.program_writer import COMPUTE, COPY, NCCL, EvenHost, Rates
from sample_traces.simulator.scenarios.copies import sent_through_host
from sample_traces.simulator.scenarios.setup import Setup, finding

if TYPE_CHECKING:
    import numpy as np

    from sample_traces.simulator.event_model.answers import Ranks
    from sample_traces.simulator.kernels import Kernel
    from sample_traces.simulator.scenarios.setup import Finding

NUM_TENSORS = 10
TENSOR_BYTES = 1 << 26
COMPUTE_MS = 396.8
SLOWDOWN = Fraction(2778, 900)
"""Published: 277.8 ms beside sends did what takes 396.8 - (584.6 - 277.8) = 90.0 ms alone."""
_GPUS = (0, 2, 3)
_NUM_KERNELS = 256


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """A run of the experiment.

    Attributes:
        name: of the step's range.
        total_ms: published time of all tensors, one after the other; None if none is sent.
        peers: the destinations of tensors in turn, indices into `_GPUS`.
        has_streams: whether each peer has a stream of its own.
        computes: whether the first GPU computes, too.
    """

    name: str
    total_ms: float | None
    peers: tuple[int, ...] = (1,)
    has_streams: bool = False
    computes: bool = False

    def rate(self, num_legs: int) -> Fraction:
        """Return the bytes per ns of each leg of a transfer."""
        assert self.total_ms is not None  # noqa: S101  (else nothing is sent)
        return Fraction(TENSOR_BYTES * NUM_TENSORS * num_legs, round(self.total_ms * 1e6))


COPIES = (
    PublishedRun("copies in turns, one stream", 97.441, (1, 2)),
    PublishedRun("copies in turns, two streams", 97.441, (1, 2), has_streams=True),
    PublishedRun("copies to one GPU", 133.0),
    PublishedRun("copies to one GPU beside compute", 137.0, computes=True),
)
SENDS = (
    PublishedRun("sends in turns", 270.14, (1, 2)),
    PublishedRun("sends in turns, batched", 298.44, (1, 2)),
    PublishedRun("sends to one GPU", 266.9),
    *[PublishedRun("compute", None, computes=True)] * 3,  # kernels are compared with three alone
    PublishedRun("sends to one GPU beside compute", 277.8, computes=True),
)


def published_copies(rng: np.random.Generator) -> Setup:
    """Return `.to` between GPUs of one process; without peer access copies go through the host."""
    host = EvenHost(0, rng)
    compute = Stream(0, 0, COMPUTE)
    for step, run in enumerate(COPIES):
        host.rates = Rates(pinned=run.rate(2))
        with host.step(step), host.range(run.name):
            if run.computes:
                host.launch(compute, *_kernels())
            for place in range(NUM_TENSORS):
                peer = run.peers[place % len(run.peers)]
                stream = Stream(0, 0, COPY + run.has_streams * peer)
                landing = Stream(0, _GPUS[peer], COPY + 8 * peer)
                host.peer_copy_through_host(stream, landing, TENSOR_BYTES, shares=True)
            host.synchronize(compute, device_wide=True)
    return Setup((host,), sent_through_host, (_GPUS,), RTX_3090)


def published_sends(rng: np.random.Generator) -> Setup:
    """Return `send` between three ranks: batched sends run one by one, at their slower rate."""
    hosts = tuple(EvenHost(rank, rng, device=gpu) for rank, gpu in enumerate(_GPUS))
    pairs = [
        Communicator(0x5EED_0000_0000_3090 + peer, f"pair0{peer}", (0, peer)) for peer in (1, 2)
    ]
    for host in hosts:
        stream = host.stream(NCCL)
        for step, run in enumerate(SENDS):
            with host.step(step), host.range(run.name):
                if run.computes and host.process == 0:
                    host.launch(host.compute, *_kernels())
                for place in range(NUM_TENSORS if run.total_ms else 0):
                    host.rates = Rates(nccl=run.rate(1), nccl_latency_ns=0)
                    peer = run.peers[place % len(run.peers)]
                    if host.process == 0:
                        host.send_recv("send", peer, pairs[peer - 1], stream, TENSOR_BYTES)
                    elif host.process == peer:
                        host.send_recv("recv", 0, pairs[peer - 1], stream, TENSOR_BYTES)
                host.synchronize(host.compute, device_wide=True)
    devices = tuple((gpu,) for gpu in _GPUS)
    return Setup(hosts, _slowed_down, devices, RTX_3090, SLOWDOWN)


def _slowed_down(ranks: Ranks) -> list[Finding]:
    num_passes = sum(run.computes for run in SENDS)
    metrics = answers.overlap_slowdown(ranks.operations[0], num_passes)
    return [finding("overlap-slowdown", 0, **metrics)]


def _kernels() -> list[Kernel]:
    """Return kernels that take as long as the published compute alone."""
    each_ns = round(COMPUTE_MS * 1e6 / _NUM_KERNELS)
    return [replace(kernels.UP, duration_ns=each_ns)] * _NUM_KERNELS
