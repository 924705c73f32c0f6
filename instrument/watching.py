"""`instrument.watch`: which rank is slow, while the training runs.

Every rank divides each step into the time that it waits for others, the wait for its loader, and
the rest, its own.

Each `every` steps a thread puts medians into the store of the process group, a key-value store that
all ranks reach: other than a collective it needs no order among ranks, and none can hang in it.
Rank 0 compares them. It also puts how far the training is, once a second: while a step does not
end, who holds it up is who gives no such sign of life, or is behind and waits for nobody. Rank 0
says so, and where it is silent itself the first rank that is not.
"""

from __future__ import annotations

import atexit
import importlib
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
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from instrument import switch
from instrument.core import steps
from instrument.core.baseline import rank_number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from instrument.step_timer import Window

    Table = dict[str, Any]

_log = logging.getLogger("traceprof.instrument")

TIMEOUT_S = 10.0  # rank 0 waits this long for the others' times and signs of life
BEAT_S = 1.0  # between two signs of life
NOISE_FACTOR = 3.0
MIN_NOISE = 0.01  # of the peers' own time
MIN_EXCESS = 0.01  # of a step
EXCERPT_EVERY_S = 3600.0


class Times(NamedTuple):
    """A rank's medians over the steps of one window, in ns."""

    rank: int
    step: int  # the last one of the window
    step_ns: int
    own_ns: int
    wait_ns: int
    loader_ns: int
    spread_ns: int  # half the distance between the quartiles of its own time
    peers: Sequence[int] = ()  # ranks that should take as long; empty for all
    loader_mean_ns: int = 0
    loader_error_ns: int = 0  # standard error of this mean

    @classmethod
    def of(
        cls,
        rank: int,
        number: int,
        rows: Sequence[tuple[int, int, int, int]],
        peers: Sequence[int] = (),
    ) -> Times:
        """Return the medians of steps from the parts of each; `number` is the last step's."""
        columns = [*zip(*rows, strict=True)]
        _, own_ns, _, loader_ns = columns
        lower, _, upper = statistics.quantiles(own_ns, n=4, method="inclusive")
        medians = [int(statistics.median(column)) for column in columns]
        mean, error = statistics.fmean(loader_ns), statistics.stdev(loader_ns) / len(rows) ** 0.5
        spread = int((upper - lower) / 2)
        return cls._make((rank, number, *medians, spread, peers, int(mean), int(error)))

    def peers_of(self, all_times: Sequence[Times]) -> list[Times]:
        """Return the times of the ranks that should take as long."""
        peers = self.peers or [other.rank for other in all_times]
        return [other for other in all_times if other.rank in peers and other.rank != self.rank]


def excess_ns(
    times: Times,
    all_times: Sequence[Times],
    noise_factor: float = NOISE_FACTOR,
    *,
    of_loader: bool = False,
) -> int:
    """Return by how much a rank computes longer per step than the median of its peers, in ns.

    0 within the noise: three times the peers' spread over steps, which is at least 1 % of their
    time, and 1 % of a step. `of_loader`: by how much it waits longer for its loader, in the mean,
    as waits may come in few steps; noise is the standard error, and the rank's own one counts, too.
    """
    peers = times.peers_of(all_times)
    if not peers:
        return 0
    name, noise_name = (
        ("loader_mean_ns", "loader_error_ns") if of_loader else ("own_ns", "spread_ns")
    )
    usual = statistics.median(getattr(peer, name) for peer in peers)
    noise = statistics.median(getattr(peer, noise_name) for peer in peers)
    noise = max(noise, MIN_NOISE * usual, times.loader_error_ns if of_loader else 0)
    excess = getattr(times, name) - usual
    return int(excess) if excess > max(noise_factor * noise, MIN_EXCESS * times.step_ns) else 0


