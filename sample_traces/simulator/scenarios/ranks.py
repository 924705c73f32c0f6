"""Data-parallel training on several machines with one late rank, and ranks with uneven kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from sample_traces.simulator import kernels
from sample_traces.simulator.event_model.actions import Communicator, Stream
from sample_traces.simulator.event_model.answers import Ranks, class_of
from sample_traces.simulator.event_model.program_writer import (
    COMPUTE,
    COPY,
    NCCL,
    SIDE,
    Host,
    Rates,
)
from sample_traces.simulator.kernels import Kernel
from sample_traces.simulator.scenarios.setup import Finding, Scenario, Setup, finding

Factor = Callable[[int, int, int], float]
"""Factor of the work of a rank, step and layer."""

NODES, RANKS_PER_NODE, STEPS = 4, 2, 30
NUM_RANKS = NODES * RANKS_PER_NODE
WORLD = Communicator(0x5EED_0000_0000_0008, "0", tuple(range(NUM_RANKS)))
PAIRS = tuple(
    Communicator(0x5EED_0000_0000_0100 + rank, f"{rank // 2 + 1}", (rank, rank + 1))
    for rank in range(0, NUM_RANKS, 2)
)
_SCALE = 10  # steps of 30 to 40 ms: long enough to show the drift of clocks
_MIB = 1 << 20
_DELAY_NS = 5_000_000
_SLOWER = 1.3
_QUEUE_LIMIT = 320
NCCL_RATES = Rates(nccl_latency_ns=40_000)


def _long(*launched: Kernel) -> tuple[Kernel, ...]:
    return tuple(replace(kernel, duration_ns=_SCALE * kernel.duration_ns) for kernel in launched)


_FORWARD = _long(kernels.QKV, kernels.ATTENTION, kernels.UP, kernels.DOWN)
_BACKWARD = _long(kernels.INPUT_GRADIENT, kernels.WEIGHT_GRADIENT, kernels.ATTENTION_BACKWARD)
"""Fills the launch queue: 170 kernels beyond its limit take 10 ms."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """The deviation of one rank from the others."""

    cause: str | None  # as in the finding; None for a balanced run
    delay: Callable[[Host], None] | None = None  # adds the delay to the program of the rank
    slower: float = 1.0  # factor on the durations of its kernels
    upstream: bool = False  # whether the rank is late because it waits for its late neighbour


def stream(host: Host, number: int) -> Stream:
    """Return a stream of the device that the host's process drives on its machine."""
    return Stream(host.process, host.process % RANKS_PER_NODE, number)


def training(
    rng: np.random.Generator,
    plan: Deviation,
    late: int,
    *,
    is_labelled: bool,
    num_steps: int = STEPS,
) -> Setup:
    """Return a run of eight ranks on four machines."""
    hosts = tuple(Host(rank, rng, NCCL_RATES, is_labelled=is_labelled) for rank in range(NUM_RANKS))
    for host in hosts:
        slower = plan.slower if host.process == late else 1.0
        forward, backward = (_slowed(part, slower) for part in (_FORWARD, _BACKWARD))
        delay = plan.delay if host.process == late else None
        for step in range(num_steps):
            with host.step(step):
                _step(host, forward, backward, delay, is_upstream=plan.upstream)
    devices = tuple((rank % RANKS_PER_NODE,) for rank in range(NUM_RANKS))
    return Setup(hosts, lambda _: [], devices=devices, queue_limit=_QUEUE_LIMIT)


