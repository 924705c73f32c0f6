"""All analyses over a run: numbers first, then what they mean."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceprof.analyses import breakdown, collectives, ddp_buckets, process_groups, straggler
from traceprof.analyses.links import link_counters, link_findings, link_usage
from traceprof.analyses.registry import (
    ANALYSES,
    CPU_ANALYSES,
    EXPLANATIONS,
    FINDING_IDS,
    RANK_ANALYSES,
    RUN_ANALYSES,
    AnalysisModule,
)
from traceprof.errors import TraceprofError
from traceprof.execution.measuring import Options, Task, measure, measure_file
from traceprof.execution.preview import previews
from traceprof.findings import Finding, NotApplicable
from traceprof.run.failures import all_failed, close_on_error, try_report
from traceprof.run.notes import notes_of
from traceprof.run.opening import Run, RunSummary, assemble_run, attach_ranks, summarize_run
from traceprof.run.summary import FailedReport, MeasuredReport
from traceprof.run.windows import no_such_steps
from traceprof.trace.model.parts import Part
from traceprof.trace.open import open_trace

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from traceprof.progress import Progress
    from traceprof.run.rank import Rank
    from traceprof.trace.model.trace import Trace

__all__ = [
    "ANALYSES",
    "CPU_ANALYSES",
    "EXPLANATIONS",
    "FINDING_IDS",
    "RUN_ANALYSES",
    "Analysis",
    "AnalysisModule",
    "Options",
    "RunResult",
    "analyze",
    "analyze_reports",
]  # fmt: skip


@dataclass(frozen=True)
class RunResult:
    """Everything that was found out about a run, whether its reports are still open or not.

    Attributes:
        run: the reports and their ranks.
        results: what each module measured, by rank, of the ranks that it is for.
        findings: the costliest first.
        not_applicable: findings that could be neither made nor ruled out.
        notes: (report index, what to know about its data).
        ranks: how the ranks met: clocks, waits, transfers.
        lost: reports that could not be analysed; the run has none of them.
    """

    run: RunSummary
    results: Mapping[AnalysisModule, tuple[Any, ...]]
    findings: tuple[Finding, ...]
    not_applicable: tuple[NotApplicable, ...]
    notes: tuple[tuple[int, str], ...]
    ranks: straggler.RanksResult
    lost: tuple[FailedReport, ...]

    def of(self, module: AnalysisModule) -> tuple[Any, ...]:
        """Return what a module measured, by rank: see each result's `rank`."""
        return self.results[module]

    @property
    def breakdown(self) -> tuple[breakdown.BreakdownResult, ...]:
        """Where the time went, by rank."""
        return self.of(breakdown)

    @property
    def collectives(
        self,
    ) -> tuple[collectives.CollectivesResult | process_groups.ProcessGroupsResult, ...]:
        """What was communicated, by operation, by rank."""
        return (*self.of(collectives), *self.of(process_groups))

    @property
    def buckets(self) -> tuple[ddp_buckets.DdpBucketsResult, ...]:
        """Gradient buckets, by rank."""
        return self.of(ddp_buckets)

    @property
    def links(self) -> tuple[link_usage.LinkUsageResult, ...]:
        """What copies carried, by rank."""
        return self.of(link_usage)

    @property
    def counters(self) -> tuple[link_counters.LinkCountersResult, ...]:
        """What sampled counters saw of the links, by rank."""
        return self.of(link_counters)


@dataclass(frozen=True)
class Analysis(RunResult):
    """The same of reports that are still open.

    Attributes:
        run: the reports and their ranks, with all that they did.
    """

    run: Run

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

    A report that cannot be read is left out, and said to be (`Analysis.lost`), if others can.

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
        result = _judged(made, options)
        kept = [
            each
            for each, measured in zip(opened, made, strict=True)
            if not isinstance(each, FailedReport) and not isinstance(measured, FailedReport)
        ]
        run = attach_ranks(result.run, [trace for trace, _ in kept], [own for _, own in kept])
        return Analysis(**{**vars(result), "run": run})
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
    read, or whose worker dies twice, is left out, and said to be (`RunResult.lost`), if there are
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
    return _judged([each for each in made if each is not None], options)


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
        nothing: dict[AnalysisModule, tuple[Any, ...]] = dict.fromkeys(RANK_ANALYSES, ())
        known = Analysis(run, nothing, (), (), (), straggler.run(run, ()), ())
        for found in previews(run.ranks, options):
            early(replace(known, results={**nothing, breakdown: found}))
            if not trace.is_being_read:
                break