class Verdicts:
    """Which ranks are slow: those beyond the noise in two windows, one after the other."""

    def __init__(self, every: int) -> None:
        # By slow rank, the step when its first slow window began.
        self.since: dict[str, dict[int, int]] = {"slow": {}, "slow_loaders": {}}
        self._every = every
        self._streaks: dict[tuple[str, int], int] = {}  # windows that say otherwise
        self._before: dict[int, Times] = {}

    def steadied(self, all_times: Sequence[Times]) -> list[Times]:
        """Return times whose spread is at least their change since the window before."""
        steady = []
        for times in all_times:
            change = abs(times.own_ns - self._before.get(times.rank, times).own_ns)
            steady.append(times._replace(spread_ns=max(times.spread_ns, change)))
            self._before[times.rank] = times
        return steady

    def lines(self, all_times: Sequence[Times]) -> list[str]:
        """Return a line for each rank that is slow from now on, or no more."""
        lines = []
        for times, name in itertools.product(all_times, self.since):
            since, rank, of_loader = self.since[name], times.rank, name == "slow_loaders"
            # A finding ends within the noise itself: at the limit it would come and go.
            factor = 1.0 if rank in since else NOISE_FACTOR
            excess = excess_ns(times, all_times, factor, of_loader=of_loader)
            is_other = bool(excess) != (rank in since)
            streak = is_other * (self._streaks.get((name, rank), 0) + 1)
            self._streaks[name, rank] = streak % 2
            if streak < 2:
                continue
            begin = times.step - 2 * self._every
            if rank in since:
                does = "waits for its loader" if of_loader else "computes"
                lines.append(
                    f"rank {rank} {does} as long as its peers again since step {begin};"
                    f" it was slow since step {since.pop(rank)}"
                )
                continue
            since[rank] = begin
            peers = times.peers_of(all_times)
            waits = min(excess, statistics.median(peer.wait_ns for peer in peers))
            ratio = times.own_ns / max(statistics.median(peer.own_ns for peer in peers), 1)
            mean, usual = times.loader_mean_ns / 1e6, (times.loader_mean_ns - excess) / 1e6
            lines.append(
                f"rank {rank} waits {mean:.1f} ms a step for its loader since step {begin},"
                f" its peers {usual:.1f} ms"
                if of_loader
                else f"rank {rank} computes {ratio:.2f} x its peers since step {begin}; the others"
                f" wait {waits / 1e6:.1f} ms a step for it"
            )
        return lines


class _Sign(NamedTuple):
    # What a rank puts into the store; the default stands for a rank that never did.
    at: float | None = 0.0  # None: its watch is over
    step: int = 0
    activity: int = 0  # changes with each call
    num_sent: int = 0  # buckets of DDP in this step
    line: str = ""  # of the script, unless it is in a call
    times: Sequence[Any] = ()  # of its last window


