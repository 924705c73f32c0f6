"""Interval sets against sets of single nanoseconds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceprof import intervals
from traceprof.intervals import Intervals

Pairs = list[tuple[int, int]]
TIME = st.integers(-20, 60)
PAIRS = st.lists(st.tuples(TIME, st.integers(0, 12)).map(lambda pair: (pair[0], sum(pair))))


def of(pairs: Pairs) -> Intervals:
    starts = np.array([start for start, _ in pairs], np.int64)
    return intervals.union(starts, np.array([end for _, end in pairs], np.int64))


def moments(pairs: Pairs) -> set[int]:
    return {time for start, end in pairs for time in range(start, end)}


def covered(found: Intervals) -> set[int]:
    return moments(list(zip(found.start_ns.tolist(), found.end_ns.tolist(), strict=True)))


def assert_canonical(found: Intervals) -> None:
    assert (found.end_ns > found.start_ns).all()
    assert (found.start_ns[1:] > found.end_ns[:-1]).all()
    assert found.start_ns.dtype == found.end_ns.dtype == np.int64


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([], []),
        ([(5, 5)], []),
        ([(0, 5), (5, 9)], [(0, 9)]),  # touching intervals are one
        ([(5, 9), (0, 5)], [(0, 9)]),
        ([(0, 5), (6, 9)], [(0, 5), (6, 9)]),
        ([(0, 9), (2, 4)], [(0, 9)]),
        ([(0, 4), (0, 4), (0, 2)], [(0, 4)]),
        ([(0, 4), (4, 4), (7, 7)], [(0, 4)]),
    ],
)
def test_union(pairs: Pairs, expected: Pairs) -> None:
    found = of(pairs)
    assert list(zip(found.start_ns.tolist(), found.end_ns.tolist(), strict=True)) == expected


@given(PAIRS)
def test_union_covers_what_its_parts_cover(pairs: Pairs) -> None:
    found = of(pairs)
    assert_canonical(found)
    assert covered(found) == moments(pairs)
    assert found.measure_ns == len(moments(pairs))


@given(PAIRS, PAIRS)
def test_set_operations(left: Pairs, right: Pairs) -> None:
    a, b = of(left), of(right)
    for found, expected in (
        (intervals.intersect(a, b), moments(left) & moments(right)),
        (intervals.intersect(b, a), moments(left) & moments(right)),
        (intervals.subtract(a, b), moments(left) - moments(right)),
        (intervals.merge(a, b), moments(left) | moments(right)),
    ):
        assert_canonical(found)
        assert covered(found) == expected


@given(PAIRS, TIME, st.integers(0, 40))
def test_windows(pairs: Pairs, start: int, length: int) -> None:
    end = start + length
    window = set(range(start, end))
    found = of(pairs)
    assert covered(intervals.clip(found, start, end)) == moments(pairs) & window
    assert covered(intervals.complement(found, start, end)) == window - moments(pairs)
    within = intervals.covered_within(found, np.array([start]), np.array([end]))
    assert within.tolist() == [len(moments(pairs) & window)]


@given(PAIRS, st.lists(TIME))
def test_covered_before(pairs: Pairs, times: list[int]) -> None:
    found = intervals.covered_before(of(pairs), np.array(times, np.int64))
    assert found.tolist() == [
        len([moment for moment in moments(pairs) if moment < t]) for t in times
    ]


@given(PAIRS, PAIRS)
def test_many_windows(pairs: Pairs, windows: Pairs) -> None:
    found, held = of(pairs), moments(pairs)
    start, end = np.array([*windows, (0, 0)], np.int64)[:-1].T
    within = intervals.covered_within(found, start, end)
    assert within.tolist() == [len(held & moments([window])) for window in windows]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)).map(sorted)), st.integers(0, 30))
def test_who_holds_a_time(spans: list[list[int]], time: int) -> None:
    start, end = np.array(sorted(spans), np.int64).reshape(-1, 2).T
    begun = [place for place, first in enumerate(start.tolist()) if first <= time]
    expected = begun[-1] if begun and time < end[begun[-1]] else -1
    assert intervals.holder(start, end, np.array([time])).tolist() == [expected]


@given(st.lists(st.integers(-9, 9), max_size=6000), st.integers(1, 7))
def test_the_largest(values: list[int], most: int) -> None:
    found = intervals.largest(np.array(values, np.int64), most)
    assert found.tolist() == sorted(range(len(values)), key=lambda index: -values[index])[:most]


def test_a_window_that_ends_before_its_start_holds_nothing() -> None:
    covered = intervals.union(np.array([10]), np.array([20]))
    windows = np.array([12, 25, 5]), np.array([18, 5, 5])
    assert intervals.covered_within(covered, *windows).tolist() == [6, 0, 0]
