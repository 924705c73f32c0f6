"""Write a run as a Perfetto trace, rank by rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from traceprof.analyses import pipeline_bubble
from traceprof.analyses.links.link_counters import link_samples
from traceprof.reports.perfetto.critical_path import write_paths
from traceprof.reports.perfetto.flows import launch_flows
from traceprof.reports.perfetto.packets import PacketWriter
from traceprof.reports.perfetto.pipelines import write_pipelines
from traceprof.reports.perfetto.ranks import write_rank
from traceprof.run.rank import CpuRank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.analysis import Analysis
    from traceprof.progress import Progress
    from traceprof.replay.answers.critical_path import StepPath
    from traceprof.run.rank import Rank


def write(
    analysis: Analysis,
    file: BinaryIO,
    progress: Progress | None = None,
    paths: Sequence[StepPath] = (),
) -> None:
    """Write a trace that ui.perfetto.dev and Perfetto's trace processor read.

    Each rank is a process; times are the run's, so that what ranks did at one moment stands below
    each other. The threads of a process with several devices are those of the first of its ranks.

    Args:
        analysis: what was found out, with its reports open.
        file: is written to as packets are made.
        progress: receives progress updates.
        paths: critical paths of steps, each a track at the top.
    """
    ranks = analysis.run.ranks
    pipelines = pipeline_bubble.run(analysis.measured)
    of_stages = [
        int(stage.gap_start_ns[0]) for pipeline in pipelines.pipelines for stage in pipeline.stages
    ]
    writer = PacketWriter(file, max(-min([_first_ns(analysis), *of_stages]), 0))
    if analysis.ranks.clocks.start_utc_ns is not None:
        writer.utc(analysis.ranks.clocks.start_utc_ns)
    write_paths(writer, analysis.result, paths)
    write_pipelines(writer, pipelines)
    if progress is not None:
        progress.expect(len(ranks))
    written: set[tuple[int, int]] = set()
    for number, rank in enumerate(ranks, 1):
        process = rank.report, rank.process
        # Process ids of several machines may be the same, and Perfetto has no pid 0.
        launches = launch_flows(rank, ranks, analysis.ranks)
        has_host = process not in written
        write_rank(writer, rank, analysis.result, number, launches, has_host=has_host)
        written.add(process)
        _release(rank)
        if progress is not None:
            progress.advance(1)
    writer.flush()


def _first_ns(analysis: Analysis) -> int:
    """Return a time of the run at or before all that the ranks did."""
    clocks = analysis.ranks.clocks
    first = [
        int(clocks.to_run(rank.report, np.array([_first_of(rank)], np.int64))[0])
        for rank in analysis.run.ranks
    ]
    return min(first, default=0)


def _first_of(rank: Rank) -> int:
    """Return a time of a rank's report at or before all that its process did."""
    times = [rank.window.start_ns]
    calls = None if isinstance(rank, CpuRank) else rank.calls
    if calls is not None and len(calls):
        times.append(int(calls.starts.values.min()))
    table = rank.trace.range_table(rank.process)
    if table is not None and len(table):
        times.append(int(table.start_ns[0]))
    marks, operators = rank.trace.marks(rank.process), rank.trace.operators(rank.process)
    if marks is not None:
        times.append(int(marks.time_ns[0]))
    if operators is not None and len(operators):
        times.append(int(operators.start_ns[0]))
    times += [int(samples.start_ns[0]) for samples in link_samples(rank) if len(samples.start_ns)]
    _release(rank)
    return min(times)


def _release(rank: Rank) -> None:
    """Let go of all that can be made again: one rank after the other is looked at."""
    rank.release()
    rank.trace.release()
