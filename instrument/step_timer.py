"""The steps of a rank that is watched: how long each is, and how long it waits for others.

With Gloo the host waits, for the works that operations return: launches are its own time. NCCL's
launches put work on a stream, which waits there: events around each launch and each wait tell how
long. DDP's reducer waits in C++, from the last bucket's send to the end of the backward pass.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from threading import get_ident
from time import perf_counter_ns
from typing import Any, NamedTuple

import torch
from torch import distributed as dist
from torch.distributed import _functional_collectives

from instrument.core import calls, operations, steps
from instrument.core.patching import Patches
from instrument.core.wrapping import untraced
from instrument.wraps import collectives, functional, process_groups

_log = logging.getLogger("traceprof.instrument")

_TRANSFERS = {"send", "recv", "recv_anysource"}
_MAX_MARKS = 1 << 16  # of a step: a process without an optimizer has no end of one


Step = tuple[Any, Any, "Sequence[Any]", int]
"""Begin, end, and the begin and end of each wait, in ns of the host's clock or as CUDA events; the
ns in the loader."""


class Window(NamedTuple):
    """The steps since the last window, and this rank's place among all."""

    number: int  # of the last step
    steps: Sequence[Step] = ()
    store: Any = None  # of the process group, if there is one
    rank: int = 0
    size: int = 1
    peers: Sequence[int] = ()

    def parts(self) -> list[tuple[int, int, int, int]]:
        """Return the ns of each step, in all, its own, waiting for others, and for the loader.

        Steps in which a CUDA graph was captured are left out.
        """
        rows = []
        for begin, end, waits, loader_ns in self.steps:
            marks = [begin, end, *waits]
            if None in marks:
                continue
            if not isinstance(end, int):
                marks = [int(begin.elapsed_time(mark) * 1e6) for mark in marks]
            whole, wait = marks[1] - marks[0], covered(marks[2:], marks[0])
            rows.append((whole, whole - wait - loader_ns, wait, loader_ns))
        return rows


