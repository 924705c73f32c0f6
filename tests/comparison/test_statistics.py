"""Intervals and tests keep their promises on series whose truth is known."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest

from traceprof.comparison import statistics
from traceprof.comparison.statistics import (
    adjusted,
    drawn,
    of_captures,
    of_draws,
    of_few_steps,
    p_value,
    t_probability,
    t_quantile,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    Noise = Callable[[np.random.Generator, int], statistics.Float64]


def independent(source: np.random.Generator, num: int) -> statistics.Float64:
    return 1 + source.normal(0, 0.02, num)


def of_boundaries(source: np.random.Generator, num: int) -> statistics.Float64:
    """Steps that take time from their neighbours, as those of real recordings do."""
    shift = source.normal(0, 0.02 / 2**0.5, num + 1)
    return 1 + shift[1:] - shift[:-1]


def slower_at_times(source: np.random.Generator, num: int) -> statistics.Float64:
    return 0.98 + source.exponential(0.02, num)


def interval(before: statistics.Float64, after: statistics.Float64) -> statistics.Interval:
    draws = [drawn(series[:, None], side)[:, 0] for side, series in enumerate((before, after))]
    return of_draws(draws[1] / draws[0] - 1)


def rates(noise: Noise, num: int, planted: float, runs: int) -> tuple[float, float]:
    """Return how often identical series differ, and how often a planted change is found."""
    source = np.random.default_rng(20)
    false = found = 0
    for _ in range(runs):
        before, after = noise(source, num), noise(source, num)
        low, high = interval(before, after)
        false += not low <= 0 <= high
        found += interval(before, after * (1 + planted)).low > 0
    return false / runs, found / runs


@pytest.mark.long
@pytest.mark.parametrize("num", [6, 12, 30, 60, 120])
@pytest.mark.parametrize("noise", [independent, of_boundaries, slower_at_times])
def test_identical_runs_differ_in_at_most_five_per_cent(noise: Noise, num: int) -> None:
    false, _ = rates(noise, num, 0.01, 500)
    assert false <= 0.05 + 0.02  # the limit, and what 500 runs leave open (two sigma)


@pytest.mark.long
@pytest.mark.parametrize(
    ("noise", "num", "planted", "least"),
    [
        (of_boundaries, 60, 0.01, 0.85),
        (of_boundaries, 80, 0.01, 0.95),
        (independent, 60, 0.02, 0.95),
        (independent, 200, 0.01, 0.95),
        (slower_at_times, 60, 0.02, 0.95),
    ],
)
def test_planted_changes_are_found(noise: Noise, num: int, planted: float, least: float) -> None:
    _, found = rates(noise, num, planted, 500)
    assert found >= least


def test_the_interval_is_that_of_a_plain_second_computation() -> None:
    source = np.random.default_rng(4)
    series = 30 + source.normal(0, 0.5, (58, 1))
    draws = drawn(series, 0)
    plain = []
    for _ in range(2000):
        starts = source.integers(0, 58, 12)
        values = [series[(start + offset) % 58, 0] for start in starts for offset in range(5)]
        plain.append(float(np.median(values[:58])))
    assert np.median(draws[:, 0]) == pytest.approx(np.median(plain), rel=1e-3)
    widened = np.std(plain) * (58 / 53) ** 0.5
    assert np.std(draws[:, 0]) == pytest.approx(widened, rel=0.1)
    assert draws.shape == (statistics.NUM_DRAWS, 2)


def test_the_same_question_has_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    series = np.random.default_rng(1).normal(1, 0.1, (40, 5))
    draws = drawn(series, 0)
    assert (draws == drawn(series, 0)).all()
    assert (draws != drawn(series, 1)).any()
    # Also where not all draws fit into memory at once.
    monkeypatch.setattr(statistics, "_MAX_VALUES", 40 * 5 * 700)
    assert drawn(series, 0).std(axis=0) == pytest.approx(draws.std(axis=0), rel=0.1)


def test_parts_sum_in_every_draw() -> None:
    source = np.random.default_rng(2)
    parts = source.uniform(1, 2, (30, 4))
    series = np.column_stack([parts.sum(axis=1), parts])
    draws = drawn(series, 0)
    assert draws[:, 2:].sum(axis=1) == pytest.approx(draws[:, 1])


def test_students_t_is_that_of_the_tables() -> None:
    table = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 10: 2.228, 30: 2.042, 100: 1.984}
    for freedom, value in table.items():
        assert t_quantile(0.975, freedom) == pytest.approx(value, abs=6e-4)
        assert t_probability(value, freedom) == pytest.approx(0.975, abs=1e-4)
        assert t_probability(-value, freedom) == pytest.approx(0.025, abs=1e-4)
    assert t_probability(0, 7) == 0.5


def test_captures_tell_how_much_runs_differ() -> None:
    assert of_captures([1.0], [2.0]) is None
    interval = of_captures([10.0, 12.0], [11.0, 13.0])
    assert interval is not None
    reach = 4.303 * 2**0.5  # two degrees of freedom, variance 2, two a side
    assert interval == pytest.approx((1 - reach, 1 + reach), abs=1e-3)
    one_a_side = of_captures([10.0], [20.0, 22.0, 24.0])
    assert one_a_side is not None
    assert one_a_side.low < 12 < one_a_side.high


@pytest.mark.long
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 2), (3, 3), (5, 2)])
def test_captures_of_the_same_program_differ_in_five_per_cent(before: int, after: int) -> None:
    source = np.random.default_rng(3)
    false = 0
    for _ in range(2000):
        interval = of_captures(
            source.normal(30, 0.5, before).tolist(), source.normal(30, 0.5, after).tolist()
        )
        assert interval is not None
        false += not interval.low <= 0 <= interval.high
    assert false / 2000 == pytest.approx(0.05, abs=0.015)


@pytest.mark.long
@pytest.mark.parametrize("num", [3, 4, 5])
def test_few_steps_differ_in_at_most_five_per_cent(num: int) -> None:
    source = np.random.default_rng(9)
    false = 0
    for _ in range(2000):
        interval = of_few_steps(
            independent(source, num).tolist(), independent(source, num).tolist()
        )
        assert interval is not None
        false += not interval.low <= 0 <= interval.high
    assert false / 2000 <= 0.05


def test_many_questions_are_judged_together() -> None:
    assert adjusted([]) == []
    assert adjusted([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.16 / 3, 0.16 / 3, 0.5])
    found = adjusted(np.random.default_rng(6).uniform(0, 1, 300).tolist())
    assert min(found) > 0.05
    assert all(0 <= value <= 1 for value in found)
    mixed = adjusted([1e-6] * 10 + np.linspace(0.01, 1, 90).tolist())
    assert sum(value <= 0.05 for value in mixed) == 10


def test_adjusted_probabilities_keep_their_order() -> None:
    values = np.random.default_rng(7).uniform(0, 0.2, 50).tolist()
    order = np.argsort(values)
    corrected = np.array(adjusted(values))[order]
    assert all(low <= high for low, high in pairwise(corrected.tolist()))
    assert (corrected >= np.sort(values)).all()


def test_a_change_without_noise_is_certain() -> None:
    assert p_value(0.0, [(0.0, 3), (0.0, 3)]) == 1.0
    assert p_value(5.0, [(0.0, 3), (0.0, 3)]) == 0.0
    # t = 2 with 20 degrees of freedom
    assert p_value(2.0, [(0.5**0.5, 10), (0.5**0.5, 10)]) == pytest.approx(0.0593, abs=1e-3)
