"""The public entry point of what-if questions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from traceprof.analyses import breakdown
from traceprof.errors import UsageError
from traceprof.execution.open_reports import Measurer, close_reports
from traceprof.execution.options import checked, listed
from traceprof.guard import collected_failures
from traceprof.replay.answers.answers import WhatIf, answer
from traceprof.replay.answers.step_path import step_path
from traceprof.replay.assumptions.assumption import Assumption, combined, parse
from traceprof.trace.folder import report_paths
from traceprof.units import reports_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from traceprof.execution.open_reports import OpenAnalysis
    from traceprof.execution.options import Options
    from traceprof.findings import NotApplicable
    from traceprof.progress import Progress
    from traceprof.replay.answers.critical_path import StepPath
    from traceprof.run.opening import RunSummary
    from traceprof.run.summary import FailedReport
    from traceprof.trace.folder import AnyPath


@dataclass(frozen=True, repr=False)
class Asked:
    """The answers to the questions about a run.

    Attributes:
        run: the reports and their ranks.
        whatif: the step as it is, and what it would be.
        failed: reports that could not be read; the run has none of them.
        paths: the critical paths of the steps that were asked for.
        missing: what could not be analysed because a part of traceprof failed.
    """

    run: RunSummary
    whatif: WhatIf
    failed: tuple[FailedReport, ...]
    paths: tuple[StepPath, ...] = ()
    missing: tuple[NotApplicable, ...] = ()

    def __repr__(self) -> str:
        """Return the reports and the number of answers in one line."""
        names = reports_text([Path(report.path) for report in self.run.reports])
        return f"<Asked of {names}, answers: {len(self.whatif.answers)}>"


def whatif(
    *paths: AnyPath | Iterable[AnyPath],
    assume: Iterable[str] = (),
    paths_of: Iterable[int] = (),
    options: Options | None = None,
    listener: Progress | None = None,
    jobs: int | None = None,
) -> Asked:
    """Estimate the time of a training step of a run under assumptions.

    Args:
        paths: the reports of one run, folders of them, patterns, or lists of these.
        assume: assumptions, such as `no-sync` or `link=2x`: each is answered, and if there are
            several, then all of them together. Without any, every single one that needs no value.
        paths_of: the numbers of the steps whose critical paths are wanted.
        options: how to read the reports.
        listener: receives the number of rows read.
        jobs: the maximum number of processes; by default one for each processor core.

    Raises:
        TraceprofError: no report can be read, or there is no such assumption or step.
    """
    chosen = _chosen(listed("assume", assume, str))
    steps = listed("paths_of", paths_of, int)
    measurer = Measurer.of(replace(checked(options), measures_all=True), listener, jobs)
    analysis = measurer.measured(measurer.opened(report_paths(paths)))
    try:
        with collected_failures() as failures:
            result = answer(analysis, chosen)
            critical = tuple(_path_of(analysis, step) for step in steps)
    finally:
        close_reports(analysis.run.traces)
    measured = analysis.measured
    missing = (*measured.failures, *failures)
    return Asked(measured.run, result, measured.failed, critical, missing)


def _chosen(texts: Iterable[str]) -> list[Assumption]:
    chosen = [parse(text) for text in texts]
    return [*chosen, combined(chosen)] if len(chosen) > 1 else chosen


def _choice(analysis: OpenAnalysis) -> str:
    steps = [
        {step.number for step in result.steps if step.is_training}
        for result in analysis.measured.of(breakdown)
    ]
    known = sorted(set.intersection(*steps)) if steps else []
    if not known:
        return "this run has no training step that every rank has"
    return f"choose one of its {len(known)} from {known[0]} to {known[-1]}"


def _path_of(analysis: OpenAnalysis, step: int) -> StepPath:
    path = step_path(analysis, step)
    if path is None:
        raise UsageError(
            f"cannot follow the critical path of step {step}",
            "it is not a training step in which every rank has calls and work on a GPU",
            _choice(analysis),
        )
    return path
