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
import functools
import importlib
import itertools
import json
import logging
import math
import os
import statistics
import threading
import time
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from instrument import switch
from instrument.core import nvtx_ranges
from instrument.core.baseline import rank_number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from instrument.core.patching import Patches
    from instrument.step_timer import Step
    from instrument.torch_trace import Excerpt

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
        self.since: dict[int, int] = {}
        self.loaders_since: dict[int, int] = {}
        self._every = every
        self._streaks: dict[tuple[int, bool], int] = {}  # windows that say otherwise
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
        for times, of_loader in itertools.product(all_times, (False, True)):
            since = self.loaders_since if of_loader else self.since
            rank, is_slow = times.rank, times.rank in since
            # A finding ends within the noise itself: at the limit it would come and go.
            factor = 1.0 if is_slow else NOISE_FACTOR
            excess = excess_ns(times, all_times, factor, of_loader=of_loader)
            streak = 0 if bool(excess) == is_slow else self._streaks.get((rank, of_loader), 0) + 1
            self._streaks[rank, of_loader] = streak % 2
            if streak < 2:
                continue
            begin = times.step - 2 * self._every
            if is_slow:
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


class _Window(NamedTuple):
    number: int
    steps: list[Step]
    store: Any
    rank: int = 0
    size: int = 1
    peers: Sequence[int] = ()


class _Sign(NamedTuple):
    # What a rank puts into the store; the default stands for a rank that never did.
    at: float | None = 0.0  # None: its watch is over
    step: int = 0
    num_calls: int = 0
    line: str = ""  # of the script, unless it is in a call
    times: Sequence[Any] = ()  # of its last window


def _max_beats() -> float:
    """Return the beats without a sign of life after which a rank is said to be silent.

    More than one: this rank may have been stopped itself.
    """
    return max(TIMEOUT_S / BEAT_S, 2)


