"""Samples of steps: replayed for runs that are too long, or judged in part."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from traceprof.run.rank import WindowKind
from traceprof.run.step_ranges import StepWindows
from traceprof.run.windows import training_of
from traceprof.structs import Record
from traceprof.trace.grouping import common_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceprof.analyses.breakdown import BreakdownResult
    from traceprof.intervals import Int64
    from traceprof.run.opening import Rank, Run

MIN_STEPS = 10
"""So many steps are compared if there are as many, however many operations they have."""
MAX_OPERATIONS = 100_000
"""Operations of all ranks that are replayed at most, but no fewer than `MIN_STEPS` steps."""
MIN_LEAD = 2
"""Steps replayed before those that are compared: what the host is ahead by comes from them."""


class Sample(Record, frozen=True):
    """Steps in a row, and when the host was in them.

    Attributes:
        steps: of each rank, by its number, those that are replayed.
        compared: the numbers of the first and the last step that are compared.
        spans: by (report, process), from the beginning of the first step's range to the end of the
            last one's, in the report's own time.
    """

    steps: Mapping[int, StepWindows]
    compared: tuple[int, int]
    spans: Mapping[tuple[int, int], tuple[int, int]]

    def span_of(self, rank: Rank) -> tuple[int, int]:
        """Return when the host of a rank's process was in these steps."""
        return self.spans[rank.report, rank.process]

    def compares(self, numbers: Int64) -> slice:
        """Return which steps are compared, of numbers that ascend."""
        low, high = self.compared
        return slice(*np.searchsorted(numbers, (low, high + 1)).tolist())


def sample_of(
    run: Run, measured: Mapping[int, BreakdownResult], numbers: Mapping[int, Int64] | None = None
) -> Sample | None:
    """Choose steps from the middle of the training; None if these would not be fewer.

    Args:
        run: its reports are open.
        measured: by rank, where its time went.
        numbers: by rank, the numbers of the steps that are judged; the training where not given.

    Returns:
        Steps that all ranks have; None also if steps are not known.
    """
    steps = {rank.rank: _training_steps(rank, measured.get(rank.rank)) for rank in run.ranks}
    known = {number: of_rank for number, of_rank in steps.items() if of_rank is not None}
    if len(known) < len(steps) or not known:
        return None
    common = reduce(common_values, [of_rank.number for of_rank in known.values()])
    judged = common if numbers is None else reduce(common_values, [common, *numbers.values()])
    if len(judged) == 0:
        return None
    num_operations = max(sum(len(rank.operations) for rank in run.ranks), 1)
    num = max(MAX_OPERATIONS * len(common) // num_operations, MIN_STEPS)
    begin, end = np.searchsorted(common, (judged[0], judged[-1])).tolist()
    end += 1
    if num < end - begin:
        begin += (end - begin - num) // 2
        end = begin + num
    # Where the last one ends is where the next one begins.
    low, high = max(begin - MIN_LEAD, 0), min(end + 1, len(common))
    if (low, high) == (0, len(common)) and numbers is None:
        return None
    first, last = common[low], common[high - 1]
    inside = {
        number: of_rank.chosen((of_rank.number >= first) & (of_rank.number <= last))
        for number, of_rank in known.items()
    }
    compared = int(common[begin]), int(common[end - 1])
    return Sample(inside, compared, _spans(run, inside))


def _training_steps(rank: Rank, result: BreakdownResult | None) -> StepWindows | None:
    """Return the training steps of a rank in order of time; None if unknown."""
    if result is not None and result.judged_kind is WindowKind.TRAINING:
        steps = _measured_steps(rank, result)
        if steps is not None:
            return steps
    steps = rank.steps
    if steps is None or len(steps) == 0:
        return None
    steps = steps.chosen(steps.start_ns >= training_of(rank).start_ns)
    rank.release()
    return steps if (np.diff(steps.number) > 0).all() else None


def _measured_steps(rank: Rank, result: BreakdownResult) -> StepWindows | None:
    """Return the steps of a breakdown; None if a number is not that of one range."""
    ranges, steps = rank.host_steps, [step for step in result.steps if step.is_training]
    if ranges is None or not steps:
        return None
    number = np.array([step.number for step in steps], np.int64)
    start = np.array([step.measures.window_start_ns for step in steps], np.int64)
    length = np.array([step.measures.window_ns for step in steps], np.int64)
    order = np.argsort(ranges.number, kind="stable")
    in_order = ranges.number[order]
    if not (np.diff(in_order) > 0).all() or not (np.diff(number) > 0).all():
        return None
    source = order[np.searchsorted(in_order, number)]
    return StepWindows(number, start, start + length, source)


def _spans(run: Run, steps: Mapping[int, StepWindows]) -> dict[tuple[int, int], tuple[int, int]]:
    """Return when the host of each process was in some steps of its ranks."""
    spans: dict[tuple[int, int], tuple[int, int]] = {}
    for rank in run.ranks:
        ranges, source = rank.host_steps, steps[rank.rank].source
        assert ranges is not None  # noqa: S101  (all ranks of a sample have steps)
        low, high = int(ranges.start_ns[source].min()), int(ranges.end_ns[source].max())
        others = spans.get((rank.report, rank.process), (low, high))
        spans[rank.report, rank.process] = min(low, others[0]), max(high, others[1])
    return spans