class Reporter:
    """The threads that pass a rank's times on; on rank 0 they compare all ranks'."""

    def __init__(
        self,
        every: int,
        path: Path | None,
        callback: Callable[[Table], object] | None,
        *,
        records: bool = False,
    ) -> None:
        self._path, self._callback, self._records = path, callback, records
        self._has_complained = False
        self._windows: SimpleQueue[Window | None] = SimpleQueue()
        self._tables: SimpleQueue[Table | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._verdicts = Verdicts(every)
        self._number = next(_numbers)  # the same on all ranks, which watch equally often
        self._times: Times | Sequence[Any] = ()
        self._silent: set[int] = set()
        self._stuck: set[str] = set()
        self._progress: tuple[object, ...] = ()  # of this rank at the last beat
        # By rank, at each beat since then. More than one: this rank may have been stopped itself.
        self._signs: deque[dict[int, _Sign]] = deque(maxlen=max(round(TIMEOUT_S / BEAT_S), 2))
        self._last = math.inf  # no wait lasts beyond this
        self._store: Any = None  # a connection of its own: the training's would wait for ours
        self._cloned: Any = None  # the training's
        self._rank = 0
        self._num_excerpts, self._next_excerpt = 0, 0.0  # asked for; when one may be again
        from instrument.step_timer import StepTimer, parts  # noqa: PLC0415  (it imports torch)

        self.timer, self._parts = StepTimer(every, self.full), parts

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
            self.timer.excerpt.end()
        self._windows.put(None)
        for thread in self._threads:
            thread.join(2.0)

    def _run(self) -> None:
        latest = None
        while True:
            try:
                window = self._windows.get(timeout=BEAT_S)
            except Empty:
                self._try(self._beat, latest)
                continue
            if window is None:
                self._try(self._give_sign, latest, True)
                return self._tables.put(None)
            self._try(self._pass_on, latest := window)

    def _try(self, what: Callable[..., object], window: Window | None, *arguments: object) -> None:
        try:
            if window is not None and window.store is not None:
                if self._cloned is not window.store:
                    self._cloned, self._rank = window.store, window.rank
                    self._store = getattr(window.store, "clone", lambda: window.store)()
                what(window, *arguments)
                self._record_if_asked(window.rank)
        except Exception as error:  # noqa: BLE001  (the others are gone, or the store is)
            _log.info("steps are not reported: %s", error)

    def _pass_on(self, window: Window) -> None:
        if len(rows := self._parts(window.steps)) < 2:
            return
        self._times = Times.of(window.rank, window.number, rows, window.peers)
        if window.rank == 0:
            others, silent = self._others(window)
            self._tables.put(self.table(window.number, [self._times, *others], silent, {}))
        else:
            self._give_sign(window)

    def _give_sign(self, window: Window, is_over: bool = False) -> _Sign:
        at = None if is_over else time.monotonic()
        sign = _Sign(at, *self.timer.progress(), self._times)
        self._store.set(self._key(window.rank), json.dumps(sign))
        return sign

    def _key(self, name: object) -> str:
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return f"traceprof/watch/{attempt}/{self._number}/{name}"

    def _get(self, name: object) -> Any:  # noqa: ANN401  (what is in JSON)
        key = self._key(name)
        return json.loads(self._store.get(key)) if self._store.check([key]) else ()

    def _others(self, window: Window) -> tuple[list[Times], dict[int, int]]:
        """Return the other ranks' times, and who did not answer in time, with the last step."""
        missing = dict.fromkeys(range(1, window.size), 0)
        begin, found = time.monotonic(), []
        while missing:
            self._give_sign(window)
            for rank in [*missing]:
                sign = _Sign(*self._get(rank))
                missing[rank] = sign.step
                if sign.times and (times := Times(*sign.times)).step >= window.number:
                    found.append(times)
                    del missing[rank]
            limit = TIMEOUT_S / 10 if missing.keys() <= self._silent else TIMEOUT_S
            if time.monotonic() > min(begin + limit, self._last):
                break
            time.sleep(0.05 if missing else 0.0)
        return sorted(found), missing

    def _beat(self, window: Window) -> None:
        """Give a sign of life; the first rank that lives judges those of all, once no step ends."""
        own = self._give_sign(window)
        if own[1:4] != self._progress:
            self._progress, self._stuck = own[1:4], set()
            self._silent = set() if window.rank else self._silent
            self._signs.clear()
        is_long = len(self._signs) == self._signs.maxlen
        before = self._signs[0] if is_long else {}
        signs: dict[int, _Sign] = {}
        self._signs.append(signs)
        silent = {}
        for rank in range(window.size):
            sign = own if rank == window.rank else _Sign(*self._get(rank))
            if sign.at is not None:
                signs[rank] = sign
            if rank in signs and rank in before and sign.at == before[rank].at:
                silent[rank] = sign.step
            elif rank < window.rank:
                return
        stuck = {} if silent else _stuck(signs, before)
        if is_long and (silent.keys() - self._silent or stuck.keys() - self._stuck):
            self._stuck |= stuck.keys()
            self._tables.put(self.table(own.step, [], silent, stuck))

    def table(
        self, step: int, rows: list[Times], silent: dict[int, int], stuck: dict[str, str]
    ) -> Table:
        """Return what is to be said of this step, and ask for a recording of a slow rank."""
        lines = [
            f"rank {rank} did not answer since step {since}"
            for rank, since in silent.items()
            if rank not in self._silent
        ]
        for rank, line in stuck.items():
            lines.append(f"rank {rank} gets no further than {line} after step {step}")
        self._silent = set(silent)
        rows, since = self._verdicts.steadied(rows), self._verdicts.since
        before = {*since["slow"], *since["slow_loaders"]}
        lines += self._verdicts.lines(rows)
        slow = {*since["slow"], *since["slow_loaders"]} - before
        lines += self._ask_for_excerpt([row for row in rows if row.rank in slow], rows)
        ranks = [
            row._asdict()
            | {f"{of}excess_ns": excess_ns(row, rows, of_loader=bool(of)) for of in ("", "loader_")}
            for row in rows
        ]
        table = {"step": step, "ranks": ranks, "silent": [*silent], "stuck": stuck}
        copy: Table = json.loads(json.dumps(table | since | {"said": lines}))  # with texts as keys
        return copy

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
            if self._callback is not None and self._rank == 0:
                self._callback(table)
        except Exception:  # noqa: BLE001  (the user's, in our thread)
            _log.warning("the callback of the watch failed", exc_info=True)

    def _ask_for_excerpt(self, slow: list[Times], rows: list[Times]) -> list[str]:
        """Ask a slow rank and its most usual peer to record the same steps; return a line."""
        if not slow or not self._records or time.monotonic() < self._next_excerpt:
            return []
        self._next_excerpt = time.monotonic() + EXCERPT_EVERY_S
        slowest = max(slow, key=lambda row: row.own_ns + row.loader_mean_ns)
        peers = sorted(slowest.peers_of(rows), key=lambda row: row.own_ns)
        ranks = slowest.rank, peers[(len(peers) - 1) // 2].rank
        until_heard = math.ceil(4e9 * BEAT_S / max(slowest.step_ns, 1))
        first = self.timer.progress()[0] + until_heard
        self._store.set(self._key(f"excerpt {self._num_excerpts}"), json.dumps([ranks, first]))
        return ["ranks {} and {} record ten steps from step {} on".format(*ranks, first)]

    def _record_if_asked(self, rank: int) -> None:
        if self._records and (asked := self._get(f"excerpt {self._num_excerpts}")):
            from instrument.torch_trace import Excerpt  # noqa: PLC0415  (it imports torch)
            from instrument.wraps.pauses import follow_collections  # noqa: PLC0415

            self._num_excerpts += 1
            folder = (self._path or Path("watch").absolute()).with_suffix(".recorded")
            if rank in asked[0]:
                self.timer.excerpt = Excerpt(folder, asked[1], follow_collections)


def _stuck(signs: dict[int, _Sign], before: dict[int, _Sign]) -> dict[str, str]:
    """Return who is in no call, for which others wait while nobody gets further; the line of each.

    `signs` are those of now, `before` of some beats ago.
    """
    if any(before.get(rank, ())[1:4] != sign[1:4] for rank, sign in signs.items()):
        return {}
    place = {rank: (one.step, one.num_sent, not one.line) for rank, one in signs.items()}
    least, most = min(place.values()), max(place.values())
    behind = [rank for rank in signs if signs[rank].line and place[rank] == least < most]
    return {str(rank): signs[rank].line for rank in behind}


_numbers = itertools.count()


def watch(
    every: int = 100,
    path: str | os.PathLike[str] | None = None,
    callback: Callable[[Table], object] | None = None,
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
    if why_not := _why_not():
        _log.warning("nothing is watched: %s", why_not)
        return
    from instrument.step_timer import install  # noqa: PLC0415  (it imports torch)

    path = None if path is None else Path(path).absolute()
    reporter = Reporter(every, path, callback, records=on_straggler is not None)
    if rank_number() == 0:
        reporter.append("")
    switch.disable()
    switch.after_disabling(reporter.timer.patches.restore)
    try:
        install(reporter.timer)
    except Exception as error:  # noqa: BLE001  (of an unknown version of PyTorch)
        _log.warning("nothing is watched: %s: %s", type(error).__name__, error)
        switch.disable()
        return
    switch.after_disabling(steps.listen(reporter.timer.listener))
    switch.enable_for_watch()
    switch.after_disabling(reporter.stop)
    atexit.register(reporter.stop)


def _why_not() -> str:
    """Return why nothing can be watched, if so."""
    try:
        has_ranks = importlib.import_module("torch.distributed").is_available()
    except ImportError:
        has_ranks = False
    if not has_ranks:
        return "there is no torch.distributed"
    return "a torch.profiler records, whose ranges would end" * switch.follows_profiler()
