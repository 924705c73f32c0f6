"""Measurements of a rank: everything that needs its events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from traceprof.analyses import gpu_idle, launch_queue, overlap_slowdown, unfused_kernels
from traceprof.analyses.measurements.hidden import hidden_of
from traceprof.analyses.measurements.measured import RankMeasurements
from traceprof.analyses.measurements.of_rank import MEASUREMENTS
from traceprof.analyses.registry import ANALYSES
from traceprof.findings import NotApplicable
from traceprof.guard import optional
from traceprof.run.windows import shown_window
from traceprof.trace.model.parts import Part

if TYPE_CHECKING:
    from collections.abc import Iterable

    from traceprof.analyses.measurements.hidden import Hidden
    from traceprof.analyses.measurements.measured import Wanted
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

_FIRST = ("kernels", "launched", "compute")


def measure_rank(rank: Rank, window: Window, wanted: Wanted | None = None) -> RankMeasurements:
    """Measure a window of a rank by all analyses that apply to it.

    Args:
        rank: the rank, of an open report.
        window: the part of it to judge.
        wanted: what to measure; None for everything.

    Raises:
        TraceFormatError: the report is damaged.
    """
    has_gpu = rank.device is not None
    shown = shown_window(rank, window)
    taken: dict[str, Any] = {}

    def take(names: Iterable[str]) -> None:
        for name in names:
            entry = MEASUREMENTS[name]
            is_wanted = wanted is None or name in wanted.measurements
            if is_wanted and entry.has_gpu in {None, has_gpu}:
                taken[name] = entry.measure(rank, window, shown, taken)

    # What needs the most memory comes first: later analyses keep shared results.
    take(_FIRST)
    results: dict[str, RankResult] = {}
    of_all: dict[str, RankResult] = {}
    missing: dict[str, tuple[NotApplicable, ...]] = {}
    for analysis in _chosen(rank, wanted):
        lacking = next((part for part in analysis.requires if not rank.trace.holds(part)), None)
        if lacking is not None:
            missing[analysis.name] = _not_applicable(analysis, rank, lacking)
            continue
        _add(results, analysis, rank, window)
        if analysis.is_listed and (wanted is None or analysis.name in wanted.asked):
            if (shown.start_ns, shown.end_ns) != (window.start_ns, window.end_ns):
                _add(of_all, analysis, rank, shown)
            elif analysis.name in results:
                of_all[analysis.name] = results[analysis.name]
    take(name for name in MEASUREMENTS if name not in _FIRST)
    return RankMeasurements(
        results=results,
        missing=missing,
        hidden=_hidden(rank, window),
        losses=None if rank.device is None else rank.losses,
        shown=of_all,
        **taken,
    )


def _chosen(rank: Rank, wanted: Wanted | None) -> list[Registration]:
    """Return the analyses that measure a rank, in the order in which they do."""
    analyses = [
        analysis
        for analysis in ANALYSES
        if analysis.measure is not None
        and (rank.device is not None or analysis.is_for_cpu)
        and (wanted is None or analysis.name in wanted.measured)
    ]
    return sorted(analyses, key=lambda entry: [entry.name != name for name in _LARGE])


def _add(
    results: dict[str, RankResult], analysis: Registration, rank: Rank, window: Window
) -> None:
    result = None if analysis.measure is None else analysis.measure(rank, window)
    if result is not None:  # else it failed
        results[analysis.name] = result


@optional("hidden", otherwise=lambda *_: ())
def _hidden(rank: Rank, window: Window) -> tuple[Hidden, ...]:
    return hidden_of(rank, window)


def _not_applicable(analysis: Registration, rank: Rank, lacking: Part) -> tuple[NotApplicable, ...]:
    """Return why an analysis can neither make nor exclude its findings."""
    how = rank.trace.how_to_collect(lacking)
    reason = _REASONS.get(lacking, f"the report has no {lacking.name.lower().replace('_', ' ')}")
    return tuple(NotApplicable(id_, reason, how, rank.rank) for id_ in analysis.findings)
