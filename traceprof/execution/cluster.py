"""Reports measured by the workers of a cluster of `distributed`, Dask's scheduler.

Workers open a report by its path: they need the file system that it lies on.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from msgspec.structs import replace

from traceprof.analyses.measurements.measured import MeasuredReport
from traceprof.errors import MissingExtraError, TraceFileError, WorkerError, one_line
from traceprof.execution.measuring import measure_file
from traceprof.execution.scheduler import connected
from traceprof.run.summary import FailedReport
from traceprof.trace.open import check_openable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from distributed import Client, KilledWorker

    from traceprof.execution.measuring import Task


def measured_on_cluster(
    tasks: Sequence[Task], scheduler: str
) -> Iterator[tuple[int, MeasuredReport | FailedReport]]:
    """Yield the index and the measurements of each report, in the order in which they finish.

    When a worker dies, the scheduler gives its reports to another one, up to
    `distributed.scheduler.allowed-failures` times. A death counts against every report that the
    worker held, so reports that are given up together are tried again one by one.

    Args:
        tasks: the reports.
        scheduler: `tcp://HOST:PORT` or `tls://HOST:PORT`.

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
    with silence_logging_cmgr(logging.CRITICAL), connected(scheduler) as client:
        given_up: list[tuple[int, FailedReport]] = []
        for index, result in _measured(client, scheduler, tasks, range(len(tasks))):
            if isinstance(result, FailedReport) and isinstance(result.error, WorkerError):
                given_up.append((index, result))
            else:
                yield index, result
        if len(given_up) == 1:
            yield from given_up
        else:
            for index, _ in given_up:
                yield from _measured(client, scheduler, tasks, [index])


def _measured(
    client: Client, scheduler: str, tasks: Sequence[Task], indices: Iterable[int]
) -> Iterator[tuple[int, MeasuredReport | FailedReport]]:
    """Yield the measurements of reports that are measured at the same time, or their errors."""
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
                yield index, FailedReport(tasks[index].path, _died(tasks[index], failure))
            except distributed.CancelledError as failure:
                raise _disconnected(scheduler) from failure
            except ImportError as failure:
                raise _without_traceprof(failure) from failure
            else:
                yield index, _seen(tasks[index], measured)
            del futures[future]  # the workers may forget it
    finally:
        client.cancel(list(futures), force=True)  # type: ignore[no-untyped-call]


def _seen(task: Task, measured: MeasuredReport | FailedReport) -> MeasuredReport | FailedReport:
    """Return a failure with the error and the path that this machine would report."""
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


def _died(task: Task, error: KilledWorker) -> WorkerError:
    return WorkerError(
        f"cannot analyse {task.path}",
        f"the workers that analysed it died, the last one at {error.last_worker.address}",
        "look at their logs: perhaps memory ran out",
    )


def _disconnected(scheduler: str) -> WorkerError:
    return WorkerError(
        f"cannot go on with the scheduler {scheduler}",
        "the connection is lost",
        "check that it still runs, and analyse again",
    )


def _without_traceprof(error: ImportError) -> WorkerError:
    return WorkerError(
        "cannot analyse on a worker", str(error), "install the same traceprof on all workers"
    )
