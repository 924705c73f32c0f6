"""`instrument.watch`: which rank is slow, while the training runs.

Every rank divides each step into the time that it waits for others, the wait for its loader, and
the rest, its own.

A thread puts medians of each `every` steps, and once a second how far the training is, into the
store of the process group, a key-value store that all ranks reach: other than a collective it needs
no order among ranks, and none can hang in it. Rank 0 compares them. While a step does not end, who
holds it up is who gives no such sign of life, or is behind and waits for nobody. Rank 0 says so,
and where it is silent itself the first rank that is not.
"""

from __future__ import annotations

import atexit
import itertools
import json
import logging
import math
import os
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from instrument import switch
from instrument.core import steps
from instrument.core.baseline import rank_number

if TYPE_CHECKING:
    from instrument.step_timer import Window

Table = dict[str, Any]
Callback = Callable[[Table], object]

_log = logging.getLogger("traceprof.instrument")

TIMEOUT_S = 10.0  # rank 0 waits this long for the others' times and signs of life
BEAT_S = 1.0  # between two signs of life
NOISE_FACTOR = 3.0
MIN_NOISE = 0.01  # of the peers' own time
MIN_EXCESS = 0.01  # of a step
EXCERPT_EVERY_S = 3600.0
NUM_KEPT = 3  # windows in a sign of life: rank 0 may read it later than the next one ends


class Times(NamedTuple):
    """A rank's steps in one window, in ns: medians, and the mean of the waits for its loader."""

    rank: int
    step: int  # the last one of the window
    step_ns: int
    own_ns: int
    wait_ns: int
    loader_ns: int
    spread_ns: int = 0  # of its own time
    loader_error_ns: int = 0  # standard error of the mean
    peers: Sequence[int] = ()  # ranks that should take as long; empty for all

    @classmethod
    def of(cls, window: Window, rows: Sequence[Sequence[int]], before: Times | None) -> Times:
        """Return times from the parts of each step, and from the window before."""
        *columns, loader_ns = zip(*rows, strict=True)
        step_ns, own_ns, wait_ns = (int(statistics.median(column)) for column in columns)
        error = statistics.stdev(loader_ns) / len(rows) ** 0.5
        lower, _, upper = statistics.quantiles(columns[1], n=4, method="inclusive")
        change = abs(own_ns - before.own_ns) if before else 0
        times = step_ns, own_ns, wait_ns, int(statistics.fmean(loader_ns))
        noise = max(int((upper - lower) / 2), change), int(error)
        return cls(window.rank, window.number, *times, *noise, window.peers)

    def peers_of(self, all_times: Sequence[Times]) -> list[Times]:
        """Return the times of the ranks that should take as long."""
        peers = self.peers or [other.rank for other in all_times]
        return [other for other in all_times if other.rank in peers and other.rank != self.rank]


_FIELDS = {"slow": ("own_ns", "spread_ns"), "slow_loaders": ("loader_ns", "loader_error_ns")}


def excess_ns(
    times: Times, all_times: Sequence[Times], kind: str = "slow", factor: float = NOISE_FACTOR
) -> int:
    """Return by how much a rank computes longer per step than the median of its peers, in ns.

    0 within the noise: three times the peers' spread over steps, which is at least 1 % of their
    time, and 1 % of a step. For `slow_loaders`, by how much it waits longer for its loader, in the
    mean, as waits may come in few steps; noise is the standard error, and its own one counts, too.
    """
    peers = times.peers_of(all_times)
    if not peers:
        return 0
    usual, noise = (
        statistics.median(getattr(peer, name) for peer in peers) for name in _FIELDS[kind]
    )
    if kind == "slow_loaders":
        noise = max(noise, times.loader_error_ns)
    excess = getattr(times, _FIELDS[kind][0]) - usual
    limit = max(factor * max(noise, MIN_NOISE * usual), MIN_EXCESS * times.step_ns)
    return int(excess) if excess > limit else 0


