"""What the screen shows of a row, against counting every event and every nanosecond."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboards.timeline.rows import Row, Viewport, view
from traceprof.intervals import even_limits

Event = tuple[int, int]

UTC = 1_700_000_000_000_000_000
MANY = 1000


def row(events: Sequence[Event], shift: int = 0) -> Row:
    ordered = sorted(events)
    start = np.array([start for start, _ in ordered], np.int64) + shift
    end = np.array([end for _, end in ordered], np.int64) + shift
    return Row.of(start, end)


def in_view(event: Event, start: int, end: int) -> bool:
    return event[0] < end and (event[1] > start or event[0] >= start)


def covered(events: Sequence[Event], start: int, end: int) -> int:
    """Return how many nanoseconds of [start, end) lie in an event: one by one."""
    return sum(any(first <= at < stop for first, stop in events) for at in range(start, end))


def check(events: Sequence[Event], start: int, end: int, columns: int, shift: int = 0) -> Viewport:
    """Check a view against the definitions, and return it."""
    shown = view(row(events, shift), start + shift, end + shift, columns, MANY)
    borders = (shown.edges_ns - shift).tolist()
    ordered = sorted(events)
    single = [ordered[index] for index in shown.event.tolist()]
    least = -(-(end - start) // (len(borders) - 1))

    assert (borders[0], borders[-1]) == (start, end)
    assert len(borders) - 1 == min(columns, end - start)
    assert max(np.diff(borders)) - min(np.diff(borders)) <= 1
    # Every event in view is in exactly one rectangle.
    assert shown.num_events == sum(in_view(event, start, end) for event in events)
    assert len(set(shown.event.tolist())) == len(single)
    assert all(in_view(event, start, end) for event in single)
    assert single == [
        event for event in ordered if event[1] - event[0] >= least and in_view(event, start, end)
    ]
    # The cover of each column is that of all events, whether it has a block or not.
    blocks = dict(zip(shown.column.tolist(), shown.covered_ns.tolist(), strict=True))
    for column, (left, right) in enumerate(pairwise(borders)):
        assert blocks.get(column, covered(single, left, right)) == covered(events, left, right)
    for share, part, column in zip(
        shown.share.tolist(), shown.covered_ns.tolist(), shown.column.tolist(), strict=True
    ):
        width = borders[column + 1] - borders[column]
        assert share == pytest.approx(1000 * part / width, abs=1)
        assert (share == 0) == (part == 0)
        assert (share == 1000) == (part == width)
    return shown


EVENTS = st.lists(
    st.tuples(st.integers(0, 120), st.integers(0, 40)).map(lambda event: (event[0], sum(event))),
    max_size=40,
)


@settings(deadline=None)
@given(EVENTS, st.integers(-20, 150), st.integers(1, 90), st.integers(1, 30))
def test_nothing_is_dropped_and_the_cover_is_exact(
    events: list[Event], start: int, span: int, columns: int
) -> None:
    check(events, start, start + span, columns)


@settings(deadline=None)
@given(EVENTS, st.integers(-20, 150), st.integers(1, 90), st.integers(1, 30))
def test_times_of_the_clock_are_as_exact(
    events: list[Event], start: int, span: int, columns: int
) -> None:
    check(events, start, start + span, columns, shift=UTC)


@settings(deadline=None)
@given(EVENTS, st.integers(0, 100), st.integers(1, 90), st.integers(1, 10))
def test_where_too_many_are_long_all_are_merged(
    events: list[Event], start: int, span: int, columns: int
) -> None:
    shown = view(row(events), start, start + span, columns, 0)
    assert len(shown.event) == 0
    assert shown.num_events == sum(in_view(event, start, start + span) for event in events)
    total = covered(events, start, start + span)
    assert int(shown.covered_ns.sum()) == total


def test_an_empty_row() -> None:
    shown = check([], 0, 10, 5)
    assert (len(shown.event), len(shown.column)) == (0, 0)


def test_one_event_as_long_as_a_column_is_shown_by_itself() -> None:
    #        0         10
    #  view  |----|----|
    #  event    |----|
    shown = check([(3, 8)], 0, 10, 2)
    assert shown.event.tolist() == [0]
    assert shown.column.tolist() == []


def test_a_shorter_one_is_a_block_in_each_column_that_it_covers() -> None:
    shown = check([(3, 7)], 0, 10, 2)
    assert shown.event.tolist() == []
    assert shown.column.tolist() == [0, 1]
    assert shown.covered_ns.tolist() == [2, 2]
    assert shown.count.tolist() == [1, 0]


def test_touching_is_not_in_view_and_a_moment_is() -> None:
    events = [(0, 10), (10, 10), (20, 20), (20, 30)]
    shown = check(events, 10, 20, 1)
    assert shown.count.tolist() == [1]
    assert shown.covered_ns.tolist() == [0]


def test_what_began_before_the_view_is_in_its_first_column() -> None:
    shown = check([(0, 12), (1, 90), (2, 3)], 10, 30, 4)
    assert shown.event.tolist() == [0, 1]
    shown = check([(8, 12)], 10, 30, 4)
    assert (shown.column.tolist(), shown.count.tolist()) == ([0], [1])


def test_a_nanosecond_is_the_narrowest_column() -> None:
    shown = check([(5, 6), (7, 7)], 4, 9, 2000)
    assert shown.columns == 5
    assert shown.event.tolist() == [0]
    assert shown.column.tolist() == [3]


def test_columns_of_an_age_do_not_overflow() -> None:
    borders = even_limits(-(1 << 61), 1 << 61, 8191)
    widths = np.diff(borders)
    assert widths.min() > 0
    assert widths.max() - widths.min() <= 1
    assert borders[-1] == 1 << 61


def test_millions_against_bins_of_one_event_each() -> None:
    # Events of 600 ns every µs: each column of 1000 of them holds 1000, and 60 % is covered.
    start = np.arange(1_000_000, dtype=np.int64) * 1000
    shown = view(Row.of(start, start + 600), 0, 1_000_000_000, 1000, MANY)
    assert shown.count.tolist() == [1000] * 1000
    assert shown.covered_ns.tolist() == [600_000] * 1000
    assert shown.share.tolist() == [600] * 1000


def test_long_ones_among_many_short_ones_are_found() -> None:
    start = np.arange(100_000, dtype=np.int64) * 1000
    end = start + 10
    end[[0, 255, 256, 70_001, 99_999]] += 980
    assert Row.of(start, end).at_least(slice(1, 99_999), 500).tolist() == [255, 256, 70_001]
