"""Which steps are recorded: those asked for, marked or told by the optimizer, and no others."""

from collections.abc import Iterator

import pytest

from instrument.core import nvtx_ranges, steps
from tests.support.recording import functions_into
from traceprof.labels import Steps


class Recorder:
    """Says what it is told."""

    def __init__(self, events: list[str]) -> None:
        self.prepare = lambda: events.append("PREPARE")
        self.begin = lambda: events.append("BEGIN")
        self.end = lambda: events.append("END")


@pytest.fixture
def events(recorded: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Record what is told and which ranges are written, under a tool."""
    monkeypatch.setattr(nvtx_ranges, "_functions", functions_into(recorded))
    yield recorded
    steps.unwatch()


def mark(number: int) -> None:
    steps.mark_begins(number)
    nvtx_ranges.push(f"step {number}")
    steps.pass_begins()
    steps.optimizer_step_ends()
    nvtx_ranges.pop()
    steps.mark_ends()


def test_marked_steps(events: list[str]) -> None:
    steps.watch(Steps(2, 4), Recorder(events))
    for number in range(6):
        mark(number)
    before = ["pop"]  # of steps that are not recorded: nothing is open, nothing happens
    assert events == [
        *before,
        *("PREPARE", "pop", "BEGIN"),
        *("push step 2", "pop", "push step 3", "pop", "END"),
        *("pop", "pop"),
    ]


def test_steps_by_the_optimizer_are_named(events: list[str]) -> None:
    steps.watch(Steps(1, 3), Recorder(events))
    for number in range(5):
        steps.pass_begins()
        steps.pass_begins()
        nvtx_ranges.push(f"backward {number}")
        steps.optimizer_step_ends()
    assert events == [
        *("PREPARE", "BEGIN", "start step 1", "push backward 1", "end step 1"),
        *("start step 2", "push backward 2", "end step 2", "END"),
    ]


def test_the_first_step_begins_with_the_first_pass(events: list[str]) -> None:
    steps.watch(Steps(0, 1), Recorder(events))
    assert events == []
    steps.pass_begins()
    steps.optimizer_step_ends()
    steps.optimizer_step_ends()
    assert events == ["PREPARE", "BEGIN", "END"]  # optimizer steps tell it: no range is needed


def test_an_open_end_is_the_end_of_the_process(events: list[str]) -> None:
    steps.watch(Steps(1, None), Recorder(events))
    mark(0)
    mark(1)
    steps.unwatch()
    mark(2)
    assert events == [
        *("PREPARE", "pop", "BEGIN", "push step 1", "pop", "END", "push step 2", "pop")
    ]


def test_a_step_that_is_not_over_stays_open(events: list[str]) -> None:
    steps.watch(Steps(1, None), Recorder(events))
    for _ in range(2):
        steps.pass_begins()
        steps.optimizer_step_ends()
    steps.unwatch()
    assert events[2:] == ["start step 1", "end step 1", "start step 2", "END"]


@pytest.mark.parametrize(
    ("num", "said"), [(15, "the process made 15 steps:"), (1, "the process made 1 step:"), (0, "")]
)
def test_a_training_that_ends_before(
    events: list[str], caplog: pytest.LogCaptureFixture, num: int, said: str
) -> None:
    steps.watch(Steps(20, 30), Recorder(events))
    for _ in range(num):
        steps.pass_begins()
        steps.optimizer_step_ends()
    steps.unwatch()
    assert events == []
    assert caplog.text.count(f"steps 20:30 were to be recorded, and {said}") == bool(num)
    assert bool(caplog.text) == bool(num)


def test_a_recorder_that_fails_does_not_stop_the_training(
    events: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(events)
    recorder.prepare = lambda: events.append(str(1 // 0))
    steps.watch(Steps(1, 3), recorder)
    for number in range(4):
        mark(number)
    assert "BEGIN" not in events
    assert "steps 1:3 are not recorded: ZeroDivisionError" in caplog.text
