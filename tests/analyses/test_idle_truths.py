"""Every cause of idle time, planted in simulated runs, in both formats that are read."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from sample_traces.simulator import SCENARIOS, kernels
from sample_traces.simulator.event_model import lost_time
from sample_traces.simulator.event_model.actions import Call, Stream
from sample_traces.simulator.event_model.answers import Ranks
from sample_traces.simulator.event_model.gpu import Latencies
from sample_traces.simulator.event_model.program_writer import COMPUTE, Host
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


def asleep(name: str, call: str) -> Callable[[Host], None]:
    def do(host: Host) -> None:
        with host.range(name, DEFAULT_DOMAIN):
            host.sleep(8 * MS, call)

    return do


def busy(name: str, symbol: str, library: str = LIBRARY) -> Callable[[Host], None]:
    def do(host: Host) -> None:
        with host.range(name, DEFAULT_DOMAIN):
            host.busy(8 * MS, (symbol, library))

    return do


def capture_graph(host: Host) -> None:
    host.call("cudaStreamCreateWithPriority_v5050", 2_800 * US)
    host.call("cudaEventCreateWithFlags_v3020", 900 * US)
    host.call("cudaGraphInstantiateWithFlags_v11040", 5 * MS)


def allocate(host: Host) -> None:
    free = Call("cudaFree_v3020", 2_500, until=host.compute, device_wide=True)
    host.actions.append(free)
    host.call("cudaMalloc_v3020", 8 * MS)


class Truth(NamedTuple):
    """A cause, what the host does, and how the report names it."""

    cause: str
    do: Callable[[Host], None]
    named: str


_ACQUIRE = "<built-in method acquire of _thread.lock object at 0x7f21>"
_ASYNC_SAVE = "torch/distributed/checkpoint/state_dict_saver.py(291): async_save"
_INIT = "torch/distributed/distributed_c10d.py(1620): init_process_group"
_NEXT = "torch/utils/data/dataloader.py(733): __next__"
_SAVE = "torch/serialization.py(943): save"
_COLLECT = "<built-in function collect>"
_EVALUATE = "_PyEval_EvalFrameDefault"
TRUTHS = (
    Truth("data_loading_ns", asleep(_NEXT, "sem_clockwait"), "__next__"),
    Truth("waiting_ns", asleep(_ACQUIRE, "pthread_cond_wait"), "acquire|pthread_cond_wait"),
    Truth("host_code_ns", busy(_COLLECT, "gc_collect_main"), "collect"),
    Truth("host_code_ns", busy(_SAVE, _EVALUATE), "save"),
    Truth("host_code_ns", busy(_ASYNC_SAVE, _EVALUATE), "async_save"),
    Truth(
        "host_code_ns",
        busy("aten::nonzero_numpy", "at::native::nonzero", "libtorch_cpu.so"),
        "nonzero",
    ),
    Truth("setup_ns", capture_graph, "cudaGraphInstantiate"),
    Truth("setup_ns", busy(_INIT, "ncclCommInitRankFunc", "libnccl.so.2"), "init_process_group"),
    Truth("allocation_ns", allocate, "cudaMalloc"),
    Truth("mpi_ns", asleep("gloo:all_reduce", "epoll_wait"), "gloo:all_reduce"),
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


@pytest.mark.parametrize("truth", TRUTHS, ids=lambda truth: truth.named)
def test_a_planted_cause_is_found_in_both_formats(truth: Truth, tmp_path: Path) -> None:
    setup = program(truth)
    expected = lost_time.idle(Ranks(setup.run()), 0)
    assert expected[truth.cause] > 0.9 * expected["idle_ns"] > 0
    for form, paths in forms(setup, tmp_path).items():
        finding = of_idle(paths)
        measured = {name: finding.metrics[name] for name in expected}
        assert measured == pytest.approx(expected, rel=0.01, abs=60 * US), form
        assert re.search(truth.named, finding.title), form


def test_work_that_waits_for_another_gpu_is_queued(tmp_path: Path) -> None:
    """The host launches a whole step at once, and the first GPU waits for the second."""
    host = Host(0, np.random.default_rng(4))
    own, other = host.compute, Stream(0, 1, COMPUTE + 8)
    for step in range(STEPS):
        with host.step(step):
            host.operator(own, "aten::linear", *FORWARD)
            host.operator(other, "aten::linear", *FORWARD * 3)
            host.follow(own, other)
            host.operator(own, "aten::mm", *FORWARD)
            host.synchronize(own)
    setup = Setup((host,), idle, devices=((0, 1),))
    expected = lost_time.idle(Ranks(setup.run()), 0)
    assert expected["queued_ns"] > 0.5 * expected["idle_ns"] > 0
    for form, paths in forms(setup, tmp_path).items():
        found = closed_analysis(*paths).findings
        (finding,) = [one for one in found if (one.id, one.rank) == ("gpu-idle", 0)]
        measured = {name: finding.metrics[name] for name in expected}
        assert measured == pytest.approx(expected, rel=0.01, abs=60 * US), form
        assert "gemm" in finding.title, form
        assert "on stream 7, the host in cudaStreamSynchronize" in finding.title, form


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
