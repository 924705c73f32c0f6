"""The measurements of a run, joined from those of its reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from traceprof.analyses import collectives
from traceprof.analyses.collectives import ProcessGroupsResult
from traceprof.analyses.measurements import MEASUREMENTS, MeasuredReport, MeasuredRun, Wanted
from traceprof.analyses.registry import ANALYSES
from traceprof.analyses.results import RankResult, Results, numbered
from traceprof.errors import UsageError
from traceprof.ranks.arrivals import Arrivals
from traceprof.ranks.comparison import RankComparison, compare_ranks
from traceprof.run.guard import collected_failures, optional
from traceprof.run.opening import summarize_run
from traceprof.run.recognition import SOURCES_OF_RANKS
from traceprof.run.summary import FailedReport, ReportSummary, RunSummary, all_failed
from traceprof.run.windows import Range, check_is_captured, no_such_steps

_RECORDED_SOURCES = (*SOURCES_OF_RANKS, "environment")  # which a copy has, too


def check_are_different(run: RunSummary) -> None:
    """Check that no recording, and no rank of a run, was given twice.

    Containers of one host share process ids, and runs begin alike: the times of their operations
    tell them apart.

    Raises:
        UsageError: one was; it names both reports.
    """
    first: dict[object, ReportSummary] = {}
    for report in run.reports:
        identity = report.identity
        if not identity.work:
            continue
        session = identity.session
        claims = tuple(report.rank_numbers.get(source) for source in _RECORDED_SOURCES)
        facts = session.host, session.start_utc_ns, identity.work, claims
        other = first.setdefault(facts, report)
        if other is not report:
            raise UsageError(
                f"{other.path} and {report.path} are the same recording",
                "their operations begin and end at the same nanoseconds",
                "give each recording once",
            )
    if run.rank_source in SOURCES_OF_RANKS:
        return
    for source in SOURCES_OF_RANKS:
        _check_ranks(run, source)


def _check_ranks(run: RunSummary, source: str) -> None:
    """Check that no two reports of a run are of the same rank of several, by one source."""
    claims: dict[tuple[int, int], Path] = {}
    several = {
        number
        for report, number in zip(run.reports, run.run_numbers, strict=True)
        if (report.identity.world_size or max(_numbers(report, source), default=0) + 1) > 1
    }
    for report, number in zip(run.reports, run.run_numbers, strict=True):
        for rank in _numbers(report, source) if number in several else ():
            other = claims.setdefault((number, rank), report.path)
            if other != report.path:
                raise UsageError(
                    f"{other} and {report.path} are of the same rank of one run, {rank}",
                    "ranks cannot be compared with themselves",
                    "give one recording of each rank; traceprof compare takes two of a run",
                )


def _numbers(report: ReportSummary, source: str) -> set[int]:
    return {number for number in report.rank_numbers.get(source, ()) if number is not None}


def measured_run(
    reports: Sequence[MeasuredReport | FailedReport],
    steps: Range | None = None,
    time_range: Range | None = None,
    wanted: Wanted | None = None,
) -> MeasuredRun:
    """Join the measurements of the reports of a run, and compare its ranks.

    `wanted`: what was to be measured; None for everything.

    Raises:
        TraceprofError: no report could be measured.
        UsageError: no rank has such steps, nothing was captured in the time range, or a recording
            was given twice.
    """
    measured = [report for report in reports if isinstance(report, MeasuredReport)]
    failed = [report for report in reports if isinstance(report, FailedReport)]
    if failed and not measured:
        raise all_failed(failed)
    ranks = [rank for report in measured for rank in report.ranks]
    if steps is not None and all(rank.measurements is None for rank in ranks):
        numbers = [rank.step_numbers for rank in ranks if rank.step_numbers is not None]
        raise no_such_steps(steps, numbers)
    spans = [report.captured_ns for report in measured if report.captured_ns is not None]
    if time_range is not None and spans:
        check_is_captured(time_range, spans)
    with collected_failures() as failures:
        run = _refined(_together(measured, failed, wanted))
        run = replace(run, phases=_phases(measured, wanted))
    return replace(run, failures=tuple(dict.fromkeys([*run.failures, *failures])))


@optional("phases", otherwise=lambda *_: {})
def _phases(reports: Sequence[MeasuredReport], wanted: Wanted | None) -> dict[int, MeasuredRun]:
    numbers = {phase for report in reports for rank in report.ranks for phase in rank.phases}
    phases = {}
    for number in sorted(numbers):
        of_phase = []
        for report in reports:
            ranks = (
                replace(rank, measurements=rank.phases.get(number), failures=())
                for rank in report.ranks
            )
            of_phase.append(replace(report, ranks=tuple(ranks), failures=()))
        phases[number] = _refined(_together(of_phase, (), wanted))
    return phases


def _together(
    reports: Sequence[MeasuredReport], failed: Sequence[FailedReport], wanted: Wanted | None
) -> MeasuredRun:
    by_place = {
        (index, rank.facts.process, rank.facts.device): rank
        for index, report in enumerate(reports)
        for rank in report.ranks
    }
    run = summarize_run(
        [report.facts for report in reports],
        [[rank.facts for rank in report.ranks] for report in reports],
    )
    check_are_different(run)
    measured = [numbered(by_place[info.place], info.rank, info.report) for info in run.ranks]
    ranks = {
        info.rank: of_rank.measurements
        for info, of_rank in zip(run.ranks, measured, strict=True)
        if of_rank.measurements is not None
    }
    failures = [
        *(gap for report in reports for gap in report.failures),
        *(gap for of_rank in measured for gap in of_rank.failures),
    ]
    taken = {
        name: [value for rank in ranks.values() if (value := rank.taken.get(name)) is not None]
        for name in MEASUREMENTS
    }
    # Ranks are compared by their places in these: without one of them nobody is.
    for name in {gap.id for gap in failures} & {"arrivals", "placed", "passes"}:
        taken[name] = []
    joined: dict[str, Any] = {name: tuple(values) for name, values in taken.items()}
    return MeasuredRun(
        run=run,
        results=_by_analysis([rank.results for rank in ranks.values()]),
        ranks=_compared(run, [packed.unpacked for packed in taken["arrivals"]]),
        wanted=wanted,
        missing={
            analysis.name: tuple(
                gap for rank in ranks.values() for gap in rank.missing.get(analysis.name, ())
            )
            for analysis in ANALYSES
        },
        failures=tuple(failures),
        hidden={number: rank.hidden for number, rank in ranks.items()},
        losses={number: rank.losses for number, rank in ranks.items() if rank.losses is not None},
        shown=_by_analysis([rank.shown for rank in ranks.values()]),
        failed=tuple(failed),
        **joined,
    )


@optional("clocks", otherwise=lambda run, _: compare_ranks(run, ()))
def _compared(run: RunSummary, arrivals: Sequence[Arrivals]) -> RankComparison:
    return compare_ranks(run, arrivals)


def _by_analysis(ranks: Sequence[Mapping[str, RankResult]]) -> Results:
    names = dict.fromkeys(name for results in ranks for name in results)
    return Results(
        {name: [results[name] for results in ranks if name in results] for name in names}
    )


def _refined(measured: MeasuredRun) -> MeasuredRun:
    results, shown, ranks = measured.results, measured.shown, measured.ranks
    for analysis in ANALYSES:
        if measured.wanted is None or analysis.name in measured.wanted.read:
            results = analysis.refine(results, ranks)
            shown = analysis.refine(shown, ranks)
    groups, shown_groups = (
        tuple(_with_rates(result, ranks) for result in of_ranks)
        for of_ranks in (measured.process_groups, measured.shown_process_groups)
    )
    return replace(
        measured,
        results=results,
        shown=shown,
        process_groups=groups,
        shown_process_groups=shown_groups,
    )


@optional("process_groups", otherwise=lambda result, _: result)
def _with_rates(result: ProcessGroupsResult, ranks: RankComparison) -> ProcessGroupsResult:
    return collectives.refined(result, ranks)
