"""Where reports are measured: by this process, by several, or by a cluster."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from traceprof.execution.child_process import ProgressOfAll, can_fork
from traceprof.execution.measuring import measure_file
from traceprof.execution.options import num_jobs
from traceprof.execution.pool import measured_in_processes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceprof.analyses.measured import MeasuredReport
    from traceprof.execution.measuring import Task
    from traceprof.progress import Progress
    from traceprof.run.summary import FailedReport

# Reports of fewer bytes are measured one after the other, by as many processes as each is worth.
_MIN_BYTES = 100_000_000


def measured_anywhere(
    tasks: Sequence[Task], jobs: int | None, scheduler: str | None, progress: Progress | None
) -> Iterator[tuple[int, MeasuredReport | FailedReport]]:
    """Yield the index of each report, as it is done, and what was measured of it.

    Args:
        tasks: the reports.
        jobs: how many processes of this machine; None for one for each core, where reports are
            worth it.
        scheduler: the address of a cluster that measures instead.
        progress: told of the rows of the only report.

    Raises:
        TraceprofError: the options are impossible, or the cluster cannot be used.
    """
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
