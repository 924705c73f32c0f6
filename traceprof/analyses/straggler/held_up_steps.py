"""Steps that a rank holds up: once the others have waited for it, they all go on together.

A rank that is late to the first of many operations of each step is last in few of these only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.ranks.lateness import costs_of
from traceprof.structs import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.analyses.breakdown import BreakdownResult
    from traceprof.intervals import Int64
    from traceprof.ranks.arrivals import Arrivals
    from traceprof.ranks.comparison import RankComparison

MIN_STEPS = 6
"""In fewer, one rank of many is the latest several times by chance."""


class HeldUpSteps(Record, frozen=True):
    """The steps that each rank holds up.

    Attributes:
        num: int64[ranks], in how many steps its lateness alone, after the rank before it had come,
            costs more than half of what all lateness does.
        num_steps: in which ranks share operations; 0 if these are too few, or not known on all.
    """

    num: Int64
    num_steps: int


def held_up_steps(
    ranks: RankComparison, arrivals: Sequence[Arrivals], measured: Sequence[BreakdownResult]
) -> HeldUpSteps:
    """Return which ranks hold up how many steps.

    Args:
        ranks: the comparison of the ranks.
        arrivals: of the same ranks.
        measured: where the time of each went, by step.
    """
    num_ranks = len(ranks.ranks)
    steps = {result.rank: [s for s in result.steps if s.is_training] for result in measured}
    numbers = [[step.number for step in steps.get(rank, ())] for rank in ranks.ranks]
    if not numbers or not numbers[0] or any(own != numbers[0] for own in numbers):
        return HeldUpSteps(np.zeros(num_ranks, np.int64), 0)
    alone = np.zeros((len(numbers[0]), num_ranks), np.int64)
    of_all = np.zeros((len(alone), 1), np.int64)
    is_shared = np.zeros(len(alone), np.bool_)
    begins = [
        ranks.clocks.to_run(report, np.array([s.measures.window_start_ns for s in steps[rank]]))
        for rank, report in zip(ranks.ranks, ranks.reports, strict=True)
    ]
    for waits in ranks.waits:
        costs = np.where(waits.is_last, costs_of(waits, arrivals), 0)
        # Without a rank the others would still have waited for the one before it.
        of_one = np.minimum(costs, waits.behind_ns)
        judged = waits.is_judged & waits.group.leaves_together
        for column, member in enumerate(waits.group.members):
            step = np.searchsorted(begins[member], waits.start_ns[:, column], side="right") - 1
            known = judged & (step >= 0)
            is_shared[step[known]] = True
            known &= waits.last == column
            np.add.at(alone[:, member], step[known], of_one[known, column])
            np.add.at(of_all[:, 0], step[known], costs[known].max(axis=1))
    if is_shared.sum() < MIN_STEPS:
        return HeldUpSteps(np.zeros(num_ranks, np.int64), 0)
    is_most = 2 * alone > of_all
    return HeldUpSteps(is_most.sum(axis=0), int(is_shared.sum()))
