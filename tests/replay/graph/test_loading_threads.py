"""Threads that bring batches: nothing shows when they wait for room in their queue."""

from itertools import count
from pathlib import Path

import numpy as np
import pytest

import traceprof
from tests.reference.gpu_machine import MS, US, Batches, Change, Device, Machine, Steps, Thread
from tests.reference.gpu_programs import COMPUTE, COPIES, LAYER, NUM_STEPS, PROGRAMS
from traceprof.replay.results import Answer
from traceprof.trace.nsight import schema

_ASKED = ("kernel:gemm=0.5x", "no-sync", "no-data-loading", "link=2x")


def answers(machine: Machine, folder: Path) -> tuple[Answer, ...]:
    """Return the answers to `_ASKED`."""
    run = machine.write(folder / "run.sqlite")
    return traceprof.whatif(run, assume=_ASKED).whatif.answers[: len(_ASKED)]


def machine_with(*, has_events: bool) -> Machine:
    """Run a training whose batches a thread brings, one ahead.

    Args:
        has_events: whether the training waits for events of the batches; else that thread waits
            for its copies itself.
    """
    machine = Machine(Change())
    device, batches = Device(machine, 0), Batches(1)
    thread, other = Thread(device, 1), Thread(device, 1, tid=1)
    compute, copies = device.stream(COMPUTE), device.stream(COPIES)

    def bringing() -> Steps:
        for number in count():
            yield from other.sleep(3 * MS)
            yield from other.copy(copies, "HtoD", 1 << 22, 400 * US)
            if has_events:
                over = yield from other.record(copies, 300 + number)
                yield from other.put(batches, over)
            else:
                yield from other.synchronize(copies)
                yield from other.put(batches)

    def training() -> Steps:
        yield 10.0 * MS
        for number in range(NUM_STEPS):
            yield from thread.step(number, step(number))
        yield from thread.synchronize(compute)

    def step(number: int) -> Steps:
        yield from thread.get(batches)
        over = batches.get()
        if over is not None:
            yield from thread.wait(compute, 300 + number, over)
        yield from thread.launch(compute, *LAYER * 6)
        yield from thread.item(compute)

    machine.start(bringing())
    machine.start(training())
    return machine.run()


@pytest.mark.parametrize("has_events", [True, False])
def test_answers_are_limits_and_without_waits_for_the_thread(
    has_events: bool, tmp_path: Path
) -> None:
    machine = machine_with(has_events=has_events)
    quicker, unsynced, loaded, linked = answers(machine, tmp_path)
    for one in (quicker, unsynced, loaded):
        assert one.refused is None
        assert one.is_bound
        assert "room in its queue" in one.note
    assert (quicker.change_ns or 0) < (loaded.change_ns or 0) <= 0
    assert linked.change_ns == 0  # nothing communicates


@pytest.mark.parametrize("kept", [1.0, 0.5])
def test_no_step_takes_less_than_a_loader_works_on_the_cpu(kept: float, tmp_path: Path) -> None:
    """The ranges of its first stage say how long that is; but it may be four batches ahead."""
    machine = PROGRAMS["loader-stages-slow"].run(1, num_steps=30)
    lengths = []
    for row in machine.rows[schema.NVTX.name]:
        if "RunCPU" in str(row["text"]):
            row["end"] = int(row["start"]) + round(kept * (int(row["end"]) - int(row["start"])))
            lengths.append(int(row["end"]) - int(row["start"]))
    run = machine.write(tmp_path / "run.sqlite")
    asked = traceprof.whatif(run, assume=["kernel:.*=0.01x"]).whatif
    (no_kernels,) = asked.answers
    assert asked.baseline is not None
    share = 1 - 4 / asked.baseline.num_steps
    assert no_kernels.step_ns == pytest.approx(share * np.mean(lengths), rel=0.05)
