"""The steps of a rank that is watched: how long each is, and how long it waits for others.

With Gloo the host waits, for the works that operations return: launches are its own time. NCCL's
launches put work on a stream, which waits there: events around each launch and each wait tell how
long. DDP's reducer waits in C++, from the last bucket's send to the end of the backward pass.
Steps, backward passes and the loader's time come from the wrappers' ranges, as a recorder's do.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import distributed as dist
from torch.distributed import _functional_collectives

from instrument.core import calls
from instrument.core.patching import Patches
from instrument.core.wrapping import untraced
from instrument.wraps import collectives, functional, process_groups
from traceprof import labels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from instrument.torch_trace import Excerpt

_log = logging.getLogger("traceprof.instrument")

_MAX_CALLS = 1 << 15  # of a step: a process without an optimizer has no end of one
_STEP = f"{labels.STEP} "


class HostClock:
    """Marks are times of the host."""

    mark = staticmethod(time.perf_counter_ns)
    is_over = staticmethod(lambda _mark: True)
    between = staticmethod(lambda begin, end: end - begin)


class EventClock:
    """Marks are CUDA events on the current stream, which are read once the GPU has passed them."""

    def __init__(self, new_event: Callable[[], Any], is_capturing: Callable[[], bool]) -> None:
        self._new_event = new_event
        self._is_capturing = is_capturing

    @untraced
    def mark(self) -> Any:  # noqa: ANN401  (an event)
        """Record an event; None in the capture of a CUDA graph, whose part it would become."""
        if self._is_capturing():
            return None
        event = self._new_event()
        event.record()
        return event

    is_over = staticmethod(lambda mark: bool(mark.query()))
    between = staticmethod(lambda begin, end: int(begin.elapsed_time(end) * 1e6))


class Step(NamedTuple):
    """Marks of a step and of the calls in it."""

    begin: Any
    end: Any
    calls: Iterable[tuple[Any, Any, int]]
    loader_ns: int


class _Thread(threading.local):
    def __init__(self) -> None:
        self.open: list[tuple[str, int]] = []
        self.loader_ns = 0


class StepTimer:
    """The steps of this process; the methods that wrappers call only append to lists.

    A step lasts from the end of one to the end of the next, so that the loader is in it.
    """

    def __init__(
        self,
        every: int,
        full: Callable[[int, list[Step]], None],
        new_clock: Callable[[StepTimer], Any] | None = None,
    ) -> None:
        self.is_on = True
        self._every, self._full, self._new_clock = every, full, new_clock or _new_clock
        self._clock: Any = HostClock()  # until the first step ends: there may be no group yet
        self.mark: Callable[[], Any] = HostClock.mark
        self.calls: deque[tuple[Any, Any, int]] = deque(maxlen=_MAX_CALLS)  # since the last step
        self.transfers: set[str] = set()
        self.patches = Patches()  # below those of all recorders
        self._is_missing = self._is_marked = False  # whether a time of this step is unknown
        self._thread = _Thread()
        self._pid, self._ident = os.getpid(), 0  # of the thread whose steps these are
        # The mark of the last bucket's send in this backward pass, and the calls until then.
        self._sent: tuple[Any, int] | None = None
        self._begin: Any = None
        self._num_steps = self._num_sent = 0  # sent: buckets since the last step
        self._steps: deque[Step] = deque(maxlen=2 * every)
        self.excerpt: Excerpt | None = None

    def push(self, text: str) -> None:
        """Open a range."""
        if text.startswith(_STEP):
            text = labels.STEP
            self._is_marked = True
        self._thread.open.append((text, time.perf_counter_ns()))

    def pop(self) -> None:
        """Close the range that this thread opened last."""
        thread = self._thread
        if not thread.open:
            return
        text, begin = thread.open.pop()
        try:
            if not self.is_on:
                return
            if text == labels.DATA_LOADING:
                thread.loader_ns += time.perf_counter_ns() - begin
            elif text == labels.BACKWARD:
                sent, self._sent = self._sent, None
                if sent is not None:  # from the end of a later call, perhaps of the send itself
                    last = self.calls[-1][1] if len(self.calls) > sent[1] else sent[0]
                    self.calls.append((last, self.mark(), threading.get_ident()))
            elif text == (labels.STEP if self._is_marked else labels.OPTIMIZER_STEP):
                self._step_ends()
        except Exception:  # noqa: BLE001  (an observer must not stop the training)
            self._fail()

    @untraced
    def _mark_event(self) -> Any:  # noqa: ANN401
        event = None
        try:
            event = self._clock.mark() if self.is_on else None
        except Exception:  # noqa: BLE001
            self._fail()
        self._is_missing |= event is None
        return event

    def start(self, text: str) -> None:
        """See that a bucket is sent; no range is opened."""
        if self.is_on and text.startswith(labels.BUCKET):
            self._sent = self.mark(), len(self.calls)
            self._num_sent += 1

    def _fail(self) -> None:
        self.is_on = False
        _log.warning("steps are not watched any more", exc_info=True)

    def _step_ends(self) -> None:
        thread = self._thread
        calls, self.calls = self.calls, deque(maxlen=_MAX_CALLS)
        loader_ns, thread.loader_ns = thread.loader_ns, 0
        if self._num_steps == 0:  # launchers fork ranks
            self._pid, self._ident = os.getpid(), threading.get_ident()
            self._clock, self._sent = self._new_clock(self), None
            self.mark = HostClock.mark if isinstance(self._clock, HostClock) else self._mark_event
        elif os.getpid() != self._pid:  # a process that a rank forked has no thread to report to
            return
        begin, self._begin = self._begin, self.mark()
        if not self._is_missing and begin is not None:
            self._steps.append(Step(begin, self._begin, calls, loader_ns))
        self._is_missing = self._begin is None
        self._num_sent = 0
        self._num_steps += 1
        if self.is_on and (self._num_steps == 1 or self._num_steps % self._every == 0):
            steps = [step for step in self._steps if self._clock.is_over(step.end)]
            for _ in steps:
                self._steps.popleft()
            self._full(self._num_steps, steps)
        if self.excerpt is not None:
            self._is_missing |= self.excerpt.step_ends(self._num_steps)  # it takes long

    def progress(self) -> tuple[int, int, str]:
        """Return the steps done, the calls begun since, and the script's line if in none."""
        line = calls.line_of(self._ident)
        return self._num_steps, self._num_sent + len(self.calls) + (not line), line

    def parts(self, steps: Sequence[Step]) -> list[tuple[int, int, int, int]]:
        """Return the ns of each step, in all, its own, waiting for others, and for the loader."""
        between = self._clock.between
        rows = []
        for step in steps:
            whole = between(step.begin, step.end)
            wait = covered(
                (between(step.begin, begin), between(step.begin, end))
                for begin, end, ident in step.calls
                if ident == self._ident
            )
            rows.append((whole, whole - wait - step.loader_ns, wait, step.loader_ns))
        return rows


