"""What the measurements of a run mean: from measured reports to findings."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

from traceprof.analyses import breakdown
from traceprof.analyses.measurements import process_groups
from traceprof.analyses.measurements.measured import MeasuredReport, MeasuredRun
from traceprof.analyses.registry import ANALYSES, FINDING_IDS
from traceprof.analyses.shape.results import Results
from traceprof.analyses.verdict.attribution import attributions
from traceprof.analyses.verdict.headline import headline
from traceprof.analyses.verdict.run_result import RunResult
from traceprof.analyses.verdict.savings import bounded
from traceprof.findings import Finding, NotApplicable
from traceprof.ranks.comparison import compare_ranks
from traceprof.run.failures import all_failed
from traceprof.run.notes import notes_of
from traceprof.run.opening import summarize_run
from traceprof.run.summary import FailedReport
from traceprof.run.windows import check_is_captured, no_such_steps
from traceprof.trace.model.parts import Part

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from traceprof.analyses.shape.results import RankResult
    from traceprof.run.opening import RunSummary
    from traceprof.run.windows import Range


def judge(
    reports: Sequence[MeasuredReport | FailedReport],
    *,
    only: Collection[str] = (),
    skip: Collection[str] = (),
    steps: Range | None = None,
    time_range: Range | None = None,
) -> RunResult:
    """Bring together what was measured of the reports of a run, and say what it means.

    Args:
        reports: in the order given.
        only: the findings to judge; all where empty.
        skip: the findings not to judge.
        steps: the training steps that were asked for.
        time_range: what was asked for of the report's own time.

    Raises:
        TraceprofError: no report could be measured.
        UsageError: no rank has such steps, or nothing was captured in the time range.
    """
    measured_reports = [report for report in reports if isinstance(report, MeasuredReport)]
    failed = [report for report in reports if isinstance(report, FailedReport)]
    if failed and not measured_reports:
        raise all_failed(failed)
    if steps is not None:
        _check_steps(measured_reports, steps)
    spans = [report.captured_ns for report in measured_reports if report.captured_ns is not None]
    if time_range is not None and spans:
        check_is_captured(time_range, spans)
    measured = _refined(_measured_run(measured_reports))
    judged = _judged(measured)
    num_ranks = {
        id_: measured.results.num_ranks(analysis.name)
        + sum(gap.id == id_ for gap in measured.missing.get(analysis.name, ()))
        for analysis in ANALYSES
        if analysis.measure is not None
        for id_ in analysis.findings
    }
    wanted = [claim for claim in judged if claim.id not in skip and (not only or claim.id in only)]
    findings = [claim for claim in wanted if isinstance(claim, Finding)]
    # What costs most comes first, also where nothing can be done about it.
    findings.sort(
        key=lambda finding: (-finding.impact_ns, -finding.severity.level, finding.id, finding.rank)
    )
    missing = [claim for claim in wanted if isinstance(claim, NotApplicable)]
    all_findings = [claim for claim in judged if isinstance(claim, Finding)]
    all_missing = [claim for claim in judged if isinstance(claim, NotApplicable)]
    breakdowns = measured.results.of(breakdown)
    result = RunResult(
        measured=measured,
        findings=tuple(findings),
        not_applicable=tuple(_said_once(missing, num_ranks)),
        notes=tuple(notes_of(measured.run)),
        failed=tuple(failed),
        headline=headline(breakdowns, all_findings),
        attributions=tuple(attributions(breakdowns, all_findings, all_missing)),
    )
    return replace(result, findings=bounded(result.findings, result.breakdown))


def _check_steps(reports: Sequence[MeasuredReport], steps: Range) -> None:
    ranks = [rank for report in reports for rank in report.ranks]
    if all(rank.measurements is None for rank in ranks):
        numbers = [rank.step_numbers for rank in ranks if rank.step_numbers is not None]
        raise no_such_steps(steps, numbers)


def _measured_run(reports: Sequence[MeasuredReport]) -> MeasuredRun:
    """Bring the measurements of the reports together, by the ranks' numbers in the run."""
    by_place = {
        (index, rank.facts.process, rank.facts.device): rank
        for index, report in enumerate(reports)
        for rank in report.ranks
    }
    run = summarize_run(
        [report.facts for report in reports],
        [[rank.facts for rank in report.ranks] for report in reports],
    )
    measurements = [
        measurements.with_rank(info.rank, info.report)
        for info in run.ranks
        if (measurements := by_place[info.place].measurements) is not None
    ]
    return MeasuredRun(
        run=run,
        results=_by_analysis([rank.results for rank in measurements]),
        ranks=compare_ranks(run, [rank.arrivals.unpacked for rank in measurements]),
        missing={
            analysis.name: tuple(
                gap for rank in measurements for gap in rank.missing.get(analysis.name, ())
            )
            for analysis in ANALYSES
        },
        arrivals=tuple(rank.arrivals for rank in measurements),
        buckets=tuple(rank.buckets for rank in measurements),
        kernels=tuple(rank.kernels for rank in measurements if rank.kernels is not None),
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
    )


def _by_analysis(ranks: Sequence[Mapping[str, RankResult]]) -> Results:
    names = dict.fromkeys(name for results in ranks for name in results)
    return Results(
        {name: [results[name] for results in ranks if name in results] for name in names}
    )


def _judged(measured: MeasuredRun) -> list[Finding | NotApplicable]:
    """Judge the ranks one by one, then all together."""
    if not measured.run.ranks:
        return _nothing_to_judge(measured.run)
    return [claim for analysis in ANALYSES for claim in analysis.judge(measured)]


def _refined(measured: MeasuredRun) -> MeasuredRun:
    """Return the measurements with what the comparison of the ranks adds to them."""
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


def _nothing_to_judge(run: RunSummary) -> list[Finding | NotApplicable]:
    """Say that nothing can be judged where no report holds anything of a rank."""
    return [
        NotApplicable(
            id_,
            "no report holds a GPU operation",
            f"{run.how_to_collect(Part.GPU_OPERATIONS)} (and see `traceprof info` for what it does"
            " hold)",
        )
        for id_ in FINDING_IDS
    ]


def _said_once(
    missing: Sequence[NotApplicable], num_ranks: Mapping[str, int]
) -> Iterator[NotApplicable]:
    """Say once, of the whole run, what is missing in the same way on every rank.

    Args:
        missing: what could not be judged, rank by rank.
        num_ranks: by finding, how many ranks it is judged on; those of the run are judged once.
    """
    of_run = [structs.replace(gap, rank=None) for gap in missing]
    counts = Counter(of_run)
    said = set()
    for gap, whole in zip(missing, of_run, strict=True):
        if counts[whole] < num_ranks.get(gap.id, 1):
            yield gap
        elif whole not in said:
            said.add(whole)
            yield whole