def _measured(trace: Trace, ranks: Sequence[Rank], options: Options) -> MeasuredReport:
    with close_on_error(trace):
        return measure(trace, ranks, options)


def _judged(made: Sequence[MeasuredReport | FailedReport], options: Options) -> RunResult:
    """Bring together what was measured of the reports, and say what it means."""
    reports = [each for each in made if isinstance(each, MeasuredReport)]
    lost = [each for each in made if isinstance(each, FailedReport)]
    if lost and not reports:
        raise all_failed(lost)
    ranks = [rank for report in reports for rank in report.ranks]
    if options.steps is not None and not any(rank.results for rank in ranks):
        numbers = [rank.step_numbers for rank in ranks if rank.step_numbers is not None]
        raise no_such_steps(options.steps, numbers)
    run = summarize_run(
        [report.facts for report in reports],
        [[rank.facts for rank in report.ranks] for report in reports],
    )
    numbered = [rank.renumbered(facts) for rank, facts in zip(ranks, run.ranks, strict=True)]
    results: dict[AnalysisModule, tuple[Any, ...]] = {
        module: tuple(
            rank.results[index] for rank in numbered if rank.results and index in rank.results
        )
        for index, module in enumerate(RANK_ANALYSES)
    }
    judged = [
        each
        for module, of_module in results.items()
        for result in of_module
        for each in module.findings(result)
    ]
    met = [analysis.run(run, results[analysis.OF]) for analysis in RUN_ANALYSES]
    for module, result in zip(RUN_ANALYSES, met, strict=True):
        judged += module.findings(result)
    ranks_met: straggler.RanksResult = met[RUN_ANALYSES.index(straggler)]
    for of_rank in (collectives, process_groups):
        results[of_rank] = tuple(
            of_rank.with_transfers(each, straggler.transfers_of(ranks_met, each.rank))
            for each in results[of_rank]
        )
    judged += _without_ranks(run)
    wanted = [each for each in judged if _is_wanted(each.id, options)]
    # Copies and counters may both see a link at its limit.
    found = link_findings.distinct([each for each in wanted if isinstance(each, Finding)])
    missing = [each for each in wanted if isinstance(each, NotApplicable)]
    found.sort(key=lambda each: (-each.severity, -each.impact_ns, each.id, each.rank))
    return RunResult(
        run,
        results=results,
        findings=tuple(found),
        not_applicable=tuple(_merged(missing, results)),
        notes=tuple(notes_of(run)),
        ranks=ranks_met,
        lost=tuple(lost),
    )


def _is_wanted(finding: str, options: Options) -> bool:
    return finding not in options.skip and (not options.only or finding in options.only)


def _without_ranks(run: RunSummary) -> list[NotApplicable]:
    """Say that nothing can be judged where no report holds anything of a rank."""
    if run.ranks:
        return []
    return [
        NotApplicable(
            id_,
            "no report holds a GPU operation",
            f"{run.how_to_collect(Part.GPU_OPERATIONS)} (and see `traceprof info` for what it does"
            " hold)",
        )
        for id_ in FINDING_IDS
    ]


def _merged(
    missing: Sequence[NotApplicable], results: Mapping[AnalysisModule, Sequence[Any]]
) -> Iterable[NotApplicable]:
    """Say once, of the whole run, what is missing in the same way on every rank it is judged on."""
    num_ranks = {id_: len(of_module) for module, of_module in results.items() for id_ in module.IDS}
    of_run = [replace(each, rank=None) for each in missing]
    said = set()
    for each, whole in zip(missing, of_run, strict=True):
        if of_run.count(whole) < num_ranks.get(each.id, 1):
            yield each
        elif whole not in said:
            said.add(whole)
            yield whole
