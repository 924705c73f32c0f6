"""Intervals and tests keep their promises on series whose truth is known."""

import numpy as np
import pytest

from tests.support.selection import known
from traceprof.run.mean_change import adjusted, of_captures, p_value, t_probability, t_quantile


def test_students_t_is_that_of_the_tables() -> None:
    table = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 10: 2.228, 30: 2.042, 100: 1.984}
    for freedom, value in table.items():
        assert t_quantile(0.975, freedom) == pytest.approx(value, abs=6e-4)
        assert t_probability(value, freedom) == pytest.approx(0.975, abs=1e-4)
        assert t_probability(-value, freedom) == pytest.approx(0.025, abs=1e-4)
    assert t_probability(0, 7) == 0.5


def test_captures_tell_how_much_runs_differ() -> None:
    assert of_captures([1.0], [2.0]) is None
    interval = known(of_captures([10.0, 12.0], [11.0, 13.0]))
    reach = 4.303 * 2**0.5  # two degrees of freedom, variance 2, two a side
    assert interval == pytest.approx((1 - reach, 1 + reach), abs=1e-3)
    one_a_side = known(of_captures([10.0], [20.0, 22.0, 24.0]))
    assert one_a_side.low < 12 < one_a_side.high


@pytest.mark.long
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 2), (3, 3), (5, 2)])
def test_captures_of_the_same_program_differ_in_five_per_cent(before: int, after: int) -> None:
    source = np.random.default_rng(3)
    false = 0
    for _ in range(2000):
        interval = known(
            of_captures(
                source.normal(30, 0.5, before).tolist(), source.normal(30, 0.5, after).tolist()
            )
        )
        false += not interval.low <= 0 <= interval.high
    assert false / 2000 == pytest.approx(0.05, abs=0.015)


def test_many_questions_are_judged_together() -> None:
    assert adjusted([]) == []
    assert adjusted([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.16 / 3, 0.16 / 3, 0.5])
    found = adjusted(np.random.default_rng(6).uniform(0, 1, 300).tolist())
    assert min(found) > 0.05
    assert all(0 <= value <= 1 for value in found)
    mixed = adjusted([1e-6] * 10 + np.linspace(0.01, 1, 90).tolist())
    assert sum(value <= 0.05 for value in mixed) == 10


def test_a_change_without_noise_is_certain() -> None:
    assert p_value(0.0, [(0.0, 3), (0.0, 3)]) == 1.0
    assert p_value(5.0, [(0.0, 3), (0.0, 3)]) == 0.0
    # t = 2 with 20 degrees of freedom
    assert p_value(2.0, [(0.5**0.5, 10), (0.5**0.5, 10)]) == pytest.approx(0.0593, abs=1e-3)
