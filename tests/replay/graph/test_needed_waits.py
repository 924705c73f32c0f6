"""Waits that `no-sync` keeps: what came is used before anything more is launched."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sample_traces.simulator import kernels
from sample_traces.simulator.event_model.actions import Call, CopyWork
from sample_traces.simulator.event_model.program_writer import Host
from sample_traces.simulator.scenarios.setup import Setup
from tests.support.changes import middle_step_ns, recorded
from tests.support.selection import known
from tests.support.traces import SAMPLE_FOLDER
from traceprof.replay.results import Answer
from traceprof.replay.whatif import whatif

_KIB, _MS = 1 << 10, 1_000_000
_HALO = 32 * _KIB


def steps(body: Callable[[Host], None]) -> Setup:
    """Do something in each of five steps."""
    host = Host(0, np.random.default_rng(0))
    for step in range(5):
        with host.step(step):
            body(host)
    return Setup((host,), lambda _: [])


def answer(setup: Setup, path: Path, assume: str = "copies-hidden") -> Answer:
    (only,) = whatif(recorded(setup, path), assume=[assume]).whatif.answers
    return only


def gained_ns(setup: Setup) -> float:
    """Return how much sooner a step is over without its waits."""
    return middle_step_ns(setup.without_waits()) - middle_step_ns(setup.run())


def program(num_bytes: int, busy_ns: int, back: int = 0) -> Setup:
    """Copy results to the host in every step, let it work, and copy something to the GPU."""

    def step(host: Host) -> None:
        host.launch(host.compute, *[kernels.GELU] * 40)
        host.to_host(host.compute, num_bytes)
        host.synchronize(host.compute)
        host.busy(busy_ns)
        if back:
            host.to_device(host.compute, back)
        host.launch(host.compute, *[kernels.GELU] * 40)

    return steps(step)


@pytest.mark.parametrize(
    "setup",
    [program(_HALO, 20_000, back=_HALO), program(_HALO, 12 * _MS)],
    ids=["goes back", "is worked on"],
)
def test_what_the_host_uses_at_once_is_waited_for(setup: Setup, tmp_path: Path) -> None:
    """No program can do without these waits, so that the true change is none."""
    assert answer(setup, tmp_path / "run.sqlite", "no-sync").change_ns == 0


@pytest.mark.parametrize(
    "setup",
    [
        program(_HALO, 20_000),
        program(_HALO, 20_000, back=2 * _HALO),
        program(_HALO, 5 * _MS),
        program(8, 12 * _MS),
    ],
    ids=["read", "another size", "shorter work", "a number"],
)
def test_other_results_may_be_read_later(setup: Setup, tmp_path: Path) -> None:
    only, true_ns = answer(setup, tmp_path / "run.sqlite", "no-sync"), gained_ns(setup)
    assert true_ns < -10_000
    assert known(only.change_ns) <= true_ns
    assert only.change_ns == pytest.approx(true_ns, rel=0.15)  # the spread over steps is in it


@pytest.mark.parametrize(
    ("text", "num_bytes"), [("next(DataLoader)", _HALO), ("collate", 4 * _KIB)]
)
def test_what_comes_before_an_upload_stays(text: str, num_bytes: int, tmp_path: Path) -> None:
    """A batch takes its time however copies are hidden, also one of as many bytes as came."""

    def batch(host: Host, *, copies: bool = True) -> None:
        for _ in range(40):
            with host.range(text):
                host.busy(100_000)
        if copies:
            host.to_device(host.compute, _HALO)
        host.launch(host.compute, *[kernels.GELU] * 40)
        if copies:
            host.to_host(host.compute, num_bytes)
            host.synchronize(host.compute)

    hidden = answer(steps(batch), tmp_path / "run.sqlite")
    true_ns = middle_step_ns(steps(partial(batch, copies=False)).run())
    assert 4 * _MS < known(hidden.step_ns) <= true_ns


@pytest.mark.parametrize("num_copies", [1, 2, 4])
def test_waits_for_what_is_looked_at_go_with_its_copies(num_copies: int, tmp_path: Path) -> None:
    """A limit is not beaten by a program that copies nothing, and so runs ahead."""

    def outputs(host: Host, *, copies: bool = True) -> None:
        for _ in range(10):
            host.launch(host.compute, *[kernels.GELU] * 4)
            host.busy(20_000)
            if copies:
                host.busy(150_000)
                for _ in range(num_copies):
                    host.to_host(host.compute, _KIB * _KIB // num_copies)
                host.synchronize(host.compute)
                host.busy(60_000)

    hidden = answer(steps(outputs), tmp_path / "run.sqlite")
    true_ns = middle_step_ns(steps(partial(outputs, copies=False)).run())
    assert 0.9 * true_ns < known(hidden.step_ns) <= true_ns


def test_what_comes_before_a_number_stays_where_more_is_copied_next(tmp_path: Path) -> None:
    def step(host: Host) -> None:
        for _ in range(10):
            host.launch(host.compute, kernels.GELU)
            host.busy(150_000)
            for num_bytes in (8, _KIB):
                host.to_host(host.compute, num_bytes)
                host.synchronize(host.compute)

    assert known(answer(steps(step), tmp_path / "run.sqlite").step_ns) > 10 * 150_000


@pytest.mark.parametrize("work_ns", [12 * _MS, 5 * _MS])
def test_long_work_on_what_was_copied_stays(work_ns: int, tmp_path: Path) -> None:
    """An optimizer on the CPU needs its time however copies are hidden.

    Shorter work goes: what it passes on could go directly.
    """
    setup = program(1 << 27, work_ns, back=1 << 27)
    copied_ns = sum(
        operation.end_ns - operation.start_ns
        for operation in setup.run().operations
        if isinstance(operation.work, CopyWork)
    )
    hidden = answer(setup, tmp_path / "run.sqlite")
    gone_ns = copied_ns / 5 + (work_ns if work_ns < 10 * _MS else 0)
    assert hidden.change_ns == pytest.approx(-gone_ns, abs=200_000)


def test_what_else_a_copys_call_waits_for_stays(tmp_path: Path) -> None:
    """One of twenty calls takes 2 ms for an unknown reason: it goes with twice the usual time."""

    def step(host: Host) -> None:
        host.launch(host.compute, *[kernels.GELU] * 10)
        for _ in range(20):
            host.to_device(host.compute, 4 * _KIB)
        call = host.actions[-2]
        assert isinstance(call, Call)
        host.actions[-2] = replace(call, cost_ns=2 * _MS)
        host.synchronize(host.compute)

    assert -_MS < known(answer(steps(step), tmp_path / "run.sqlite").change_ns) < -100_000


def test_code_between_copies_of_two_directions_stays(tmp_path: Path) -> None:
    """After a number was read the host works for 2 ms, which is in ranges, and copies the next."""

    def step(host: Host) -> None:
        host.launch(host.compute, *[kernels.GELU] * 40)
        host.to_host(host.compute, 8)
        host.synchronize(host.compute)
        for _ in range(20):
            with host.range("collate"):
                host.busy(100_000)
        host.to_device(host.compute, _HALO)
        host.launch(host.compute, *[kernels.GELU] * 40)

    assert -100_000 < known(answer(steps(step), tmp_path / "run.sqlite").change_ns) < 0


def test_copies_that_go_leave_what_other_assumptions_remove() -> None:
    """The host's code between launches has gone already: no copy brings a part of it back."""
    asked = ["launch=0", "copies-hidden"]
    result = whatif(SAMPLE_FOLDER / "busy-python.sqlite", assume=asked).whatif
    launches, copies, together = (answer.change_ns or 0 for answer in result.answers)
    assert launches < -10 * _MS
    assert together == pytest.approx(launches + copies, rel=0.01)


def freeing(api: str) -> Setup:
    """Wait for kernels and free memory; the host has other work before it launches more."""

    def step(host: Host) -> None:
        host.launch(host.compute, *[kernels.GELU] * 40)
        host.synchronize(host.compute)
        host.call(api, 20_000)
        host.busy(400_000)
        host.launch(host.compute, *[kernels.GELU] * 40)

    return steps(step)


def test_to_free_memory_waits_by_itself(tmp_path: Path) -> None:
    """What `cudaFree` takes beside its wait hides nothing; `cudaFreeAsync` does not wait."""
    waits = answer(freeing("cudaFree_v3020"), tmp_path / "a", "no-sync")
    assert -50_000 < known(waits.change_ns) <= 0
    setup = freeing("cudaFreeAsync_v11020")
    returns, true_ns = answer(setup, tmp_path / "b", "no-sync"), gained_ns(setup)
    assert true_ns < -200_000
    assert returns.change_ns == pytest.approx(true_ns, rel=0.05)