class StepTimer:
    """The steps of this process; what wrappers call only appends to lists.

    A step lasts from the end of one to the end of the next, so that the loader is in it.
    """

    def __init__(self, every: int, full: Callable[[Window], object]) -> None:
        self._every, self._full = every, full
        self._is_on = True
        self.mark: Callable[[], Any] = perf_counter_ns
        self.marks: deque[Any] = deque(maxlen=_MAX_MARKS)  # since the last step
        self.transfers: set[str] = set()
        self.patches = Patches()  # below those of all recorders
        self.ident = self._pid = 0  # of the thread and the process whose steps these are
        self._sent: list[Any] = []  # the mark of this backward pass's last bucket
        self._num_steps = self._num_sent = 0  # sent: buckets since the last step
        self._load_begin = self._loader_ns = 0
        self._begin: Any = None
        self._steps: deque[Step] = deque(maxlen=2 * every)
        self._counts: dict[str, int] = {}  # of operations, by group
        self.excerpt: steps.RecordedSteps | None = None
        self.listener = steps.Listener(
            self._bucket_is_sent,
            self._loading_begins,
            self._loading_ends,
            self._backward_ends,
            self._step_ends,
        )

    def _is_here(self) -> bool:
        return not self.ident or get_ident() == self.ident

    def _loading_begins(self) -> None:
        if self._is_here():
            self._load_begin = perf_counter_ns()

    def _loading_ends(self) -> None:
        if self._is_here():
            self._loader_ns += perf_counter_ns() - self._load_begin

    @untraced
    def _bucket_is_sent(self) -> None:
        self._sent = [self.mark()]
        self._num_sent += 1

    def _backward_ends(self) -> None:
        if self._sent and self._is_here():
            self.marks.extend((*self._sent, self.mark()))
            self._sent = []

    def _step_ends(self) -> None:
        if not self._is_here():
            return
        if self._num_steps == 0:
            self._try(self._choose_clock)
        begin, self._begin = self._begin, self.mark()
        if begin is not None:
            self._steps.append((begin, self._begin, (*self.marks,), self._loader_ns))
        self._loader_ns = self._num_sent = 0
        self.marks.clear()
        self._num_steps += 1
        if self._num_steps % self._every == 0 or self._num_steps == 1 or self.excerpt is not None:
            self._try(self._pass_on)

    @untraced
    def _try(self, what: Callable[[], Any]) -> Any:  # noqa: ANN401
        try:
            return what() if self._is_on else None
        except Exception:  # noqa: BLE001  (an observer must not stop the training)
            self._is_on = False
            _log.warning("steps are not watched any more", exc_info=True)

    def _choose_clock(self) -> None:
        """Take events for NCCL, and its launches; launchers have forked ranks by now."""
        self._pid, self.ident = os.getpid(), get_ident()
        if dist.is_initialized() and "nccl" in dist.get_backend():
            launches = calls.originals([_functional_collectives], functional.PARAMETERS)
            _time(self, process_groups.METHODS, launches.values())
            self.marks.clear()
            self.mark, self._sent = partial(self._try, _event), []

    def _pass_on(self) -> None:
        if os.getpid() != self._pid:  # a process that a rank forked has no thread to report to
            return
        if self._num_steps % self._every == 0 or self._num_steps == 1:
            known = [one for one in self._steps if isinstance(one[1], int | None) or one[1].query()]
            for _ in known:
                self._steps.popleft()
            self._full(self._window(known))
        if self.excerpt is not None:
            before = self.excerpt.phase
            self.excerpt.mark_ends()
            self.excerpt.mark_begins(self._num_steps)
            if self.excerpt.phase is not before:
                self._begin = None  # it took long

    def _window(self, known: list[Step]) -> Window:
        if not dist.is_initialized():
            return Window(self._num_steps, known)
        rank, size = dist.get_rank(), dist.get_world_size()
        store = dist.distributed_c10d._get_default_store()  # noqa: SLF001
        return Window(self._num_steps, known, store, rank, size, self._peers(rank, size))

    def _peers(self, rank: int, size: int) -> Sequence[int]:
        """Return the ranks of the smaller groups that had a collective in each step, if any had."""
        least = max(self._every - 1, 1)  # counts begin when the first step of the first window ends
        peers = {
            peer
            for name, num, ranks in operations.count_in_groups(self._counts)
            if num >= least and len(ranks) < size and name not in self.transfers
            for peer in ranks
        }
        return sorted(peers) or ([rank] if self.transfers else ())

    def progress(self) -> tuple[int, int, int, str]:
        """Return the numbers of steps, and since the last one of marks and buckets; the line.

        The line is the script's; it is empty in a call.
        """
        return self._num_steps, len(self.marks), self._num_sent, calls.line_of(self.ident)


def covered(marks: Sequence[int], start: int = 0) -> int:
    """Return the time from `start` on in a span or in more of them: begin, end, begin, …."""
    if sorted(ordered := [start, *marks]) == ordered:  # nearly always, and twenty times as fast
        return sum(marks[1::2]) - sum(marks[::2])
    total, reached = 0, start
    for begin, end in sorted(zip(marks[::2], marks[1::2], strict=True)):
        total += max(end - max(begin, reached), 0)
        reached = max(end, reached)
    return total


@untraced
def _event() -> Any:  # noqa: ANN401
    """Record a CUDA event on the current stream; none into a graph, whose part it would become."""
    if torch.cuda.is_current_stream_capturing():
        return None
    cuda: Any = torch.cuda
    event = cuda.Event(enable_timing=True)
    event.record()
    return event


def install(timer: StepTimer) -> None:
    """Have a timer take the calls in which the host waits for other ranks."""
    for method in process_groups.WAITS:
        timer.patches.replace(dist.Work, method, calls.timed_method(dist.Work, method, timer))
    known = calls.originals([dist], collectives.PARAMETERS).values()
    in_cpp = [one for one in known if not inspect.isfunction(one)]
    _time(timer, ["monitored_barrier", *_TRANSFERS], [_functional_collectives.wait_tensor, *in_cpp])


def _time(
    timer: StepTimer, methods: Iterable[str], functions: Iterable[Callable[..., Any]]
) -> None:
    group = dist.ProcessGroup
    for method in vars(group).keys() & {*methods}:
        is_transfer = method in _TRANSFERS
        wrapper = calls.timed_method(group, method, timer, is_transfer=is_transfer)
        timer.patches.replace(group, method, wrapper)
    timer.patches.replace_each_everywhere((one, calls.timed(one, timer)) for one in functions)
