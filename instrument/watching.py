"""`instrument.watch`: which rank is slow, while the training runs.

Every rank divides each step into the time that it waits for others, the wait for its loader, and
the rest, its own. The wrappers tell where: watching takes the place of a recorder of their ranges.
DDP's reducer waits in C++, from the last bucket's send to the end of the backward pass.

Each `every` steps a thread puts medians into the store of the process group, a key-value store that
all ranks reach: other than a collective it needs no order among ranks, and none can hang in it.
Rank 0 compares them.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import json
import logging
import math
import os
import statistics
import threading
import time
from collections import deque
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from instrument import switch
from instrument.core import nvtx_ranges
from instrument.core.baseline import rank_number
from traceprof import labels

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Table = dict[str, Any]

_log = logging.getLogger("traceprof.instrument")

TIMEOUT_S = 10.0  # rank 0 waits this long for the others' times
NOISE_FACTOR = 3.0
MIN_NOISE = 0.01  # of the peers' own time
MIN_EXCESS = 0.01  # of a step
_MAX_WAITS = 1 << 14  # of a step: a thread without an optimizer has no end of one
_SLOTS = 4  # a rank may be this many windows ahead of rank 0's thread


class Times(NamedTuple):
    """A rank's medians over the steps of one window, in ns."""

    rank: int
    step: int  # the last one of the window
    step_ns: int
    own_ns: int
    wait_ns: int
    loader_ns: int
    spread_ns: int  # half the distance between the quartiles of its own time
    # ranks with which DDP reduces its gradients; empty where that is all of them, or unknown
    peers: Sequence[int] = ()

    def peers_of(self, all_times: Sequence[Times]) -> list[Times]:
        """Return the times of the ranks that should take as long."""
        others = [other for other in all_times if other.rank != self.rank]
        return [other for other in others if not self.peers or other.rank in self.peers]


class HostClock:
    """Marks are times of the host."""

    mark = staticmethod(time.perf_counter_ns)

    @staticmethod
    def is_over(_mark: int) -> bool:
        """Return whether the mark can be read."""
        return True

    @staticmethod
    def between(begin: int, end: int) -> int:
        """Return the time between two marks in ns."""
        return end - begin


class EventClock:
    """Marks are CUDA events on the current stream, which are read once the GPU has passed them."""

    def __init__(self, new_event: Callable[[], Any], is_capturing: Callable[[], bool]) -> None:
        self._new_event = new_event
        self._is_capturing = is_capturing

    def mark(self) -> Any:  # noqa: ANN401  (an event)
        """Record an event; None in the capture of a CUDA graph, whose part it would become."""
        if self._is_capturing():
            return None
        event = self._new_event()
        event.record()
        return event

    @staticmethod
    def is_over(mark: Any) -> bool:  # noqa: ANN401
        """Return whether the GPU has passed the event."""
        return bool(mark.query())

    @staticmethod
    def between(begin: Any, end: Any) -> int:  # noqa: ANN401
        """Return the time between two events in ns."""
        return int(begin.elapsed_time(end) * 1e6)


class _Step(NamedTuple):
    begin: Any
    end: Any
    waits: Sequence[tuple[Any, Any]]
    loader_ns: int


class _Thread(threading.local):
    def __init__(self) -> None:
        self.open: list[tuple[str, Any]] = []
        self.waits: deque[tuple[Any, Any]] = deque(maxlen=_MAX_WAITS)
        self.loader_ns = 0


WAIT, LOADER, BACKWARD, STEP, OPTIMIZER, OTHER = "wait", "loader", "backward", "step", "opt", ""
_KINDS = {
    labels.DATA_LOADING: LOADER,
    labels.BACKWARD: BACKWARD,
    labels.OPTIMIZER_STEP: OPTIMIZER,
    labels.WAIT: WAIT,
}


@functools.lru_cache(256)  # labels of steps have numbers
def kind_of(text: str) -> str:
    """Return what a range's label stands for."""
    if " group=" in text or text.startswith("wait op="):
        return WAIT
    if text.startswith("step "):
        return STEP
    return _KINDS.get(text, OTHER)


