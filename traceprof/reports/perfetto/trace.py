"""A run as a Perfetto trace, written rank by rank.

A rank is a process with findings, steps, streams, counters and threads. Pipelines have tracks with
the passes of each stage, its waits by reason, and the ideal below; critical paths of steps have
tracks of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import chain, zip_longest
from typing import BinaryIO

import numpy as np

from traceprof.analyses import pipeline_bubble
from traceprof.analyses.breakdown import BreakdownResult
from traceprof.analyses.launch_queue import depth_over_time
from traceprof.analyses.links.link_counters import link_samples
from traceprof.analyses.steps import counted_steps, slowest_rank
from traceprof.analyses.verdict.run_result import RunResult
from traceprof.analysis import Analysis
from traceprof.errors import REPORT_IT, one_line
from traceprof.findings import Finding, by_id
from traceprof.intervals import Int32, Int64
from traceprof.progress import Progress
from traceprof.ranks.bubbles import PipelineBubbles, StageGaps
from traceprof.ranks.passes import BACKWARD, FORWARD, OTHER, WEIGHTS
from traceprof.replay.critical_path import step_path
from traceprof.replay.results import Refusal, StepPath
from traceprof.replay.whatif import refusal_of
from traceprof.reports import tracks
from traceprof.reports.drawings import CLASSES
from traceprof.reports.drawings import WAIT_PARTS as PARTS
from traceprof.reports.perfetto.events import (
    NO_FLOWS,
    LaunchFlows,
    Span,
    TrackEvents,
    Value,
    events_of,
    flows_of,
    launch_flows,
    noted,
)
from traceprof.reports.perfetto.packets import MAX_NAME, PacketWriter
from traceprof.run.guard import optional
from traceprof.run.rank import CpuRank, Rank
from traceprof.trace.model.operations import PERCENT

# From the top of a rank; threads, which Perfetto orders by itself, come last.
_FINDINGS, _STEPS, _STREAMS, _COUNTERS = range(4)
_OF_STEPS = (
    "compute_ns",
    "exposed_communication_ns",
    "exposed_copy_ns",
    "idle_ns",
    "communication_ns",
)


class _RankWriter:
    """Writes a rank, whose number in the trace is `pid`, as a process."""

    def __init__(self, writer: PacketWriter, rank: Rank, analysis: RunResult, pid: int) -> None:
        self._writer, self._rank, self._analysis, self._pid = writer, rank, analysis, pid
        self._to_run = partial(analysis.ranks.clocks.to_run, rank.report)
        gpu = "CPU" if rank.device is None else f"GPU {rank.device} {rank.gpu or ''}".strip()
        host = analysis.ranks.clocks.of(rank.report).host
        title = one_line(f"rank {rank.rank}: {gpu}, process {rank.pid} on {host}", MAX_NAME)
        self._process = writer.process(pid, title, rank.rank)

    def write(self, launches: LaunchFlows, *, has_host: bool) -> None:
        """Write all of it, with the threads of its process if these are not another rank's."""
        rank, writer = self._rank, self._writer
        for result in self._analysis.breakdown:
            if result.rank == rank.rank:
                self._findings(result)
                self._steps(result)
        flows = flows_of(rank, self._analysis.ranks)
        cpu = tracks.communication_track(rank) if isinstance(rank, CpuRank) else None
        for track in tracks.gpu_tracks(rank) if cpu is None else (cpu,):
            new_track = partial(writer.track, self._process, track.label, _STREAMS)
            writer.slices(new_track, events_of(track, self._to_run, flows, launches, rank))
        self._links()
        if has_host:
            self._launch_queue()
            self._threads(launches)

    def _findings(self, result: BreakdownResult) -> None:
        findings = [one for one in self._analysis.findings if one.rank == result.rank]
        if not findings:
            return
        parent = self._writer.track(self._process, "findings", _FINDINGS)
        for order, group in enumerate(by_id(findings)):
            new_track = partial(self._writer.track, parent, group[0].id, order)
            for finding in group:
                spans = _finding_spans(finding, result)
                self._writer.slices(new_track, noted(spans, self._to_run))

    def _steps(self, result: BreakdownResult) -> None:
        spans: list[Span] = []
        for step in result.steps:
            measures = step.measures
            span = measures.window_start_ns, measures.window_end_ns
            notes: dict[str, Value] = {name: getattr(measures, name) for name in _OF_STEPS}
            spans.append((*span, f"step {step.number}", "step", notes))
        if spans:
            new_track = partial(self._writer.track, self._process, "steps on the GPU", _STEPS)
            self._writer.slices(new_track, noted(spans, self._to_run))

    def _links(self) -> None:
        """Write samples of links, each from the start of its period on."""
        for samples in link_samples(self._rank):
            name = " ".join(filter(None, (samples.link, samples.name, samples.direction)))
            unit = "%" if samples.unit == PERCENT else samples.unit
            self._counter(one_line(name, MAX_NAME), unit, samples.start_ns, samples.value)

    def _launch_queue(self) -> None:
        if not isinstance(self._rank, CpuRank):
            times, depth = depth_over_time(self._rank, self._rank.window)
            if len(times):
                self._counter("launches pending", "launches", times, depth)

    def _counter(self, name: str, unit: str, times: Int64, values: Int64 | Int32) -> None:
        track = self._writer.counter(self._process, name, unit, _COUNTERS)
        self._writer.values(track, self._to_run(times), values)

    def _threads(self, launches: LaunchFlows) -> None:
        rank, writer = self._rank, self._writer
        names = {
            rank.trace.thread_number(thread): name
            for thread, name in rank.trace.thread_names.items()
        }

        @cache
        def thread_of(tid: int) -> int:
            name = one_line(names.get(tid, "thread"), MAX_NAME)
            return writer.thread(self._pid, tid, name)

        for track in chain(tracks.operator_tracks(rank), tracks.host_tracks(rank)):
            is_call = track.category[0] == tracks.EventKind.CALL
            what = "CUDA calls" if is_call else track.label.partition(": ")[2]
            new_track = partial(writer.track, thread_of(track.number), what)
            writer.slices(new_track, events_of(track, self._to_run, None, launches, rank))
        for track in tracks.mark_tracks(rank):
            writer.instants(thread_of(track.number), events_of(track, self._to_run))


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


