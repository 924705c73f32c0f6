"""Runs with exposed communication, each for one reason."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from traceprof.simulate import kernels
from traceprof.simulate.event_model.program_writer import Host
from traceprof.simulate.scenarios.setup import Setup
from traceprof.simulate.scenarios.training import WORLD, exposed_for

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from traceprof.simulate.event_model.answers import Ranks
    from traceprof.simulate.scenarios.setup import Finding

_MS, _MIB = 1_000_000, 1 << 20
_FORWARD = (kernels.QKV, kernels.ATTENTION, kernels.UP, kernels.DOWN) * 3
_BACKWARD = (
    kernels.INPUT_GRADIENT, kernels.WEIGHT_GRADIENT, kernels.ATTENTION_BACKWARD,
    kernels.WEIGHT_GRADIENT,
)  # fmt: skip


def _training(
    rng: np.random.Generator,
    step: Callable[[Host], None],
    findings: Callable[[Ranks], list[Finding]],
) -> Setup:
    """Return a run of six such steps, each with an optimizer at its end."""
    hosts = tuple(Host(rank, rng) for rank in WORLD.processes)
    for host in hosts:
        for number in range(6):
            with host.step(number):
                step(host)
                with host.range("optimizer"):
                    host.operator(host.compute, "aten::_fused_adamw_", kernels.ADAM)
    return Setup(hosts, findings)


def _reduce(host: Host, size: int) -> None:
    host.collective("all_reduce", WORLD, host.nccl, size, after=host.compute)


def late_launch(rng: np.random.Generator) -> Setup:
    """Return a run whose gradients are ready long before the host launches their all-reduce."""

    def step(host: Host) -> None:
        with host.range("backward"):
            host.operator(host.compute, "aten::mm", *_BACKWARD)
            ready = host.record(host.compute)
            host.operator(host.compute, "aten::mm", *_BACKWARD * 5)
            host.busy(3 * _MS, spread=0.02)
            host.wait(host.nccl, ready)
            host.collective("all_reduce", WORLD, host.nccl, 200 * _MIB)
            host.follow(host.compute, host.nccl)
        host.synchronize(host.compute)

    return _training(rng, step, partial(exposed_for, "late_launch_ns"))


def queued(rng: np.random.Generator) -> Setup:
    """Return a run whose second bucket is ready during the all-reduce of the first one."""

    def step(host: Host) -> None:
        with host.range("backward"):
            host.operator(host.compute, "aten::mm", *_BACKWARD)
            _reduce(host, 360 * _MIB)
            host.operator(host.compute, "aten::mm", *_BACKWARD[:1])
            _reduce(host, 120 * _MIB)
            host.operator(host.compute, "aten::mm", *_BACKWARD * 3)
            host.follow(host.compute, host.nccl)

    return _training(rng, step, partial(exposed_for, "queued_ns"))


def needed_at_once(rng: np.random.Generator) -> Setup:
    """Return a run that gathers each layer's input when the layer needs it, with no prefetching."""

    def step(host: Host) -> None:
        with host.range("forward"):
            for _ in range(3):
                host.operator(host.compute, "aten::linear", *_FORWARD)
                _reduce(host, 64 * _MIB)
                host.follow(host.compute, host.nccl)

    return _training(rng, step, partial(exposed_for, "needed_at_once_ns"))


def late_input(rng: np.random.Generator) -> Setup:
    """Return a run whose last bucket is ready only when no compute is left."""

    def step(host: Host) -> None:
        with host.range("backward"):
            host.operator(host.compute, "aten::mm", *_BACKWARD)
            _reduce(host, 48 * _MIB)
            host.operator(host.compute, "aten::mm", *_BACKWARD * 2)
            _reduce(host, 160 * _MIB)
            host.follow(host.compute, host.nccl)

    return _training(rng, step, partial(exposed_for, "late_input_ns"))


def waiting(rng: np.random.Generator) -> Setup:
    """Return a run whose second rank has more compute, so that the first one waits for it."""

    def step(host: Host) -> None:
        with host.range("backward"):
            host.operator(host.compute, "aten::mm", *_BACKWARD * (2 + host.process))
            _reduce(host, 16 * _MIB)
            host.follow(host.compute, host.nccl)

    return _training(rng, step, partial(exposed_for, "needed_at_once_ns"))
