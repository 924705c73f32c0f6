"""A training run with several plausible problems at once."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from sample_traces.simulator import kernels
from sample_traces.simulator.boards import A100_PCIE
from sample_traces.simulator.event_model import answers
from sample_traces.simulator.event_model.actions import Communicator
from sample_traces.simulator.event_model.program_writer import SIDE, Host, Rates
from sample_traces.simulator.scenarios.copies import exposed_copies
from sample_traces.simulator.scenarios.setup import Setup, finding
from sample_traces.simulator.scenarios.training import WORLD

if TYPE_CHECKING:
    import numpy as np

    from sample_traces.simulator.event_model.answers import Ranks
    from sample_traces.simulator.kernels import Kernel
    from sample_traces.simulator.scenarios.setup import Finding

# Three wide layers of a vision transformer, in bfloat16, and two micro-batches of 160 images.
_LAYERS, _SCALE, _STEPS, _LOGGED_STEP = 3, 8, 4, 1
_IMAGES_BYTES = 160 * 3 * 224 * 224 * 4
_BUCKET_BYTES, _STATISTICS_BYTES, _LOSS_BYTES = 176 << 20, 32 << 10, 4
_STATISTICS = Communicator(0x5EED_0000_0000_0002, "1", WORLD.processes)
_HISTOGRAMS = 1180  # four for each of 295 parameters
# Two A100 without NVLink. Recordings of A100 also show kernels that take 1.5 times as long beside
# all-reduces.
_RATES = Rates(nccl=Fraction(21), nccl_latency_ns=38_000)
_SLOWDOWN = Fraction(3, 2)


def _scaled(*launched: Kernel) -> tuple[Kernel, ...]:
    return tuple(replace(kernel, duration_ns=_SCALE * kernel.duration_ns) for kernel in launched)


_FORWARD = _scaled(kernels.LAYER_NORM, kernels.QKV, kernels.ATTENTION, kernels.UP, kernels.DOWN)
_BACKWARD = _scaled(
    kernels.INPUT_GRADIENT, kernels.WEIGHT_GRADIENT, kernels.GELU_BACKWARD,
    kernels.ATTENTION_BACKWARD, kernels.WEIGHT_GRADIENT,
)  # fmt: skip


def training(rng: np.random.Generator) -> Setup:
    """Return a data-parallel run of two ranks on PCIe, whose gradients accumulate over two batches.

    Each batch is copied on the compute stream. The backward's kernels are slower beside the
    all-reduces of gradients, which only the second micro-batch has. The backward waits for small
    statistics of another group, which are reduced on the stream of the gradients and wait behind
    these. In one step rank 0 makes histograms of each gradient on a side stream: that fills the
    launch queue, the loss is reduced late, and rank 1 waits for it.
    """
    hosts = tuple(Host(rank, rng, _RATES) for rank in WORLD.processes)
    for host in hosts:
        for step in range(_STEPS):
            with host.step(step):
                for reduces in (False, True):
                    _micro_batch(host, reduces=reduces)
                with host.range("optimizer step"):
                    host.launch(host.compute, *_scaled(kernels.ADAM, kernels.ADAM))
                if step == _LOGGED_STEP and host.process == 0:
                    side = host.stream(SIDE)
                    with host.range("log histograms"):
                        host.follow(side, host.compute)
                        host.launch(side, *[kernels.HISTOGRAM] * _HISTOGRAMS)
                host.collective("all_reduce", WORLD, host.nccl, _LOSS_BYTES, after=host.compute)
                host.follow(host.compute, host.nccl)
                host.item(host.compute)
    return Setup(hosts, _findings, board=A100_PCIE, slowdown=_SLOWDOWN)


def _micro_batch(host: Host, *, reduces: bool) -> None:
    host.to_device(host.compute, _IMAGES_BYTES)
    with host.range("forward"):
        host.launch(host.compute, *_FORWARD * _LAYERS)
    with host.range("backward"):
        for layer in range(_LAYERS):
            host.launch(host.compute, *_BACKWARD[:4])
            if reduces and layer:
                host.collective(
                    "all_reduce", _STATISTICS, host.nccl, _STATISTICS_BYTES, after=host.compute
                )
                host.follow(host.compute, host.nccl)
            host.launch(host.compute, *_BACKWARD[4:])
            if reduces:
                host.collective("all_reduce", WORLD, host.nccl, _BUCKET_BYTES, after=host.compute)
        host.follow(host.compute, host.nccl)


def _findings(ranks: Ranks) -> list[Finding]:
    findings = exposed_copies(ranks)
    for rank, operations in enumerate(ranks.operations):
        findings += [
            finding("nccl-serialization", rank, **answers.nccl_serialization(operations)),
            finding("overlap-slowdown", rank, **answers.overlap_slowdown(operations, 2 * _STEPS)),
        ]
    calls = [call for call in ranks.result.calls if call.thread.process == 0]
    return [*findings, finding("launch-queue-stall", 0, **answers.launch_queue(calls))]