class StepTimer:
    """The steps of this process; the methods that wrappers call only append to lists.

    A step lasts from the end of one to the end of the next, so that the loader is in it.
    """

    def __init__(
        self, every: int, new_clock: Callable[[], Any], full: Callable[[int, list[_Step]], None]
    ) -> None:
        self.is_on = True
        self._every = every
        self._new_clock = new_clock
        self._clock: Any = HostClock()  # until the first step ends: there may be no group yet
        self.mark: Callable[[], Any] = HostClock.mark
        self._is_missing = False  # whether a time of this step is unknown
        self._full = full
        self._thread = _Thread()
        self._pid = os.getpid()
        self.reduction = ""  # the label of the operation that sent a bucket last
        self._sent: Any = None  # the mark of the last bucket's send in this backward pass
        self._begin: Any = None
        self._is_marked = False
        self._num_steps = 0
        self._steps: deque[_Step] = deque(maxlen=2 * every)

    def push(self, text: str) -> None:
        """Open a range."""
        try:
            kind, open_ = kind_of(text), self._thread.open
            is_nested = kind is WAIT and open_ and any(outer is WAIT for outer, _ in open_)
            if kind is OTHER or is_nested or not self.is_on:
                open_.append((OTHER, None))
                return
            if kind is STEP:
                self._is_marked = True
            elif kind is BACKWARD:
                self._sent = None
            elif self._sent is not None:
                self.reduction = text
            begin = time.perf_counter_ns() if kind is LOADER else None
            open_.append((kind, self.mark() if kind is WAIT else begin))
        except Exception:  # noqa: BLE001  (an observer must not stop the training)
            self._fail()

    def pop(self) -> None:
        """Close the range that this thread opened last."""
        thread = self._thread
        if not thread.open:
            return
        kind, begin = thread.open.pop()
        if kind is OTHER or not self.is_on:
            return
        try:
            if kind is WAIT:
                self.end(begin)
            elif kind is LOADER:
                thread.loader_ns += time.perf_counter_ns() - begin
            elif kind is BACKWARD:
                if self._sent is not None:
                    thread.waits.append((self._sent, self.mark()))
                    self._sent = None
            elif (kind is STEP) == self._is_marked:
                self._step_ends()
        except Exception:  # noqa: BLE001
            self._fail()

    def end(self, begin: Any) -> None:  # noqa: ANN401
        """Take a communication call that began at this mark."""
        try:
            now = self.mark()
            self._thread.waits.append((begin, now))
            if self._sent is not None:
                self._sent = now
        except Exception:  # noqa: BLE001
            self._fail()

    def _mark_event(self) -> Any:  # noqa: ANN401
        event = None
        try:
            event = self._clock.mark() if self.is_on else None
        except Exception:  # noqa: BLE001
            self._fail()
        self._is_missing = self._is_missing or event is None
        return event

    def start(self, text: str) -> None:
        """See that a bucket is sent; no range is opened."""
        try:
            if self.is_on and text.startswith(labels.BUCKET):
                self._sent = self.mark()
        except Exception:  # noqa: BLE001
            self._fail()

    def _fail(self) -> None:
        self.is_on = False
        _log.warning("steps are not watched any more", exc_info=True)

    def _step_ends(self) -> None:
        thread = self._thread
        waits, thread.waits = thread.waits, deque(maxlen=_MAX_WAITS)
        loader_ns, thread.loader_ns = thread.loader_ns, 0
        if self._num_steps == 0:  # launchers fork ranks
            self._pid = os.getpid()
        elif os.getpid() != self._pid:  # a process that a rank forked has no thread to report to
            return
        if self._num_steps == 0:
            self._clock, waits, self._sent = self._new_clock(), deque(), None
            self.mark = HostClock.mark if isinstance(self._clock, HostClock) else self._mark_event
        begin, self._begin = self._begin, self.mark()
        if self._is_missing or begin is None:
            self._is_missing = self._begin is None
        else:
            self._steps.append(_Step(begin, self._begin, waits, loader_ns))
        self._num_steps += 1
        if self._num_steps % self._every == 0:
            steps = [step for step in self._steps if self._clock.is_over(step.end)]
            for _ in steps:
                self._steps.popleft()
            self._full(self._num_steps, steps)

    def times(self, rank: int, number: int, steps: Sequence[_Step]) -> Times:
        """Return the medians of steps of which the last has this number."""
        between = self._clock.between
        rows = []
        for step in steps:
            whole = between(step.begin, step.end)
            wait = sum(between(*pair) for pair in step.waits)
            rows.append((whole, whole - wait - step.loader_ns, wait, step.loader_ns))
        whole_ns, own_ns, wait_ns, loader_ns = zip(*rows, strict=True)
        lower, _, upper = statistics.quantiles(own_ns, n=4, method="inclusive")
        medians = [int(statistics.median(ns)) for ns in (whole_ns, own_ns, wait_ns, loader_ns)]
        spread_ns = int((upper - lower) / 2)
        return Times(rank, number, medians[0], medians[1], medians[2], medians[3], spread_ns)


