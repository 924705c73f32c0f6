"""Buckets of another size: where they are closed, and what a reduction needs besides its bytes."""

import numpy as np
import pytest

from traceprof.replay.assumptions import bucket_cap
from traceprof.replay.assumptions.bucket_cap import _CUT, _EVEN, _WHOLE, _Buckets, _closed_at

SIZES = np.array([25, 25, 25, 20])


@pytest.mark.parametrize(
    ("cap", "how", "expected"),
    [
        (30, _CUT, [30, 60, 90, 95]),
        (95, _CUT, [95]),
        (30, _EVEN, [31, 63, 95]),  # three that are at least as full as the cap
        (100, _EVEN, [95]),
        (50, _WHOLE, [50, 95]),
        (51, _WHOLE, [75, 95]),  # a bucket is closed by what fills it
        (25, _WHOLE, [25, 50, 75, 95]),
    ],
)
def test_where_buckets_are_closed(cap: float, how: int, expected: list[int]) -> None:
    assert _closed_at(SIZES, cap, how).tolist() == expected


def buckets(sizes: list[int], took_ns: list[float]) -> _Buckets:
    none = np.empty((len(sizes), 1), np.int64)
    return _Buckets(
        np.array(sizes), np.array([0]), none, none[:, 0], none, np.array(took_ns, np.float64)
    )


@pytest.mark.parametrize(
    ("sizes", "took_ns", "latencies"),
    [
        ([100, 100], [5000.0, 9000.0], (7_000.0, 20_000.0)),  # a convention: sizes show nothing
        ([1000, 1000, 9000, 9000], [9_000.0, 11_000.0, 18_000.0, 18_000.0], (9_000.0,)),
        ([1000, 9000], [1_000.0, 9_001.0], (0.0,)),
    ],
)
def test_the_latency_is_what_sizes_show(
    sizes: list[int], took_ns: list[float], latencies: tuple[float, ...]
) -> None:
    made = buckets(sizes, took_ns)
    assert bucket_cap._latencies(made) == pytest.approx(latencies, abs=0.5)


def test_bytes_take_what_is_left_beyond_the_latency() -> None:
    made = buckets([1000, 2000, 4000], [6_000.0, 7_000.0, 5_000.0])
    assert bucket_cap._ns_per_byte(made, 5_000.0) == pytest.approx(1.0)  # of 1, 1 and 0
