"""Many reports, measured by this process, by several, or by a cluster of `distributed`, Dask.

Workers of a cluster open a report by its path: they need the file system that it lies on.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from msgspec.structs import replace

from traceprof.analyses.measurements import MeasuredReport
from traceprof.errors import MissingExtraError, TraceFileError, UsageError, WorkerError, one_line
from traceprof.execution.measuring import Task, measure_file
from traceprof.execution.options import Options, num_jobs
from traceprof.execution.workers import can_fork, workers
from traceprof.progress import Progress
from traceprof.run.summary import FailedReport
from traceprof.trace.open import check_openable

if TYPE_CHECKING:
    from distributed import Client


Measured = MeasuredReport | FailedReport

# Smaller reports are measured one after the other, each by as many processes as it is worth.
_MIN_BYTES = 100_000_000


def measure_reports(
    paths: Sequence[str | os.PathLike[str]],
    options: Options,
    jobs: int | None,
    scheduler: str | None,
    listener: Progress | None,
) -> list[Measured]:
    """Measurements of each report, in the order given, or why there are none.

    `jobs`: the number of processes; by default one for each core, where reports are worth it.
    `scheduler`: the address of a cluster that measures instead. `listener`: receives progress in
    reports.
    """
    options.check()
    wanted = options.wanted(len(paths))
    tasks = [Task(Path(path), Path(path), options, wanted) for path in paths]
    measured: dict[int, Measured] = {}
    if listener is not None:
        listener.expect(len(tasks))
    for index, report in _measured_anywhere(tasks, jobs, scheduler):
        measured[index] = report
        if listener is not None:
            listener.advance(1)
    return [measured[index] for index in range(len(tasks))]


def _measured_anywhere(
    tasks: Sequence[Task], jobs: int | None, scheduler: str | None
) -> Iterator[tuple[int, Measured]]:
    if scheduler is not None:
        yield from measured_on_cluster(tasks, scheduler)
        return
    num_processes = num_jobs(jobs)
    is_worth_it = jobs is not None or _num_bytes(tasks) >= _MIN_BYTES
    if num_processes > 1 and len(tasks) > 1 and is_worth_it and can_fork():
        yield from measured_in_processes(tasks, num_processes)
        return
    for index, task in enumerate(tasks):
        yield index, measure_file(task, num_processes)


def _num_bytes(tasks: Sequence[Task]) -> int:
    size = 0
    for task in tasks:
        with suppress(OSError):  # reported when it is opened
            size += task.place.stat().st_size
    return size


def measured_in_processes(tasks: Sequence[Task], jobs: int) -> Iterator[tuple[int, Measured]]:
    """Yield the same, measured by workers: each takes the next report when it is done.

    If a worker is killed, each report that is not measured is tried again by a worker of its own.
    Of few reports each has several processes, which share its ranks.
    """
    from concurrent.futures.process import BrokenProcessPool  # noqa: PLC0415  (workers only)

    num_processes = max(jobs // len(tasks), 1)

    def measured(index: int) -> Measured:
        return measure_file(tasks[index], num_processes)

    again: list[int] = []
    with workers(min(jobs, len(tasks)), measured) as pool:
        futures = {pool.work_on(index): index for index in range(len(tasks))}
        for future in pool.as_completed([*futures]):
            index = futures.pop(future)
            try:
                yield index, future.result()
            except BrokenProcessPool:
                again.append(index)
    for index in again:
        with workers(1, measured) as pool:
            try:
                yield index, next(pool.as_completed([pool.work_on(index)])).result()
            except BrokenProcessPool:
                remedy = "give fewer --jobs, or record less at a time"
                yield index, _given_up(tasks[index], _TWICE, remedy)


_TWICE = "the process that did it was killed, and so was the next one: perhaps memory ran out"


def _given_up(task: Task, why: str, remedy: str) -> FailedReport:
    return FailedReport(task.path, WorkerError(f"cannot analyse {task.path}", why, remedy))


CONNECT_S = 10  # a running scheduler answers at once
WORKERS_S = 30  # a cluster may just be starting
_MAX_WHY = 120  # characters
_START_ONE = "start one with `dask scheduler`, and give the address that it prints"


def _connected(scheduler: str) -> Client:
    """Return a client of a scheduler that has workers.

    Raises:
        UsageError: no scheduler answers at this address, or TLS fails.
        WorkerError: the scheduler has no workers, or another version of Dask.
    """
    from distributed import Client  # noqa: PLC0415  (an extra)

    what = f"cannot use the scheduler {scheduler}"
    # In a thread: Dask's client waits forever for a server that connects and says nothing.
    future: Future[Client] = Future()

    def connect() -> None:
        try:
            client = Client(  # type: ignore[no-untyped-call]
                scheduler, timeout=CONNECT_S, set_as_default=False
            )
            future.set_result(client)
        except Exception as error:  # noqa: BLE001  (raised below)
            future.set_exception(error)

    Thread(target=connect, daemon=True).start()
    try:
        client = future.result(2 * CONNECT_S)
    except ImportError as error:
        remedy = "install the same version of distributed everywhere"
        raise WorkerError(what, str(error), remedy) from error
    except Exception as error:  # what another server answers is read as lengths and as names
        future.add_done_callback(_close_late)
        # A half-made client closes itself when it is collected, which blocks forever if another
        # one is being made then.
        gc.collect()
        answer = one_line(error, _MAX_WHY) or "the server says nothing that Dask understands"
        why = f"no scheduler of Dask answers there ({answer})"
        raise UsageError(what, why, _START_ONE) from error
    try:
        client.wait_for_workers(1, timeout=WORKERS_S)
    except TimeoutError as error:
        client.close()  # type: ignore[no-untyped-call]
        remedy = f"start some with `dask worker {scheduler}`"
        raise WorkerError(what, "it has no workers", remedy) from error
    return client


def _close_late(future: Future[Client]) -> None:
    if future.exception() is None:  # it answered after all
        future.result().close()  # type: ignore[no-untyped-call]


def measured_on_cluster(tasks: Sequence[Task], scheduler: str) -> Iterator[tuple[int, Measured]]:
    """Yield the index and the measurements of each report, in the order in which they finish.

    When a worker dies, the scheduler gives its reports to another one, up to
    `distributed.scheduler.allowed-failures` times. A death counts against every report that the
    worker held, so reports that are given up together are tried again one by one.

    Raises:
        MissingExtraError: `distributed` is not installed.
        UsageError: no scheduler answers at this address, or the options are impossible.
        WorkerError: the cluster has no workers, the workers have another traceprof, or the
            scheduler is gone.
    """
    try:
        import distributed  # noqa: F401, PLC0415  (an extra)
    except ImportError as error:
        raise MissingExtraError.of(
            "cannot use a scheduler", "distributed", "distributed"
        ) from error
    from distributed.utils import silence_logging_cmgr  # noqa: PLC0415  (an extra)

    # Each error is reported once, by the exceptions below.
    with silence_logging_cmgr(logging.CRITICAL), _connected(scheduler) as client:
        given_up: list[tuple[int, FailedReport]] = []
        for index, result in _measured_on_cluster(client, scheduler, tasks, range(len(tasks))):
            if isinstance(result, FailedReport) and isinstance(result.error, WorkerError):
                given_up.append((index, result))
            else:
                yield index, result
        if len(given_up) == 1:
            yield from given_up
        else:
            for index, _ in given_up:
                yield from _measured_on_cluster(client, scheduler, tasks, [index])


def _measured_on_cluster(
    client: Client, scheduler: str, tasks: Sequence[Task], indices: Iterable[int]
) -> Iterator[tuple[int, Measured]]:
    import distributed  # noqa: PLC0415  (an extra)

    futures = {
        client.submit(
            measure_file, replace(tasks[index], place=tasks[index].path.absolute()), pure=False
        ): index
        for index in indices
    }
    try:
        done = distributed.as_completed(  # type: ignore[no-untyped-call]
            list(futures), loop=client.loop
        )
        for future in done:
            if future.status == "cancelled":
                raise _disconnected(scheduler)
            index = futures[future]
            try:
                measured = future.result()
            except distributed.KilledWorker as failure:  # also if a finished result died with it
                last = failure.last_worker.address
                why = f"the workers that analysed it died, the last one at {last}"
                remedy = "look at their logs: perhaps memory ran out"
                yield index, _given_up(tasks[index], why, remedy)
            except distributed.CancelledError as failure:
                raise _disconnected(scheduler) from failure
            except ImportError as failure:
                remedy = "install the same traceprof on all workers"
                raise WorkerError("cannot analyse on a worker", str(failure), remedy) from failure
            else:
                yield index, _seen(tasks[index], measured)
            del futures[future]  # the workers may forget it
    finally:
        client.cancel(list(futures), force=True)  # type: ignore[no-untyped-call]


def _seen(task: Task, measured: Measured) -> Measured:
    if isinstance(measured, MeasuredReport):
        return measured
    error = measured.error
    if isinstance(error, TraceFileError):
        try:
            check_openable(task.path)
        except TraceFileError as same:
            return FailedReport(task.path, same)
        return FailedReport(
            task.path,
            TraceFileError(
                f"cannot read {task.path}",
                f"it is here, but on a worker {error.why}",
                "put reports where all workers find them at the same path",
            ),
        )
    here, there = one_line(task.path), one_line(task.path.absolute())
    parts = (part.replace(there, here) for part in (error.what, error.why, error.remedy))
    return FailedReport(task.path, type(error)(*parts))


def _disconnected(scheduler: str) -> WorkerError:
    return WorkerError(
        f"cannot go on with the scheduler {scheduler}",
        "the connection is lost",
        "check that it still runs, and analyse again",
    )
