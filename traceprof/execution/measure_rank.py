"""Measurements of a rank: everything that needs its events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.analyses import gpu_idle, launch_queue, overlap_slowdown, unfused_kernels
from traceprof.analyses.compute import compute_parts
from traceprof.analyses.gradients import buckets
from traceprof.analyses.kernels import kernel_table, launched_kernels, placed_kernels
from traceprof.analyses.measurements import process_groups
from traceprof.analyses.measurements.hidden import hidden_of
from traceprof.analyses.measurements.measured import RankMeasurements
from traceprof.analyses.registry import ANALYSES
from traceprof.analyses.steps import step_means
from traceprof.findings import NotApplicable
from traceprof.host.rank_stalls import rank_stalls
from traceprof.ranks import arrivals
from traceprof.ranks.passes import rank_passes
from traceprof.run.windows import shown_window
from traceprof.trace.model.parts import Part

if TYPE_CHECKING:
    from traceprof.analyses.measurements.registration import Registration
    from traceprof.analyses.shape.results import RankResult
    from traceprof.run.rank import Rank, Window

_REASONS = {
    Part.API_CALLS: "the report has no CUDA API calls: what the host did is not known",
    Part.GPU_OPERATIONS: "the report has no GPU operation",
}
"""Reasons why an analysis cannot run, by missing part, where its name is not enough."""
_LARGE = [module.__name__ for module in (launch_queue, overlap_slowdown, gpu_idle, unfused_kernels)]
"""The analyses that need the most memory, in the order in which they leave least behind."""


def measure_rank(rank: Rank, window: Window) -> RankMeasurements:
    """Measure a window of a rank by all analyses that apply to it.

    Args:
        rank: the rank, of an open report.
        window: the part of it to judge.

    Raises:
        TraceFormatError: the report is damaged.
    """
    has_gpu = rank.device is not None
    results: dict[str, RankResult] = {}
    shown_results: dict[str, RankResult] = {}
    missing: dict[str, tuple[NotApplicable, ...]] = {}
    shown = shown_window(rank, window)
    # What needs the most memory comes first: later analyses keep shared results.
    kernels = kernel_table.run(rank, shown, window) if has_gpu else None
    launched = launched_kernels.run(rank, shown, window) if has_gpu else None
    compute = None if launched is None else compute_parts.run(rank, shown, launched, window)
    is_same = (shown.start_ns, shown.end_ns) == (window.start_ns, window.end_ns)
    for analysis in sorted(ANALYSES, key=lambda entry: [entry.name != name for name in _LARGE]):
        if analysis.measure is None or not (has_gpu or analysis.is_for_cpu):
            continue
        lacking = next((part for part in analysis.requires if not rank.trace.holds(part)), None)
        if lacking is None:
            result = results[analysis.name] = analysis.measure(rank, window)
            if analysis.is_listed:
                of_all = result if is_same else analysis.measure(rank, shown)
                shown_results[analysis.name] = of_all
        else:
            missing[analysis.name] = _not_applicable(analysis, rank, lacking)
    return RankMeasurements(
        results=results,
        missing=missing,
        arrivals=arrivals.PackedArrivals.of(arrivals.run(rank, window)),
        buckets=buckets.run(rank, shown),
        kernels=kernels,
        compute=compute,
        hidden=hidden_of(rank, window),
        launched=launched,
        process_groups=None if has_gpu else process_groups.run(rank, window),
        shown=shown_results,
        shown_process_groups=None if has_gpu else process_groups.run(rank, shown),
        step_totals=step_means.run(rank, window),
        stalls=rank_stalls(rank, window) if has_gpu else None,
        placed=placed_kernels.run(rank, window) if has_gpu else None,
        passes=rank_passes(rank, window),
    )


def _not_applicable(analysis: Registration, rank: Rank, lacking: Part) -> tuple[NotApplicable, ...]:
    """Return why an analysis can neither make nor exclude its findings."""
    how = rank.trace.how_to_collect(lacking)
    reason = _REASONS.get(lacking, f"the report has no {lacking.name.lower().replace('_', ' ')}")
    return tuple(NotApplicable(id_, reason, how, rank.rank) for id_ in analysis.findings)
