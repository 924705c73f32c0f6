"""How long steps take: the mean of the steady ones, their kinds, and what is left out."""

import numpy as np

from tests.support.selection import known
from traceprof.analyses.breakdown import BreakdownResult, Measures, StepMeasures
from traceprof.analyses.steps.step_means import (
    LeftOutSteps,
    StepKind,
    slowest_rank,
    step_lengths,
    step_ns,
)
from traceprof.run.rank import WindowKind
from traceprof.run.steady_steps import StepUse


def ran(
    *lengths: int, uses: dict[int, StepUse | None] | None = None, rank: int = 0
) -> BreakdownResult:
    """Steps of these lengths one after the other, steady if nothing else is said."""
    starts = np.cumsum([0, *lengths]).tolist()
    steps = tuple(
        StepMeasures(number, measures(start, length), use=(uses or {}).get(number, StepUse.STEADY))
        for number, (start, length) in enumerate(zip(starts, lengths, strict=False))
    )
    judged = measures(0, starts[-1])
    return BreakdownResult(rank, judged, steps, judged, WindowKind.TRAINING, None)


def measures(start: int, length: int) -> Measures:
    return Measures(start, length, length, 0, 0, 0, 0, 0, 0, 1, 0, 0)


def test_a_step_takes_the_mean_of_the_steady_ones() -> None:
    uses = {0: None, 1: StepUse.OPENING, 4: StepUse.RARE, 6: StepUse.CUT}
    lengths = known(step_lengths(ran(900, 70, 10, 30, 500, 11, 90, uses=uses)))
    assert (lengths.num_steps, lengths.mean_ns, lengths.median_ns) == (3, 17, 11)
    assert lengths.slowest.number == 4  # of all that are judged, whether it counts or not
    assert lengths.kinds == (StepKind(3, 17),)
    assert lengths.left_out == (
        LeftOutSteps("cut", 1, 90),
        LeftOutSteps("opening", 1, 70),
        LeftOutSteps("rare", 1, 500),
    )


def test_two_kinds_of_steps_both_count() -> None:
    lengths = known(step_lengths(ran(*[100] * 30, *[400] * 10)))
    assert lengths.kinds == (StepKind(30, 100), StepKind(10, 400))
    assert lengths.mean_ns == 175


def test_without_steps_all_is_one_step() -> None:
    whole = measures(5, 70)
    result = BreakdownResult(0, whole, (), whole, WindowKind.TRAINING, None)
    assert step_lengths(result) is None
    assert step_ns(result) == 70


def test_the_slowest_rank_is_that_of_the_longest_mean() -> None:
    first, second = ran(100, 100, 100), ran(10, 10, 400, rank=1)
    assert slowest_rank([first, second]) is second
    assert slowest_rank([first, ran(100, 100, 100, rank=1)]) is first
