"""Many reports, measured by this process, by several, or by a cluster."""

from __future__ import annotations

import select
from collections import deque
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from traceprof.errors import WorkerError
from traceprof.execution import children
from traceprof.execution.children import Child, ChildError, ProgressOfAll, questions
from traceprof.execution.measuring import Task, measure_file
from traceprof.execution.options import num_jobs
from traceprof.run.summary import FailedReport

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from traceprof.analyses.measurements.measured import MeasuredReport
    from traceprof.execution.options import Options
    from traceprof.progress import Progress

    Measured = MeasuredReport | FailedReport

# Smaller reports are measured one after the other, each by as many processes as it is worth.
_MIN_BYTES = 100_000_000
_MAX_WAIT_S = 1.0  # Python handles a signal that comes right before a wait only after it


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
    rows of a single report, or in reports if there are several.
    """
    options.check()
    wanted = options.wanted(len(paths))
    tasks = [Task(Path(path), Path(path), options, wanted) for path in paths]
    measured: list[Measured | None] = [None] * len(tasks)
    if listener is not None and len(tasks) > 1:
        listener.expect(len(tasks))
    for index, report in _measured_anywhere(tasks, jobs, scheduler, listener):
        measured[index] = report
        if listener is not None and len(tasks) > 1:
            listener.advance(1)
    return [report for report in measured if report is not None]


def _measured_anywhere(
    tasks: Sequence[Task], jobs: int | None, scheduler: str | None, progress: Progress | None
) -> Iterator[tuple[int, Measured]]:
    if scheduler is not None:
        from traceprof.execution.cluster import measured_on_cluster  # noqa: PLC0415  (an extra)

        yield from measured_on_cluster(tasks, scheduler)
        return
    num_processes = num_jobs(jobs)
    is_worth_it = jobs is not None or _num_bytes(tasks) >= _MIN_BYTES
    if num_processes > 1 and len(tasks) > 1 and is_worth_it and children.can_fork():
        yield from measured_in_processes(tasks, num_processes)
        return
    rows = ProgressOfAll(progress) if progress is not None and len(tasks) == 1 else None
    for index, task in enumerate(tasks):
        yield index, measure_file(task, rows, num_processes)


def _num_bytes(tasks: Sequence[Task]) -> int:
    size = 0
    for task in tasks:
        with suppress(OSError):  # reported when it is opened
            size += task.place.stat().st_size
    return size


def measured_in_processes(tasks: Sequence[Task], jobs: int) -> Iterator[tuple[int, Measured]]:
    """Yield the same, measured by child processes: each takes the next report when it is done.

    Where a child is killed, another one tries again, once and alone.

    Args:
        tasks: the reports.
        jobs: the maximum number of children at a time; when all reports are being measured, those
            left over share the ranks of a report.

    Raises:
        UsageError: the options are impossible.
    """
    waiting = deque(range(len(tasks)))
    running: dict[Child[Measured], tuple[int, ExitStack]] = {}
    idle: list[tuple[Child[Measured], ExitStack]] = []
    killed: set[int] = set()
    with ExitStack() as stack:
        while waiting or running:
            while waiting and len(running) < (1 if waiting[0] in killed else jobs):
                index = waiting.popleft()
                num_processes = jobs // min(jobs, len(running) + len(waiting) + 1)
                # What a child was killed by has all memory for itself the second time.
                while idle and index in killed:
                    idle.pop()[1].close()
                if idle:
                    child, process = idle.pop()
                else:
                    process = stack.enter_context(ExitStack())
                    child = process.enter_context(
                        Child(partial(_measured, tasks), shares_texts=True)
                    )
                running[child] = index, process
                with suppress(ChildError):  # which is also raised where the answer is read
                    child.ask((index, num_processes))
            sockets = {child.socket: child for child in running}
            for socket in select.select([*sockets], [], [], _MAX_WAIT_S)[0]:
                child = sockets[socket]
                index, process = running.pop(child)
                try:
                    measured = next(child.items())
                    idle.append((child, process))
                except ChildError as error:
                    process.close()
                    if not error.was_killed:
                        measured = measure_file(tasks[index])  # which raises the same error
                    elif index not in killed:
                        killed.add(index)
                        waiting.append(index)
                        continue
                    else:
                        measured = FailedReport(tasks[index].path, _killed(tasks[index]))
                yield index, measured


def _measured(tasks: Sequence[Task]) -> Iterator[Measured]:
    for index, num_processes in questions():
        yield measure_file(tasks[index], None, num_processes)


def _killed(task: Task) -> WorkerError:
    return WorkerError(
        f"cannot analyse {task.path}",
        "the process that did it was killed, and so was the next one: perhaps memory ran out",
        "give fewer --jobs, or record less at a time",
    )
