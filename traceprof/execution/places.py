"""Where reports are measured: by this process, by several, or by a cluster."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from traceprof.execution.child_process import ProgressOfAll, can_fork
from traceprof.execution.measuring import Task, measure_file
from traceprof.execution.options import num_jobs
from traceprof.execution.pool import measured_in_processes

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from traceprof.analyses.measurements.measured import MeasuredReport
    from traceprof.execution.options import Options
    from traceprof.progress import Progress
    from traceprof.run.summary import FailedReport

# Reports of fewer bytes are measured one after the other, by as many processes as each is worth.
_MIN_BYTES = 100_000_000


def measure_reports(
    paths: Sequence[str | os.PathLike[str]],
    options: Options,
    jobs: int | None,
    scheduler: str | None,
    listener: Progress | None,
) -> list[MeasuredReport | FailedReport]:
    """Return what was measured of each report, in the order given, or why nothing could be.

    Args:
        paths: of the reports.
        options: what to analyse.
        jobs: how many processes of this machine; None for one for each core, where reports are
            worth it.
        scheduler: the address of a cluster that measures instead.
        listener: told of the rows of a report if there is but one, else of the reports.

    Raises:
        TraceprofError: the options are impossible, or the cluster cannot be used.
    """
    options.check()
    tasks = [Task(Path(path), Path(path), options) for path in paths]
    measured: list[MeasuredReport | FailedReport | None] = [None] * len(tasks)
    if listener is not None and len(tasks) > 1:
        listener.expect(len(tasks))
    for index, report in _measured_anywhere(tasks, jobs, scheduler, listener):
        measured[index] = report
        if listener is not None and len(tasks) > 1:
            listener.advance(1)
    return [report for report in measured if report is not None]


def _measured_anywhere(
    tasks: Sequence[Task], jobs: int | None, scheduler: str | None, progress: Progress | None
) -> Iterator[tuple[int, MeasuredReport | FailedReport]]:
    """Yield the index of each report, as it is done, and what was measured of it."""
    if scheduler is not None:
        from traceprof.execution.cluster import measured_on_cluster  # noqa: PLC0415  (an extra)

        yield from measured_on_cluster(tasks, scheduler)
        return
    num_processes = num_jobs(jobs)
    is_worth_it = jobs is not None or _num_bytes(tasks) >= _MIN_BYTES
    if num_processes > 1 and len(tasks) > 1 and is_worth_it and can_fork():
        yield from measured_in_processes(tasks, num_processes)
        return
    rows = ProgressOfAll(progress) if progress is not None and len(tasks) == 1 else None
    for index, task in enumerate(tasks):
        yield index, measure_file(task, rows, num_processes)


def _num_bytes(tasks: Sequence[Task]) -> int:
    size = 0
    for task in tasks:
        with suppress(OSError):  # it is said when it is opened
            size += task.place.stat().st_size
    return size
