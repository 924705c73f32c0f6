"""Work in worker processes, which start with everything that this process has read.

Workers are forks in a pool of `concurrent.futures`. They end with the block that uses them, or with
this process, whatever ended that. They exist on Linux only, and only while this process has no
other threads: a fork would wait for their locks for ever. Where there are no workers, or one of
them fails, the caller does the work itself, so that errors are those of one process.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from traceprof.progress import Progress
from traceprof.trace.programs import ending_with_parent

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor


Item = TypeVar("Item")
Result = TypeVar("Result")

# Two workers cost some 40 ms, the analyses of this many operations 100 ms.
MIN_OPERATIONS_OF_A_PROCESS = 75_000
_POLL_S = 0.05  # Python handles a signal that comes right before a wait only after it
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_work: Callable[[Any], Any]  # of this process, if it is a worker


def can_fork() -> bool:
    """Return whether workers can be made."""
    has_locks = os.access("/dev/shm", os.W_OK)  # noqa: S108  (where the C library keeps them)
    return sys.platform == "linux" and has_locks and threading.active_count() == 1


class Workers(Generic[Item, Result]):
    """A pool of worker processes, which all do the same work."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool
        self.processes = pool._processes  # noqa: SLF001  (public in Python 3.14: `kill_workers`)

    def work_on(self, item: Item) -> Future[Result]:
        """Have an item worked on.

        The future raises BrokenProcessPool if a worker is killed before the result has arrived.
        """
        from concurrent.futures import BrokenExecutor, Future  # noqa: PLC0415  (workers only)

        try:
            return self._pool.submit(_result_of, item)
        except BrokenExecutor as error:
            broken: Future[Result] = Future()
            broken.set_exception(error)
            return broken

    def as_completed(
        self, futures: Collection[Future[Result]], meanwhile: Callable[[], object] = lambda: None
    ) -> Iterator[Future[Result]]:
        """Yield futures as they end; in contrast to the library's, no signal is missed before that.

        `meanwhile` is called again and again while some are not over, and then once more.
        """
        from concurrent.futures import FIRST_COMPLETED, wait  # noqa: PLC0415  (workers only)

        pending = {*futures}
        while pending:
            done, pending = wait(pending, _POLL_S, FIRST_COMPLETED)
            meanwhile()
            if not done:
                self._end_broken_result()
            yield from done

    def _end_broken_result(self) -> None:
        """If a worker was killed, have the pool not wait for the rest of what it was sending."""
        from multiprocessing.connection import wait  # noqa: PLC0415  (workers only)

        if wait([process.sentinel for process in self.processes.values()], 0):
            self.kill()
            results: Any = self._pool._result_queue  # noqa: SLF001  (there is no other way)
            results._writer.close()  # noqa: SLF001

    def kill(self) -> None:
        """Kill all workers."""
        for process in self.processes.values():
            process.kill()


@contextmanager
def workers(number: int, work: Callable[[Item], Result]) -> Iterator[Workers[Item, Result]]:
    """Make workers, which end with the block.

    Items and results are pickled. `work` is not: the workers are copies of this process.
    """
    from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415  (workers only)
    from multiprocessing import get_context  # noqa: PLC0415

    from traceprof.trace.temporary_folder import remove_exports  # noqa: PLC0415

    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # until workers are ready
    start = (work, os.getpid(), old_mask)
    pool = ProcessPoolExecutor(number, get_context("fork"), _start, start)
    made = Workers[Item, Result](pool)
    try:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # numpy's threads wait
                pool.submit(os.getpid)  # forks all workers, before the pool has a thread
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
        yield made
    finally:
        made.kill()
        pool.shutdown()
        for pid in made.processes:
            remove_exports(pid)


def _start(work: Callable[[Any], Any], parent: int, old_mask: set[int | signal.Signals]) -> None:
    global _work  # noqa: PLW0603  (what a worker is for)
    if end_with_parent := ending_with_parent():
        end_with_parent()
    if os.getppid() != parent:  # it ended before that
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process answers Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # by which the pool ends workers
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as `nohup` has it
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
    gc.freeze()  # the parent's garbage may be of libraries whose threads do not exist here
    _work = work


def _result_of(item: Any) -> Any:  # noqa: ANN401
    return _work(item)


def map_items(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    prepare: Callable[[], None],
    num_operations: int,
    *,
    num_processes: int,
) -> list[Result]:
    """Result of `work` for each item, by workers if there are enough GPU operations for two.

    `work` gives the same result in every process, and the result can be pickled. `prepare` is
    called in a worker before its work. `num_processes` is the maximum number of workers.
    """
    most = num_operations // MIN_OPERATIONS_OF_A_PROCESS
    number = min(num_processes, most, len(items))
    if number < 2 or not can_fork():
        return [work(item) for item in items]
    is_prepared = False

    def work_at(index: int) -> Result:
        nonlocal is_prepared
        if not is_prepared:
            prepare()
            is_prepared = True
        return work(items[index])

    with workers(number, work_at) as pool:
        futures = [pool.work_on(index) for index in range(len(items))]
        failed = {future for future in pool.as_completed(futures) if future.exception()}
    return [
        work(item) if future in failed else future.result()
        for item, future in zip(items, futures, strict=True)
    ]


class SharedCount:
    """What a worker expects and has done, which its parent reports; a `Progress`."""

    def __init__(self) -> None:
        from multiprocessing.sharedctypes import RawArray  # noqa: PLC0415  (workers only)

        self._counted, self._reported = RawArray("q", 2), (0, 0)

    def expect(self, number: int) -> None:
        """Expect this many more."""
        self._counted[0] += number

    def advance(self, number: int) -> None:
        """Count this many as done."""
        self._counted[1] += number

    def report(self, progress: Progress) -> None:
        """Report what was counted since the last time."""
        (expected, done), before = self._counted, self._reported
        self._reported = expected, done
        progress.expect(expected - before[0])
        progress.advance(done - before[1])