_NO_PARENT = 0
_KINDS = {OTHER: "pass", FORWARD: "forward", BACKWARD: "backward", WEIGHTS: "weight gradients"}
_CATEGORIES = ("pass", "bubble")


def write_pipelines(
    writer: PacketWriter, pipelines: Sequence[PipelineBubbles], ranks: Sequence[int]
) -> None:
    """Write the stages of each pipeline above all ranks, in the run's time, as their kernels are.

    The ideal, equal stages whose messages take no time, begins when the pipeline does.
    """
    for number, pipeline in enumerate(pipelines):
        name = "pipeline" if len(pipelines) == 1 else f"pipeline {number}"
        actual = writer.track(_NO_PARENT, name)
        ideal = writer.track(_NO_PARENT, f"{name}: equal stages, no transfer")
        for place, stage in enumerate(pipeline.stages):
            title = f"stage {place}, rank {ranks[stage.member]}"
            micro_batch = pipeline.schedule.micro_batch[place]
            waits, nothing = stage.waits, (np.empty(0, np.int64),) * 3
            begin = pipeline.start_ns
            for parent, start, end, waiting in (
                (actual, stage.start_ns, stage.end_ns, waits),
                (ideal, begin + stage.ideal_start_ns, begin + stage.ideal_end_ns, nothing),
            ):
                events = _events(stage, start, end, micro_batch, waiting)
                writer.slices(partial(writer.track, parent, title, place), events)


def _events(
    stage: StageGaps,
    start: Int64,
    end: Int64,
    micro_batch: Int64,
    waits: tuple[Int64, Int64, Int64],
) -> TrackEvents:
    named, name = np.unique(np.stack((stage.kind, micro_batch)), axis=1, return_inverse=True)
    names = [
        *(CLASSES[part] for part in PARTS),
        *(
            _KINDS[kind] + (f" {number}" if number >= 0 else "")
            for kind, number in named.T.tolist()
        ),
    ]
    starts, ends = np.append(start, waits[0]), np.append(end, waits[1])
    order = np.lexsort((-ends, starts))
    is_wait = np.repeat([False, True], [len(start), len(waits[0])])
    step = np.append(stage.step, np.full(len(waits[0]), -1))[order]
    return TrackEvents(
        starts[order],
        ends[order],
        np.append(name.reshape(-1) + len(PARTS), waits[2])[order],
        names,
        is_wait[order].astype(np.int64),
        _CATEGORIES,
        NO_FLOWS,
        {"step": (step, step >= 0)},
        {},
    )


@optional("critical-path", otherwise=lambda _: Refusal("the replay failed", REPORT_IT))
def critical_paths(analysis: Analysis) -> tuple[StepPath, ...] | Refusal:
    """Return the critical paths of a step of median length and of the slowest one.

    Without steps, the training is the step. Where a replay does not fit what was measured, there
    is none, and the result says why.
    """
    refusal = _refusal(analysis)
    if refusal is not None:
        return refusal
    steps = _chosen_steps(analysis.result)
    paths = [step_path(analysis, step) for step in steps]
    known = tuple(path for path in paths if path is not None)
    return known or Refusal("not every rank has the same steps, a GPU and API calls", None)


