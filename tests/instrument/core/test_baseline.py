"""Lengths of steps without the recorder and under it: which count, and what is written of them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from instrument.core import baseline, steps
from instrument.core.baseline import MAX_STEPS, StepTimes, step_times
from traceprof.labels import Steps

START_NS, END_NS = 1_000_000, 5_000_000


class Clock:
    """A clock that only moves when it is told to."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns

    def pass_by(self, ns: int) -> None:
        self.now_ns += ns


class SlowRecorder:
    """A recorder that takes its time to start and to end."""

    def __init__(self, clock: Clock) -> None:
        self.prepare = lambda: clock.pass_by(START_NS)
        self.begin = lambda: clock.pass_by(START_NS)
        self.end = lambda: clock.pass_by(END_NS)


@pytest.fixture
def clock() -> Iterator[Clock]:
    yield Clock()
    steps.unwatch()


def watched(folder: Path, clock: Clock, chosen: Steps) -> StepTimes:
    times = StepTimes(folder, "torch", str(chosen), chosen.first, clock)
    steps.watch(chosen, SlowRecorder(clock), times)
    return times


def train(clock: Clock, num: int) -> None:
    """Do steps that take 100, 101, 102, … ns, as an optimizer tells them."""
    for number in range(num):
        steps.pass_begins()
        clock.pass_by(100 + number)
        steps.optimizer_step_ends()


def written(folder: Path) -> dict[str, Any]:
    (file,) = folder.iterdir()
    content: dict[str, Any] = json.loads(file.read_text())
    return content


def test_steps_before_the_recorder_and_recorded_ones(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    watched(tmp_path, clock, Steps(8, 11))
    train(clock, 13)
    content = written(tmp_path)
    # Without the first three, and without the one in which the recorder is made ready.
    assert content["unrecorded_ns"] == [103, 104, 105, 106]
    assert content["recorded_ns"] == [108, 109, 110]
    assert (content["schema"], content["steps"], content["rank"], content["tool"]) == (
        *("traceprof.baseline/1", "8:11", 3, "torch"),
    )
    (file,) = tmp_path.iterdir()
    assert file.name == f"{content['host']}-rank3.baseline.json"


def test_of_many_steps_the_last(tmp_path: Path, clock: Clock) -> None:
    times = watched(tmp_path, clock, Steps(40, 42))
    train(clock, 42)
    assert [*times.unrecorded] == [*range(139 - MAX_STEPS, 139)]


def test_marked_steps_last_until_the_next_one(tmp_path: Path, clock: Clock) -> None:
    watched(tmp_path, clock, Steps(6, 9))
    for number in range(10):
        steps.mark_begins(number)
        clock.pass_by(100 + number)
        steps.mark_ends(is_whole=number != 4)  # an exception cut one
        clock.pass_by(1000)
    content = written(tmp_path)
    assert content["unrecorded_ns"] == [1103]
    assert content["recorded_ns"] == [1106, 1107]  # what follows the last one is not known


def test_a_training_that_ends_early_leaves_what_it_did(tmp_path: Path, clock: Clock) -> None:
    watched(tmp_path, clock, Steps(6, 100))
    train(clock, 8)
    steps.pass_begins()
    clock.pass_by(7)  # this step is not over
    steps.unwatch()
    assert written(tmp_path)["recorded_ns"] == [106, 107]


def test_nothing_is_written_without_steps_of_both_kinds(tmp_path: Path, clock: Clock) -> None:
    watched(tmp_path, clock, Steps(20, 22))
    train(clock, 18)
    steps.unwatch()
    assert list(tmp_path.iterdir()) == []


def test_it_times_only_where_that_is_asked_for_and_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(baseline.FOLDER, raising=False)
    assert step_times("nsys", "10:20", 10) is None
    monkeypatch.setenv(baseline.FOLDER, str(tmp_path))
    assert step_times("nsys", "4:20", 4) is None
    assert step_times("nsys", "5:20", 5) is not None
