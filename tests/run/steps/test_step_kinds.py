"""Kinds of steps: the best of all cuts, and how regularly long ones come."""

import math

import numpy as np
import pytest

from tests.support.selection import long_after
from traceprof.run.steps.step_kinds import long_steps, regular_spacing


@pytest.mark.parametrize("is_long", [[3, 9, 15, 21, 27], [3, 9, 15, 21, 28]])
def test_the_spacing_of_regular_long_steps(is_long: list[int]) -> None:
    lengths = np.ones(30)
    lengths[is_long] = 5
    mask = long_steps(lengths)
    assert mask is not None
    assert np.flatnonzero(mask).tolist() == is_long
    assert regular_spacing(mask) == (6 if is_long[-1] == 27 else None)


@pytest.mark.parametrize("num", long_after(12, range(4, 16)))
def test_kinds_are_those_of_the_best_cut(num: int) -> None:
    """Held to all cuts, one by one."""
    source = np.random.default_rng(num)
    for _ in range(20):
        lengths = np.where(source.random(num) < 0.4, 3, 1) * source.lognormal(0, 0.2, num)
        logarithms = np.log(lengths)
        best, chosen = math.inf, None
        for limit in np.sort(lengths)[1:]:
            groups = logarithms[lengths < limit], logarithms[lengths >= limit]
            within = sum(float(((group - group.mean()) ** 2).sum()) for group in groups)
            if within < best:
                best, chosen = within, lengths >= limit
        assert chosen is not None
        explained = 1 - best / float(((logarithms - logarithms.mean()) ** 2).sum())
        is_enough = min(chosen.sum(), num - chosen.sum()) >= 3
        ratio = lengths[chosen].mean() / lengths[~chosen].mean()
        mask = long_steps(lengths)
        if explained >= 0.8 and is_enough and ratio >= 1.5:
            assert mask is not None
            assert mask.tolist() == chosen.tolist()
        else:
            assert mask is None


@pytest.mark.parametrize(
    "lengths",
    [
        [],
        [1],
        [2] * 7,
        [0, 0, 0, 5, 5, 5],
        [100] * 39 + [900],  # one slow step is no kind
        [100] * 20 + [140] * 20,  # too little apart
        list(range(100, 500, 10)),  # spread evenly
    ],
)
def test_equal_few_and_empty_steps_are_of_one_kind(lengths: list[int]) -> None:
    assert long_steps(lengths) is None
