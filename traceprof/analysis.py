"""All analyses over a run: numbers first, then what they mean."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from traceprof.analyses.judging import judge
from traceprof.analyses.registry import FINDING_IDS
from traceprof.analyses.run_result import RunResult, partial_result
from traceprof.errors import TraceprofError
from traceprof.execution.measuring import Options, Task, measure, measure_file
from traceprof.execution.preview import previews
from traceprof.run.failures import close_on_error, try_report
from traceprof.run.opening import Run, assemble_run, attach_ranks
from traceprof.run.summary import FailedReport
from traceprof.trace.open import open_trace

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    from traceprof.analyses.measured import MeasuredReport
    from traceprof.analyses.results import Judge, Result
    from traceprof.findings import Finding, NotApplicable
    from traceprof.progress import Progress
    from traceprof.ranks.comparison import RankComparison
    from traceprof.run.rank import Rank
    from traceprof.trace.model.trace import Trace

__all__ = [
    "FINDING_IDS",
    "Analysis",
    "Options",
    "RunResult",
    "analyze",
    "analyze_reports",
]  # fmt: skip


@dataclass(frozen=True)
class Analysis:
    """What was found out about reports that are still open.

    Attributes:
        result: the numbers, and what they mean.
        run: the reports and their ranks, with all that they did.
    """

    result: RunResult
    run: Run

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The claims, the costliest first."""
        return self.result.findings

    @property
    def not_applicable(self) -> tuple[NotApplicable, ...]:
        """Findings that could be neither made nor ruled out."""
        return self.result.not_applicable

    @property
    def notes(self) -> tuple[tuple[int, str], ...]:
        """What to know about the data: (report index, note)."""
        return self.result.notes

    @property
    def ranks(self) -> RankComparison:
        """How the ranks met: clocks, waits, transfers."""
        return self.result.ranks

    def of(self, module: Judge[Result]) -> tuple[Result, ...]:
        """Return what an analysis measured, by rank: `of(breakdown)`."""
        return self.result.of(module)

    def close(self) -> None:
        """Release the reports."""
        for trace in self.run.traces:
            trace.close()


def analyze(
    *paths: str | os.PathLike[str],
    options: Options | None = None,
    progress: Progress | None = None,
    early: Callable[[Analysis], None] | None = None,
) -> Analysis:
    """Analyse the reports of one run, and keep them open.

    A report that cannot be read is left out, and said to be (`RunResult.failed`), if others can.

    Args:
        paths: Nsight Systems exports.
        options: what to analyse; everything where not given.
        progress: told of the rows that are read, if somebody wants to know.
        early: told where the time of the first rank of a single report went, and of others as long
            as it is being read: analyses with nothing but breakdowns, without steps.

    Raises:
        TraceprofError: no report can be read, or the options ask for what is not there.
    """
    options = options or Options()
    options.check()
    traces: list[Trace] = []
    try:
        opened = [
            try_report(path, partial(_opened, path, options, progress, traces))
            for path in map(Path, paths)
        ]
        if early is not None and len(opened) == 1 and not isinstance(opened[0], FailedReport):
            _tell_early(*opened[0], options, early)
        made = [
            each
            if isinstance(each, FailedReport)
            else try_report(each[0].path, partial(_measured, *each, options))
            for each in opened
        ]
        result = judge(made, only=options.only, skip=options.skip, steps=options.steps)
        kept = [
            each
            for each, measured in zip(opened, made, strict=True)
            if not isinstance(each, FailedReport) and not isinstance(measured, FailedReport)
        ]
        run = attach_ranks(result.run, [trace for trace, _ in kept], [own for _, own in kept])
        return Analysis(result, run)
    except Exception:  # after an interrupt a thread may still be reading
        for trace in traces:
            trace.close()
        raise


def analyze_reports(
    paths: Sequence[str | os.PathLike[str]],
    options: Options | None = None,
    *,
    jobs: int = 1,
    scheduler: str | None = None,
    progress: Progress | None = None,
) -> RunResult:
    """Analyse the reports of one run; of each, only what was measured is kept.

    The result is the same, bit for bit, wherever the reports are measured. A report that cannot be
    read, or whose worker dies twice, is left out, and said to be (`RunResult.failed`), if there are
    others.

    Args:
        paths: Nsight Systems exports.
        options: what to analyse; everything where not given.
        jobs: how many processes measure reports; with one, this process does.
        scheduler: `tcp://HOST:PORT` of a cluster of `distributed`, whose workers do instead.
        progress: told of the rows of a report if there is but one, else of the reports.

    Raises:
        TraceprofError: no report can be read, the options ask for what is not there, or the cluster
            cannot be used.
    """
    options = options or Options()
    options.check()
    tasks = [Task(Path(path), Path(path), options) for path in paths]
    made: list[MeasuredReport | FailedReport | None] = [None] * len(tasks)
    if progress is not None and len(tasks) > 1:
        progress.expect(len(tasks))
    for index, measured in _anywhere(tasks, jobs, scheduler, progress):
        made[index] = measured
        if progress is not None and len(tasks) > 1:
            progress.advance(1)
    reports = [each for each in made if each is not None]
    return judge(reports, only=options.only, skip=options.skip, steps=options.steps)


def _anywhere(
    tasks: Sequence[Task], jobs: int, scheduler: str | None, progress: Progress | None
) -> Iterator[tuple[int, MeasuredReport | FailedReport]]:
    """Yield the index of each report, as it is done, and what was measured of it."""
    if scheduler is not None:
        from traceprof.execution.cluster import measured_on_cluster  # noqa: PLC0415  (an extra)

        yield from measured_on_cluster(tasks, scheduler)
    elif jobs > 1 and len(tasks) > 1:
        from traceprof.execution.pool import measured_in_processes  # noqa: PLC0415  (one report needs none)

        yield from measured_in_processes(tasks, jobs)
    else:
        of_rows = progress if len(tasks) == 1 else None
        for index, task in enumerate(tasks):
            yield index, measure_file(task, of_rows)


def _opened(
    path: Path, options: Options, progress: Progress | None, traces: list[Trace]
) -> tuple[Trace, list[Rank]]:
    """Open a report, which `traces` then holds, and sort its operations into ranks."""
    trace = open_trace(path, progress)
    traces.append(trace)
    with close_on_error(trace):
        return trace, options.ranks_of(trace)


def _tell_early(
    trace: Trace, ranks: Sequence[Rank], options: Options, early: Callable[[Analysis], None]
) -> None:
    """Tell what is known of a report: of one rank, and of others as long as it is being read."""
    with suppress(TraceprofError):  # the analysis itself meets it, too
        run = assemble_run([trace], [ranks])
        for breakdowns in islice(previews(run.ranks, options), 1):
            early(Analysis(partial_result(run, breakdowns), run))


def _measured(trace: Trace, ranks: Sequence[Rank], options: Options) -> MeasuredReport:
    with close_on_error(trace):
        return measure(trace, ranks, options)
