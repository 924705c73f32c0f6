"""An analysis as JSON, by the schema `traceprof.analysis/1` that ships beside this module."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import msgspec

from traceprof.reports import document as d
from traceprof.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceprof.analyses.breakdown import StepMeasures
    from traceprof.analyses.links.link_usage import LinkUse
    from traceprof.analyses.run_result import RunResult
    from traceprof.findings import Finding


def render(result: RunResult) -> str:
    """Return the analysis as JSON text that ends in a newline."""
    # A struct becomes a dict when its turn comes: all of them at once would take megabytes.
    text = json.dumps(document(result), default=msgspec.structs.asdict, indent=1, allow_nan=False)
    return text + "\n"


def document(result: RunResult) -> d.Document:
    """Return the analysis as the document that is written."""
    run = result.run
    return d.Document(
        schema=d.SCHEMA,
        traceprof_version=__version__,
        reports=[
            d.Report(
                index=index,
                path=_encodable(str(report.path)),
                format=report.format,
                product_version=report.product_version,
                schema_version=report.schema_version,
            )
            for index, report in enumerate(run.reports)
        ],
        ranks=[
            d.Rank(
                rank=rank.rank, report=rank.report, pid=rank.pid, device=rank.device, gpu=rank.gpu
            )
            for rank in run.ranks
        ],
        run=_run(result),
        breakdown=[
            d.Breakdown(rank=measured.rank, **asdict(measured.whole))
            for measured in result.breakdown
        ],
        steps=[
            _step(measured.rank, step) for measured in result.breakdown for step in measured.steps
        ],
        links=list(_links(result)),
        collectives=[
            d.Collective(rank=measured.rank, **asdict(use), utilization=use.utilization)
            for measured in result.collectives
            for use in measured.uses
        ],
        buckets=[
            d.Bucket(rank=measured.rank, **asdict(use))
            for measured in result.buckets
            for use in measured.uses
        ],
        findings=[_finding(finding) for finding in result.findings],
        not_applicable=[
            d.NotApplicable(gap.id, gap.reason, gap.how_to_collect, gap.rank)
            for gap in result.not_applicable
        ],
        notes=[d.Note(report, note) for report, note in result.notes],
        lost_reports=[
            d.LostReport(_encodable(str(report.path)), str(report.error))
            for report in result.failed
        ],
    )


def _run(result: RunResult) -> d.Run:
    """Return how the reports belong together: clocks, matched operations, who waited for whom."""
    run, ranks = result.run, result.ranks
    return d.Run(
        rank_source=run.rank_source,
        num_runs=len(set(run.run_numbers)),
        ranks=[
            d.RunRank(rank.rank, ranks.clocks.of(rank.report).host, rank.gpu_id)
            for rank in run.ranks
        ],
        clocks=[
            d.Clock(report, run.run_numbers[report], **asdict(ranks.clocks.of(report)))
            for report in range(len(run.reports))
        ],
        matched=[
            d.Matched(
                communicator=waits.group.name,
                source=waits.group.source,
                ranks=[ranks.ranks[member] for member in waits.group.members],
                num_ranks=max(waits.group.num_ranks, len(waits.group.members)),
                num_operations=len(waits),
            )
            for waits in ranks.waits
        ],
        unmatched=[
            d.Unmatched(group.name, list(group.ranks), group.reason) for group in ranks.unmatched
        ],
        lateness=[
            d.Lateness(
                rank=ranks.ranks[late.member],
                host=ranks.machines[late.member],
                num_operations=late.num_operations,
                share_last=late.share_last,
                late_ns=late.late_ns,
                uncertainty_ns=late.uncertainty_ns,
            )
            for late in ranks.lateness
        ],
        waits=[
            d.Wait(
                rank=ranks.ranks[waiting],
                for_rank=ranks.ranks[late],
                wait_ns=int(ranks.matrix_ns[waiting, late]),
            )
            for waiting, late in zip(*ranks.matrix_ns.nonzero(), strict=True)
        ],
    )


def _step(rank: int, step: StepMeasures) -> d.Step:
    measures = asdict(step.measures)
    start = step.measures.window_start_ns
    del measures["window_start_ns"]
    end = start + step.measures.window_ns
    return d.Step(rank=rank, step=step.number, start_ns=start, end_ns=end, **measures)


def _links(result: RunResult) -> Iterator[d.LinkUse]:
    """Yield what links carried: by copies, then by counters."""
    for copies in result.links:
        yield from (_link(copies.rank, use) for use in copies.uses)
    for counters in result.counters:
        yield from (_link(counters.rank, use) for use in counters.uses)


def _link(rank: int, use: LinkUse) -> d.LinkUse:
    return d.LinkUse(
        rank=rank,
        link=use.link,
        direction=use.direction,
        peer=use.peer,
        bytes=use.bytes,
        busy_ns=use.busy_ns,
        gb_per_s=use.gb_per_s,
        peak_gb_per_s=use.peak_gb_per_s,
        is_peak_assumed=use.is_peak_assumed,
        utilization=use.utilization,
        source=use.source,
        name=use.name,
    )


def _finding(finding: Finding) -> d.Finding:
    return d.Finding(
        id=finding.id,
        severity=str(finding.severity),
        rank=finding.rank,
        title=finding.title,
        impact_ns=finding.impact_ns,
        impact_fraction=finding.impact_fraction,
        metrics=dict(finding.metrics),
        evidence=[
            d.Evidence(seen.start_ns, seen.end_ns, _encodable(seen.label))
            for seen in finding.evidence
        ],
        advice=list(finding.advice),
    )


def _encodable(text: str) -> str:
    """Return text that any JSON reader accepts: bytes of a file name that are no UTF-8 replaced."""
    return text.encode("utf-8", "replace").decode("utf-8")
