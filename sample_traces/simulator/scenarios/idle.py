"""Runs with an idle GPU, each for one reason, and with host tables."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sample_traces.simulator import kernels
from sample_traces.simulator.event_model import lost_time
from sample_traces.simulator.event_model.actions import Arrive, Await, Call, Rendezvous
from sample_traces.simulator.event_model.answers import Ranks
from sample_traces.simulator.event_model.gpu import Latencies
from sample_traces.simulator.event_model.program_writer import Host
from sample_traces.simulator.machine import LOADING, MPI_COLLECTIVE, MPI_POINT_TO_POINT, NCCL_DOMAIN
from sample_traces.simulator.scenarios.setup import Setup, finding, idle
from sample_traces.simulator.scenarios.training import WORLD, optimize, reduce_beside

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from sample_traces.simulator.scenarios.setup import Finding

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
