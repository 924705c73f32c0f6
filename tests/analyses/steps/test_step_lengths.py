"""How long steps take: the middle, the average, the slowest one, and steps of two kinds."""

import numpy as np
import pytest

from traceprof.analyses.breakdown import BreakdownResult, Measures, StepMeasures
from traceprof.analyses.steps.step_lengths import step_groups, step_lengths, step_ns
from traceprof.run.rank import WindowKind


def ran(*lengths: int, left_out: int = 0) -> BreakdownResult:
    """Steps of these lengths one after the other, the first ones not of the training."""
    starts = np.cumsum([0, *lengths]).tolist()
    steps = tuple(
        StepMeasures(number, measures(start, length), number >= left_out)
        for number, (start, length) in enumerate(zip(starts, lengths, strict=False))
    )
    first = starts[left_out]
    judged = measures(first, starts[-1] - first)
    return BreakdownResult(0, judged, steps, judged, WindowKind.TRAINING, None)


def measures(start: int, length: int) -> Measures:
    return Measures(start, length, length, 0, 0, 0, 0, 0, 0, 1, 0, 0)


def test_median_mean_and_slowest() -> None:
    lengths = step_lengths(ran(10, 30, 11, 90))
    assert lengths is not None
    assert (lengths.num_steps, lengths.median_ns, lengths.mean_ns) == (4, 20, 35)
    assert lengths.slowest.number == 1  # the last one's end is no step's beginning


def test_the_only_step_is_the_slowest() -> None:
    lengths = step_lengths(ran(10))
    assert lengths is not None
    assert lengths.slowest.number == 0


def test_steps_that_are_not_training_do_not_count() -> None:
    lengths = step_lengths(ran(900, 10, 12, 11, left_out=1))
    assert lengths is not None
    assert (lengths.num_steps, lengths.median_ns, lengths.slowest.number) == (3, 11, 2)


def test_without_steps_all_is_one_step() -> None:
    whole = measures(5, 70)
    result = BreakdownResult(0, whole, (), whole, WindowKind.TRAINING, None)
    assert step_lengths(result) is None
    assert step_ns(result) == 70


def test_two_kinds_of_steps() -> None:
    rng = np.random.default_rng(1)
    short, long = rng.integers(95, 106, 30), rng.integers(390, 411, 10)
    groups = step_groups(rng.permutation(np.concatenate((short, long))))
    assert [group.num_steps for group in groups] == [30, 10]
    assert [group.median_ns for group in groups] == [int(np.median(short)), int(np.median(long))]


@pytest.mark.parametrize(
    "lengths",
    [
        [100] * 9,  # too few to tell
        [100] * 40,
        [100] * 39 + [900],  # one slow step is no kind
        [100] * 20 + [115] * 20,  # too little apart
        list(range(100, 500, 10)),  # spread evenly
    ],
)
def test_steps_of_one_kind(lengths: list[int]) -> None:
    assert step_groups(np.array(lengths, np.int64)) == ()
