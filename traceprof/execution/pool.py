"""Reports measured by child processes, some of which may be killed."""

from __future__ import annotations

import select
from collections import deque
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from traceprof.errors import WorkerError
from traceprof.execution.child_process import Child, ChildError
from traceprof.execution.measuring import measure_file
from traceprof.run.summary import FailedReport

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traceprof.analyses.measurements.measured import MeasuredReport
    from traceprof.execution.measuring import Task

    Measured = MeasuredReport | FailedReport

_MAX_WAIT_S = 1.0  # Python answers a signal that comes right before a wait only after it


def measured_in_processes(tasks: Sequence[Task], jobs: int) -> Iterator[tuple[int, Measured]]:
    """Yield the index of each report, as it is done, and what was measured of it.

    Each report has a child process of its own, of which there are some at a time. Where it is
    killed, another one tries once more.

    Args:
        tasks: the reports.
        jobs: the most processes at a time, but this one; those that are left over when all reports
            are being measured share the ranks of one.

    Raises:
        UsageError: the options are impossible.
    """
    waiting = deque(range(len(tasks)))
    running: dict[Child[Measured], tuple[int, ExitStack]] = {}
    killed: set[int] = set()
    with ExitStack() as stack:
        while waiting or running:
            # Who was killed has all memory for itself the second time.
            while waiting and len(running) < (1 if waiting[0] in killed else jobs):
                index = waiting.popleft()
                num_processes = jobs // min(jobs, len(running) + len(waiting) + 1)
                process = stack.enter_context(ExitStack())
                work = partial(_measured, tasks[index], num_processes)
                running[process.enter_context(Child(work))] = index, process
            sockets = {child.socket: child for child in running}
            for socket in select.select([*sockets], [], [], _MAX_WAIT_S)[0]:
                child = sockets[socket]
                index, process = running.pop(child)
                with process:
                    try:
                        (measured,) = child.items()
                    except ChildError as error:
                        if not error.was_killed:
                            measured = measure_file(tasks[index])  # which raises the same error
                        elif index not in killed:
                            killed.add(index)
                            waiting.append(index)
                            continue
                        else:
                            measured = FailedReport(tasks[index].path, _killed(tasks[index]))
                yield index, measured


def _measured(task: Task, num_processes: int) -> Iterator[Measured]:
    yield measure_file(task, None, num_processes)


def _killed(task: Task) -> WorkerError:
    return WorkerError(
        f"cannot analyse {task.path}",
        "the process that did it was killed, and so was the next one: perhaps memory ran out",
        "give fewer --jobs, or record less at a time",
    )
