"""Every cause of idle time, planted in simulated runs, in both formats that are read."""

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from sample_traces.simulator import SCENARIOS, kernels
from sample_traces.simulator.event_model import lost_time
from sample_traces.simulator.event_model.actions import Call
from sample_traces.simulator.event_model.answers import Ranks
from sample_traces.simulator.event_model.gpu import Latencies
from sample_traces.simulator.event_model.program_writer import Host
from sample_traces.simulator.kineto_writer import write_traces
from sample_traces.simulator.machine import DEFAULT_DOMAIN
from sample_traces.simulator.scenarios.setup import Setup, idle
from tests.support.changes import recorded
from tests.support.traces import closed_analysis
from traceprof.findings import Finding

pytestmark = pytest.mark.slow

US, MS = 1_000, 1_000_000
STEPS = 6
FORWARD = (kernels.QKV, kernels.ATTENTION, kernels.UP, kernels.DOWN) * 2
LIBRARY = "/usr/bin/python3.11"


def within(host: Host, *names: str) -> AbstractContextManager[None]:
    """Open a range of any program; of functions of Python torch.profiler records the frame."""
    (name,) = names
    return host.range(name, DEFAULT_DOMAIN)


def wait_for_loader(host: Host) -> None:
    with within(host, "torch/utils/data/dataloader.py(733): __next__"):
        host.sleep(8 * MS, "sem_clockwait")


def take_lock(host: Host) -> None:
    with within(host, "<built-in method acquire of _thread.lock object at 0x7f21>"):
        host.sleep(8 * MS, "pthread_cond_wait")


def collect_garbage(host: Host) -> None:
    with within(host, "<built-in function collect>"):
        host.busy(8 * MS, ("gc_collect_main", LIBRARY))


def save_checkpoint(host: Host) -> None:
    with within(host, "torch/serialization.py(943): save"):
        host.busy(8 * MS, ("_PyEval_EvalFrameDefault", LIBRARY))


def stage_checkpoint(host: Host) -> None:
    with within(host, "torch/distributed/checkpoint/state_dict_saver.py(291): async_save"):
        host.busy(8 * MS, ("_PyEval_EvalFrameDefault", LIBRARY))


def run_operator(host: Host) -> None:
    with within(host, "aten::nonzero_numpy"):
        host.busy(8 * MS, ("at::native::nonzero", "libtorch_cpu.so"))


def capture_graph(host: Host) -> None:
    host.call("cudaStreamCreateWithPriority_v5050", 2_800 * US)
    host.call("cudaEventCreateWithFlags_v3020", 900 * US)
    host.call("cudaGraphInstantiateWithFlags_v11040", 5 * MS)


def start_group(host: Host) -> None:
    with within(host, "torch/distributed/distributed_c10d.py(1620): init_process_group"):
        host.busy(8 * MS, ("ncclCommInitRankFunc", "libnccl.so.2"))


def allocate(host: Host) -> None:
    free = Call("cudaFree_v3020", 2_500, until=host.compute, device_wide=True)
    host.actions.append(free)
    host.call("cudaMalloc_v3020", 8 * MS)


def reduce_over_gloo(host: Host) -> None:
    with within(host, "gloo:all_reduce"):
        host.sleep(8 * MS, "epoll_wait")


class Truth(NamedTuple):
    """A cause, what the host does, and how the report names it."""

    cause: str
    do: Callable[[Host], None]
    named: str


TRUTHS = (
    Truth("data_loading_ns", wait_for_loader, "__next__"),
    Truth("waiting_ns", take_lock, "acquire|pthread_cond_wait"),
    Truth("host_code_ns", collect_garbage, "collect"),
    Truth("host_code_ns", save_checkpoint, "save"),
    Truth("host_code_ns", stage_checkpoint, "async_save"),
    Truth("host_code_ns", run_operator, "nonzero"),
    Truth("setup_ns", capture_graph, "cudaGraphInstantiate"),
    Truth("setup_ns", start_group, "init_process_group"),
    Truth("allocation_ns", allocate, "cudaMalloc"),
    Truth("mpi_ns", reduce_over_gloo, "gloo:all_reduce"),
)


