"""What changed from another recording to this one, with a step of each to look at."""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from traceprof import intervals
from traceprof.analyses.step_lengths import slowest_rank, training_steps
from traceprof.analysis import analyze
from traceprof.compare.ask import compared
from traceprof.compare.sides import loaded
from traceprof.errors import TraceprofError

if TYPE_CHECKING:
    from traceprof.analysis import Analysis
    from traceprof.compare.document import Comparison
    from traceprof.execution.options import Options
    from traceprof.intervals import Intervals

_PIECES = 600  # of a step that is drawn


@dataclass(frozen=True, eq=False)
class CompareQuestion:
    """With what a run is to be compared.

    Attributes:
        before: reports, folders, saved analyses and runs, as `traceprof compare` takes them.
        options: how to analyse reports.
    """

    before: tuple[str, ...]
    options: Options


class StepStrips(NamedTuple):
    """What the GPU of one rank did in one step, on the step's own clock.

    Attributes:
        rank: the rank's number.
        step: the step's number; None where all that is judged is one step.
        start_ns: of the step, in the own time of the rank's report.
        length_ns: of the step.
        shares: by the field of `Measures`, how much of each piece of the step was covered, 0 to 1.
    """

    rank: int
    step: int | None
    start_ns: int
    length_ns: int
    shares: dict[str, list[float]]


class Compared(NamedTuple):
    """A comparison, and a step of each side.

    Attributes:
        comparison: what changed.
        before: a step in the middle of the other side; None where its reports are not there.
        after: of this run.
    """

    comparison: Comparison
    before: StepStrips | None
    after: StepStrips | None


def compared_with(analysis: Analysis, question: CompareQuestion) -> Compared:
    """Hold a run against another side.

    Raises:
        TraceprofError: the other side cannot be read.
    """
    comparison = compared(loaded(question.before, question.options), loaded([analysis]))
    before = None
    if comparison.before.num_captures == 1:
        paths = [path for path in comparison.before.reports if Path(path).is_file()]
        with suppress(TraceprofError):  # a saved analysis, whose reports are elsewhere
            if paths:
                with closing(analyze(*paths, options=question.options)) as other:
                    before = strips(other)
    return Compared(comparison, before, strips(analysis))


def strips(analysis: Analysis) -> StepStrips | None:
    """Return what the slowest rank's GPU did in the step in the middle; None without a rank."""
    results = analysis.result.breakdown
    if not results:
        return None
    result = slowest_rank(results)
    steps = training_steps(result)
    number, measures = None, result.judged
    if steps:
        ordered = sorted(steps, key=lambda step: step.measures.window_ns)
        number, measures = (middle := ordered[len(ordered) // 2]).number, middle.measures
    rank = next(rank for rank in analysis.run.ranks if rank.rank == result.rank)
    start, end = measures.window_start_ns, measures.window_start_ns + measures.window_ns
    covered = {
        "compute_ns": rank.compute,
        "exposed_communication_ns": rank.communication,
        "exposed_copy_ns": rank.copy,
    }
    shares = {name: _shares(spans, start, end) for name, spans in covered.items()}
    rank.release()
    return StepStrips(result.rank, number, start, measures.window_ns, shares)


def _shares(covered: Intervals, start_ns: int, end_ns: int) -> list[float]:
    limits = start_ns + np.arange(_PIECES + 1) * (end_ns - start_ns) // _PIECES
    within = intervals.covered_within(covered, limits[:-1], limits[1:])
    shares: list[float] = (within / np.maximum(np.diff(limits), 1)).tolist()
    return shares
