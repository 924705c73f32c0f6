"""Lines of operations are shifted against each other by the one number that fits."""

import numpy as np
import pytest

from traceprof.intervals import Int64
from traceprof.ranks.matching import OperationList, shift_between, spread

STEP = 1_000_000


def ends(num: int, seed: int = 0) -> Int64:
    """Return ends a millisecond apart, give or take a fifth."""
    steps = np.random.default_rng(seed).integers(STEP * 4 // 5, STEP * 6 // 5, num)
    return np.cumsum(steps).astype(np.int64)


def alike(num: int) -> Int64:
    return np.zeros(num, np.int64)


@pytest.mark.parametrize("ahead", [-30_000_000, 0, 5_000_000])
@pytest.mark.parametrize("shift", [-7, -1, 0, 1, 20])
def test_the_shift_is_found_whatever_the_clocks_are_apart(shift: int, ahead: int) -> None:
    all_ends = ends(120)
    first = all_ends[20:100]
    second = all_ends[20 + shift : 90 + shift] + ahead
    found = shift_between(
        OperationList(alike(80), first), OperationList(alike(70), second), one_clock=False
    )
    assert found == shift


def test_a_drifting_clock_does_not_matter() -> None:
    first = ends(200)
    second = first[50:150] + np.rint(first[50:150] * 50e-6).astype(np.int64)
    found = shift_between(
        OperationList(alike(200), first), OperationList(alike(100), second), one_clock=False
    )
    assert found == 50


def test_single_outliers_do_not_matter() -> None:
    first = ends(60)
    second = first[3:43].copy()
    second[::10] -= 400_000
    found = shift_between(
        OperationList(alike(60), first), OperationList(alike(40), second), one_clock=False
    )
    assert found == 3


def test_several_shifts_that_fit_as_well_are_none() -> None:
    regular = np.arange(60, dtype=np.int64) * STEP
    first, second = (
        OperationList(alike(60), regular),
        OperationList(alike(40), regular[:40] + STEP // 2),
    )
    assert shift_between(first, second, one_clock=False) is None


def test_one_clock_decides_between_shifts_that_fit_as_well() -> None:
    regular = np.arange(60, dtype=np.int64) * STEP
    first, second = (
        OperationList(alike(60), regular),
        OperationList(alike(40), regular[9:49] + 3_000),
    )
    assert shift_between(first, second, one_clock=True) == 9


def test_sizes_decide_between_shifts_that_fit_as_well() -> None:
    regular = np.arange(60, dtype=np.int64) * STEP
    sizes = np.random.default_rng(1).integers(0, 50, 60)
    first, second = (
        OperationList(sizes, regular),
        OperationList(sizes[5:45], regular[5:45] + 7 * STEP),
    )
    assert shift_between(first, second, one_clock=False) == 5


def test_other_sizes_do_not_fit() -> None:
    first, second = OperationList(alike(40), ends(40)), OperationList(alike(40) + 1, ends(40))
    assert shift_between(first, second, one_clock=False) is None


def test_nothing_to_line_up() -> None:
    none, some = OperationList(alike(0), ends(0)), OperationList(alike(3), ends(3))
    assert shift_between(none, some, one_clock=True) is None
    assert shift_between(some, none, one_clock=True) is None


def test_one_operation_each_is_the_same_one_if_they_are_near() -> None:
    one = OperationList(alike(1), np.array([10 * STEP], np.int64))
    near = OperationList(alike(1), np.array([50 * STEP], np.int64))
    far = OperationList(alike(1), np.array([5_000 * STEP], np.int64))
    assert shift_between(one, near, one_clock=False) == 0
    assert shift_between(one, far, one_clock=False) is None


def test_spread_is_about_a_line() -> None:
    line = np.arange(10, dtype=np.float64) * 5 + 3
    assert spread(line) == 0
    line[7] += 100
    assert spread(line) < 5
    assert spread(np.array([0.0, 50.0])) == 0
