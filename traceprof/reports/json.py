"""An analysis as JSON, by the schema `traceprof.analysis/1` that ships beside this module."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import traceprof

if TYPE_CHECKING:
    from traceprof.analyses.breakdown import Measures
    from traceprof.analyses.links.link_usage import LinkUse
    from traceprof.analyses.run_result import RunResult
    from traceprof.findings import Finding

SCHEMA = "traceprof.analysis/1"


def document(analysis: RunResult) -> dict[str, Any]:
    """Return the analysis as plain dicts, lists, numbers and strings."""
    return {
        "schema": SCHEMA,
        "traceprof_version": traceprof.__version__,
        "reports": [
            {
                "index": index,
                "path": _encodable(str(report.path)),
                "format": report.format,
                "product_version": report.product_version,
                "schema_version": report.schema_version,
            }
            for index, report in enumerate(analysis.run.reports)
        ],
        "ranks": [
            {
                "rank": rank.rank,
                "report": rank.report,
                "pid": rank.pid,
                "device": rank.device,
                "gpu": rank.gpu,
            }
            for rank in analysis.run.ranks
        ],
        "run": _run(analysis),
        "breakdown": [
            {"rank": result.rank, **_measures(result.whole)} for result in analysis.breakdown
        ],
        "steps": [
            _step(result.rank, step.number, step.measures)
            for result in analysis.breakdown
            for step in result.steps
        ],
        "links": [
            {"rank": rank, **_link(use)}
            for rank, uses in (
                *((link.rank, link.uses) for link in analysis.links),
                *((counter.rank, counter.uses) for counter in analysis.counters),
            )
            for use in uses
        ],
        "collectives": [
            {"rank": result.rank, **asdict(use), "utilization": use.utilization}
            for result in analysis.collectives
            for use in result.uses
        ],
        "buckets": [
            {"rank": result.rank, **asdict(use)}
            for result in analysis.buckets
            for use in result.uses
        ],
        "findings": [_finding(finding) for finding in analysis.findings],
        "not_applicable": [asdict(each) for each in analysis.not_applicable],
        "notes": [{"report": report, "note": note} for report, note in analysis.notes],
        "lost_reports": [
            {"path": _encodable(str(each.path)), "reason": str(each.error)}
            for each in analysis.failed
        ],
    }


def _run(analysis: RunResult) -> dict[str, Any]:
    """Return how the reports belong together: clocks, matched operations, who waited for whom."""
    run, met = analysis.run, analysis.ranks
    return {
        "rank_source": run.rank_source,
        "num_runs": len(set(run.run_numbers)),
        "ranks": [
            {"rank": rank.rank, "host": met.clocks.of(rank.report).host, "gpu_id": rank.gpu_id}
            for rank in run.ranks
        ],
        "clocks": [
            {"report": report, "run": run.run_numbers[report], **asdict(met.clocks.of(report))}
            for report in range(len(run.reports))
        ],
        "matched": [
            {
                "communicator": waits.group.name,
                "source": waits.group.source,
                "ranks": [met.ranks[member] for member in waits.group.members],
                "num_ranks": max(waits.group.num_ranks, len(waits.group.members)),
                "num_operations": len(waits),
            }
            for waits in met.waits
        ],
        "unmatched": [asdict(each) for each in met.unmatched],
        "lateness": [
            {
                "rank": met.ranks[each.member],
                "host": met.machines[each.member],
                "num_operations": each.num_operations,
                "share_last": each.share_last,
                "late_ns": each.late_ns,
                "uncertainty_ns": each.uncertainty_ns,
            }
            for each in met.lateness
        ],
        "waits": [
            {
                "rank": met.ranks[waiting],
                "for_rank": met.ranks[late],
                "wait_ns": int(met.matrix_ns[waiting, late]),
            }
            for waiting, late in zip(*met.matrix_ns.nonzero(), strict=True)
        ],
    }


def render(analysis: RunResult) -> str:
    """Return the analysis as JSON text that ends in a newline."""
    return json.dumps(document(analysis), indent=1, allow_nan=False) + "\n"


def _link(use: LinkUse) -> dict[str, Any]:
    return {
        "link": use.link,
        "direction": use.direction,
        "peer": use.peer,
        "bytes": use.bytes,
        "busy_ns": use.busy_ns,
        "gb_per_s": use.gb_per_s,
        "peak_gb_per_s": use.peak_gb_per_s,
        "is_peak_assumed": use.is_peak_assumed,
        "utilization": use.utilization,
        "source": use.source,
        "name": use.name,
    }


def _measures(measures: Measures) -> dict[str, int]:
    return asdict(measures)


def _step(rank: int, number: int, measures: Measures) -> dict[str, int]:
    fields = _measures(measures)
    start = fields.pop("window_start_ns")
    return {
        "rank": rank,
        "step": number,
        "start_ns": start,
        "end_ns": start + fields["window_ns"],
        **fields,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        **asdict(finding),
        "severity": str(finding.severity),
        "evidence": [
            {**asdict(each), "label": _encodable(each.label)} for each in finding.evidence
        ],
    }


def _encodable(text: str) -> str:
    """Return text that any JSON reader accepts: bytes of a file name that are no UTF-8 replaced."""
    return text.encode("utf-8", "replace").decode("utf-8")
