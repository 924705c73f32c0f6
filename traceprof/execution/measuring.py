"""What is measured of one report: all that needs its events.

This is the part of an analysis that other processes and machines can do, each on a report of its
own. What they return is reduced: it grows with the operations of interest, not with the events.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import traceprof
from traceprof.analyses.measured import MeasuredRank, MeasuredReport
from traceprof.analyses.registry import FINDING_IDS
from traceprof.analyses.runner import measure_rank
from traceprof.errors import UsageError, WorkerError
from traceprof.execution import child_process as processes
from traceprof.hardware import parse_peaks
from traceprof.host.synchronization import data_loading
from traceprof.kernel_names import CommunicationPatterns, user_patterns
from traceprof.run.failures import close_on_error, try_report
from traceprof.run.opening import open_report, summarize_report
from traceprof.run.steps import user_pattern
from traceprof.run.summary import FailedReport, RankInfo
from traceprof.run.windows import choose_windows
from traceprof.trace.open import open_trace

if TYPE_CHECKING:
    import re
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from traceprof.analyses.measured import RankMeasurements
    from traceprof.progress import Progress
    from traceprof.run.rank import Rank, Window
    from traceprof.run.windows import Range
    from traceprof.trace.model.trace import Trace

# A copy of the process takes some 20 ms, and these operations 50 ms of analyses.
_WORTH_SHARING = 150_000


@dataclass(frozen=True)
class Options:
    """What to analyse.

    Attributes:
        only: finding ids to judge; all where empty.
        skip: finding ids not to judge.
        steps: steps A up to but not including B; None leaves that side open.
        time_range: nanoseconds of the report's own time, likewise.
        step_pattern: regular expression of the user's own step ranges.
        communication_kernels: `REGEX` or `REGEX=Operation` for kernels that communicate.
        link_peaks: `LINK=GB_PER_S` for links whose peak rate the user knows better.
    """

    only: Sequence[str] = ()
    skip: Sequence[str] = ()
    steps: Range | None = None
    time_range: Range | None = None
    step_pattern: str | None = None
    communication_kernels: Sequence[str] = ()
    link_peaks: Sequence[str] = ()

    def check(self) -> None:
        """Look for mistakes before any report is opened.

        Raises:
            UsageError: there is one.
        """
        for each in (*self.only, *self.skip):
            if each not in FINDING_IDS:
                raise UsageError(
                    f"there is no finding {each!r}",
                    f"this version finds {', '.join(FINDING_IDS)}",
                    "choose among them",
                )
        _ = self.patterns, self.own_steps, self.peaks

    @cached_property
    def patterns(self) -> CommunicationPatterns:
        """What is communication."""
        return CommunicationPatterns(user_patterns(self.communication_kernels))

    @cached_property
    def own_steps(self) -> re.Pattern[str] | None:
        """What names the user's own step ranges."""
        return user_pattern(self.step_pattern) if self.step_pattern else None

    @cached_property
    def peaks(self) -> Mapping[str, float]:
        """Peak rates that the user knows better, GB/s by link."""
        return parse_peaks(self.link_peaks)

    def ranks_of(self, trace: Trace) -> list[Rank]:
        """Return the ranks of a report, as `run.open_report` does."""
        return open_report(trace, self.patterns, self.own_steps, self.peaks)


@dataclass(frozen=True)
class Task:
    """A report to be measured, perhaps elsewhere.

    Attributes:
        path: of the report, as it was given.
        place: the same, as it can be opened.
        options: what to analyse.
        version: of the traceprof that asks.
    """

    path: Path
    place: Path
    options: Options
    version: str = traceprof.__version__


def measure_file(task: Task, progress: Progress | None = None) -> MeasuredReport | FailedReport:
    """Open a report, measure it and close it.

    Args:
        task: the report.
        progress: told of the rows that are read, if somebody wants to know.

    Returns:
        What was measured, or why nothing could be.

    Raises:
        UsageError: the options are impossible, whatever the report.
        WorkerError: this is another version of traceprof than asked.
    """
    if task.version != traceprof.__version__:
        raise WorkerError(
            "cannot analyse on a worker",
            f"it has traceprof {traceprof.__version__}, and {task.version} is needed",
            "install the same version everywhere",
        )
    return try_report(task.path, partial(_measured_file, task, progress))


def _measured_file(task: Task, progress: Progress | None) -> MeasuredReport:
    trace = open_trace(task.place, progress)
    with close_on_error(trace):
        measured = measure(trace, task.options.ranks_of(trace), task.options)
    trace.close()
    return replace(measured, facts=replace(measured.facts, path=task.path))


def measure(trace: Trace, ranks: Sequence[Rank], options: Options) -> MeasuredReport:
    """Measure an open report.

    Args:
        trace: the report.
        ranks: its ranks, by the numbers that it alone tells.
        options: what to analyse.

    Raises:
        TraceprofError: the report is damaged, or the options are impossible.
    """
    windows = choose_windows(ranks, options.steps, options.time_range)
    chosen = [(rank, window) for rank, window in zip(ranks, windows, strict=True) if window]
    found = iter(_measure(chosen))
    measured = tuple(
        MeasuredRank(
            facts=RankInfo(
                rank.rank, rank.report, rank.process, rank.pid, rank.device, rank.gpu, rank.gpu_id
            ),
            step_numbers=_ends_of_steps(rank) if options.steps is not None else None,
            measurements=None if window is None else next(found),
        )
        for rank, window in zip(ranks, windows, strict=True)
    )
    return MeasuredReport(summarize_report(trace, ranks), measured)  # all notes are known only now


def _ends_of_steps(rank: Rank) -> tuple[int, int] | None:
    if rank.steps is None or len(rank.steps.number) == 0:
        return None
    return int(rank.steps.number.min()), int(rank.steps.number.max())


def _measure(ranks: Sequence[tuple[Rank, Window]]) -> list[RankMeasurements]:
    """Return what the modules measure of the ranks of a report, by rank.

    Two processes share the ranks of a large report.
    """
    if not ranks:
        return []
    trace = ranks[0][0].trace
    for rank, _ in ranks:
        _read_what_ranks_share(rank)
        rank.operations.release()  # what chose the windows is not needed of all ranks at once
    trace.release()
    num_operations = sum(len(rank.operations) for rank, _ in ranks)
    if len(ranks) > 1 and num_operations >= _WORTH_SHARING and processes.can_fork():
        return processes.shared(_measure_rank, ranks, lambda _: trace.reopen())
    return [_measure_rank(each) for each in ranks]


def _read_what_ranks_share(rank: Rank) -> None:
    """Have the report read what all of its ranks need, so that it is not read twice."""
    trace = rank.trace
    trace.communication_calls(rank.process)
    data_loading(rank)
    # Read when they are first asked for.
    _ = rank.calls, trace.api_names, trace.counters, trace.has_unexported_stalls
    _ = trace.signatures, trace.launch_stalls(rank.process)


def _measure_rank(chosen: tuple[Rank, Window]) -> RankMeasurements:
    rank, window = chosen
    measurements = measure_rank(rank, window)
    rank.release()
    return measurements
