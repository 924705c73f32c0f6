"""The verdict on the measurements of a run: its findings, headline and attribution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import structs

from traceprof.analyses import breakdown
from traceprof.analyses.breakdown import BreakdownResult
from traceprof.analyses.measurements import MeasuredRun, Registration
from traceprof.analyses.registry import ANALYSES, FINDING_IDS
from traceprof.analyses.straggler import rotation
from traceprof.analyses.verdict.attribution import attributions
from traceprof.analyses.verdict.headline import as_parts, headline, in_order
from traceprof.analyses.verdict.phases import costs_elsewhere, in_phases
from traceprof.analyses.verdict.run_result import Verdict
from traceprof.analyses.verdict.savings import bounded
from traceprof.findings import Finding, NotApplicable, Severity, by_id
from traceprof.run.guard import collected_failures, optional
from traceprof.run.opening import RunSummary, notes_of
from traceprof.run.periods import about_part
from traceprof.trace.model.parts import Part
from traceprof.units import ranks_text


def judge(
    measured: MeasuredRun, *, only: Collection[str] = (), skip: Collection[str] = ()
) -> Verdict:
    """Return the findings of a run, and what cannot be judged.

    Where everything was measured, all findings are judged, whatever is asked for: a filter changes
    no verdict. `Verdict.listed` leaves out the others.
    """
    with collected_failures() as failures:
        verdict = _verdict(measured, {*only}, {*skip})
    return verdict.with_failures([*measured.failures, *failures])


def _verdict(measured: MeasuredRun, only: set[str], skip: set[str]) -> Verdict:
    wanted = measured.wanted
    analyses = [
        analysis for analysis in ANALYSES if wanted is None or analysis.name in wanted.measured
    ]
    judged = _judged(measured, analyses)
    num_ranks = {
        id_: len(measured.results.named(analysis.name))
        + sum(gap.id == id_ for gap in measured.missing.get(analysis.name, ()))
        + len({gap.rank for gap in measured.failures if gap.id == id_})
        for analysis in ANALYSES
        if analysis.measure is not None
        for id_ in analysis.findings
    }

    def is_wanted(claim: Finding | NotApplicable) -> bool:
        return wanted is None or (claim.id not in skip and claim.id in only)

    phases = {number: judge(one, only=only, skip=skip) for number, one in measured.phases.items()}
    breakdowns = measured.results.of(breakdown)
    head = headline(breakdowns)
    missing = [claim for claim in judged if isinstance(claim, NotApplicable)]
    made = [claim for claim in judged if isinstance(claim, Finding)]
    every = [*_weighed(made, breakdowns, measured.run)]
    asked = {
        id_
        for analysis in analyses
        if wanted is None or analysis.name in wanted.asked
        for id_ in analysis.findings
    }
    claims = [claim for claim in every if claim.id in asked]
    assumed = _assumed(measured, claims)
    limited = as_parts(bounded(claims, measured, assumed, costs_elsewhere(phases)), every)
    findings = in_order(in_phases(limited, head, phases), 0 if head is None else head.step_ns)
    without_gpu = [rank.rank for rank in measured.run.ranks if rank.device is None]
    return Verdict(
        findings=tuple(filter(is_wanted, findings)),
        not_applicable=tuple(_said_once(list(filter(is_wanted, missing)), num_ranks)),
        notes=(
            *notes_of(measured.run),
            *_parts_of_periods(measured.run, breakdowns),
            *_rotation(measured, findings),
            *_what_cannot_be(measured),
        ),
        headline=None if head is None else head.updated(findings),
        attributions=tuple(attributions(breakdowns, findings, missing, without_gpu, asked)),
        assumed={
            claim.id: assumed[claim.id]
            for claim in findings
            if is_wanted(claim) and claim.id in assumed
        },
        phases=phases,
    )


@optional("straggler", otherwise=lambda *_: [])
def _rotation(measured: MeasuredRun, findings: Sequence[Finding]) -> list[tuple[int, str]]:
    rotating = rotation(measured, findings)
    return [] if rotating is None else [(0, rotating)]


@optional("savings", otherwise=lambda *_: {})
def _assumed(measured: MeasuredRun, findings: Sequence[Finding]) -> dict[str, tuple[str, ...]]:
    """Return what to assume so that findings are gone, of those where something fits, by id."""
    assumed = {}
    for group in by_id(findings):
        ranks = {finding.rank for finding in group}
        (analysis,) = [candidate for candidate in ANALYSES if group[0].id in candidate.findings]
        results = [each for each in measured.results.named(analysis.name) if each.rank in ranks]
        assumed[group[0].id] = analysis.findings[group[0].id].assumed(group, results)
    return {id_: atoms for id_, atoms in assumed.items() if atoms}


_MIN_JUDGED = 0.01  # of the longest time of a rank of its report: less says nothing of the run


def _weighed(
    findings: Sequence[Finding], breakdowns: Sequence[BreakdownResult], run: RunSummary
) -> Iterator[Finding]:
    """Yield the findings; those of ranks that hardly ran beside others of a report are `info`."""
    report_of = {info.rank: info.report for info in run.ranks}
    judged_ns = {result.rank: result.judged.window_ns for result in breakdowns}
    by_length = sorted(judged_ns, key=lambda rank: judged_ns[rank])
    longest_ns = {report_of[rank]: judged_ns[rank] for rank in by_length}
    for finding in findings:
        least_ns = _MIN_JUDGED * longest_ns.get(report_of.get(finding.rank, -1), 0)
        hardly_ran = judged_ns.get(finding.rank, least_ns) < least_ns
        yield structs.replace(finding, severity=Severity.INFO) if hardly_ran else finding


def _judged(
    measured: MeasuredRun, analyses: Sequence[Registration]
) -> list[Finding | NotApplicable]:
    if not measured.run.ranks:
        how = measured.run.how_to_collect(Part.GPU_OPERATIONS)
        how = f"{how} (and see `traceprof info` for what it does hold)"
        reason = "no report holds a GPU operation"
        return [NotApplicable(id_, reason, how) for id_ in FINDING_IDS]
    return [claim for analysis in analyses for claim in analysis.judge(measured)]


def _what_cannot_be(measured: MeasuredRun) -> Iterator[tuple[int, str]]:
    """Yield what speaks of loss in a rank's records, beside what its recorder says itself."""
    for rank in measured.run.ranks:
        losses, notes = measured.losses.get(rank.rank), measured.run.reports[rank.report].notes
        for reason in () if losses is None else losses.reasons:
            if not any(reason in note for note in notes):
                yield rank.report, f"rank {rank.rank}: {reason}"


@optional("periods", otherwise=lambda *_: [])
def _parts_of_periods(
    run: RunSummary, breakdowns: Sequence[BreakdownResult]
) -> list[tuple[int, str]]:
    parts = {
        result.rank: (result.num_periods, result.num_period_steps)
        for result in breakdowns
        if result.num_periods > result.num_period_steps
    }
    notes = []
    for report in range(len(run.reports)):
        ranks = [rank.rank for rank in run.ranks if rank.report == report and rank.rank in parts]
        if ranks:
            num_periods, num = max(parts[rank] for rank in ranks)
            notes.append((report, f"{ranks_text(ranks)}: {about_part(num, num_periods)}"))
    return notes


def _said_once(
    missing: Sequence[NotApplicable], num_ranks: Mapping[str, int]
) -> Iterator[NotApplicable]:
    of_run = [structs.replace(gap, rank=None) for gap in missing]
    counts = Counter(of_run)
    said = set()
    for gap, whole in zip(missing, of_run, strict=True):
        if counts[whole] < num_ranks.get(gap.id, 1):
            yield gap
        elif whole not in said:
            said.add(whole)
            yield whole