def _step(
    host: Host,
    forward: tuple[Kernel, ...],
    backward: tuple[Kernel, ...],
    delay: Callable[[Host], None] | None,
    *,
    is_upstream: bool,
) -> None:
    compute, nccl = stream(host, COMPUTE), stream(host, NCCL)
    with host.range("data loading"):
        host.busy(200_000)
    host.to_device(stream(host, COPY), 2 * _MIB)
    with host.range("forward"):
        host.operator(compute, "aten::linear", *forward)
    if delay is not None:
        delay(host)
    with host.range("forward"):
        if is_upstream:
            pair = PAIRS[host.process // 2]
            host.collective("all_reduce", pair, stream(host, SIDE), 4 * _MIB, after=compute)
            host.follow(compute, stream(host, SIDE))
            if host.process % 2 == 0:  # it works a little longer, so that it arrives last
                host.operator(compute, "aten::linear", *forward[:1])
        host.operator(compute, "aten::linear", *forward)
    with host.range("backward"):
        for size in (48, 48, 24):
            host.operator(compute, "aten::mm", *backward)
            host.collective("all_reduce", WORLD, nccl, size * _MIB, after=compute)
        host.follow(compute, nccl)
    with host.range("optimizer"):
        host.operator(compute, "aten::_fused_adamw_", kernels.ADAM)
        host.collective("all_reduce", WORLD, nccl, 4096, after=compute)
        host.follow(compute, nccl)
    host.synchronize(compute)


def _slowed(launched: tuple[Kernel, ...], times: float) -> tuple[Kernel, ...]:
    return tuple(
        replace(kernel, duration_ns=round(times * kernel.duration_ns)) for kernel in launched
    )


# -- delays of a rank ------------------------------------------------------------------------------


def _starved(host: Host) -> None:
    """Let the GPU finish and idle for some time, without a call that waits for it."""
    ahead = sum(kernel.duration_ns for kernel in _FORWARD)
    host.busy(ahead + _DELAY_NS, spread=0.02)


def _synchronizing(host: Host) -> None:
    host.item(stream(host, COMPUTE))
    host.busy(_DELAY_NS, spread=0.02)


def _loading(host: Host) -> None:
    with host.range("dataloader next"):
        _starved(host)


def _copying(host: Host) -> None:
    compute = stream(host, COMPUTE)
    host.to_device(compute, 30 * _MIB, pageable=True)


STRAGGLERS: dict[str, Deviation] = {
    "balanced": Deviation(None),
    "slow-kernels": Deviation("slower kernels", slower=_SLOWER),
    "host": Deviation("launch", _starved),
    "sync": Deviation("sync", _synchronizing),
    "copy": Deviation("blocking copy", _copying),
    "data-loading": Deviation("data loading", _loading),
    "upstream": Deviation("launch", _starved, upstream=True),
}
"""Runs by what is planted: one rank is late, but in the first."""


NUM_STEPS, NUM_LAYERS = 8, 4
DENSE = (kernels.QKV, kernels.ATTENTION)
EXPERTS = (kernels.UP, kernels.GELU, kernels.DOWN)
_UNEVEN_SCALE = 4
_BYTES = 4 << 20
# Of kernels on an A100 that have the GPU for themselves, 1 in 100 takes 5 % longer or more.
_NOISE, _TAIL_SHARE, _TAIL = 0.004, 0.02, 0.08


def layers(
    rng: np.random.Generator,
    num_ranks: int,
    dense: Factor,
    experts: Factor,
    num_layers: int = NUM_LAYERS,
    *,
    is_work: bool = False,
) -> tuple[Host, ...]:
    """Return programs of layers with a collective of all ranks after each half of a layer.

    Args:
        rng: for variations of durations.
        num_ranks: of the run.
        dense: of the first half of each layer.
        experts: of the second half.
        num_layers: of each program.
        is_work: whether longer kernels also have more thread blocks.
    """
    world = Communicator(0x5EED_0000_0000_0033, "0", tuple(range(num_ranks)))
    hosts = tuple(Host(rank, rng) for rank in world.processes)
    for host in hosts:
        for step in range(NUM_STEPS):
            with host.step(step):
                for layer in range(num_layers):
                    for launched, factor in ((DENSE, dense), (EXPERTS, experts)):
                        times = factor(host.process, step, layer)
                        blocks = times if is_work else 1.0
                        varied = [_varied(kernel, times, blocks, rng) for kernel in launched]
                        host.operator(host.compute, launched[0].operator, *varied)
                        host.collective("all_reduce", world, host.nccl, _BYTES, after=host.compute)
                        host.follow(host.compute, host.nccl)
    return hosts


def _varied(kernel: Kernel, times: float, blocks: float, rng: np.random.Generator) -> Kernel:
    """Return a kernel with noise as real ones have it: most of it small, a few far longer."""
    noise = 1 + _NOISE * float(rng.standard_normal())
    if rng.random() < _TAIL_SHARE:
        noise += float(rng.exponential(_TAIL))
    return replace(
        kernel,
        duration_ns=round(_UNEVEN_SCALE * times * noise * kernel.duration_ns),
        grid_x=round(blocks * kernel.grid_x),
    )


def _equal(*_: int) -> float:
    return 1.0


def equal_ranks(rng: np.random.Generator, num_ranks: int = 4) -> Setup:
    """Return a run whose ranks differ by noise only."""
    return Setup(layers(rng, num_ranks, _equal, _equal), lambda _: [])


def slower_clock(
    rng: np.random.Generator,
    num_ranks: int = 4,
    slow: int = 2,
    times: float = 1.15,
    num_layers: int = NUM_LAYERS,
) -> Setup:
    """Return a run in which one rank takes longer for all kernels."""

    def factor(rank: int, *_: int) -> float:
        return times if rank == slow else 1.0

    hosts = layers(rng, num_ranks, factor, factor, num_layers)
    return Setup(hosts, lambda ranks: _truth(ranks, slow, num_layers))


def uneven_experts(
    rng: np.random.Generator, num_ranks: int = 4, most: float = 0.6, num_layers: int = NUM_LAYERS
) -> Setup:
    """Return a run in which another rank has up to this share `most` more work in each layer."""
    shape = (num_ranks, NUM_STEPS, num_layers)
    load = 1 + most * (2 * rng.random(shape) - 1)
    load /= load.mean(axis=0)
    hosts = layers(
        rng, num_ranks, _equal, lambda *place: float(load[place]), num_layers, is_work=True
    )
    return Setup(hosts, lambda ranks: _truth(ranks, None, num_layers))


def _truth(ranks: Ranks, slow: int | None, num_layers: int) -> list[Finding]:
    """Return the finding, with what the longest rank of each part took beyond the mean of all."""
    parts = beyond_ns(ranks)
    longest = [max(of_part, key=lambda rank: of_part[rank]) for of_part in parts]
    if slow is not None:
        longest = [slow] * len(parts)
    cost = [of_part[rank] for of_part, rank in zip(parts, longest, strict=True)]
    of_rank = Counter[int]()
    for rank, ns in zip(longest, cost, strict=True):
        of_rank[rank] += round(ns)
    num = 2 * num_layers
    metrics: dict[str, Any] = {
        "is_constant": slow is not None,
        "category": "matmul",
        "model_excess_ns_of_steps": [
            round(sum(cost[first : first + num])) for first in range(0, len(cost), num)
        ],
    }
    return [finding("uneven-kernels", of_rank.most_common(1)[0][0], **metrics)]


def beyond_ns(ranks: Ranks) -> list[dict[int, float]]:
    """Return for each part between two collectives what kernels take beyond the mean, by rank."""
    by_rank = [
        [
            [operation.end_ns - operation.start_ns for operation in part]
            for computes, part in groupby(operations, lambda item: class_of(item) == "compute")
            if computes
        ]
        for operations in ranks.operations
    ]
    beyond = []
    for part in zip(*by_rank, strict=True):
        means = [sum(at) / len(at) for at in zip(*part, strict=True)]
        beyond.append({rank: sum(own) - sum(means) for rank, own in enumerate(part)})
    return beyond


SCENARIOS = {
    "uneven-clock": Scenario(
        "All kernels of one rank take longer: its clock is slower.",
        partial(slower_clock, num_ranks=3, num_layers=1),
        only=("uneven-kernels", "straggler", "exposed-communication", "gpu-idle"),
    ),
    "uneven-experts": Scenario(
        "Another rank has most work in each layer, as experts have.",
        partial(uneven_experts, num_ranks=3, num_layers=2),
        only=("uneven-kernels", "exposed-communication", "gpu-idle"),
    ),
}
