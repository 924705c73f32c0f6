"""Runs with an idle GPU, each for one reason: waits, stalls, full queues, host code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sample_traces.simulator import kernels
from sample_traces.simulator.event_model import answers, lost_time
from sample_traces.simulator.event_model.actions import (
    Action,
    Arrive,
    Await,
    Call,
    Communicator,
    Pop,
    Push,
    Rendezvous,
)
from sample_traces.simulator.event_model.answers import Ranks
from sample_traces.simulator.event_model.engine import Result
from sample_traces.simulator.event_model.gpu import Latencies
from sample_traces.simulator.event_model.program_writer import NCCL, Host
from sample_traces.simulator.kernels import Kernel
from sample_traces.simulator.machine import (
    HOST_TABLES,
    LOADING,
    MPI_COLLECTIVE,
    MPI_POINT_TO_POINT,
    NCCL_DOMAIN,
    PURPOSE,
    TRACEPROF_DOMAIN,
)
from sample_traces.simulator.scenarios.setup import Finding, Scenario, Setup, finding, idle
from sample_traces.simulator.scenarios.training import WORLD, optimize, programs, reduce_beside
from traceprof.trace.nsight import schema

Stalls = dict[int, int]  # ns, by the number of the launch in its program

_US = 1_000
_MS = 1_000_000
_MIB = 1 << 20
_FORWARD, _BACKWARD = kernels.FORWARD * 3, kernels.BACKWARD * 2
_BATCH_BYTES = 2 << 20
_BUCKET_BYTES = 48 << 20
_PYTHON = "/usr/bin/python3.11"
_TOKENIZING = (
    ("_PyEval_EvalFrameDefault", _PYTHON), ("PyUnicode_Join", _PYTHON), ("PyDict_SetItem", _PYTHON)
)  # fmt: skip
_HALO_BYTES = 64 << 10


def _nothing() -> None:
    pass


def _step(host: Host, number: int, *, within: Callable[[], None] = _nothing) -> None:
    """Add a training step with hidden communication, and perhaps host work within it."""
    with host.step(number):
        host.to_device(host.compute, _BATCH_BYTES)
        with host.range("forward"):
            host.operator(host.compute, "aten::linear", *_FORWARD)
        within()
        with host.range("backward"):
            host.operator(host.compute, "aten::mm", *_BACKWARD)
            reduce_beside(host, _BUCKET_BYTES)
            host.operator(host.compute, "aten::mm", *_BACKWARD)
            host.follow(host.compute, host.nccl)
        optimize(host)


def _hosts(rng: np.random.Generator) -> tuple[Host, ...]:
    return tuple(Host(rank, rng) for rank in WORLD.processes)


def sleeping_loader(rng: np.random.Generator) -> Setup:
    """Return a run whose main thread sleeps until its workers have made the next batch."""
    hosts = _hosts(rng)
    for host in hosts:
        for step in range(6):
            with host.purpose("data_loading_ns"):
                host.sleep(12 * _MS, "sem_clockwait", spread=0.02)
            _step(host, step)
    return Setup(hosts, idle)


def sleeping_checkpoint(rng: np.random.Generator) -> Setup:
    """Return a run that writes to the disk in the middle of every step, and waits for it."""
    hosts = _hosts(rng)
    for host in hosts:

        def write(host: Host = host) -> None:
            host.synchronize(host.compute)
            with host.purpose("waiting_ns"):
                host.sleep(8 * _MS, "fsync", spread=0.02)

        for step in range(6):
            _step(host, step, within=write)
    return Setup(hosts, idle)


def mpi_wait(rng: np.random.Generator) -> Setup:
    """Return a solver of two ranks, one of which waits in MPI for the halo of the slower one."""
    hosts = tuple(Host(rank, rng) for rank in (0, 1))
    for _ in range(20):
        exchange, reduction = Rendezvous(2, 320 * _US), Rendezvous(2, 60 * _US)
        for host in hosts:
            host.launch(host.compute, *[kernels.JACOBI] * (1 + 2 * host.process))
            host.host_copy(2, host.compute, _HALO_BYTES, pageable=True)
            calls = (
                ("MPI_Sendrecv", MPI_POINT_TO_POINT, exchange),
                ("MPI_Allreduce", MPI_COLLECTIVE, reduction),
            )
            for name, table, rendezvous in calls:
                with host.purpose("mpi_ns"), host.range(name, table):
                    host.actions += [Arrive(rendezvous), Await((rendezvous, 0))]
            host.host_copy(1, host.compute, _HALO_BYTES, pageable=True)
    return Setup(hosts, idle, mpi_program="jacobi")


def initialisation(rng: np.random.Generator) -> Setup:
    """Return a run that loads its kernels and creates its communicator in the first step."""
    hosts = _hosts(rng)

    def load(host: Host, name: str, kernel: kernels.Kernel) -> None:
        with host.purpose("setup_ns"), host.range(name, LOADING):
            host.call("cuLibraryLoadData", 22 * _MS)
        # The first launch of a function loads it.
        with host.purpose("setup_ns"):
            host.busy(0)
            host.launch(host.compute, kernel, cost_ns=4 * _MS)

    def communicator(host: Host) -> None:
        with host.purpose("setup_ns"), host.range("ncclCommInitRank", NCCL_DOMAIN):
            host.busy(70 * _MS, spread=0.01)
            host.call("cudaHostAlloc_v3020", 2 * _MS)
            host.call("cudaHostRegister_v4000", 3 * _MS)
            host.call("cudaIpcOpenMemHandle_v4010", _MS)
            host.busy(30 * _MS, spread=0.01)

    for host in hosts:
        for step in range(4):

            def prepare(host: Host = host, *, is_first: bool = step == 0) -> None:
                if is_first:
                    load(host, "Lazy Function Loading", kernels.SOFTMAX)
                    communicator(host)

            _step(host, step, within=prepare)
    return Setup(hosts, idle)


def warm_up(rng: np.random.Generator) -> Setup:
    """Return a run that uploads its model and warms up before a training without problems."""
    hosts = _hosts(rng)
    for host in hosts:
        for _ in range(6):
            host.to_device(host.compute, 32 * _MIB)
        with host.purpose("setup_ns"), host.range("Warm-up"):
            for _ in range(2):
                host.busy(20 * _MS, spread=0.01)
                host.operator(host.compute, "aten::linear", *_FORWARD)
                host.call("cudaDeviceGetAttribute_v5000", 3 * _MS)
                reduce_beside(host, _BUCKET_BYTES)
                host.follow(host.compute, host.nccl)
            host.synchronize(host.compute)
        for step in range(6):
            _step(host, step)
    return Setup(hosts, lambda _: [])


def allocation(rng: np.random.Generator) -> Setup:
    """Return a run that frees its memory in the middle of each step and allocates it again."""
    hosts = _hosts(rng)
    for host in hosts:

        def empty_cache(host: Host = host) -> None:
            with host.purpose("allocation_ns"):
                # cudaFree waits for the device.
                free = Call("cudaFree_v3020", 2_500, until=host.compute, device_wide=True)
                host.actions.append(free)
                for api, cost in (("cudaFree_v3020", 700), *[("cudaMalloc_v3020", 900)] * 3):
                    host.call(api, cost * _US)

        for step in range(6):
            _step(host, step, within=empty_cache)
    return Setup(hosts, idle)


def lost_run_ahead(rng: np.random.Generator) -> Setup:
    """Return a run that reads a number in each step, and launches short kernels after it.

    Without the read the host would be far ahead at that point, and the GPU would never wait; after
    it, each kernel is over before the next one has been launched.
    """
    host = Host(0, rng)
    short = kernels.TINY[0]
    for step in range(6):
        with host.step(step):
            host.operator(host.compute, "aten::linear", *_FORWARD)
            host.item(host.compute)
            with host.range("post-processing"):
                host.launch(host.compute, *[short] * 40)
            with host.range("backward"):
                host.operator(host.compute, "aten::mm", *_BACKWARD * 2)
    setup = Setup((host,), lambda ranks: _run_ahead(ranks, setup))
    return setup


def _run_ahead(ranks: Ranks, setup: Setup) -> list[Finding]:
    unwaited = Ranks(setup.without_waits())
    return [finding("gpu-idle", 0, **lost_time.idle(ranks, 0, unwaited))]


def busy_python(rng: np.random.Generator) -> Setup:
    """Return a run whose main thread makes the next batch itself, in Python."""
    hosts = _hosts(rng)
    for host in hosts:
        for step in range(6):
            _step(host, step)
            with host.purpose("host_code_ns"):
                for function in _TOKENIZING:
                    host.busy(5 * _MS, function, spread=0.02)
    return Setup(hosts, idle)


def turnaround(rng: np.random.Generator) -> Setup:
    """Return a run of short kernels, launched far ahead: only the GPU's turnaround is left."""
    host = Host(0, rng)
    short = replace(kernels.ADD, duration_ns=9_500)
    for step in range(6):
        with host.step(step):
            host.operator(host.compute, "aten::linear", *[short] * 80)
    return Setup((host,), idle, latencies=Latencies(stream_gap=1_500))