def program(truth: Truth) -> Setup:
    """Do it in the middle of each step, where the GPU soon has nothing left."""
    host = Host(0, np.random.default_rng(2))
    for step in range(STEPS):
        with host.step(step):
            host.operator(host.compute, "aten::linear", *FORWARD)
            with host.purpose(truth.cause):
                truth.do(host)
            host.operator(host.compute, "aten::mm", *FORWARD)
    return Setup((host,), idle)


def forms(setup: Setup, folder: Path) -> dict[str, Sequence[Path]]:
    export = recorded(setup, folder / "run.sqlite")
    return {"nsight": [export], "kineto": write_traces(export, folder, "run")}


def of_idle(paths: Sequence[Path]) -> Finding:
    analysis = closed_analysis(*paths)
    (finding,) = [finding for finding in analysis.findings if finding.id == "gpu-idle"]
    return finding


@pytest.mark.parametrize("truth", TRUTHS, ids=lambda truth: truth.do.__name__)
def test_a_planted_cause_is_found_in_both_formats(truth: Truth, tmp_path: Path) -> None:
    setup = program(truth)
    expected = lost_time.idle(Ranks(setup.run()), 0)
    assert expected[truth.cause] > 0.9 * expected["idle_ns"] > 0
    for form, paths in forms(setup, tmp_path).items():
        finding = of_idle(paths)
        measured = {name: finding.metrics[name] for name in expected}
        assert measured == pytest.approx(expected, rel=0.01, abs=60 * US), form
        assert re.search(truth.named, finding.title), form


def short_kernels(launch_ns: int) -> Setup:
    """Make kernels of 4.5 us that are launched every 7.7 us or so, now and then far ahead.

    A GPU that needs 6 us to begin what is launched, and 0.9 us from one operation to the next, has
    idle time of 3.2 us between them, although each is launched while the one before runs.
    """
    host = Host(0, np.random.default_rng(3))
    short, long = (replace(kernels.ADD, duration_ns=ns) for ns in (4_500, 60_000))
    for step in range(20):
        with host.step(step):
            host.operator(host.compute, "aten::add", *[short] * 60, long, *[short] * 60)
            host.busy(400 * US)
    return Setup((host,), idle, latencies=Latencies(launch=launch_ns, stream_gap=900))


@pytest.mark.parametrize(("launch_ns", "is_late"), [(6_000, True), (1_000, False)])
def test_a_launch_that_comes_too_late_is_no_turnaround(
    launch_ns: int, is_late: bool, tmp_path: Path
) -> None:
    setup = short_kernels(launch_ns)
    ranks = Ranks(setup.run())
    expected = lost_time.idle(ranks, 0, latencies=setup.latencies)
    queued_ns = sum(
        operation.start_ns - start
        for start, operation in lost_time.gaps(ranks.operations[0])
        if operation.call.end_ns <= start
    )
    assert (queued_ns > 2 * expected["turnaround_ns"]) == is_late
    for form, paths in forms(setup, tmp_path).items():
        finding = of_idle(paths)
        measured = {name: finding.metrics[name] for name in expected}
        assert measured == pytest.approx(expected, rel=0.01, abs=60 * US), form


def test_every_cause_has_a_truth_in_both_formats() -> None:
    """The others are scenarios, which tests of the simulator write in both formats."""
    elsewhere = {
        "sync_ns": "host-sync", "launch_bound_ns": "launch-bound", "turnaround_ns": "turnaround",
        "stalled_ns": "host-stall",
    }  # fmt: skip
    assert {*elsewhere.values()} <= SCENARIOS.keys()
    planted = {truth.cause for truth in TRUTHS} | elsewhere.keys()
    assert planted == {*lost_time.IDLE_CAUSES} - {"unknown_ns"}
