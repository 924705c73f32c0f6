"""What the stages of a loader wait for, beside what they really do in the second simulator."""

from pathlib import Path

import numpy as np
import pytest

import traceprof
from tests.reference.gpu_machine import Machine
from tests.reference.gpu_programs import PROGRAMS
from tests.support.planted import assert_begun_when_allowed, observed
from traceprof.trace.nsight import schema


@pytest.fixture
def slow() -> Machine:
    """A loader that sets the pace."""
    return PROGRAMS["loader-stages-slow"].run(1)


def test_each_step_takes_the_next_batch(slow: Machine, tmp_path: Path) -> None:
    process = observed(slow, tmp_path)
    calls, queues = process.calls, process.hand_overs.queues
    training, last = 0, 2
    rows = (calls.thread[queues.call] == training) & (calls.thread[queues.after] == last)
    outer = np.flatnonzero(calls.thread == training)
    # Of five calls of the last stage for a batch the latest one; a step of the other makes 27.
    batch = (queues.after[rows] - np.flatnonzero(calls.thread == last)[0]) // 5
    step = (queues.call[rows] - outer[0]) // 27
    assert queues.is_known
    assert queues.is_sure.all()
    assert len(step) >= 12
    assert step.tolist() == batch.tolist()


def test_calls_begin_when_the_later_of_what_they_wait_for_allows(
    slow: Machine, tmp_path: Path
) -> None:
    assert_begun_when_allowed(observed(slow, tmp_path))


def test_stages_that_begin_at_any_time_are_not_understood(slow: Machine, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for row in slow.rows[schema.NVTX.name]:
        if "Executor" in str(row["text"]):
            moved = int(rng.integers(3_000_000))
            row |= {"start": int(row["start"]) + moved, "end": int(row["end"]) + moved}
    queues = observed(slow, tmp_path).hand_overs.queues
    assert not queues.is_known
    assert not len(queues.call)


@pytest.mark.parametrize(("kept", "holds"), [(1.0, True), (0.001, False)])
def test_a_first_stage_is_waited_for_no_longer_than_it_works(
    slow: Machine, tmp_path: Path, *, kept: float, holds: bool
) -> None:
    for row in slow.rows[schema.NVTX.name]:
        if "RunCPU" in str(row["text"]):
            end = int(row["end"])
            row["start"] = end - int(kept * (end - int(row["start"])))
    report = slow.write(tmp_path / "run.sqlite")
    baseline = traceprof.whatif(report, assume=["no-sync"]).whatif.baseline
    assert baseline is not None
    (gate,) = (gate for gate in baseline.gates if gate.name == "host-floor")
    assert gate.holds == holds
    assert holds or (gate.value or 0) > 0.5  # of a step


def test_where_threads_pace_each_other_only_what_changes_has_a_limit(
    slow: Machine, tmp_path: Path
) -> None:
    """The run has neither communication nor a pipeline: nothing changes with these."""
    for row in slow.rows[schema.NVTX.name]:
        if "RunCPU" in str(row["text"]):
            row["start"] = row["end"]
    asked = traceprof.whatif(slow.write(tmp_path / "run.sqlite"))
    answers = {one.assume: one for one in asked.whatif.answers}
    for name in ("link=2x", "communication=0", "perfect-overlap", "no-overlap-slowdown"):
        assert answers[name].is_too_small
        assert answers[name].change_ns == 0
    assert (answers["launch=0"].change_ns or 0) < 0
    assert "micro-batches=2x" not in answers


def test_few_batches_say_nothing(slow: Machine, tmp_path: Path) -> None:
    ranges = slow.rows[schema.NVTX.name]
    stages = [row for row in ranges if "Executor" in str(row["text"])]
    slow.rows[schema.NVTX.name] = [row for row in ranges if row not in stages[15:]]
    queues = observed(slow, tmp_path).hand_overs.queues
    assert not queues.is_known
    assert not len(queues.threads)