_SHORT = (kernels.LAYER_NORM, kernels.ADD, kernels.BIAS_GRADIENT, kernels.LAYER_NORM_BACKWARD)

_SMALL_BUCKET_BYTES = 14 << 20
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
        reduce_beside(host, _SMALL_BUCKET_BYTES)
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
            reduce_beside(host, _SMALL_BUCKET_BYTES)
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
    return Setup((host,), _stalled_queue)


def _stalled_queue(ranks: Ranks) -> list[Finding]:
    metrics = answers.launch_queue(ranks.result.calls)
    return [finding("launch-queue-stall", 0, **metrics, model_late_start_ns=0)]


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
    """Return programs that reduce twice a step; the host takes `busy_ns` longer for each kernel."""
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


def held_up(hosts: Sequence[Host], stalls: Callable[[Host], Stalls]) -> Setup:
    """Return a run of programs with some longer launches, and the truth about it."""
    planted = {host.process: stalls(host) for host in hosts}
    for host in hosts:
        hold_up(host, planted[host.process])
    return Setup(tuple(hosts), lambda ranks: _truth(ranks, planted))


def _truth(ranks: Ranks, planted: dict[int, Stalls]) -> list[Finding]:
    """Return `gpu-idle` and `host-stall` of each rank that stalled."""
    stalled = {rank: stalls for rank, stalls in planted.items() if stalls}
    return [
        claim
        for rank, stalls in stalled.items()
        for claim in (
            finding("gpu-idle", rank, **lost_time.idle(ranks, rank)),
            finding("host-stall", rank, **_metrics(ranks, rank, stalls, len(stalled))),
        )
    ]


