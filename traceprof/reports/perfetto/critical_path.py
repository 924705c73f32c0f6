"""Tracks of the critical paths of steps."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from traceprof.analyses.steps.step_lengths import slowest_rank, steady_steps
from traceprof.replay.answers.checked_replay import Refusal, checked_replay
from traceprof.replay.answers.savings import MAX_WITHOUT_STEPS
from traceprof.replay.answers.step_path import step_path
from traceprof.replay.graph.sample import sample_of
from traceprof.reports.perfetto.events import noted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.analyses.verdict.run_result import RunResult
    from traceprof.analysis import Analysis
    from traceprof.replay.answers.critical_path import StepPath
    from traceprof.reports.perfetto.flows import Value
    from traceprof.reports.perfetto.packets import PacketWriter

_NO_PARENT = 0


def critical_paths(analysis: Analysis) -> tuple[StepPath, ...] | Refusal:
    """Return the critical paths of a step of median length and of the slowest one.

    Args:
        analysis: of a run whose reports are open. Without steps, the training is the step.

    Returns:
        Why there is none, where a replay of the steps does not fit what was measured.
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
    measured = {rank.rank: rank for rank in result.breakdown}
    sample = sample_of(analysis.run, measured) if measured else None
    num = sum(len(rank.operations) for rank in analysis.run.ranks)
    if sample is None and num > MAX_WITHOUT_STEPS:
        return Refusal(f"no steps are known, and {num} operations are too many", "mark steps")
    replay = checked_replay(analysis, (), sample)
    return replay if isinstance(replay, Refusal) else None


def _chosen_steps(result: RunResult) -> list[int | None]:
    """Return the numbers of the steps, by the rank whose steps take longest; None for all."""
    common = set.intersection(*({step.number for step in rank.steps} for rank in result.breakdown))
    steps = [step for step in steady_steps(slowest_rank(result.breakdown)) if step.number in common]
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