def excess_ns(times: Times, all_times: Sequence[Times], noise_factor: float = NOISE_FACTOR) -> int:
    """Return by how much a rank computes longer per step than the median of its peers, in ns.

    0 within the noise: three times the peers' spread over steps, which is at least 1 % of their
    time, and 1 % of a step.
    """
    peers = times.peers_of(all_times)
    if not peers:
        return 0
    usual = statistics.median(peer.own_ns for peer in peers)
    excess = times.own_ns - usual
    noise = max(statistics.median(peer.spread_ns for peer in peers), MIN_NOISE * usual)
    return int(excess) if excess > max(noise_factor * noise, MIN_EXCESS * times.step_ns) else 0


class Verdicts:
    """Which ranks are slow: those beyond the noise in two windows, one after the other."""

    def __init__(self, every: int) -> None:
        self.since: dict[int, int] = {}
        """By rank that is slow, the step with which its first slow window began."""
        self._every = every
        self._streaks: dict[int, int] = {}  # windows that say otherwise than `since`, by rank
        self._before: dict[int, Times] = {}

    def steadied(self, all_times: Sequence[Times]) -> list[Times]:
        """Return times whose spread is at least their change since the window before."""
        steady = []
        for times in all_times:
            before = self._before.get(times.rank, times)
            change = abs(times.own_ns - before.own_ns)
            steady.append(times._replace(spread_ns=max(times.spread_ns, change)))
            self._before[times.rank] = times
        return steady

    def lines(self, all_times: Sequence[Times]) -> list[str]:
        """Return a line for each rank that is slow from now on, or no more."""
        lines = []
        for times in all_times:
            rank = times.rank
            # A finding ends within the noise itself: at the limit it would come and go.
            excess = excess_ns(times, all_times, 1.0 if rank in self.since else NOISE_FACTOR)
            if bool(excess) == (rank in self.since):
                self._streaks.pop(rank, None)
                continue
            self._streaks[rank] = self._streaks.get(rank, 0) + 1
            if self._streaks[rank] < 2:
                continue
            del self._streaks[rank]
            begin = times.step - 2 * self._every
            if not excess:
                first = self.since.pop(rank)
                lines.append(
                    f"rank {rank} computes as long as its peers again since step {begin};"
                    f" it was slow since step {first}"
                )
                continue
            self.since[rank] = begin
            peers = times.peers_of(all_times)
            usual = statistics.median(peer.own_ns for peer in peers)
            waits = min(excess, statistics.median(peer.wait_ns for peer in peers))
            lines.append(
                f"rank {rank} computes {times.own_ns / max(usual, 1):.2f} x its peers since step"
                f" {begin}; the others wait {waits / 1e6:.1f} ms a step for it"
            )
        return lines


class _Window(NamedTuple):
    """A full window, and where its times go to."""

    number: int
    steps: list[_Step]
    store: Any
    rank: int
    size: int
    peers: Sequence[int] = ()


