"""Reports measured by the workers of a cluster of `distributed`, Dask's scheduler.

Workers open a report by its path: they need the file system that it lies on.
"""

from __future__ import annotations

import gc
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from traceprof.analyses.measured import MeasuredReport
from traceprof.errors import MissingExtraError, TraceFileError, UsageError, WorkerError
from traceprof.execution.measuring import measure_file
from traceprof.run.summary import FailedReport

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from distributed import Client, KilledWorker

    from traceprof.execution.measuring import Task

_CONNECT_S = 10  # a scheduler answers at once, or is not there
_WORKERS_S = 30  # a cluster may just be starting


def measured_on_cluster(
    tasks: Sequence[Task], scheduler: str
) -> Iterator[tuple[int, MeasuredReport | FailedReport]]:
    """Yield the index of each report, as it is done, and what was measured of it.

    What a worker was doing when it died the scheduler gives to another one, as often as its
    `distributed.scheduler.allowed-failures` allows. It counts that against every report the
    worker held, so where it gives up several, each is tried by itself before it is lost.

    Args:
        tasks: the reports.
        scheduler: `tcp://HOST:PORT`.

    Raises:
        MissingExtraError: `distributed` is not installed.
        UsageError: nothing answers at this address, or the options are impossible.
        WorkerError: the cluster has no workers, or they have not the same traceprof, or the
            scheduler is gone.
    """
    try:
        import distributed  # noqa: F401, PLC0415  (an extra)
    except ImportError as error:
        raise MissingExtraError(
            "cannot use a scheduler",
            "the package distributed is not installed",
            "install the extra: pip install 'traceprof[distributed]'",
        ) from error
    from distributed.utils import silence_logging_cmgr  # noqa: PLC0415  (an extra)

    # What goes wrong is said once, by the errors below.
    with silence_logging_cmgr(logging.CRITICAL), _connected(scheduler) as client:
        given_up: list[tuple[int, FailedReport]] = []
        for index, seen in _measured(client, scheduler, tasks, range(len(tasks))):
            if isinstance(seen, FailedReport) and isinstance(seen.error, WorkerError):
                given_up.append((index, seen))
            else:
                yield index, seen
        if len(given_up) == 1:
            yield from given_up
        else:
            for index, _ in given_up:
                yield from _measured(client, scheduler, tasks, [index])


def _measured(
    client: Client, scheduler: str, tasks: Sequence[Task], indices: Iterable[int]
) -> Iterator[tuple[int, MeasuredReport | FailedReport]]:
    """Yield what was measured of these reports at once; a WorkerError where workers died."""
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
            failure = future.exception()
            if isinstance(failure, distributed.KilledWorker):
                yield index, FailedReport(tasks[index].path, _died(tasks[index], failure))
            elif isinstance(failure, ImportError):
                raise _without_traceprof(failure) from failure
            elif failure is not None:
                raise failure
            else:
                yield index, _seen(tasks[index], future.result())
            del futures[future]  # the workers may forget it
    finally:
        client.cancel(list(futures), force=True)  # type: ignore[no-untyped-call]


def _connected(scheduler: str) -> Client:
    from distributed import Client  # noqa: PLC0415  (an extra)

    try:
        client = Client(  # type: ignore[no-untyped-call]
            scheduler, timeout=_CONNECT_S, set_as_default=False
        )
    except OSError:
        why = "nothing answers there"
    except ValueError as error:
        why = str(error)
    else:
        return _with_workers(client, scheduler)
    # A client half made closes itself when it is collected, and for ever where that happens
    # while another one is made.
    gc.collect()
    raise UsageError(
        f"cannot use the scheduler {scheduler}",
        why,
        "start one with `dask scheduler`, and give the address that it says",
    )


def _with_workers(client: Client, scheduler: str) -> Client:
    try:
        client.wait_for_workers(1, timeout=_WORKERS_S)
    except TimeoutError as error:
        client.close()  # type: ignore[no-untyped-call]
        raise WorkerError(
            f"cannot use the scheduler {scheduler}",
            "it has no workers",
            f"start some with `dask worker {scheduler}`",
        ) from error
    return client


def _seen(task: Task, measured: MeasuredReport | FailedReport) -> MeasuredReport | FailedReport:
    """Say of a report that is here, but not where the worker is, what is wrong."""
    if isinstance(measured, MeasuredReport) or not isinstance(measured.error, TraceFileError):
        return measured
    if not task.path.is_file():
        return measured
    return FailedReport(
        task.path,
        TraceFileError(
            measured.error.what,
            f"it is here, but for a worker {measured.error.why}",
            "put reports where all workers see them at the same path",
        ),
    )


def _died(task: Task, error: KilledWorker) -> WorkerError:
    return WorkerError(
        f"cannot analyse {task.path}",
        f"the workers that did it died, the last of them {error.last_worker.address}",
        "look at their logs: perhaps memory ran out",
    )


def _disconnected(scheduler: str) -> WorkerError:
    return WorkerError(
        f"cannot go on with the scheduler {scheduler}",
        "the connection is lost",
        "look whether it still runs, and analyse once more",
    )


def _without_traceprof(error: ImportError) -> WorkerError:
    return WorkerError(
        "cannot analyse on a worker", str(error), "install the same traceprof on all workers"
    )