def covered(spans: Iterable[tuple[int, int]]) -> int:
    """Return how much of the time from 0 on is in one of these spans, or in more."""
    total = reached = 0
    for begin, end in sorted(spans):
        total += max(end - max(begin, reached), 0)
        reached = max(end, reached)
    return total


def time_waits(timer: StepTimer) -> None:
    """Have a timer take the calls in which the host waits for other ranks."""
    for method in process_groups.WAITS:
        timer.patches.replace(dist.Work, method, calls.timed_method(dist.Work, method, timer))
    for method in ("monitored_barrier", "send", "recv", "recv_anysource"):
        _time_method(timer, method, is_transfer=method != "monitored_barrier")
    in_cpp = calls.originals([dist], collectives.DESCRIBE).values()
    functions = [
        _functional_collectives.wait_tensor,
        *(one for one in in_cpp if not inspect.isfunction(one)),
    ]
    timer.patches.replace_each_everywhere((one, calls.timed(one, timer)) for one in functions)


def _time_method(timer: StepTimer, method: str, *, is_transfer: bool = False) -> None:
    if method in vars(dist.ProcessGroup):  # of this version
        wrapper = calls.timed_method(dist.ProcessGroup, method, timer, is_transfer=is_transfer)
        timer.patches.replace(dist.ProcessGroup, method, wrapper)


def _time_launches(timer: StepTimer) -> None:
    """Have a timer take the calls that put work on a stream, which waits for other ranks there."""
    for method in process_groups.METHODS:
        _time_method(timer, method)
    functions = calls.originals([_functional_collectives], functional.DESCRIBE).values()
    timer.patches.replace_each_everywhere((one, calls.timed(one, timer)) for one in functions)


def _new_clock(timer: StepTimer) -> HostClock | EventClock:
    """Return events for NCCL, else the host's clock."""
    if not dist.is_initialized() or "nccl" not in dist.get_backend():
        return HostClock()
    _time_launches(timer)
    cuda: Any = torch.cuda
    new_event = functools.partial(cuda.Event, enable_timing=True)
    return EventClock(new_event, cuda.is_current_stream_capturing)