def _metrics(ranks: Ranks, rank: int, stalls: Stalls, num_ranks: int) -> dict[str, Any]:
    return {
        "stalled_ns": sum(stalls.values()),
        "num_calls": len(stalls),
        "longest_ns": max(stalls.values()),
        "idle_ns": lost_time.idle(ranks, rank)[_PURPOSE],
        "others_wait_ns": lost_time.others_wait_ns(ranks, rank, _PURPOSE)
        if len(ranks.places) > 1
        else None,
        "num_ranks": num_ranks,
        "held_up_by": "unknown",
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


_OTHERS_OF_IDLE = ("launch-queue-stall", "overlap-slowdown", "nccl-serialization")

SCENARIOS = {
    "launch-queue-stall": Scenario(
        "A full launch queue blocks the thread that must start a send.",
        launch_queue_stall,
        silent=("overlap-slowdown", "pageable-copy", "host-sync", "nccl-serialization"),
    ),
    "launch-queue-stall-unexported": Scenario(
        "The same, in an export that dropped the Command Buffer Full records.",
        launch_queue_stall,
        silent=("overlap-slowdown", "pageable-copy", "host-sync", "nccl-serialization"),
        has_overhead_rows=False,
    ),
    "launch-queue-full-healthy": Scenario(
        "A launch queue that is full because the GPU is busy.", launch_queue_full_healthy, only=()
    ),
    "host-sync": Scenario(
        "Numbers are read in the middle of steps, and the GPU runs dry.",
        host_sync,
        silent=("pageable-copy", "launch-queue-stall", "overlap-slowdown", "nccl-serialization"),
    ),
    "launch-bound": Scenario(
        "Kernels are over before the host has launched the next.",
        launch_bound,
        silent=("launch-queue-stall", "host-sync", "pageable-copy", "nccl-serialization"),
    ),
    "data-loading": Scenario(
        "The GPU waits for the data loader.",
        data_loading,
        silent=("launch-queue-stall", "host-sync", "pageable-copy", "nccl-serialization"),
    ),
    **{
        name: Scenario(summary, build, silent=_OTHERS_OF_IDLE, host_tables=tables)
        for name, summary, build, tables in (
            (
                "sleeping-loader",
                "The main thread sleeps until the next batch arrives.",
                sleeping_loader,
                HOST_TABLES,
            ),
            (
                "sleeping-checkpoint",
                "The main thread sleeps until a checkpoint is on the disk.",
                sleeping_checkpoint,
                frozenset({schema.OS_CALLS}),
            ),
            (
                "initialisation",
                "Libraries are loaded and NCCL starts in the first step.",
                initialisation,
                HOST_TABLES,
            ),
            (
                "allocation-in-steps",
                "Memory is freed and allocated again in each step.",
                allocation,
                HOST_TABLES,
            ),
            (
                "lost-run-ahead",
                "A number is read before short kernels, which the host then chases.",
                lost_run_ahead,
                HOST_TABLES,
            ),
            (
                "busy-python",
                "The main thread makes the next batch itself, in Python.",
                busy_python,
                HOST_TABLES,
            ),
        )
    },
    "warm-up": Scenario(
        "The model is uploaded and warmed up before a training without problems.",
        warm_up,
        only=(),
        host_tables=HOST_TABLES,
    ),
    "mpi-wait": Scenario(
        "A solver without PyTorch waits in MPI for its slower rank.",
        mpi_wait,
        silent=_OTHERS_OF_IDLE,
        host_tables=HOST_TABLES,
    ),
    "turnaround": Scenario(
        "Short kernels, launched far ahead: only the GPU's own time lies between them.",
        turnaround,
        only=("unfused-kernels",),
        host_tables=HOST_TABLES,
    ),
    "host-stall": Scenario(
        "Some launches of one rank take milliseconds: its thread is held up.",
        one_rank,
        silent=("launch-queue-stall", "host-sync", "pageable-copy", "nccl-serialization"),
    ),
}