def _members(reduction: str, size: int) -> Sequence[int]:
    """Return the ranks of the group of this label; none where it is unknown, or that of all."""
    from torch.distributed import distributed_c10d  # noqa: PLC0415

    name = labels.parse(reduction).facts.get("group")
    for group, known in list(distributed_c10d._world.pg_names.items()):  # noqa: SLF001
        ranks = [*distributed_c10d._world.pg_group_ranks.get(group, ())]  # noqa: SLF001
        if known == name and 1 < len(ranks) < size:
            return sorted(ranks)
    return ()


class Reporter:
    """The thread that passes a rank's times on; on rank 0 it compares all ranks'."""

    def __init__(
        self, every: int, path: Path | None, callback: Callable[[Table], object] | None
    ) -> None:
        self._every = every
        self._path = path
        self._callback = callback
        self._has_complained = False
        self._windows: SimpleQueue[_Window | None] = SimpleQueue()
        self._verdicts = Verdicts(every)
        self._number = next(_numbers)  # the same on all ranks, which watch equally often
        self._answered: dict[int, int] = {}
        self._silent: set[int] = set()
        self._last = math.inf  # no wait lasts beyond this
        self._thread: threading.Thread | None = None
        self._clones: tuple[Any, Any] = (None, None)
        self.timer: StepTimer | None = None

    def try_path(self) -> None:
        """Say at once if no line can be written."""
        self._append("")

    def _append(self, text: str) -> None:
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            if not self._has_complained:
                self._has_complained = True
                _log.warning("no lines of the watch in %s: %s", self._path, error.strerror or error)

    def full(self, number: int, steps: list[_Step]) -> None:
        """Take a window of the training's thread, without waiting for anything."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="traceprof-watch", daemon=True)
            self._thread.start()
        from torch import distributed as dist  # noqa: PLC0415  (`watch` found it)
        from torch.distributed import distributed_c10d  # noqa: PLC0415

        store, rank, size = None, 0, 1
        peers: Sequence[int] = ()
        if dist.is_initialized():
            store = distributed_c10d._get_default_store()  # noqa: SLF001
            rank, size = dist.get_rank(), dist.get_world_size()
            peers = _members(self.timer.reduction, size) if self.timer is not None else ()
        self._windows.put(_Window(number, steps, store, rank, size, peers))

    def stop(self) -> None:
        """End the thread, after a second at most where others do not answer."""
        self._last = time.monotonic() + 1.0
        self._windows.put(None)
        if self._thread is not None:
            self._thread.join(2.0)

    def _run(self) -> None:
        while (window := self._windows.get()) is not None:
            self._try(window)

    def _try(self, window: _Window) -> None:
        try:
            self._pass_on(window)
        except Exception as error:  # noqa: BLE001  (the others are gone, or the store is)
            _log.info("step %d is not reported: %s", window.number, error)

    def _pass_on(self, window: _Window) -> None:
        if self.timer is None or window.store is None or len(window.steps) < 2:
            return
        times = self.timer.times(window.rank, window.number, window.steps)
        times = times._replace(peers=window.peers)
        store = self._own_connection(window.store)
        if window.rank != 0:
            store.set(self._key(window, window.rank), json.dumps(times))
            return
        others, silent = self._others(window, store)
        self._tell([times, *others], silent, window)

    def _own_connection(self, store: Any) -> Any:  # noqa: ANN401
        """Return a connection to the store: on its own, the training's would wait for ours."""
        if self._clones[0] is not store:
            self._clones = (store, store.clone() if hasattr(store, "clone") else store)
        return self._clones[1]

    def _key(self, window: _Window, rank: int) -> str:
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        slot = window.number // self._every % _SLOTS
        return f"traceprof/watch/{attempt}/{self._number}/{rank}/{slot}"

    def _others(self, window: _Window, store: Any) -> tuple[list[Times], list[int]]:  # noqa: ANN401
        """Return the other ranks' times, and the ranks that did not answer in time."""
        missing = {*range(1, window.size)}
        begin = time.monotonic()
        found = {}
        while missing:
            for rank in sorted(missing):
                key = self._key(window, rank)
                if store.check([key]):
                    times = Times(*json.loads(store.get(key)))
                    if times.step >= window.number:
                        found[rank] = times
                        self._answered[rank] = times.step
                        missing.discard(rank)
            limit = TIMEOUT_S / 10 if missing <= self._silent else TIMEOUT_S
            if time.monotonic() > min(begin + limit, self._last):
                break
            time.sleep(0.05 if missing else 0.0)
        return [found[rank] for rank in sorted(found)], sorted(missing)

    def _tell(self, all_times: list[Times], silent: list[int], window: _Window) -> None:
        lines = [
            f"rank {rank} did not answer since step {self._answered.get(rank, 0)}"
            for rank in silent
            if rank not in self._silent
        ]
        self._silent = set(silent)
        all_times = self._verdicts.steadied(all_times)
        lines += self._verdicts.lines(all_times)
        for line in lines:
            _log.warning("%s", line)
        table = {
            "step": window.number,
            "ranks": [
                times._asdict() | {"excess_ns": excess_ns(times, all_times)} for times in all_times
            ],
            "silent": silent,
            "slow": {str(rank): step for rank, step in self._verdicts.since.items()},
            "said": lines,
        }
        self._append(json.dumps(table) + "\n")
        if self._callback is not None:
            try:
                self._callback(table)
            except Exception:  # noqa: BLE001  (the user's, in our thread)
                _log.warning("the callback of the watch failed", exc_info=True)


