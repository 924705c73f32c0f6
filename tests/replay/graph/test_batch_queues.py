"""Queues between threads that launch, beside what they really do in the second simulator."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np
import pytest

import traceprof
from tests.reference.gpu_machine import MS, US, Batches, Change, Device, Machine, Steps, Thread
from tests.reference.gpu_programs import COMPUTE, COPIES, LAYER, NUM_STEPS, PROGRAMS
from tests.support.builders import global_tid
from tests.support.planted import assert_begun_when_allowed, observed
from traceprof.replay.graph.process_graph import Observed
from traceprof.trace.nsight import schema

TRAINING, BRINGING = 0, 1
PER_STEP, PER_BATCH = 28, 6  # calls
IN_QUEUE = 2


@pytest.fixture
def fast() -> Machine:
    """A thread that brings batches faster than they are taken, and waits for room."""
    return PROGRAMS["two-threads-fast"].run(1)


def numbers(process: Observed, thread: int, other: int) -> tuple[list[int], list[int]]:
    """Return of which step or batch calls are that wait for those of another thread."""
    calls, queues = process.calls, process.hand_overs.queues
    rows = (calls.thread[queues.call] == thread) & (calls.thread[queues.after] == other)
    found = []
    for call, of in ((queues.call[rows], thread), (queues.after[rows], other)):
        number = call - np.flatnonzero(calls.thread == of)[0]
        found.append((number // (PER_STEP, PER_BATCH)[of]).tolist())
    return found[0], found[1]


def test_each_step_takes_the_next_batch(fast: Machine, tmp_path: Path) -> None:
    step, batch = numbers(observed(fast, tmp_path), TRAINING, BRINGING)
    # What the thread's first call waited for is not known.
    assert step == batch == list(range(1, NUM_STEPS))


def test_a_batch_is_begun_when_there_is_room(fast: Machine, tmp_path: Path) -> None:
    """The thread has one in its hands as well, and goes on after the last one is taken."""
    process = observed(fast, tmp_path)
    batch, step = numbers(process, BRINGING, TRAINING)
    assert step == list(range(len(step)))
    assert [one - IN_QUEUE - 1 for one in batch] == step
    assert len(step) == NUM_STEPS  # also of those that no step has taken


@pytest.mark.parametrize("name", ["two-threads-fast", "two-threads-slow", "all-with-threads"])
def test_calls_begin_when_the_later_of_what_they_wait_for_allows(name: str, tmp_path: Path) -> None:
    assert_begun_when_allowed(observed(PROGRAMS[name].run(3), tmp_path))


def test_a_thread_that_is_waited_for_waits_for_nobody(tmp_path: Path) -> None:
    process = observed(PROGRAMS["two-threads-slow"].run(1), tmp_path)
    step, batch = numbers(process, TRAINING, BRINGING)
    assert step == batch == list(range(1, NUM_STEPS))
    assert numbers(process, BRINGING, TRAINING) == ([], [])


@pytest.mark.parametrize("seed", [0, 23, 25])
def test_a_recording_that_begins_amid_the_training_shows_the_queue(
    seed: int, tmp_path: Path
) -> None:
    """The thread takes 2 ms for a batch, and waits as long for room."""
    machine = PROGRAMS["two-threads-fast"].run(seed, num_steps=24)
    (starts,) = machine.step_starts.values()
    for table, rows in machine.rows.items():
        if table != schema.EVENT_RECORD.name:
            machine.rows[table] = [
                row for row in rows if int(row.get("start", starts[8])) >= starts[8]
            ]
    process = observed(machine, tmp_path)
    calls, queues = process.calls, process.hand_overs.queues
    rows = (calls.thread[queues.call] == BRINGING) & (calls.thread[queues.after] == TRAINING)
    assert rows.sum() >= 12
    assert np.abs(queues.own_ns[rows] - 2_000_000).max() < 400_000


def test_one_event_for_all_batches_does_not_say_which_is_taken(
    fast: Machine, tmp_path: Path
) -> None:
    """A stream waits for the last record of an event, whichever batch its thread has taken."""
    for table in (schema.EVENT_RECORD.name, schema.SYNCHRONIZATION):
        for row in fast.rows[table]:
            if int(row["eventId"]) >= 300:
                row["eventId"] = 300
    assert len(observed(fast, tmp_path).hand_overs.queues.threads) == 0


def test_who_works_on_before_the_event_is_not_done_with_a_batch(
    fast: Machine, tmp_path: Path
) -> None:
    """Its last operation is no sign that the batch is there."""
    for row in fast.rows[schema.API_CALL.name]:
        if row["globalTid"] == global_tid(1000, 1001) and "Record" not in str(row["nameId"]):
            row["start"], row["end"] = int(row["start"]) - MS, int(row["end"]) - MS
    assert len(observed(fast, tmp_path).hand_overs.queues.threads) == 0


def machine_with(needed_ns: Callable[[int], float], *, has_events: bool = True) -> Machine:
    """Run a training whose batches a thread brings, one ahead.

    Args:
        needed_ns: what that thread sleeps for each batch.
        has_events: whether the training waits for events of the batches; else that thread waits
            for its copies itself.
    """
    machine = Machine(Change())
    device, batches = Device(machine, 0), Batches(1)
    thread, other = Thread(device, 1), Thread(device, 1, tid=1)
    compute, copies = device.stream(COMPUTE), device.stream(COPIES)

    def bringing() -> Steps:
        for number in count():
            yield from other.sleep(needed_ns(number))
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


def test_a_thread_that_is_late_now_and_then_waits_for_room_else(tmp_path: Path) -> None:
    """What it needs for a batch varies by more than all its waits."""
    machine = machine_with(lambda number: (20 if number % 6 == 5 else 2) * MS)
    process = observed(machine, tmp_path)
    calls, queues = process.calls, process.hand_overs.queues
    rows = (calls.thread[queues.call] == BRINGING) & (calls.thread[queues.after] == TRAINING)
    own_ns = queues.own_ns[rows]
    assert rows.sum() > 10
    assert np.minimum(np.abs(own_ns - 2 * MS), np.abs(own_ns - 20 * MS)).max() < 3 * MS


@pytest.mark.parametrize("has_events", [True, False])
def test_an_unknown_queue_may_set_the_pace(has_events: bool, tmp_path: Path) -> None:
    """Without waits, the training may ask earlier; and faster, it may have to wait for batches."""
    machine = machine_with(lambda _: 3 * MS, has_events=has_events)
    run = machine.write(tmp_path)
    asked = ["kernel:gemm=0.5x", "no-sync", "no-data-loading"]
    quicker, unsynced, loaded = traceprof.whatif(run, assume=asked).whatif.answers[:3]
    assert quicker.is_bound != has_events
    assert ("room in its queue" in quicker.note) != has_events
    assert ("room in its queue" in (unsynced.refused or "")) != has_events
    assert "room in its queue" not in loaded.note  # without waits for it, it sets no pace
