"""Runs whose ranks take different times for the same kernels: a slower clock, or uneven work."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from sample_traces.simulator import kernels
from sample_traces.simulator.event_model.actions import Communicator
from sample_traces.simulator.event_model.answers import class_of
from sample_traces.simulator.event_model.program_writer import Host
from sample_traces.simulator.scenarios.setup import Setup, finding

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from sample_traces.simulator.event_model.answers import Ranks
    from sample_traces.simulator.kernels import Kernel
    from sample_traces.simulator.scenarios.setup import Finding

    Factor = Callable[[int, int, int], float]
    """By what the work of a rank, step and layer is multiplied."""

NUM_STEPS, NUM_LAYERS = 8, 4
DENSE = (kernels.QKV, kernels.ATTENTION)
EXPERTS = (kernels.UP, kernels.GELU, kernels.DOWN)
_SCALE = 4
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
        duration_ns=round(_SCALE * times * noise * kernel.duration_ns),
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
    """Return a run in which one rank takes longer for all kernels.

    Args:
        rng: for variations of durations.
        num_ranks: of the run.
        slow: the rank.
        times: how much longer.
        num_layers: of each program.
    """

    def factor(rank: int, *_: int) -> float:
        return times if rank == slow else 1.0

    hosts = layers(rng, num_ranks, factor, factor, num_layers)
    return Setup(hosts, lambda ranks: _truth(ranks, slow, num_layers))


def uneven_experts(
    rng: np.random.Generator, num_ranks: int = 4, most: float = 0.6, num_layers: int = NUM_LAYERS
) -> Setup:
    """Return a run in which another rank has the most work in each step and layer.

    Args:
        rng: for variations of durations.
        num_ranks: of the run.
        most: the work of a rank differs from the mean by up to this share.
        num_layers: of each program.
    """
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
