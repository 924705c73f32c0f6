"""Measuring one report: the part of an analysis that needs its events.

Other processes and machines can do it, each for a report of its own. The measurements are small:
they grow with the operations of interest, not with the events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from traceprof.analyses.hidden import Hidden, hidden_of
from traceprof.analyses.measurements import (
    MEASUREMENTS,
    MeasuredRank,
    MeasuredReport,
    RankMeasurements,
    Registration,
    Wanted,
)
from traceprof.analyses.registry import ANALYSES
from traceprof.analyses.results import RankResult
from traceprof.errors import WorkerError
from traceprof.execution.options import Options
from traceprof.execution.workers import map_items
from traceprof.findings import Finding, NotApplicable
from traceprof.host.host_code import host_ranges
from traceprof.host.places import place_ranges
from traceprof.run.guard import collected_failures, optional
from traceprof.run.host_clock import aligned
from traceprof.run.opening import summarize_report
from traceprof.run.rank import Rank, Window
from traceprof.run.steady_steps import other_phases
from traceprof.run.summary import FailedReport, RankInfo, close_on_error, try_report
from traceprof.run.windows import captured_span, choose_window, shown_window
from traceprof.structs import Record
from traceprof.trace.model.parts import Part
from traceprof.trace.model.trace import Trace
from traceprof.trace.open import open_trace
from traceprof.version import __version__

_REASONS = {
    Part.API_CALLS: "the report has no CUDA API calls: what the host did is not known",
    Part.GPU_OPERATIONS: "the report has no GPU operation",
}
"""Reasons why an analysis cannot run, by missing part, where its name is not enough."""


def measure_rank(rank: Rank, window: Window, wanted: Wanted | None = None) -> RankMeasurements:
    """Measure a window of a rank by all analyses that apply to it; `wanted` None for everything."""
    has_gpu = rank.device is not None
    shown = shown_window(rank, window)
    taken: dict[str, Any] = {}
    for name, entry in MEASUREMENTS.items():
        is_wanted = wanted is None or name in wanted.measurements
        if is_wanted and entry.has_gpu in {None, has_gpu}:
            taken[name] = entry.measure(rank, window, shown, taken)
    results: dict[str, RankResult] = {}
    of_all: dict[str, RankResult] = {}
    missing: dict[str, tuple[NotApplicable, ...]] = {}
    chosen = _chosen(rank, wanted)
    for analysis in (one for one in chosen if _is_needed(one, wanted, results)):
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
    return RankMeasurements(
        results=results,
        missing=missing,
        hidden=_hidden(rank, window),
        losses=rank.losses if rank.device is not None or rank.losses.num_launches else None,
        shown=of_all,
        taken=taken,
    )


def _chosen(rank: Rank, wanted: Wanted | None) -> list[Registration]:
    analyses = [
        analysis
        for analysis in ANALYSES
        if analysis.measure is not None
        and (rank.device is not None or analysis.is_for_cpu)
        and (wanted is None or analysis.name in wanted.measured)
    ]
    wholes = frozenset() if wanted is None else wanted.measured - wanted.read  # these come last
    return sorted(analyses, key=lambda entry: entry.name in wholes)


@optional("part-of", otherwise=lambda *_: True)
def _is_needed(
    analysis: Registration, wanted: Wanted | None, results: Mapping[str, RankResult]
) -> bool:
    if wanted is None or analysis.name in wanted.read:
        return True
    return any(
        part.claims is None
        or part.reads  # what ranks are compared by may make a finding
        or (
            part.name in results
            and any(isinstance(one, Finding) for one in part.claims(results[part.name]))
        )
        for part in ANALYSES
        if part.name in wanted.asked
    )


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
    how = rank.trace.how_to_collect(lacking)
    reason = _REASONS.get(lacking, f"the report has no {lacking.name.lower().replace('_', ' ')}")
    return tuple(NotApplicable(id_, reason, how, rank.rank) for id_ in analysis.findings)


class Task(Record, frozen=True):
    """A report to be measured, perhaps on another machine."""

    path: Path  # the report's path as it was given
    place: Path  # the path to open it by
    options: Options  # what to analyse
    wanted: Wanted | None = None  # what to measure; None for everything
    version: str = __version__  # the version of the traceprof that asks


def measure_file(task: Task, num_processes: int = 1) -> MeasuredReport | FailedReport:
    """Open a report, measure it and close it; failures of the report are returned.

    Raises UsageError: the options are impossible, whatever the report; WorkerError: this is not the
    version of traceprof that asks.
    """
    if task.version != __version__:
        raise WorkerError(
            "cannot analyse on a worker",
            f"it has traceprof {__version__}, and {task.version} is needed",
            "install the same version everywhere",
        )
    return try_report(task.path, partial(_measured_file, task, num_processes))


def _measured_file(task: Task, num_processes: int) -> MeasuredReport:
    trace = open_trace(task.place)
    with close_on_error(trace):
        _, measured = measured_with_ranks(trace, task.options, num_processes, task.wanted)
    trace.close()
    return replace(measured, facts=replace(measured.facts, path=task.path))


def measured_with_ranks(
    trace: Trace, options: Options, num_processes: int, wanted: Wanted | None
) -> tuple[list[Rank], MeasuredReport]:
    """Read a report and measure it; return its ranks, too."""
    with collected_failures() as failures:
        ranks = options.opened_ranks_of(trace)
        _read_shared(trace, ranks, wanted)
        ranks = aligned(ranks)
        measured = measure(trace, ranks, options, num_processes, wanted)
    return ranks, replace(measured, failures=(*failures, *measured.failures))


def _read_shared(trace: Trace, ranks: Sequence[Rank], wanted: Wanted | None) -> None:
    """Read into a report what all of its ranks need, so that it is not read twice."""
    trace.load()
    for rank in ranks if wanted is None else ():  # else when somebody asks
        if rank.device is not None:
            host_ranges(rank.trace)
            place_ranges(rank)
            rank.trace.host_activity(rank.process)
        rank.trace.launch_stalls(rank.process)
        _ = rank.trace.api_names, rank.trace.counters, rank.trace.has_unexported_stalls
        _ = rank.trace.signatures


def measure(
    trace: Trace,
    ranks: Sequence[Rank],
    options: Options,
    num_processes: int = 1,
    wanted: Wanted | None = None,
) -> MeasuredReport:
    """Measure an open report: its ranks, numbered by this report alone.

    Raises TraceprofError: the report is damaged, or the options are impossible.
    """
    num_operations = sum(len(rank.operations) for rank in ranks)
    work = partial(_measured_rank, options, wanted)
    measured = map_items(work, ranks, trace.reopen, num_operations, num_processes=num_processes)
    for rank in ranks:
        rank.release_process()
    trace.release()
    is_chosen = options.time_range is not None and ranks
    with collected_failures() as failures:
        captured_ns = captured_span(trace, ranks) if is_chosen else None
        facts = summarize_report(trace, ranks)  # all notes are known only now
    return MeasuredReport(facts, tuple(measured), captured_ns, tuple(failures))


def _step_limits(rank: Rank) -> tuple[int, int] | None:
    if rank.steps is None or len(rank.steps.number) == 0:
        return None
    return int(rank.steps.number.min()), int(rank.steps.number.max())


def _measured_rank(options: Options, wanted: Wanted | None, rank: Rank) -> MeasuredRank:
    with collected_failures(rank.rank) as failures:
        window = choose_window(rank, options.steps, options.time_range)
        measured = MeasuredRank(
            facts=RankInfo(
                rank.rank, rank.report, rank.process, rank.pid, rank.device, rank.gpu, rank.gpu_id
            ),
            step_numbers=_step_limits(rank) if options.steps is not None else None,
            measurements=None if window is None else measure_rank(rank, window, wanted),
            phases={} if window is None else _measured_phases(rank, window, wanted),
        )
    rank.release()
    return replace(measured, failures=tuple(failures))


@optional("phases", otherwise=lambda *_: {})
def _measured_phases(
    rank: Rank, window: Window, wanted: Wanted | None
) -> dict[int, RankMeasurements]:
    phases = other_phases(rank, window)
    return {phase: measure_rank(rank, when, wanted) for phase, when in phases.items()}
