"""Runs whose GPUs wait for their hosts: for synchronizations, for launches, for data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.simulate import kernels
from traceprof.simulate.event_model import answers
from traceprof.simulate.event_model.program_writer import Host
from traceprof.simulate.machine import TRACEPROF_DOMAIN
from traceprof.simulate.scenarios.setup import Setup, finding, idle
from traceprof.simulate.scenarios.training import COMPUTE, NCCL, WORLD, stream

if TYPE_CHECKING:
    import numpy as np

    from traceprof.simulate.event_model.answers import Ranks
    from traceprof.simulate.scenarios.setup import Finding

_LAYER = (kernels.QKV, kernels.ATTENTION, kernels.UP, kernels.DOWN)
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
    hosts = tuple(Host(rank, rng) for rank in WORLD.processes)
    for host in hosts:
        compute, nccl = stream(host, COMPUTE), stream(host, NCCL)
        for step in range(8):
            with host.step(step):
                host.to_device(compute, _BATCH_BYTES)
                for _ in range(3):
                    host.operator(compute, "aten::add", *_SHORT * 2)
                    host.item(compute)
                    host.busy(_LOGGING_NS)
                with host.range("backward"):
                    host.operator(compute, "aten::mm", *_LAYER)
                    host.collective("all_reduce", WORLD, nccl, _BUCKET_BYTES, after=compute)
                    host.operator(compute, "aten::mm", *_LAYER)
                    host.follow(compute, nccl)
    return Setup(hosts, _synchronized)


def _synchronized(ranks: Ranks) -> list[Finding]:
    findings = idle(ranks)
    for rank, (process, _) in enumerate(ranks.places):
        calls = [call for call in ranks.result.calls if call.thread.process == process]
        findings.append(finding("host-sync", rank, **answers.synchronizations(calls)))
    return findings


def launch_bound(rng: np.random.Generator) -> Setup:
    """Return a run of kernels that are over before the host has launched the next one."""
    hosts = tuple(Host(rank, rng) for rank in WORLD.processes)
    for host in hosts:
        compute, nccl = stream(host, COMPUTE), stream(host, NCCL)
        for step in range(3):
            with host.step(step):
                host.to_device(compute, _BATCH_BYTES)
                with host.range("forward"):
                    host.launch(compute, *kernels.TINY * 15)
                with host.range("backward"):
                    host.launch(compute, *kernels.TINY * 15)
                    host.collective("all_reduce", WORLD, nccl, _BUCKET_BYTES, after=compute)
                    host.launch(compute, *kernels.TINY * 6)
                    host.follow(compute, nccl)
                with host.range("optimizer"):
                    host.launch(compute, *kernels.TINY * 6)
    return Setup(hosts, idle)


def data_loading(rng: np.random.Generator) -> Setup:
    """Return a run that loads each batch only when it is needed, slower than the GPU."""
    hosts = tuple(Host(rank, rng) for rank in WORLD.processes)
    for host in hosts:
        compute, nccl = stream(host, COMPUTE), stream(host, NCCL)
        for step in range(8):
            with host.step(step):
                with host.purpose("data_loading_ns"), host.range(DATA_LOADER, TRACEPROF_DOMAIN):
                    host.busy(_LOADING_NS, spread=0.02)
                host.to_device(compute, _BATCH_BYTES)
                with host.range("forward"):
                    host.operator(compute, "aten::linear", *_LAYER * 4)
                with host.range("backward"):
                    host.operator(compute, "aten::mm", *_LAYER * 3)
                    host.collective("all_reduce", WORLD, nccl, _BUCKET_BYTES, after=compute)
                    host.operator(compute, "aten::mm", *_LAYER)
                    host.follow(compute, nccl)
                with host.range("optimizer"):
                    host.operator(compute, "aten::_fused_adamw_", kernels.ADAM)
    return Setup(hosts, idle)
