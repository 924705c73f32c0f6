"""Reports measured by processes of this machine, which may die.

A process is started afresh, not copied from this one: so it has none of its threads' locks and
nothing in memory that it does not need, on every platform.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, connection, get_context, parent_process
from typing import TYPE_CHECKING

from traceprof.errors import WorkerError
from traceprof.execution.measuring import measure_file
from traceprof.run.summary import FailedReport

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from concurrent.futures import Future

    from traceprof.analyses.measured import MeasuredReport
    from traceprof.execution.measuring import Task

    Done = Iterator[tuple[int, MeasuredReport | FailedReport]]


def measured_in_processes(tasks: Sequence[Task], jobs: int) -> Done:
    """Yield the index of each report, as it is done, and what was measured of it.

    If a process dies, those reports that were being measured are tried once more, each in a process
    of its own, so that it is known which of them is the cause.

    Args:
        tasks: the reports.
        jobs: the most processes at a time.

    Raises:
        UsageError: the options are impossible.
    """
    to_do = deque(range(len(tasks)))
    while to_do:
        interrupted = yield from _until_one_dies(tasks, to_do, jobs)
        for index in interrupted:
            for again in (yield from _until_one_dies(tasks, deque([index]), 1)):
                yield again, FailedReport(tasks[again].path, _died(tasks[again]))


def _until_one_dies(
    tasks: Sequence[Task], to_do: deque[int], jobs: int
) -> Generator[tuple[int, MeasuredReport | FailedReport], None, list[int]]:
    """Work until all is done, or a process dies; return what was being measured then."""
    running: dict[Future[MeasuredReport | FailedReport], int] = {}
    number = min(jobs, len(to_do))
    with _processes(number) as pool:
        try:
            while to_do or running:
                # No more than are worked at: then it is known what died with a process.
                while to_do and len(running) < number:
                    with _held_up(signal.SIGINT):
                        future = pool.submit(measure_file, tasks[to_do[0]])
                    running[future] = to_do.popleft()
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for each in done:
                    result = each.result()
                    yield running.pop(each), result
        except BrokenProcessPool:
            return sorted(running.values())
    return []


@contextmanager
def _processes(number: int) -> Iterator[ProcessPoolExecutor]:
    """Start processes; whatever happens, none is left."""
    others = {*active_children()}
    context = get_context("spawn")
    with ProcessPoolExecutor(number, mp_context=context, initializer=_begin) as pool:
        try:
            yield pool
        except BaseException:
            # Ctrl-C, or an error: nobody waits for what they are doing.
            for each in {*active_children()} - others:
                each.kill()
            raise


@contextmanager
def _held_up(number: signal.Signals) -> Iterator[None]:
    """Have a signal wait, and in processes that are started meanwhile until they are ready."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin() -> None:
    """Have this process end on Ctrl-C without a word, and when the one that started it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    # Beside this thread `processes` shares nothing with copies: the cores have work already.
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _died(task: Task) -> WorkerError:
    return WorkerError(
        f"cannot analyse {task.path}",
        "the process that did it was killed, and so was the next one: perhaps memory ran out",
        "give fewer --jobs, or record less at a time",
    )
