"""Intervals, tests and changes of means keep their promises on series whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.support.planted import (
    Noise,
    alternating,
    change,
    every_eighth,
    independent,
    mixed,
    of_boundaries,
    rates,
)
from tests.support.selection import known, rows_long_after
from traceprof.run.mean_change import (
    adjusted,
    block_length,
    difference,
    mean_of_blocks,
    of_captures,
    p_value,
    steps_to_find,
    t_probability,
    t_quantile,
    trend,
)


@pytest.mark.long
@pytest.mark.parametrize("num", [12, 30, 60, 120])
@pytest.mark.parametrize("noise", [independent, of_boundaries, alternating, every_eighth, mixed])
def test_at_most_six_of_a_hundred_pairs_without_a_change_differ(noise: Noise, num: int) -> None:
    assert rates(noise, num, 0.01, 500).false <= 0.06 + 0.02  # what 500 runs leave open


@pytest.mark.parametrize(
    ("noise", "num", "planted", "least"),
    rows_long_after(
        2,
        [
            (of_boundaries, 60, 0.01, 0.90),
            (independent, 120, 0.01, 0.85),
            (alternating, 120, 0.05, 0.95),
            (every_eighth, 120, 0.05, 0.95),
            (mixed, 120, 0.05, 0.95),
        ],
    ),
)
def test_planted_changes_are_found(noise: Noise, num: int, planted: float, least: float) -> None:
    found = rates(noise, num, planted, 60)
    assert found.found >= least
    assert found.false <= 0.15  # of 60 runs


def test_the_interval_of_blocks_is_welchs() -> None:
    before, after = np.array([1.0, 3, 2, 4, 6, 8]), np.array([2.0, 2, 4, 4, 9, 9])
    means = [mean_of_blocks(side, 2) for side in (before, after)]
    # Blocks: 2, 3, 7 and 2, 4, 9; variances of their means 7 / 3 and 13 / 3.
    assert [mean.value for mean in means] == [4, 5]
    assert [mean.variance for mean in means] == pytest.approx([7 / 3, 13 / 3])
    freedom = (20 / 3) ** 2 / ((7 / 3) ** 2 / 2 + (13 / 3) ** 2 / 2)
    assert int(freedom) == 3
    low, high = difference(means)
    assert (low + high) / 2 == pytest.approx(1)
    assert (high - low) / 2 == pytest.approx(3.1824 * math.sqrt(20 / 3), rel=1e-4)


def test_correlated_blocks_widen_the_interval() -> None:
    slow = np.repeat([1.0, 1, 1, 2, 2, 2], 2)
    shuffled = np.repeat([1.0, 2, 1, 2, 1, 2], 2)
    # Variances of the mean 0.3 / 6; the correlation is 0.5, which makes it (1 + 0.5) / (1 - 0.5).
    assert mean_of_blocks(slow, 2).variance == pytest.approx(3 * 0.05)
    assert mean_of_blocks(shuffled, 2).variance == pytest.approx(0.05)


@pytest.mark.parametrize("num", [0, 1, 2])
def test_too_few_steps_have_no_interval(num: int) -> None:
    series = np.linspace(1, 2, max(num, 1))[: max(num, 1)]
    assert change(series, np.ones(9)).interval is None


def test_equal_steps_change_by_exactly_their_difference() -> None:
    assert change(np.full(9, 2.0), np.full(12, 3.0)) == (1.0, (1.0, 1.0), None)


def test_the_mean_decides_where_the_shares_of_the_kinds_differ() -> None:
    source = np.random.default_rng(3)
    before = independent(source, 60) * np.where(np.arange(60) % 2, 7, 1)
    after = independent(source, 60) * np.where(np.arange(60) % 6, 1, 7)
    result = change(before, after)
    assert result.at_same_mix is None
    assert known(result.interval).high < 0


def test_at_the_same_mix_each_kind_is_compared_with_its_own() -> None:
    source = np.random.default_rng(4)
    before, after = mixed(source, 120), mixed(source, 120) * 1.05
    result = change(before, after)
    assert result.interval is not None
    of_mix = known(result.at_same_mix).interval
    assert of_mix.low > 0
    assert of_mix.high - of_mix.low < (result.interval.high - result.interval.low) / 5


@pytest.mark.parametrize("is_long", [[3, 9, 15, 21, 27], [3, 9, 15, 21, 28]])
def test_blocks_have_the_spacing_of_regular_long_steps(is_long: list[int]) -> None:
    lengths = np.ones(30)
    lengths[is_long] = 5
    assert block_length(lengths) == (6 if is_long[-1] == 27 else 2)


def test_a_trend_within_a_recording_is_seen() -> None:
    source = np.random.default_rng(5)
    flat = independent(source, 60)
    assert trend(flat) is None
    share = trend(flat * np.linspace(1, 1.2, 60))
    assert share == pytest.approx(0.1, abs=0.03)
    assert all(trend(flat[:num]) is None for num in range(1, 11))
    turns = np.tile([1.6, 51.6], 20) * independent(source, 40)
    assert all(trend(turns[:num]) is None for num in (13, 15, 27, 31))


@pytest.mark.long
def test_what_a_mean_needs_finds_it_in_nine_of_ten() -> None:
    source = np.random.default_rng(6)
    needed = steps_to_find(independent(source, 2000), 0.01)
    assert needed == pytest.approx(26 * 2**2, rel=0.1)
    assert rates(independent, 104, 0.01, 300).found == pytest.approx(0.92, abs=0.05)


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
