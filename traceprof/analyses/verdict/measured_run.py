"""The measurements of a run, joined from those of its reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from traceprof.analyses.kernels.unevenness import unevenness
from traceprof.analyses.measurements import process_groups
from traceprof.analyses.measurements.measured import MeasuredReport, MeasuredRun
from traceprof.analyses.registry import ANALYSES
from traceprof.analyses.shape.results import Results
from traceprof.analyses.verdict.given_twice import check_are_different
from traceprof.ranks.comparison import compare_ranks
from traceprof.run.failures import all_failed
from traceprof.run.opening import summarize_run
from traceprof.run.summary import FailedReport
from traceprof.run.windows import check_is_captured, no_such_steps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceprof.analyses.shape.results import RankResult
    from traceprof.run.windows import Range


def measured_run(
    reports: Sequence[MeasuredReport | FailedReport],
    steps: Range | None = None,
    time_range: Range | None = None,
) -> MeasuredRun:
    """Join the measurements of the reports of a run, and compare its ranks.

    Args:
        reports: in the order given.
        steps: the training steps that were asked for.
        time_range: the part of the report's own time that was asked for.

    Raises:
        TraceprofError: no report could be measured.
        UsageError: no rank has such steps, nothing was captured in the time range, or a recording
            was given twice.
    """
    measured = [report for report in reports if isinstance(report, MeasuredReport)]
    failed = [report for report in reports if isinstance(report, FailedReport)]
    if failed and not measured:
        raise all_failed(failed)
    if steps is not None:
        _check_steps(measured, steps)
    spans = [report.captured_ns for report in measured if report.captured_ns is not None]
    if time_range is not None and spans:
        check_is_captured(time_range, spans)
    return _refined(_together(measured, failed))


def _check_steps(reports: Sequence[MeasuredReport], steps: Range) -> None:
    ranks = [rank for report in reports for rank in report.ranks]
    if all(rank.measurements is None for rank in ranks):
        numbers = [rank.step_numbers for rank in ranks if rank.step_numbers is not None]
        raise no_such_steps(steps, numbers)


def _together(reports: Sequence[MeasuredReport], failed: Sequence[FailedReport]) -> MeasuredRun:
    """Join the measurements of reports, by the ranks' numbers in the run."""
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
    measurements = [
        measurements.with_rank(info.rank, info.report)
        for info in run.ranks
        if (measurements := by_place[info.place].measurements) is not None
    ]
    ranks = compare_ranks(run, [rank.arrivals.unpacked for rank in measurements])
    placed = tuple(rank.placed for rank in measurements if rank.placed is not None)
    return MeasuredRun(
        run=run,
        results=_by_analysis([rank.results for rank in measurements]),
        ranks=ranks,
        missing={
            analysis.name: tuple(
                gap for rank in measurements for gap in rank.missing.get(analysis.name, ())
            )
            for analysis in ANALYSES
        },
        arrivals=tuple(rank.arrivals for rank in measurements),
        buckets=tuple(rank.buckets for rank in measurements),
        kernels=tuple(rank.kernels for rank in measurements if rank.kernels is not None),
        launched=tuple(rank.launched for rank in measurements if rank.launched is not None),
        compute=tuple(rank.compute for rank in measurements if rank.compute is not None),
        hidden={rank.step_totals.rank: rank.hidden for rank in measurements},
        process_groups=tuple(
            rank.process_groups for rank in measurements if rank.process_groups is not None
        ),
        shown=_by_analysis([rank.shown for rank in measurements]),
        shown_process_groups=tuple(
            rank.shown_process_groups
            for rank in measurements
            if rank.shown_process_groups is not None
        ),
        step_totals=tuple(rank.step_totals for rank in measurements),
        stalls=tuple(rank.stalls for rank in measurements if rank.stalls is not None),
        placed=placed,
        uneven=unevenness(placed, ranks.clocks),
        passes=tuple(rank.passes for rank in measurements),
        failed=tuple(failed),
    )


def _by_analysis(ranks: Sequence[Mapping[str, RankResult]]) -> Results:
    names = dict.fromkeys(name for results in ranks for name in results)
    return Results(
        {name: [results[name] for results in ranks if name in results] for name in names}
    )


def _refined(measured: MeasuredRun) -> MeasuredRun:
    """Return the measurements, completed by the comparison of the ranks."""
    results, shown, ranks = measured.results, measured.shown, measured.ranks
    for analysis in ANALYSES:
        results = analysis.refine(results, ranks)
        shown = analysis.refine(shown, ranks)
    groups, shown_groups = (
        tuple(process_groups.refined(result, ranks) for result in of_ranks)
        for of_ranks in (measured.process_groups, measured.shown_process_groups)
    )
    return replace(
        measured,
        results=results,
        shown=shown,
        process_groups=groups,
        shown_process_groups=shown_groups,
    )