class Reporter:
    """The thread that passes a rank's times on; on rank 0 it compares all ranks'."""

    def __init__(
        self, every: int, path: Path | None, callback: Callable[[Table], object] | None
    ) -> None:
        self._every, self._path, self._callback = every, path, callback
        self._has_complained = False
        self._windows: SimpleQueue[_Window | None] = SimpleQueue()
        self._verdicts = Verdicts(every)
        self._number = next(_numbers)  # the same on all ranks, which watch equally often
        self._times: Times | Sequence[Any] = ()
        self._counts: dict[str, int] = {}  # of operations, by group
        self._silent: set[int] = set()
        self._stuck: set[str] = set()
        self._own: Sequence[Any] = ()  # this rank's progress at the last beat
        self._num_beats = 0  # since then
        self._since: dict[tuple[int, str], tuple[object, int]] = {}  # values, and beats they came
        self._last = math.inf  # no wait lasts beyond this
        self._thread: threading.Thread | None = None
        self._store: Any = None  # a connection of its own: the training's would wait for ours
        self._cloned: Any = None  # the training's
        self._rank = 0
        from instrument.step_timer import StepTimer  # noqa: PLC0415  (it imports torch)

        self.timer = StepTimer(every, self.full)
        self.new_excerpt: Callable[[Path, int], Excerpt] | None = None  # if slow ranks are recorded
        self._num_excerpts, self._next_excerpt = 0, 0.0  # asked for; when one may be again

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

    def full(self, number: int, steps: list[Step]) -> None:
        """Take a window of the training's thread, without waiting for anything."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="traceprof-watch", daemon=True)
            self._thread.start()
        from torch import distributed as dist  # noqa: PLC0415  (`watch` found it)

        from instrument.core import operations  # noqa: PLC0415

        window = _Window(number, steps, None)
        if dist.is_initialized():
            rank, size = dist.get_rank(), dist.get_world_size()
            peers = self._peers(operations.count_in_groups(self._counts), rank, size)
            store = dist.distributed_c10d._get_default_store()  # noqa: SLF001
            window = _Window(number, steps, store, rank, size, peers)
        self._windows.put(window)

    def _peers(
        self, groups: list[tuple[str, int, list[int]]], rank: int, size: int
    ) -> Sequence[int]:
        """Return the ranks of the smaller groups that had a collective in each step, if any had."""
        transfers, peers = self.timer.transfers, set()
        least = max(self._every - 1, 1)  # counts begin when the first step of the first window ends
        for name, num, ranks in groups:
            if num >= least and len(ranks) < size and name not in transfers:
                peers.update(ranks)
        return sorted(peers) or ([rank] if transfers else ())

    def stop(self) -> None:
        """End the thread, after a second at most where others do not answer."""
        self._last = time.monotonic() + 1.0
        if self.timer.excerpt is not None:
            self.timer.excerpt.end()
        self._windows.put(None)
        if self._thread is not None:
            self._thread.join(2.0)

    def _run(self) -> None:
        latest = None
        while True:
            try:
                window = self._windows.get(timeout=BEAT_S)
            except Empty:
                self._try(self._beat, latest)
                continue
            if window is None:
                return self._try(self._give_sign, latest, True)
            self._try(self._pass_on, latest := window)

    def _try(self, what: Callable[..., object], window: _Window | None, *arguments: object) -> None:
        try:
            if window is not None and window.store is not None:
                if self._cloned is not window.store:
                    self._cloned, self._rank = window.store, window.rank
                    self._store = getattr(window.store, "clone", lambda: window.store)()
                what(window, *arguments)
                self._record_if_asked(window.rank)
        except Exception as error:  # noqa: BLE001  (the others are gone, or the store is)
            _log.info("steps are not reported: %s", error)

    def _pass_on(self, window: _Window) -> None:
        if len(window.steps) < 2:
            return
        rows = self.timer.parts(window.steps)
        self._times = Times.of(window.rank, window.number, rows, window.peers)
        if window.rank == 0:
            others, silent = self._others(window)
            self._tell([self._times, *others], silent, window.number, {})
        else:
            self._give_sign(window)

    def _give_sign(self, window: _Window, is_over: bool = False) -> None:
        at = None if is_over else time.monotonic()
        sign = _Sign(at, *self.timer.progress(), self._times)
        self._store.set(self._key(window.rank), json.dumps(sign))

    def _key(self, name: object) -> str:
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return f"traceprof/watch/{attempt}/{self._number}/{name}"

    def _get(self, name: object, default: Any = ()) -> Any:  # noqa: ANN401  (what is in JSON)
        key = self._key(name)
        return json.loads(self._store.get(key)) if self._store.check([key]) else default

    def _others(self, window: _Window) -> tuple[list[Times], dict[int, int]]:
        """Return the other ranks' times, and who did not answer in time, with the last step."""
        missing = dict.fromkeys(range(1, window.size), 0)
        begin, found = time.monotonic(), {}
        while missing:
            self._give_sign(window)
            for rank in [*missing]:
                sign = _Sign(*self._get(rank))
                missing[rank] = sign.step
                if sign.times and (times := Times(*sign.times)).step >= window.number:
                    found[rank] = times
                    del missing[rank]
            limit = TIMEOUT_S / 10 if missing.keys() <= self._silent else TIMEOUT_S
            if time.monotonic() > min(begin + limit, self._last):
                break
            time.sleep(0.05 if missing else 0.0)
        return [found[rank] for rank in sorted(found)], missing

    def _beat(self, window: _Window) -> None:
        """Give a sign of life; the first rank that lives judges those of all, once no step ends."""
        own = self.timer.progress()
        self._give_sign(window)
        if own[:2] != self._own[:2]:
            self._own, self._num_beats, self._since, self._stuck = own, 0, {}, set()
            self._silent = set() if window.rank else self._silent
            return
        self._num_beats += 1
        signs = {}
        for rank in range(window.size):
            is_own = rank == window.rank
            sign = _Sign(self._num_beats, *own) if is_own else _Sign(*self._get(rank))
            is_alive = sign.at is None or not self._is_quiet(rank, sign)
            if rank < window.rank and is_alive:
                return
            if sign.at is not None:
                signs[rank] = sign
        self._judge(signs, own[0])

    def _judge(self, signs: dict[int, _Sign], step: int) -> None:
        """Say who gives no signs, or is behind while nobody gets further and waits for none."""
        progress = {rank: sign[1:3] for rank, sign in signs.items()}
        silent = {rank: sign.step for rank, sign in signs.items() if self._is_quiet(rank, sign)}
        least_age = min(self._age(rank, "calls", progress[rank]) for rank in signs)
        free = [rank for rank in signs if signs[rank].line]
        least = min((progress[rank] for rank in free), default=())
        stuck: Table = {}
        if least_age >= _max_beats() and not silent and least < max(progress.values()):
            stuck = {str(rank): signs[rank].line for rank in free if progress[rank] == least}
        if silent.keys() - self._silent or stuck.keys() - self._stuck:
            self._stuck |= stuck.keys()
            self._tell([], silent, step, stuck)

    def _is_quiet(self, rank: int, sign: _Sign) -> bool:
        return self._age(rank, "life", sign.at) >= _max_beats()

    def _age(self, rank: int, what: str, value: object) -> int:
        """Return since how many beats this is the value."""
        if self._since.get((rank, what), (None,))[0] != value:
            self._since[rank, what] = value, self._num_beats
        return self._num_beats - self._since[rank, what][1]

    def _tell(self, rows: list[Times], silent: dict[int, int], step: int, stuck: Table) -> None:
        lines = [
            f"rank {rank} did not answer since step {since}"
            for rank, since in silent.items()
            if rank not in self._silent
        ]
        for rank, line in stuck.items():
            lines.append(f"rank {rank} gets no further than {line} after step {step}")
        self._silent = set(silent)
        rows, verdicts = self._verdicts.steadied(rows), self._verdicts
        before = verdicts.since.keys() | verdicts.loaders_since.keys()
        lines += verdicts.lines(rows)
        slow = (verdicts.since.keys() | verdicts.loaders_since.keys()) - before
        lines += self._ask_for_excerpt([row for row in rows if row.rank in slow], rows)
        for line in lines:
            _log.warning("%s", line)
        table = {
            "step": step,
            "ranks": [
                row._asdict()
                | {
                    f"{of}excess_ns": excess_ns(row, rows, of_loader=bool(of))
                    for of in ("", "loader_")
                }
                for row in rows
            ],
            "silent": [*silent],
            "stuck": stuck,
            "slow": verdicts.since,
            "slow_loaders": verdicts.loaders_since,
            "said": lines,
        }
        text = json.dumps(table)  # whose keys are texts
        self.append(f"{text}\n")
        if self._rank != 0:
            return
        try:
            (self._callback or bool)(json.loads(text))
        except Exception:  # noqa: BLE001  (the user's, in our thread)
            _log.warning("the callback of the watch failed", exc_info=True)

    def _ask_for_excerpt(self, slow: list[Times], rows: list[Times]) -> list[str]:
        """Ask a slow rank and its most usual peer to record the same steps; return a line."""
        if not slow or self.new_excerpt is None or time.monotonic() < self._next_excerpt:
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
        if self.new_excerpt and (asked := self._get(f"excerpt {self._num_excerpts}")):
            self._num_excerpts += 1
            folder = (self._path or Path("watch").absolute()).with_suffix(".recorded")
            if rank in asked[0]:
                self.timer.excerpt = self.new_excerpt(folder, asked[1])


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
    from instrument.step_timer import time_waits  # noqa: PLC0415  (it imports torch)

    reporter = Reporter(every, None if path is None else Path(path).absolute(), callback)
    timer = reporter.timer
    if rank_number() == 0:
        reporter.append("")
    switch.disable()
    ours = nvtx_ranges.Functions(timer.push, timer.pop, timer.start, bool, lambda text, _: text)
    try:
        time_waits(timer)
    except Exception as error:  # noqa: BLE001  (of an unknown version of PyTorch)
        _log.warning("nothing is watched: %s: %s", type(error).__name__, error)
        timer.patches.restore()
        return
    switch.after_disabling(timer.patches.restore)
    if nvtx_ranges.is_recording():
        if on_straggler:
            _log.warning("no slow rank is recorded: another recorder takes the ranges")
        switch.after_disabling(nvtx_ranges.observe(ours))
        switch.enable()
    else:
        switch.after_disabling(nvtx_ranges.use(ours))
        if on_straggler:
            from instrument.torch_trace import Excerpt  # noqa: PLC0415  (it imports torch)

            reporter.new_excerpt = functools.partial(
                Excerpt, watch=ours, install_others=_install_others
            )
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
    return "a torch.profiler records, which takes the same ranges" * switch.follows_profiler()


def _install_others(patches: Patches) -> None:
    """Have all ranges, which the watch itself does not need."""
    from instrument.wraps import pauses  # noqa: PLC0415  (it imports torch)

    patches.on_restore(switch.enable_beside_watch())
    if not nvtx_ranges.asks_for_collections():
        pauses.follow_collections(patches)
