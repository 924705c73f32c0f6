"""Runs with exposed communication, each for one reason."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sample_traces.simulator import kernels
from sample_traces.simulator.scenarios.setup import Setup
from sample_traces.simulator.scenarios.training import (
    WORLD,
    exposed_for,
    optimize,
    programs,
    reduce_beside,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from sample_traces.simulator.event_model.program_writer import Host

_MS = 1_000_000
_MIB = 1 << 20


def _training(rng: np.random.Generator, step: Callable[[Host], None], reason: str) -> Setup:
    """Return a run of six such steps, each with an optimizer at its end."""

    def whole(host: Host) -> None:
        step(host)
        optimize(host)

    return Setup(programs(rng, 6, whole), partial(exposed_for, reason))


def late_launch(rng: np.random.Generator) -> Setup:
    """Return a run whose gradients are ready long before the host launches their all-reduce."""

    def step(host: Host) -> None:
        with host.range("backward"):
            host.operator(host.compute, "aten::mm", *kernels.BACKWARD)
            ready = host.record(host.compute)
            host.operator(host.compute, "aten::mm", *kernels.BACKWARD * 5)
            host.busy(3 * _MS, spread=0.02)
            host.wait(host.nccl, ready)
            host.collective("all_reduce", WORLD, host.nccl, 200 * _MIB)
            host.follow(host.compute, host.nccl)
        host.synchronize(host.compute)

    return _training(rng, step, "late_launch_ns")


def queued(rng: np.random.Generator) -> Setup:
    """Return a run whose second bucket is ready during the all-reduce of the first one."""

    def step(host: Host) -> None:
        with host.range("backward"):
            host.operator(host.compute, "aten::mm", *kernels.BACKWARD)
            reduce_beside(host, 360 * _MIB)
            host.operator(host.compute, "aten::mm", *kernels.BACKWARD[:1])
            reduce_beside(host, 120 * _MIB)
            host.operator(host.compute, "aten::mm", *kernels.BACKWARD * 3)
            host.follow(host.compute, host.nccl)

    return _training(rng, step, "queued_ns")


def needed_at_once(rng: np.random.Generator) -> Setup:
    """Return a run that gathers each layer's input when the layer needs it, with no prefetching."""

    def step(host: Host) -> None:
        with host.range("forward"):
            for _ in range(3):
                host.operator(host.compute, "aten::linear", *kernels.FORWARD * 3)
                reduce_beside(host, 64 * _MIB)
                host.follow(host.compute, host.nccl)

    return _training(rng, step, "needed_at_once_ns")


def late_input(rng: np.random.Generator) -> Setup:
    """Return a run whose last bucket is ready only after the last compute."""

    def step(host: Host) -> None:
        with host.range("backward"):
            host.operator(host.compute, "aten::mm", *kernels.BACKWARD)
            reduce_beside(host, 48 * _MIB)
            host.operator(host.compute, "aten::mm", *kernels.BACKWARD * 2)
            reduce_beside(host, 160 * _MIB)
            host.follow(host.compute, host.nccl)

    return _training(rng, step, "late_input_ns")


def waiting(rng: np.random.Generator) -> Setup:
    """Return a run whose second rank has more compute, so that the first one waits for it."""

    def step(host: Host) -> None:
        with host.range("backward"):
            host.operator(host.compute, "aten::mm", *kernels.BACKWARD * (2 + host.process))
            reduce_beside(host, 16 * _MIB)
            host.follow(host.compute, host.nccl)

    return _training(rng, step, "needed_at_once_ns")