def _refusal(analysis: Analysis) -> Refusal | None:
    result = analysis.result
    tried = None if result.headline is None else result.headline.savings.replay
    if tried is not None:  # the replay was checked before
        return Refusal(tried.refused, tried.how_to_collect) if tried.refused else None
    return refusal_of(analysis)


def _chosen_steps(result: RunResult) -> list[int | None]:
    """Return the numbers of the steps, by the rank whose steps take longest; None for all."""
    common = set.intersection(*({step.number for step in rank.steps} for rank in result.breakdown))
    steps = [
        step for step in counted_steps(slowest_rank(result.breakdown)) if step.number in common
    ]
    if not steps:
        return [None]
    lengths = np.array([step.measures.window_ns for step in steps], np.int64)
    middle = int(np.argsort(lengths, kind="stable")[(len(lengths) - 1) // 2])
    slowest = int(lengths.argmax())
    return list(dict.fromkeys([steps[middle].number, steps[slowest].number]))


def write_paths(writer: PacketWriter, analysis: RunResult, paths: Sequence[StepPath]) -> None:
    """Write a track for each path, above all ranks."""
    reports = {rank.rank: rank.report for rank in analysis.run.ranks}
    clocks = analysis.ranks.clocks
    for path in paths:
        of = "the training" if path.step is None else f"step {path.step}"
        spans = []
        for part in path.parts:
            times = np.array([part.start_ns, part.end_ns], np.int64)
            start, end = clocks.to_run(reports[part.rank], times).tolist()
            stream = {} if part.stream is None else {"stream": part.stream}
            notes: dict[str, Value] = {"rank": part.rank, **stream}
            spans.append((start, end, f"rank {part.rank}: {part.name}", part.kind, notes))
        new_track = partial(writer.track, _NO_PARENT, f"critical path of {of}")
        writer.slices(new_track, noted(spans))


def write(
    analysis: Analysis,
    file: BinaryIO,
    progress: Progress | None = None,
    paths: Sequence[StepPath] = (),
) -> None:
    """Write a trace that ui.perfetto.dev and Perfetto's trace processor read.

    Each rank is a process; times are the run's, so that what ranks did at one moment stands below
    each other. The threads of a process with several devices are those of the first of its ranks.
    """
    ranks = analysis.run.ranks
    pipelines = _pipelines(analysis)
    of_stages = [int(stage.gap_start_ns[0]) for one in pipelines for stage in one.stages]
    writer = PacketWriter(file, max(-min([_first_ns(analysis), *of_stages]), 0))
    if analysis.ranks.clocks.start_utc_ns is not None:
        writer.utc(analysis.ranks.clocks.start_utc_ns)
    write_paths(writer, analysis.result, paths)
    write_pipelines(writer, pipelines, analysis.ranks.ranks)
    if progress is not None:
        progress.expect(len(ranks))
    written: set[tuple[int, int]] = set()
    for number, rank in enumerate(_one_by_one(ranks), 1):
        process = rank.report, rank.process
        # Process ids of several machines may be the same, and Perfetto has no pid 0.
        launches = launch_flows(rank, ranks, analysis.ranks)
        has_host = process not in written
        _RankWriter(writer, rank, analysis.result, number).write(launches, has_host=has_host)
        written.add(process)
        if progress is not None:
            progress.advance(1)
    writer.flush()


@optional("pipeline-bubble", otherwise=lambda _: ())
def _pipelines(analysis: Analysis) -> tuple[PipelineBubbles, ...]:
    return pipeline_bubble.run(analysis.measured).pipelines


def _first_ns(analysis: Analysis) -> int:
    clocks = analysis.ranks.clocks
    first = [
        int(clocks.to_run(rank.report, np.array([_first_of(rank)], np.int64))[0])
        for rank in _one_by_one(analysis.run.ranks)
    ]
    return min(first, default=0)


def _first_of(rank: Rank) -> int:
    """Return a time of a rank's report at or before all that its process did."""
    times = [rank.window.start_ns]
    calls = None if isinstance(rank, CpuRank) else rank.calls
    if calls is not None and len(calls):
        times.append(int(calls.starts.values.min()))
    table = rank.trace.range_table(rank.process)
    if len(table):
        times.append(int(table.start_ns[0]))
    marks, operators = rank.trace.marks(rank.process), rank.trace.operators(rank.process)
    if len(marks):
        times.append(int(marks.time_ns[0]))
    if operators is not None and len(operators):
        times.append(int(operators.start_ns[0]))
    times += [int(samples.start_ns[0]) for samples in link_samples(rank) if len(samples.start_ns)]
    return min(times)


def _one_by_one(ranks: Sequence[Rank]) -> Iterator[Rank]:
    for rank, following in zip_longest(ranks, ranks[1:]):
        yield rank
        rank.release()
        if following is None or following.trace is not rank.trace:
            rank.trace.release()
