"""The request to record, its environment variables, and the steps that a recorder follows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, NamedTuple, Protocol

from instrument.core import nvtx_ranges
from instrument.core.baseline import StepTimes
from traceprof import labels
from traceprof.labels import Steps

TOOL, FOLDER, STEPS = "TRACEPROF_RECORD_WITH", "TRACEPROF_RECORD_TO", "TRACEPROF_RECORD_STEPS"
"""Environment variables: `nsys` or `torch`, the folder of the traces, and `A:B`."""
SHAPES = "TRACEPROF_RECORD_SHAPES"
"""Environment variable: 1 if torch.profiler is to record the shapes of operators' inputs."""


_log = logging.getLogger("traceprof.instrument")


class Recorder(Protocol):
    """A recorder; each method is called once, in this order."""

    def prepare(self) -> None:
        """Get ready: the step before the first recorded one begins, if there is one."""

    def begin(self) -> None:
        """Start recording: the first recorded step begins."""

    def end(self) -> None:
        """Stop recording: the last recorded step is over, or the process ends."""


class _Phase(Enum):
    WAITING = auto()
    PREPARED = auto()
    RECORDING = auto()
    OVER = auto()


class RecordedSteps:
    """The steps of the process and the recorder that follows them."""

    def __init__(self, steps: Steps, recorder: Recorder, times: StepTimes | None = None) -> None:
        self.steps = steps
        self.times = times
        self.phase = _Phase.WAITING
        self.num_seen = 0
        self.num_done = 0
        self._recorder = recorder
        self._is_marked = False
        self._range: list[Any] = []

    def mark_begins(self, number: int) -> None:
        """Handle the beginning of a step that the script marks."""
        if not self._is_marked:
            self._is_marked = True
            nvtx_ranges.end_all(self._range)
        self._begins(number)

    def mark_ends(self, *, is_whole: bool = True) -> None:
        """Handle its end, or that an exception ended it."""
        self.num_done += is_whole
        if self.times is not None and not is_whole:
            self.times.drop()
        self._ends(max(self.num_seen - 1, 0))

    def pass_begins(self) -> None:
        """Handle the beginning of a forward or backward pass."""
        if self.num_seen == 0 and not self._is_marked:
            self._begins(0)
            self._name(0)

    def optimizer_step_ends(self) -> None:
        """Handle the end of the outermost step of an optimizer."""
        if self._is_marked:
            return
        self.num_seen = max(self.num_seen, 1)  # also if no pass began the first one
        self.num_done += 1
        number = self.num_seen
        nvtx_ranges.end_all(self._range)
        self._ends(number - 1)
        self._begins(number)
        self._name(number)

    def close(self) -> None:
        """Stop recording; the range of a step that is not over stays open: it was cut."""
        if self.phase is _Phase.RECORDING:
            self._notify(self._recorder.end)
            nvtx_ranges.pause()
            self._range.clear()
            if self.times is not None:
                self._notify(self.times.write)
        self.phase = _Phase.OVER

    def _begins(self, number: int) -> None:
        if self.times is not None:
            self.times.ends()
        self.num_seen = max(self.num_seen, number + 1)
        if self.phase is _Phase.WAITING and number >= self.steps.first - 1:
            self.phase = _Phase.PREPARED
            self._notify(self._recorder.prepare)
        if self.phase is _Phase.PREPARED and number >= self.steps.first:
            self.phase = _Phase.RECORDING
            self._notify(self._recorder.begin)
            if self.phase is _Phase.RECORDING:
                nvtx_ranges.resume()
        if self.times is not None and self.phase is not _Phase.OVER:
            self.times.begins(number)

    def _ends(self, number: int) -> None:
        if self.steps.stop is not None and number + 1 >= self.steps.stop:
            if self.times is not None and not self._is_marked:  # marked ones end at the next mark
                self.times.ends()
            self.close()

    def _name(self, number: int) -> None:
        """Open a range for an unmarked step, if steps before it are not recorded.

        With all steps recorded, the optimizer steps alone give the numbers, and there is no step
        after the last of them.
        """
        if self.phase is _Phase.RECORDING and self.steps.first > 0:
            nvtx_ranges.start_into(self._range, nvtx_ranges.message(labels.step(number)))

    def _notify(self, what: Callable[[], None]) -> None:
        try:
            what()
        except Exception as error:  # noqa: BLE001  (an observer must not stop the training)
            _log.warning(
                "steps %s are not recorded: %s: %s", self.steps, type(error).__name__, error
            )
            self.phase = _Phase.OVER


_watches: list[RecordedSteps] = []


class Listener(NamedTuple):
    """What a watch of ranks hears of the training, beside its own wrappers."""

    bucket_is_sent: Callable[[], object] = bool  # by DDP
    loading_begins: Callable[[], object] = bool  # of a batch
    loading_ends: Callable[[], object] = bool
    backward_ends: Callable[[], object] = bool
    step_ends: Callable[[], object] = bool  # that the script marks, else the optimizer's


listener, _is_marked = Listener(), False


def listen(new: Listener) -> Callable[[], None]:
    """Have this one hear of the training; return a function that ends it."""
    globals().update(listener=new, _is_marked=False)
    return lambda: globals().update(listener=Listener())


def watch(steps: Steps, recorder: Recorder, times: StepTimes | None = None) -> None:
    """Record these steps.

    Until the first of them no range is written, and none after the last. `times` gets the lengths
    of steps before them and of their own.
    """
    unwatch()
    _watches.append(RecordedSteps(steps, recorder, times))
    nvtx_ranges.pause()


def unwatch() -> None:
    """Stop recording; ranges are written as usual from here on."""
    while _watches:
        watched = _watches.pop()
        never_began = watched.phase in {_Phase.WAITING, _Phase.PREPARED}
        watched.close()
        if never_began and watched.num_seen:
            _log.warning(
                "steps %s were to be recorded, and the process made %d step%s: nothing is recorded",
                watched.steps,
                watched.num_done,
                "s" * (watched.num_done != 1),
            )
        nvtx_ranges.resume()


def mark_begins(number: int) -> None:
    """Handle the beginning of a step that the script marks."""
    for watched in _watches:
        watched.mark_begins(number)
    globals().update(_is_marked=True)


def mark_ends(*, is_whole: bool = True) -> None:
    """Handle the end of the step that the script marked last, or that an exception ended it."""
    for watched in _watches:
        watched.mark_ends(is_whole=is_whole)
    listener.step_ends()


def loading_begins() -> None:
    """Handle the beginning of the wait for a batch."""
    listener.loading_begins()


def loading_ends() -> None:
    """Handle its end."""
    listener.loading_ends()


def pass_begins() -> None:
    """Handle the beginning of a forward or backward pass."""
    for watched in _watches:
        watched.pass_begins()


def backward_ends() -> None:
    """Handle the end of the outermost backward pass."""
    listener.backward_ends()


def optimizer_step_ends() -> None:
    """Handle the end of the outermost step of an optimizer."""
    for watched in _watches:
        watched.optimizer_step_ends()
    if not _is_marked:
        listener.step_ends()