class Verdicts:
    """Which ranks are slow: those beyond the noise in two windows, one after the other."""

    def __init__(self, every: int) -> None:
        # By slow rank, the step when its first slow window began.
        self.since: dict[str, dict[int, int]] = {kind: {} for kind in _FIELDS}
        self.begun: list[Times] = []  # of ranks that the last window made slow
        self._every = every
        self._others: set[tuple[str, int]] = set()  # whose last window says otherwise

    def lines(self, all_times: Sequence[Times]) -> list[str]:
        """Return a line for each rank that is slow from now on, or no more."""
        lines, others, self.begun = [], set(), []
        for times, (kind, since) in itertools.product(all_times, self.since.items()):
            rank, of_loader = times.rank, kind == "slow_loaders"
            # A finding ends within the noise itself: at the limit it would come and go.
            excess = excess_ns(times, all_times, kind, 1.0 if rank in since else NOISE_FACTOR)
            if bool(excess) == (rank in since):
                continue
            if (kind, rank) not in self._others:
                others.add((kind, rank))
                continue
            begin, peers = times.step - 2 * self._every, times.peers_of(all_times)
            if rank in since:
                line = (
                    f"{'waits for its loader' if of_loader else 'computes'} as long as its peers"
                    f" again since step {begin}; it was slow since step {since.pop(rank)}"
                )
            else:
                since[rank] = begin
                self.begun.append(times)
                if of_loader:
                    line = (
                        f"waits {times.loader_ns / 1e6:.1f} ms a step for its loader since step"
                        f" {begin}, its peers {(times.loader_ns - excess) / 1e6:.1f} ms"
                    )
                else:
                    ratio = times.own_ns / max(times.own_ns - excess, 1)
                    waits = min(excess, statistics.median(peer.wait_ns for peer in peers))
                    line = (
                        f"computes {ratio:.2f} x its peers since step {begin}; the others wait"
                        f" {waits / 1e6:.1f} ms a step for it"
                    )
            lines.append(f"rank {rank} {line}")
        self._others = others
        return lines


class _Sign(NamedTuple):
    # What a rank puts into the store; the default stands for a rank that never did.
    at: float | None = 0.0  # None: its watch is over
    step: int = 0
    activity: int = 0  # changes with each call
    num_sent: int = 0  # buckets of DDP in this step
    line: str = ""  # of the script, unless it is in a call
    times: Sequence[Sequence[Any]] = ()  # of its last windows
    asked: Sequence[int] = ()  # by rank 0: from which step on who is to record

    def window(self, number: int) -> Times | None:
        return next((Times(*row) for row in self.times if row[1] >= number), None)


