"""Steady steps: what is cut, what opens a recording, and what is rare."""

import numpy as np
import pytest

from traceprof.run.steps.steady_rules import StepUse, step_uses

_LETTERS = {StepUse.STEADY: ".", StepUse.CUT: "c", StepUse.OPENING: "o", StepUse.RARE: "r"}


def uses(
    lengths: list[int],
    kernels: dict[int, int] | None = None,
    *,
    ends_early: bool = False,
    ran_else: tuple[int, ...] = (),
) -> str:
    """Return the use of each step, a letter each; a step has 100 kernels unless said."""
    num = np.full(len(lengths), 100)
    for place, number in (kernels or {}).items():
        num[place] = number
    found = step_uses(
        np.array(lengths, np.int64),
        num,
        ends_early=ends_early,
        ran_else=lambda steps: np.isin(steps, ran_else),
    )
    return "".join(_LETTERS[StepUse(use)] for use in found.tolist())


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([9], "."),
        ([9, 9], ".."),
        ([9, 9, 4], "..c"),
        ([100] * 8, "." * 7 + "c"),
        ([300, 150, *[100] * 10], "oo" + "." * 9 + "c"),
        ([100, 300, *[100] * 10], "." * 11 + "c"),  # slow, but not at first
        ([500] * 5 + [100] * 7, "oo" + "." * 9 + "c"),  # no more than a quarter
        ([500] * 20 + [100] * 60, "o" * 10 + "." * 69 + "c"),  # no more than ten
        ([200, *[100] * 5], "o....c"),
        ([200, *[100] * 4], "....c"),  # too few to see what is usual
    ],
)
def test_the_last_and_slow_first_steps_do_not_count(lengths: list[int], expected: str) -> None:
    assert uses(lengths, ends_early=True) == expected
    if len(lengths) > 2:
        assert uses(lengths)[-1] == "."


@pytest.mark.parametrize(
    ("kernels", "expected"),
    [
        ({0: 89}, "c........."),
        ({0: 90}, ".........."),
        ({9: 20}, ".........c"),
        ({0: 20, 9: 20}, ".........."),  # each excuses the other: they may be a kind of their own
        ({5: 20}, ".........."),  # amid others nothing cuts a step
        (dict.fromkeys(range(0, 10, 2), 20), ".........."),  # gradients are accumulated
        (dict.fromkeys(range(10), 0), ".........."),  # no kernel is known
    ],
)
def test_a_first_or_last_step_with_too_few_kernels_is_cut(
    kernels: dict[int, int], expected: str
) -> None:
    assert uses([100] * 10, kernels) == expected


@pytest.mark.parametrize("num", [3, 6, 10])
def test_where_each_step_is_cut_all_count(num: int) -> None:
    is_cut = np.arange(num) < num - 1  # by exceptions; and no step follows the last one
    lengths, kernels = np.full(num, 100), np.full(num, 10)
    assert not step_uses(lengths, kernels, ends_early=True, is_cut=is_cut).any()
    found = step_uses(lengths, kernels, ends_early=False, is_cut=is_cut)
    assert found.tolist() == [StepUse.CUT] * (num - 1) + [StepUse.STEADY]


def test_a_rare_step_is_long_and_something_else_ran_in_it() -> None:
    lengths = [*[100] * 19, 301, *[100] * 20]
    rare = "." * 19 + "r" + "." * 20
    assert uses(lengths) == "." * 40  # a stall of the same kernels counts
    assert uses(lengths, {19: 111}) == rare
    assert uses(lengths, {19: 89}) == rare
    assert uses(lengths, {19: 110}) == "." * 40
    assert uses(lengths, ran_else=(19,)) == rare
    assert uses([*[100] * 19, 300, *[100] * 20], {19: 111}) == "." * 40


def test_steps_that_come_often_are_not_rare() -> None:
    few = [*[100] * 30, 900, 900, *[100] * 8]
    assert uses(few, {30: 200, 31: 200}) == "." * 30 + "rr" + "." * 8
    many = [*[100] * 30, 900, 900, 900, *[100] * 7]
    assert uses(many, {30: 200, 31: 200, 32: 200}) == "." * 40


def test_what_is_rare_is_longer_than_the_longest_kind() -> None:
    kinds = [100, 900] * 20
    kinds[20] = 2000
    assert uses(kinds, {20: 200}) == "." * 40
    kinds[20] = 2800
    assert uses(kinds, {20: 200}) == "." * 20 + "r" + "." * 19


def test_noise_leaves_hardly_a_step_out() -> None:
    source = np.random.default_rng(3)
    lengths = (1e6 * source.normal(1, 0.02, (300, 60))).astype(np.int64)
    kernels = np.full(60, 100)
    left_out = sum(int(step_uses(row, kernels, ends_early=False).sum()) for row in lengths)
    assert left_out <= 6