_numbers = itertools.count()
_undo: list[Callable[[], object]] = []


def watch(
    every: int = 100,
    path: str | os.PathLike[str] | None = None,
    callback: Callable[[Table], object] | None = None,
) -> None:
    """Watch which rank is slow while the training runs; every rank calls it, before its steps.

    Rank 0 logs a line to `traceprof.instrument` when a rank becomes slower than its peers by more
    than the noise, and when that ends. `instrument.disable()` ends it.

    Args:
        every: number of steps after which the ranks are compared, at least 2.
        path: file to which rank 0 appends a line of JSON for each comparison.
        callback: called with the same table on rank 0, in a thread of its own.

    Raises:
        ValueError: `every` is less than 2.
    """
    if every < 2:
        raise ValueError(f"ranks are compared every 2 steps or more, not {every}")
    if _undo:
        switch.disable()
    if not _has_ranks():
        _log.warning("nothing is watched: there is no torch.distributed")
        return
    if switch.follows_profiler():
        _log.warning("nothing is watched: a torch.profiler records, which takes the same ranges")
        return
    reporter = Reporter(every, None if path is None else Path(path).absolute(), callback)
    if rank_number() == 0:
        reporter.try_path()
    timer = reporter.timer = StepTimer(every, _clock, reporter.full)
    switch.disable()
    ours = nvtx_ranges.Functions(timer.push, timer.pop, timer.start, bool, lambda text, _: text)
    is_recorded = nvtx_ranges.is_recording()
    restore = nvtx_ranges.observe(ours) if is_recorded else nvtx_ranges.use(ours, waits=timer)
    _undo[:] = [reporter.stop, restore]
    switch.after_disabling(_end)
    switch.enable()
    atexit.register(reporter.stop)


def _has_ranks() -> bool:
    """Return whether there is a PyTorch, and it was built with torch.distributed."""
    try:
        from torch import distributed  # noqa: PLC0415
    except ImportError:
        return False
    return distributed.is_available()


def _end() -> None:
    while _undo:
        _undo.pop()()


def _clock() -> HostClock | EventClock:
    """Return events for NCCL, else the host's clock."""
    import torch  # noqa: PLC0415
    from torch import distributed as dist  # noqa: PLC0415

    if dist.is_initialized() and "nccl" in dist.get_backend():
        cuda: Any = torch.cuda
        return EventClock(lambda: cuda.Event(enable_timing=True), cuda.is_current_stream_capturing)
    return HostClock()
