"""The comparison of another recording with this one, with a step of each to show."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from traceprof.analyses.breakdown import Measures, StepMeasures
from traceprof.comparison.ask import compared
from traceprof.comparison.sides import loaded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceprof.analysis import Analysis
    from traceprof.comparison.sides import LoadedSide
    from traceprof.documents.analysis.model import Document
    from traceprof.documents.comparison import Comparison
    from traceprof.execution.options import Options

_MEASURED = tuple(name for name in Measures.__struct_fields__ if name != "window_start_ns")

Span = tuple[int, int]


@dataclass(frozen=True, eq=False)
class CompareQuestion:
    """The other side of a comparison.

    Attributes:
        before: reports, folders, saved analyses and runs, as `traceprof compare` takes them.
        options: how to analyse reports.
    """

    before: tuple[str, ...]
    options: Options


class ComparedRank(NamedTuple):
    """A rank of a side that has a GPU.

    Attributes:
        rank: its number.
        device: its GPU's.
        gpu: the name of its GPU.
        steps: its training steps, in the own time of its report.
        judged: start and end of the time that findings judge.
    """

    rank: int
    device: int
    gpu: str | None
    steps: tuple[StepMeasures, ...]
    judged: Span


class ComparedSide(NamedTuple):
    """The recording of a side, to be drawn.

    Attributes:
        reports: its files, which are there.
        ranks: those with a GPU, at least one.
        rank: the number of the slowest.
        step: its step in the middle; None if all that is judged is one step.
    """

    reports: tuple[str, ...]
    ranks: tuple[ComparedRank, ...]
    rank: int
    step: int | None


def alike(side: ComparedSide, other: ComparedSide | None) -> ComparedSide:
    """Return a side with the same rank as the other side, if it has that rank.

    Args:
        side: the side to return, with its slowest rank.
        other: the other side.
    """
    same = [rank for rank in side.ranks if other is not None and rank.rank == other.rank]
    if not same or other is None or side.rank == other.rank:
        return side
    numbers = {step.number for step in same[0].steps}
    middle = _middle(same[0].steps)
    step = other.step if other.step in numbers else None if middle is None else middle.number
    return side._replace(rank=other.rank, step=step)


class ComparedSides(NamedTuple):
    """A comparison, and the recordings of its sides.

    Attributes:
        comparison: what changed.
        before: the other side; None if its reports are missing, or belong to several recordings.
        after: this run.
    """

    comparison: Comparison
    before: ComparedSide | None
    after: ComparedSide | None


def compared_with(analysis: Analysis, question: CompareQuestion) -> ComparedSides:
    """Compare a run with another side.

    Raises:
        TraceprofError: the other side cannot be read.
    """
    before, after = loaded(question.before, question.options), loaded([analysis])
    run = recording(after)
    before_drawn = recording(before)
    return ComparedSides(
        compared(before, after), None if before_drawn is None else alike(before_drawn, run), run
    )


def recording(side: LoadedSide) -> ComparedSide | None:
    """Return the recording of a side; None if its reports are missing."""
    if len(side.captures) != 1:
        return None
    (capture,) = side.captures
    reports = tuple(report.path for report in capture.reports)
    ranks = tuple(_ranks(capture))
    if not ranks or not all(Path(path).is_file() for path in reports):
        return None
    slowest = max(ranks, key=lambda rank: (_length(_middle(rank.steps), rank.judged), -rank.rank))
    step = _middle(slowest.steps)
    return ComparedSide(reports, ranks, slowest.rank, None if step is None else step.number)


def _ranks(capture: Document) -> list[ComparedRank]:
    steps: dict[int, list[StepMeasures]] = {}
    judged: dict[int, Span] = {
        whole.rank: (whole.window_start_ns, whole.window_start_ns + whole.window_ns)
        for whole in capture.breakdown
    }
    judged |= {span.rank: (span.start_ns, span.end_ns) for span in capture.training}
    for row in capture.steps:
        parts = {name: getattr(row, name) for name in _MEASURED}
        start, end = judged[row.rank]
        measures = Measures(window_start_ns=row.start_ns, **parts)
        is_training = start <= row.start_ns and row.end_ns <= end
        steps.setdefault(row.rank, []).append(StepMeasures(row.step, measures, is_training))
    return [
        ComparedRank(
            rank.rank, rank.device, rank.gpu, tuple(steps.get(rank.rank, ())), judged[rank.rank]
        )
        for rank in sorted(capture.ranks, key=lambda rank: rank.rank)
        if rank.device is not None and rank.rank in judged
    ]


def _middle(steps: Sequence[StepMeasures]) -> StepMeasures | None:
    """Return the step of median length, one of the training where there are some."""
    chosen = [step for step in steps if step.is_training] or list(steps)
    ordered = sorted(chosen, key=lambda step: step.measures.window_ns)
    return ordered[len(ordered) // 2] if ordered else None


def _length(step: StepMeasures | None, judged: Span) -> int:
    return judged[1] - judged[0] if step is None else step.measures.window_ns


def steps_by_rank(side: ComparedSide) -> Mapping[int, tuple[StepMeasures, ...]]:
    """Return the training steps of a side, by rank."""
    return {rank.rank: rank.steps for rank in side.ranks}
