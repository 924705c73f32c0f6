"""What is measured of a rank: all that needs its events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.analyses import ddp_buckets, process_groups
from traceprof.analyses.measured import RankMeasurements
from traceprof.analyses.registry import RANK_ANALYSES
from traceprof.findings import NotApplicable
from traceprof.ranks import arrivals
from traceprof.trace.model.parts import Part

if TYPE_CHECKING:
    from traceprof.analyses.results import RankResult
    from traceprof.analyses.shape import RankAnalysis
    from traceprof.run.rank import Rank, Window

_REASONS = {
    Part.API_CALLS: "the report has no CUDA API calls: what the host did is not known",
    Part.GPU_OPERATIONS: "the report has no GPU operation",
}
"""Why an analysis cannot run, by what the trace lacks, where its name alone does not say enough."""


def measure_rank(rank: Rank, window: Window) -> RankMeasurements:
    """Measure a window of a rank by all analyses that are for it.

    Args:
        rank: the rank, of an open report.
        window: what to measure of it.

    Raises:
        TraceFormatError: the report is damaged.
    """
    has_gpu = rank.device is not None
    results: dict[str, RankResult] = {}
    missing: dict[str, tuple[NotApplicable, ...]] = {}
    for analysis in RANK_ANALYSES:
        if not (has_gpu or analysis.is_for_cpu):
            continue
        lacking = next((part for part in analysis.requires if not rank.trace.holds(part)), None)
        if lacking is None:
            results[analysis.name] = analysis.run(rank, window)
        else:
            missing[analysis.name] = _not_applicable(analysis, rank, lacking)
    return RankMeasurements(
        results=results,
        missing=missing,
        arrivals=arrivals.run(rank, window),
        buckets=ddp_buckets.run(rank, window),
        process_groups=None if has_gpu else process_groups.run(rank, window),
    )


def _not_applicable(analysis: RankAnalysis, rank: Rank, lacking: Part) -> tuple[NotApplicable, ...]:
    """Say that the findings of an analysis can be neither made nor ruled out, and why."""
    how = rank.trace.how_to_collect(lacking)
    reason = _REASONS.get(lacking, f"the report has no {lacking.name.lower().replace('_', ' ')}")
    return tuple(NotApplicable(id_, reason, how, rank.rank) for id_ in analysis.ids)
