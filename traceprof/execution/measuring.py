"""Measuring one report: the part of an analysis that needs its events.

Other processes and machines can do it, each for a report of its own. The measurements are small:
they grow with the operations of interest, not with the events.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from traceprof.analyses.measurements.measured import MeasuredRank, MeasuredReport
from traceprof.errors import WorkerError
from traceprof.execution.children import run_in_children
from traceprof.execution.measure_rank import measure_rank
from traceprof.execution.sections import SectionReader
from traceprof.guard import collected_failures
from traceprof.host.host_code import read_host_ranges
from traceprof.run.opening import summarize_report
from traceprof.run.summary import FailedReport, RankInfo, close_on_error, try_report
from traceprof.run.windows import captured_span, choose_window
from traceprof.structs import Record
from traceprof.trace.open import open_trace
from traceprof.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from traceprof.analyses.measurements.measured import Wanted
    from traceprof.execution.children import ProgressOfAll
    from traceprof.execution.options import Options
    from traceprof.run.rank import Rank
    from traceprof.trace.model.trace import Trace


class Task(Record, frozen=True):
    """A report to be measured, perhaps on another machine.

    Attributes:
        path: the report's path as it was given.
        place: the path to open it by.
        options: what to analyse.
        wanted: what to measure; None for everything.
        version: the version of the traceprof that asks.
    """

    path: Path
    place: Path
    options: Options
    wanted: Wanted | None = None
    version: str = __version__


def measure_file(
    task: Task, progress: ProgressOfAll | None = None, num_processes: int = 1
) -> MeasuredReport | FailedReport:
    """Open a report, measure it and close it.

    Args:
        task: the report.
        progress: receives the number of rows read.
        num_processes: the maximum number of processes, this one included.

    Returns:
        The measurements, or why there are none.

    Raises:
        UsageError: the options are impossible, whatever the report.
        WorkerError: this is not the version of traceprof that asks.
    """
    if task.version != __version__:
        raise WorkerError(
            "cannot analyse on a worker",
            f"it has traceprof {__version__}, and {task.version} is needed",
            "install the same version everywhere",
        )
    return try_report(task.path, partial(_measured_file, task, progress, num_processes))


def _measured_file(
    task: Task, progress: ProgressOfAll | None, num_processes: int
) -> MeasuredReport:
    trace = open_trace(task.place, progress)
    with close_on_error(trace), collected_failures() as failures:
        with SectionReader(trace, progress, num_processes) as sections:
            ranks = task.options.ranks_of(trace)
            read_shared(ranks, sections, task.wanted)
        measured = measure(trace, ranks, task.options, num_processes, task.wanted)
    trace.close()
    facts = replace(measured.facts, path=task.path)
    return replace(measured, facts=facts, failures=(*failures, *measured.failures))


def read_shared(
    ranks: Sequence[Rank], sections: SectionReader, wanted: Wanted | None = None
) -> None:
    """Read into a report what all of its ranks need, so that it is not read twice."""
    sections.keep_all()
    for rank in ranks if wanted is None else ():  # else as far as anybody asks
        if rank.device is not None:
            read_host_ranges(rank)
            rank.trace.host_activity(rank.process)
        rank.trace.launch_stalls(rank.process)
        _ = rank.trace.api_names, rank.trace.counters, rank.trace.has_unexported_stalls
        _ = rank.trace.signatures


def measure(
    trace: Trace,
    ranks: Sequence[Rank],
    options: Options,
    num_processes: int = 1,
    wanted: Wanted | None = None,
) -> MeasuredReport:
    """Measure an open report.

    Args:
        trace: the report.
        ranks: its ranks, numbered as this report alone allows.
        options: what to analyse.
        num_processes: the maximum number of processes, this one included.
        wanted: what to measure; None for everything.

    Raises:
        TraceprofError: the report is damaged, or the options are impossible.
    """
    num_operations = sum(len(rank.operations) for rank in ranks)
    work = partial(_measured_rank, options, wanted)
    measured = run_in_children(
        work, ranks, trace.reopen, num_operations, num_processes=num_processes
    )
    for rank in ranks:
        rank.process_cache.release()
    trace.release()
    is_chosen = options.time_range is not None and ranks
    with collected_failures() as failures:
        captured_ns = captured_span(trace, ranks) if is_chosen else None
        facts = summarize_report(trace, ranks)  # all notes are known only now
    return MeasuredReport(facts, tuple(measured), captured_ns, tuple(failures))


def _step_limits(rank: Rank) -> tuple[int, int] | None:
    if rank.steps is None or len(rank.steps.number) == 0:
        return None
    return int(rank.steps.number.min()), int(rank.steps.number.max())


def _measured_rank(options: Options, wanted: Wanted | None, rank: Rank) -> MeasuredRank:
    with collected_failures(rank.rank) as failures:
        window = choose_window(rank, options.steps, options.time_range)
        measured = MeasuredRank(
            facts=RankInfo(
                rank.rank, rank.report, rank.process, rank.pid, rank.device, rank.gpu, rank.gpu_id
            ),
            step_numbers=_step_limits(rank) if options.steps is not None else None,
            measurements=None if window is None else measure_rank(rank, window, wanted),
        )
    rank.release()
    return replace(measured, failures=tuple(failures))
