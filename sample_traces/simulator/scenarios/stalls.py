"""Runs whose host threads are held up: a few calls take far longer than the others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sample_traces.simulator import kernels
from sample_traces.simulator.event_model import lost_time
from sample_traces.simulator.event_model.actions import Call, Communicator, Pop, Push
from sample_traces.simulator.event_model.program_writer import Host
from sample_traces.simulator.machine import PURPOSE
from sample_traces.simulator.scenarios.setup import Setup, finding

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from sample_traces.simulator.event_model.actions import Action
    from sample_traces.simulator.event_model.answers import Ranks
    from sample_traces.simulator.scenarios.setup import Finding

    Stalls = dict[int, int]  # ns, by the number of the launch in its program

_US = 1_000
_MS = 1_000_000
_KIB = 1 << 10
_PURPOSE = "stalled_ns"
LAUNCH = "cudaLaunchKernel_v7000"
NUM_STEPS, NUM_KERNELS = 7, 40


def host_bound(
    rng: np.random.Generator,
    num_ranks: int,
    *,
    num_steps: int = NUM_STEPS,
    busy_ns: int = 0,
    waits: bool = False,
    kernel_ns: int = 9_000,
) -> tuple[Host, ...]:
    """Return programs that launch kernels and reduce twice a step.

    Args:
        rng: for variations of durations.
        num_ranks: of the run, one program each.
        num_steps: of each program.
        busy_ns: how much longer the host takes for each kernel.
        waits: whether the host waits for the GPU at the end of each step.
        kernel_ns: the duration of each kernel.
    """
    world = Communicator(0x5EED_0000_0000_0001, "0", tuple(range(num_ranks)))
    hosts = tuple(Host(rank, rng) for rank in world.processes)
    kernel = replace(kernels.TINY[0], duration_ns=kernel_ns)
    for host in hosts:
        for step in range(num_steps):
            with host.step(step):
                for _ in range(2):
                    for _ in range(NUM_KERNELS // 2):
                        if busy_ns:
                            host.busy(busy_ns)
                        host.operator(host.compute, "aten::linear", kernel)
                    host.collective("all_reduce", world, host.nccl, 256 * _KIB, after=host.compute)
                    host.follow(host.compute, host.nccl)
                if waits:
                    host.synchronize(host.compute)
    return hosts


def num_launches(host: Host) -> int:
    """Return how many kernels of compute a program launches."""
    return sum(isinstance(action, Call) and action.api == LAUNCH for action in host.actions)


def hold_up(host: Host, stalls: Stalls) -> None:
    """Let some launches of a program take longer."""
    actions: list[Action] = []
    launch = 0
    for action in host.actions:
        if isinstance(action, Call) and action.api == LAUNCH:
            if launch in stalls:
                longer = replace(action, cost_ns=action.cost_ns + stalls[launch])
                actions += [Push(_PURPOSE, PURPOSE), longer, Pop()]
            else:
                actions.append(action)
            launch += 1
        else:
            actions.append(action)
    host.actions[:] = actions


def held_up(
    hosts: Sequence[Host], stalls: Callable[[Host], Stalls], held_up_by: str = "unknown"
) -> Setup:
    """Return a run of programs with some longer launches, and the truth about it."""
    planted = {host.process: stalls(host) for host in hosts}
    for host in hosts:
        hold_up(host, planted[host.process])
    return Setup(tuple(hosts), lambda ranks: _truth(ranks, planted, held_up_by))


def _truth(ranks: Ranks, planted: dict[int, Stalls], held_up_by: str) -> list[Finding]:
    """Return `gpu-idle` and `host-stall` of each rank that stalled."""
    stalled = {rank: stalls for rank, stalls in planted.items() if stalls}
    return [
        claim
        for rank, stalls in stalled.items()
        for claim in (
            finding("gpu-idle", rank, **lost_time.idle(ranks, rank)),
            finding("host-stall", rank, **_metrics(ranks, rank, stalls, len(stalled), held_up_by)),
        )
    ]


def _metrics(
    ranks: Ranks, rank: int, stalls: Stalls, num_ranks: int, held_up_by: str
) -> dict[str, Any]:
    return {
        "stalled_ns": sum(stalls.values()),
        "num_calls": len(stalls),
        "longest_ns": max(stalls.values()),
        "idle_ns": lost_time.idle(ranks, rank)[_PURPOSE],
        "others_wait_ns": lost_time.others_wait_ns(ranks, rank, _PURPOSE)
        if len(ranks.places) > 1
        else None,
        "num_ranks": num_ranks,
        "held_up_by": held_up_by,
    }


def one_rank(rng: np.random.Generator) -> Setup:
    """Return a run in which one rank of two is held up in most steps, at any launch."""
    hosts = host_bound(rng, 2)

    def stalls(host: Host) -> Stalls:
        if host.process == 0:
            return {}
        steps = rng.choice(range(1, NUM_STEPS - 1), 4, replace=False).tolist()
        return {
            step * NUM_KERNELS + int(rng.integers(2, NUM_KERNELS)): int(rng.integers(2, 6) * _MS)
            for step in steps
        }

    return held_up(hosts, stalls)
