"""Arrivals packed and unpacked are the same."""

from typing import Any

import numpy as np

from tests.support.arrivals import arrivals
from traceprof.ranks.arrivals import TIME_CATEGORIES, Arrivals, PackedArrivals


def _of(num: int) -> Arrivals:
    rng = np.random.default_rng(5)
    start = np.cumsum(rng.integers(1, 1 << 40, num))
    spent = {name: np.cumsum(rng.integers(0, 1 << 20, num)).tolist() for name in TIME_CATEGORIES}
    columns: dict[str, Any] = {
        name: rng.integers(-1, 1 << 40, num)
        for name in ("bytes", "sequence", "launch_ns", "stalled", "kernels", "peer", "stream")
    }
    length = rng.integers(0, 1 << 33, num)
    return arrivals(3, start.tolist(), (start + length).tolist(), spent=spent, **columns)


def test_what_is_unpacked_is_what_was_packed() -> None:
    for num in (0, 1, 1000):
        before = _of(num)
        after = PackedArrivals.of(before).unpacked
        assert after.__struct_fields__
        for name in after.__struct_fields__:
            expected, value = getattr(before, name), getattr(after, name)
            np.testing.assert_array_equal(value, expected, err_msg=name)
            assert getattr(value, "dtype", None) == getattr(expected, "dtype", None)


def test_numbers_of_the_run_are_those_of_what_is_unpacked() -> None:
    after = PackedArrivals.of(_of(2)).numbered(7, 4).unpacked
    assert (after.rank, after.report) == (7, 4)
