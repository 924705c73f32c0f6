"""A rank as a process of a Perfetto trace: findings, steps, streams, counters, threads."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from traceprof.analyses.launch_queue import depth_over_time
from traceprof.analyses.links.link_counters import link_samples
from traceprof.errors import one_line
from traceprof.findings import by_id
from traceprof.reports.perfetto.events import events_of, noted
from traceprof.reports.perfetto.flows import flows_of
from traceprof.reports.perfetto.packets import MAX_NAME
from traceprof.reports.tracks import (
    EventKind,
    communication_track,
    gpu_tracks,
    host_tracks,
    mark_tracks,
    operator_tracks,
)
from traceprof.run.rank import CpuRank
from traceprof.trace.model.counters import PERCENT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from traceprof.analyses.breakdown import BreakdownResult
    from traceprof.analyses.verdict.run_result import RunResult
    from traceprof.findings import Finding
    from traceprof.intervals import Int64
    from traceprof.reports.perfetto.events import Span
    from traceprof.reports.perfetto.flows import LaunchFlows, Value
    from traceprof.reports.perfetto.packets import PacketWriter
    from traceprof.reports.tracks import Track
    from traceprof.run.rank import Rank

# From the top of a rank; threads, of which Perfetto knows by itself, come last.
_FINDINGS, _STEPS, _STREAMS, _COUNTERS = range(4)
_OF_STEPS = (
    "compute_ns", "exposed_communication_ns", "exposed_copy_ns", "idle_ns", "communication_ns",
)  # fmt: skip


def write_rank(
    writer: PacketWriter,
    rank: Rank,
    analysis: RunResult,
    pid: int,
    launches: LaunchFlows,
    *,
    has_host: bool,
) -> None:
    """Write a rank.

    Args:
        writer: writes it.
        rank: what it did.
        analysis: what was found out about its run.
        pid: a number that no other rank has.
        launches: what the calls of its process launched.
        has_host: whether the threads of its process are written with it, and not with another rank.
    """
    to_run = partial(analysis.ranks.clocks.to_run, rank.report)
    process = writer.process(pid, _title(rank, analysis), rank.rank)
    result = next((result for result in analysis.breakdown if result.rank == rank.rank), None)
    if result is not None:
        findings = [finding for finding in analysis.findings if finding.rank == rank.rank]
        _write_findings(writer, process, findings, result, to_run)
        _write_steps(writer, process, result, to_run)
    flows = flows_of(rank, analysis.ranks)
    tracks = [communication_track(rank)] if isinstance(rank, CpuRank) else gpu_tracks(rank)
    for track in tracks:
        new_track = partial(writer.track, process, track.label, _STREAMS)
        writer.slices(new_track, events_of(track, to_run, flows, launches))
    _write_counters(writer, process, rank, to_run, has_host=has_host)
    if has_host:
        _write_threads(writer, rank, pid, launches, to_run)


def _title(rank: Rank, analysis: RunResult) -> str:
    gpu = "CPU" if rank.device is None else f"GPU {rank.device} {rank.gpu or ''}".strip()
    host = analysis.ranks.clocks.of(rank.report).host
    return one_line(f"rank {rank.rank}: {gpu}, process {rank.pid} on {host}", MAX_NAME)


def _write_findings(
    writer: PacketWriter,
    process: int,
    findings: Sequence[Finding],
    result: BreakdownResult,
    to_run: Callable[[Int64], Int64],
) -> None:
    """Write a track for each finding: what is judged, and its evidence inside."""
    if not findings:
        return
    parent = writer.track(process, "findings", _FINDINGS)
    for order, group in enumerate(by_id(findings)):
        new_track = partial(writer.track, parent, group[0].id, order)
        for finding in group:
            writer.slices(new_track, noted(_finding_spans(finding, result), to_run))


def _finding_spans(finding: Finding, result: BreakdownResult) -> list[Span]:
    start_ns = result.judged.window_start_ns
    end_ns = start_ns + result.judged.window_ns
    notes: dict[str, Value] = {
        "severity": str(finding.severity),
        "impact_ns": finding.impact_ns,
        "impact_fraction": finding.impact_fraction,
    }
    notes |= {
        name: one_line(value) if isinstance(value, str) else value
        for name, value in finding.metrics.items()
        if value is not None
    }
    notes |= {
        f"advice {number}": one_line(advice) for number, advice in enumerate(finding.advice, 1)
    }
    category = f"finding {finding.severity}"
    return [
        (start_ns, end_ns, finding.title, category, notes),
        *(
            (item.start_ns, item.end_ns, item.label, category, {})
            for item in sorted(finding.evidence, key=lambda item: (item.start_ns, -item.end_ns))
        ),
    ]


def _write_steps(
    writer: PacketWriter, process: int, result: BreakdownResult, to_run: Callable[[Int64], Int64]
) -> None:
    spans: list[Span] = []
    for step in result.steps:
        measures = step.measures
        end_ns = measures.window_start_ns + measures.window_ns
        notes: dict[str, Value] = {name: getattr(measures, name) for name in _OF_STEPS}
        spans.append((measures.window_start_ns, end_ns, f"step {step.number}", "step", notes))
    if spans:
        new_track = partial(writer.track, process, "steps on the GPU", _STEPS)
        writer.slices(new_track, noted(spans, to_run))


def _write_counters(
    writer: PacketWriter,
    process: int,
    rank: Rank,
    to_run: Callable[[Int64], Int64],
    *,
    has_host: bool,
) -> None:
    """Write samples of links, each from the start of its period on, and the launch queue."""
    for samples in link_samples(rank):
        name = " ".join(filter(None, (samples.link, samples.name, samples.direction)))
        unit = "%" if samples.unit == PERCENT else samples.unit
        track = writer.counter(process, one_line(name, MAX_NAME), unit, _COUNTERS)
        writer.values(track, to_run(samples.start_ns), samples.value)
    if has_host and not isinstance(rank, CpuRank):
        times, depth = depth_over_time(rank, rank.window)
        if len(times):
            track = writer.counter(process, "launches pending", "launches", _COUNTERS)
            writer.values(track, to_run(times), depth)


def _write_threads(
    writer: PacketWriter,
    rank: Rank,
    pid: int,
    launches: LaunchFlows,
    to_run: Callable[[Int64], Int64],
) -> None:
    """Write the threads of a process: marks on the thread itself, all else below it."""
    names = {
        rank.trace.thread_number(thread): name for thread, name in rank.trace.thread_names.items()
    }
    threads: dict[int, int] = {}

    def thread_of(track: Track) -> int:
        tid = track.number
        if tid not in threads:
            threads[tid] = writer.thread(pid, tid, one_line(names.get(tid, "thread"), MAX_NAME))
        return threads[tid]

    for track in chain(operator_tracks(rank), host_tracks(rank)):
        what = (
            "CUDA calls" if track.category[0] == EventKind.CALL else track.label.partition(": ")[2]
        )
        new_track = partial(writer.track, thread_of(track), what)
        writer.slices(new_track, events_of(track, to_run, None, launches))
    for track in mark_tracks(rank):
        writer.instants(thread_of(track), events_of(track, to_run))