class Reporter:
    """The threads that pass a rank's times on; on rank 0 they compare all ranks'."""

    def __init__(
        self, every: int, path: Path | None, callback: Callback | None, *, records: bool = False
    ) -> None:
        from instrument.step_timer import StepTimer, Window  # noqa: PLC0415  (imports torch)

        self.timer, self._window = StepTimer(every, self.full), Window(0)
        self._path, self._callback, self._records = path, callback, records
        self._has_complained = False
        self._windows: SimpleQueue[Window | None] = SimpleQueue()
        self._tables: SimpleQueue[Table | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._verdicts = Verdicts(every)
        # The same on all ranks, which watch equally often.
        self._prefix = f"traceprof/watch/{next(_numbers)}/"
        self._store: Any = None  # a connection of its own: the training's would wait for ours
        self._times: deque[Times] = deque(maxlen=NUM_KEPT)
        self._due: deque[tuple[int, float]] = deque()  # steps to compare; how long to wait
        self._last = math.inf  # no wait lasts beyond this
        self._said: set[str] = set()  # of ranks that are silent or stuck
        # What was read at each beat. Ten: this rank may have been stopped itself.
        num_beats = max(round(TIMEOUT_S / BEAT_S), 2)
        self._beats: deque[dict[int, _Sign]] = deque([{}] * num_beats, maxlen=num_beats)
        self._asked: Sequence[int] = ()
        self._recorded = 0  # from which step on this rank recorded last
        self._next_excerpt = 0.0  # when one may be asked for

    def append(self, text: str) -> None:
        """Write lines; say once if that cannot be done."""
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a+b") as file:
                file.seek(max(file.tell() - 1, 0))
                if file.read(1) not in {b"", b"\n"}:  # cut by an end of the job, or a full disk
                    text = f"\n{text}"
                file.write(text.encode())
        except OSError as error:
            if not self._has_complained:
                _log.warning("no lines of the watch in %s: %s", self._path, error.strerror or error)
            self._has_complained = True

    def full(self, window: Window) -> None:
        """Take a window of the training's thread, without waiting for anything."""
        if not self._threads:
            for work in (self._run, self._say):
                thread = threading.Thread(target=work, name="traceprof-watch", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._windows.put(window)

    def stop(self) -> None:
        """End the threads, after a second at most where others do not answer."""
        self._last = time.monotonic() + 1.0
        if self.timer.excerpt is not None:
            self.timer.excerpt.close()
        self._windows.put(None)
        for thread in self._threads:
            thread.join(2.0)

    def _run(self) -> None:
        is_over = False
        while not is_over or self._due or not self._windows.empty():
            is_over, window = self._last < math.inf, None
            with suppress(Empty):
                window = self._windows.get(timeout=BEAT_S / 20 if is_over else BEAT_S)
            try:
                if window is not None:
                    self._take(window)
                if self._store is not None:
                    self._turn(is_beat=window is None and not is_over, is_over=is_over)
            except Exception as error:  # noqa: BLE001  (the others are gone, or the store is)
                _log.info("steps are not reported: %s", error)
                self._due.clear()
        self._tables.put(None)

    def _take(self, window: Window) -> None:
        if window.store is not self._window.store:
            self._store = getattr(window.store, "clone", lambda: window.store)()
            self._due.clear()
        self._window, rows = window, window.parts()
        if len(rows) > 1:
            self._times.append(Times.of(window, rows, self._times[-1] if self._times else None))
            if window.rank == 0 and self._store is not None:
                self._due.append((window.number, time.monotonic() + TIMEOUT_S))

    def _turn(self, *, is_beat: bool, is_over: bool) -> None:
        """Give a sign of life, and read those of all ranks, or up to one that lives before ours."""
        own_rank, before = self._window.rank, self._beats[0]
        at, signs, silent = None if is_over else time.monotonic(), dict[int, _Sign](), {}
        own = _Sign(at, *self.timer.progress(), [*self._times], self._asked)
        self._store.set(f"{self._prefix}{own_rank}", json.dumps(own))
        for rank in range(self._window.size):
            sign = signs[rank] = own if rank == own_rank else self._sign_of(rank)
            if rank in before and before[rank].at == sign.at is not None:
                silent[rank] = sign.step
            elif rank < own_rank:
                break
        first, *ranks = signs[0].asked or (0,)
        if self._records and first > self._recorded and own_rank in ranks:
            self._recorded = first
            self._record(first)
        if own_rank == 0:
            self._compare(signs)
        if is_beat:
            self._beats.append(signs)
            stuck = {} if silent else _stuck(signs, before)
            if len(signs) == self._window.size and (silent or stuck):
                table = self.table(own.step, [], silent, stuck)
                if table["said"]:
                    self._tables.put(table)

    def _sign_of(self, rank: int) -> _Sign:
        key = f"{self._prefix}{rank}"
        return _Sign(*json.loads(self._store.get(key))) if self._store.check([key]) else _Sign()

    def _compare(self, signs: dict[int, _Sign]) -> None:
        """Make tables of the windows that all ranks had, or that some did not have in time."""
        while self._due:
            number, limit = self._due[0]
            found = {rank: sign.window(number) for rank, sign in signs.items()}
            silent = {rank: signs[rank].step for rank, times in found.items() if times is None}
            if silent and time.monotonic() < min(limit, self._last):
                return
            self._due.popleft()
            self._tables.put(self.table(number, [*filter(None, found.values())], silent, {}))

    def table(
        self, step: int, rows: list[Times], silent: dict[int, int], stuck: dict[int, str]
    ) -> Table:
        """Return what is to be said of this step, and ask for a recording of a slow rank."""
        # A rank that lives without ending a window makes further steps.
        absent = {f"rank {rank} did not answer": f" since step {at}" for rank, at in silent.items()}
        for rank, line in stuck.items():
            absent[f"rank {rank} gets no further than {line} after step {step}"] = ""
        lines = [f"{what}{when}" for what, when in absent.items() if what not in self._said]
        self._said = {*absent}
        lines += self._verdicts.lines(rows)
        if self._records and self._verdicts.begun and time.monotonic() >= self._next_excerpt:
            lines.append(self._ask_for_excerpt(rows))
        ranks = [
            row._asdict()
            | {"excess_ns": excess_ns(row, rows)}
            | {"loader_excess_ns": excess_ns(row, rows, "slow_loaders")}
            for row in rows
        ]
        table = {"step": step, "ranks": ranks, "silent": [*silent], "stuck": stuck}
        table |= {**self._verdicts.since, "said": lines}
        copy: Table = json.loads(json.dumps(table))  # with texts as keys
        return copy

    def _ask_for_excerpt(self, rows: list[Times]) -> str:
        self._next_excerpt = time.monotonic() + EXCERPT_EVERY_S
        slowest = max(self._verdicts.begun, key=lambda row: row.own_ns + row.loader_ns)
        peers = sorted(slowest.peers_of(rows), key=lambda row: row.own_ns)
        ranks = slowest.rank, peers[(len(peers) - 1) // 2].rank
        until_heard = math.ceil(4e9 * BEAT_S / max(slowest.step_ns, 1))
        first = self.timer.progress()[0] + until_heard
        self._asked = first, *ranks
        return "ranks {} and {} record ten steps from step {} on".format(*ranks, first)

    def _record(self, first: int) -> None:
        from instrument.torch_trace import Excerpt  # noqa: PLC0415  (it imports torch)
        from instrument.wraps.pauses import follow_collections  # noqa: PLC0415

        folder = (self._path or Path("watch").absolute()).with_suffix(".recorded")
        self.timer.excerpt = Excerpt(folder, first, follow_collections).steps

    def _say(self) -> None:
        # A disk, a handler or the callback may hold this thread up, and so no sign of life.
        while (table := self._tables.get()) is not None:
            self.say(table)

    def say(self, table: Table) -> None:
        """Log a table's lines, write it, and on rank 0 call the callback."""
        for line in table["said"]:
            _log.warning("%s", line)
        self.append(f"{json.dumps(table)}\n")
        try:
            if self._callback is not None and self._window.rank == 0:
                self._callback(table)
        except Exception:  # noqa: BLE001  (the user's, in our thread)
            _log.warning("the callback of the watch failed", exc_info=True)


def _stuck(signs: dict[int, _Sign], before: dict[int, _Sign]) -> dict[int, str]:
    """Return who is in no call, for which others wait while nobody gets further; the line of each.

    `signs` are those of now, `before` of some beats ago.
    """
    living = {rank: sign for rank, sign in signs.items() if sign.at is not None}
    if any(before.get(rank, ())[1:4] != sign[1:4] for rank, sign in living.items()):
        return {}
    place = {rank: (one.step, one.num_sent, not one.line) for rank, one in living.items()}
    least, most = min(place.values()), max(place.values())
    behind = (rank for rank in living if place[rank] == least < most)
    return {rank: living[rank].line for rank in behind if living[rank].line}


_numbers = itertools.count()


def watch(
    every: int = 100,
    path: str | os.PathLike[str] | None = None,
    callback: Callback | None = None,
    on_straggler: str | None = None,
) -> None:
    """Watch which rank is slow while the training runs; every rank calls it, before its steps.

    Rank 0 logs a line to `traceprof.instrument` when a rank becomes slower than its peers by more
    than the noise, and when that ends. `instrument.disable()` ends it.

    Args:
        every: number of steps after which the ranks are compared, at least 2.
        path: file to which rank 0 appends a line of JSON for each comparison.
        callback: called with the same table on rank 0, in a thread of its own.
        on_straggler: `"record"` to record ten steps of a rank that becomes slow, and of a peer,
            with torch.profiler, once an hour at most, into `watch.recorded` beside the path.

    Raises:
        ValueError: `every` is less than 2, or `on_straggler` something else.
    """
    if every < 2:
        raise ValueError(f"ranks are compared every 2 steps or more, not {every}")
    if on_straggler not in {None, "record"}:
        raise ValueError(f"on_straggler is 'record' or None, not {on_straggler!r}")
    switch.end_watch()
    if switch.follows_profiler():
        _log.warning("nothing is watched: a torch.profiler records, whose ranges would end")
        return
    try:
        from instrument.step_timer import install  # noqa: PLC0415  (it imports torch)

        path = None if path is None else Path(path).absolute()
        reporter = Reporter(every, path, callback, records=on_straggler is not None)
        if rank_number() == 0:
            reporter.append("")
        switch.disable()
        switch.after_disabling(reporter.timer.patches.restore)
        install(reporter.timer)
        switch.after_disabling(steps.listen(reporter.timer.listener))
        switch.enable_for_watch()
        switch.after_disabling(reporter.stop)
        atexit.register(reporter.stop)
    except Exception as error:  # noqa: BLE001  (no PyTorch, or one of an unknown version)
        _log.warning("nothing is watched: %s", error)
        switch.end_watch()
