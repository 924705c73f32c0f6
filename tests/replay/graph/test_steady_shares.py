"""What each replayed step counts for in the mean of the steady ones."""

import numpy as np
import pytest

from traceprof.analyses.breakdown import BreakdownResult, Measures, StepMeasures
from traceprof.replay.graph.run_graph import steady_shares
from traceprof.replay.graph.steps import RankSteps
from traceprof.run.rank import WindowKind
from traceprof.run.steady_steps import StepUse

_NOTHING = np.empty(0, np.int64)


def steps_by_rank(*numbers: int, is_marked: bool = True) -> RankSteps:
    number = np.array(numbers, np.int64)
    limits = np.zeros(len(number) + 1, np.int64)
    return RankSteps(0, number, limits, number, limits, limits, is_marked, _NOTHING)


def ran(
    lengths: list[int], uses: dict[int, StepUse], numbers: list[int] | None = None
) -> BreakdownResult:
    steps = tuple(
        StepMeasures(
            place if numbers is None else numbers[place],
            Measures(0, length, length, 0, 0, 0, 0, 0, 0, 1, 0, 0),
            use=uses.get(place, StepUse.STEADY),
        )
        for place, length in enumerate(lengths)
    )
    whole = Measures(0, sum(lengths), 0, 0, 0, 0, 0, 0, 0, 1, 0, 0)
    return BreakdownResult(0, whole, steps, whole, WindowKind.TRAINING, None)


@pytest.mark.parametrize("numbers", [[0, 1, 2, 3, 4, 5], [7, 7, 7, 7, 7, 7]])
def test_steps_that_are_not_steady_count_nothing(numbers: list[int]) -> None:
    """By end, what follows a step is the next one's; a rare step shows no change."""
    uses = {0: StepUse.OPENING, 3: StepUse.RARE, 5: StepUse.CUT}
    by_begin, by_end = steady_shares([steps_by_rank(*numbers)], ran([10] * 6, uses, numbers))
    assert by_begin.tolist() == pytest.approx([0, 1 / 3, 1 / 3, 0, 1 / 3, 0])
    assert by_end.tolist() == pytest.approx([0, 0, 1 / 2, 0, 0, 1 / 2])


def test_a_sample_has_the_mix_of_all_steps() -> None:
    """Of twenty steps five are long; of the six that are replayed three are."""
    lengths = [10] * 12 + [50] * 3 + [10] * 3 + [50] * 2
    by_begin, _ = steady_shares([steps_by_rank(10, 11, 12, 13, 14, 15)], ran(lengths, {}))
    assert by_begin.sum() == pytest.approx(1)
    assert by_begin[2:5].sum() == pytest.approx(5 / 20)


def test_without_steps_all_is_one() -> None:
    for result in (ran([], {}), ran([5, 5], {})):
        shares = steady_shares([steps_by_rank(0, is_marked=False)], result)
        assert [share.tolist() for share in shares] == [[1], [1]]


def test_the_last_step_of_a_phase_is_not_measured_by_its_end() -> None:
    """What the phase ends with, a copy of all results, is launched in it."""
    uses = {2: StepUse.CUT, 5: StepUse.CUT}
    by_begin, by_end = steady_shares([steps_by_rank(*range(6))], ran([10] * 6, uses))
    assert by_begin.tolist() == pytest.approx([1 / 4, 1 / 4, 0, 1 / 4, 1 / 4, 0])
    assert by_end.tolist() == pytest.approx([0, 1 / 3, 0, 0, 1 / 3, 1 / 3])
