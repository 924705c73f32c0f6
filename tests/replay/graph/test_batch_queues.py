"""Queues between threads that launch, beside what they really do in the second simulator."""

from pathlib import Path

import numpy as np
import pytest

from tests.reference.gpu_machine import Machine
from tests.reference.gpu_programs import NUM_STEPS, PROGRAMS
from tests.support.observed import observed
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
    process = observed(PROGRAMS[name].run(3), tmp_path)
    calls, overs = process.calls, process.hand_overs
    earliest = np.zeros(len(calls), np.int64)
    np.maximum.at(earliest, overs.call, calls.end_ns[overs.after] + overs.gap_ns)
    both = overs.own_ns >= 0
    own = calls.end_ns[overs.call[both] - 1] + overs.own_ns[both]
    np.maximum.at(earliest, overs.call[both], own)
    assert earliest[overs.call].tolist() == calls.start_ns[overs.call].tolist()


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
