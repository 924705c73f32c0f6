"""Full launch queues: one that keeps another rank waiting, and one that costs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sample_traces.simulator import kernels
from sample_traces.simulator.event_model import answers
from sample_traces.simulator.event_model.program_writer import NCCL, Host
from sample_traces.simulator.scenarios.setup import Setup, finding
from sample_traces.simulator.scenarios.training import WORLD

if TYPE_CHECKING:
    import numpy as np

    from sample_traces.simulator.event_model.answers import Ranks
    from sample_traces.simulator.event_model.engine import Result
    from sample_traces.simulator.scenarios.setup import Finding

_LAYER = (kernels.QKV, kernels.ATTENTION, kernels.DOWN, kernels.SOFTMAX)
_ACTIVATIONS_BYTES = 64 << 20
_BURST, _REST = 325, 70  # layers


def launch_queue_stall(rng: np.random.Generator) -> Setup:
    """Return a run in which one thread fills the queue before it starts the send of another stream.

    The send needs only the first few kernels and its stream is idle, but the launching thread is
    blocked behind the kernels that come before it in the program.
    """
    hosts = tuple(Host(rank, rng) for rank in WORLD.processes)
    for host in hosts:
        compute, nccl = host.compute, host.nccl
        host.collective("all_reduce", WORLD, nccl, 1024)
        for step, layers in enumerate((_BURST, _REST)):
            with host.step(step):
                if host.process == 0:
                    host.launch(compute, *_LAYER * 4)
                    ready = host.record(compute)
                    host.launch(compute, *_LAYER * layers)
                    host.wait(nccl, ready)
                    host.send_recv("send", 1, WORLD, nccl, _ACTIVATIONS_BYTES)
                else:
                    host.send_recv("recv", 0, WORLD, nccl, _ACTIVATIONS_BYTES)
                    host.follow(compute, nccl)
                    host.launch(compute, *_LAYER * 12)
    setup = Setup(hosts, lambda ranks: _stalled(ranks, setup.without_queue_limit()))
    return setup


def _stalled(ranks: Ranks, unlimited: Result) -> list[Finding]:
    """Return the stalls and their cost compared to the same run without a limit."""
    calls = [call for call in ranks.result.calls if call.thread.process == 0]
    metrics = answers.launch_queue(calls)
    late = [
        (operation.start_ns - other.start_ns, operation.call.end_ns - other.call.end_ns)
        for operation, other in zip(ranks.result.operations, unlimited.operations, strict=True)
        if operation.stream.process == 0 and operation.stream.id == NCCL
    ]
    metrics |= {
        "model_late_start_ns": sum(start for start, _ in late),
        "model_late_launch_ns": max(launch for _, launch in late),
        "model_makespan_ns": ranks.result.end_ns - unlimited.end_ns,
    }
    return [finding("launch-queue-stall", 0, **metrics)]


def launch_queue_full_healthy(rng: np.random.Generator) -> Setup:
    """Return a run whose thread is blocked because it has launched far ahead of a busy GPU."""
    host = Host(0, rng)
    with host.step(0):
        host.launch(host.compute, *_LAYER * 330)
    return Setup((host,), _run_ahead)


def _run_ahead(ranks: Ranks) -> list[Finding]:
    metrics = answers.launch_queue(ranks.result.calls)
    return [finding("launch-queue-stall", 0, **metrics, model_late_start_ns=0)]
