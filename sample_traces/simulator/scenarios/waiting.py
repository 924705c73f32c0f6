"""Runs whose GPUs wait for their hosts: for synchronizations, for launches, for data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sample_traces.simulator import kernels
from sample_traces.simulator.event_model import answers
from sample_traces.simulator.machine import TRACEPROF_DOMAIN
from sample_traces.simulator.scenarios.setup import Setup, finding, idle
from sample_traces.simulator.scenarios.training import optimize, programs, reduce_beside

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from sample_traces.simulator.event_model.answers import Ranks
    from sample_traces.simulator.event_model.program_writer import Host
    from sample_traces.simulator.kernels import Kernel
    from sample_traces.simulator.scenarios.setup import Finding

_SHORT = (kernels.LAYER_NORM, kernels.ADD, kernels.BIAS_GRADIENT, kernels.LAYER_NORM_BACKWARD)
_BATCH_BYTES = 2 << 20
_BUCKET_BYTES = 14 << 20
_LOADING_NS = 9_000_000
_LOGGING_NS = 60_000
DATA_LOADER = "dataloader next"


def host_sync(rng: np.random.Generator) -> Setup:
    """Return a run that reads three numbers in the middle of each step.

    Each read waits until the GPU has no work left; then the host uses the number, and launches more
    only afterwards.
    """

    def step(host: Host) -> None:
        host.to_device(host.compute, _BATCH_BYTES)
        for _ in range(3):
            host.operator(host.compute, "aten::add", *_SHORT * 2)
            host.item(host.compute)
            host.busy(_LOGGING_NS)
        _backward(host, kernels.FORWARD)

    return Setup(programs(rng, 8, step), _synchronized)


def _backward(host: Host, first: Sequence[Kernel]) -> None:
    """Run a backward, whose first gradients are reduced beside its last kernels."""
    with host.range("backward"):
        host.operator(host.compute, "aten::mm", *first)
        reduce_beside(host, _BUCKET_BYTES)
        host.operator(host.compute, "aten::mm", *kernels.FORWARD)
        host.follow(host.compute, host.nccl)


def _synchronized(ranks: Ranks) -> list[Finding]:
    findings = idle(ranks)
    for rank, (process, _) in enumerate(ranks.places):
        calls = [call for call in ranks.result.calls if call.thread.process == process]
        findings.append(finding("host-sync", rank, **answers.synchronizations(calls)))
    return findings


def launch_bound(rng: np.random.Generator) -> Setup:
    """Return a run of kernels that are over before the host has launched the next one."""

    def step(host: Host) -> None:
        host.to_device(host.compute, _BATCH_BYTES)
        with host.range("forward"):
            host.launch(host.compute, *kernels.TINY * 15)
        with host.range("backward"):
            host.launch(host.compute, *kernels.TINY * 15)
            reduce_beside(host, _BUCKET_BYTES)
            host.launch(host.compute, *kernels.TINY * 6)
            host.follow(host.compute, host.nccl)
        with host.range("optimizer"):
            host.launch(host.compute, *kernels.TINY * 6)

    return Setup(programs(rng, 3, step), idle)


def data_loading(rng: np.random.Generator) -> Setup:
    """Return a run that loads each batch only when it is needed, slower than the GPU."""

    def step(host: Host) -> None:
        with host.purpose("data_loading_ns"), host.range(DATA_LOADER, TRACEPROF_DOMAIN):
            host.busy(_LOADING_NS, spread=0.02)
        host.to_device(host.compute, _BATCH_BYTES)
        with host.range("forward"):
            host.operator(host.compute, "aten::linear", *kernels.FORWARD * 4)
        _backward(host, kernels.FORWARD * 3)
        optimize(host)

    return Setup(programs(rng, 8, step), idle)
