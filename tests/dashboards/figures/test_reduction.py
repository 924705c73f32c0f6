"""What charts show of long series hides nothing: against every nanosecond."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboards.figures.reduction import covered_share, envelope, group_starts
from dashboards.time_axis import Clock
from traceprof import intervals
from traceprof.intervals import even_limits

series = st.lists(st.tuples(st.integers(0, 60), st.integers(-5, 9)), min_size=1, max_size=30).map(
    lambda pairs: sorted(dict(pairs).items())
)


@given(series, st.integers(0, 50), st.integers(1, 40), st.integers(1, 12))
def test_an_envelope_has_every_extreme(
    points: list[tuple[int, int]], start: int, length: int, num: int
) -> None:
    times, values = (np.array(column, np.int64) for column in zip(*points, strict=True))
    end = start + length

    def at(time: int) -> int:
        before = [value for when, value in points if when <= time]
        return before[-1] if before else points[0][1]

    drawn = envelope(times, values, start, end, num)
    limits = [*drawn.start_ns.tolist(), end]
    if drawn.most is drawn.least:  # each piece has one value
        for index, value in enumerate(drawn.least.tolist()):
            assert drawn.most[index] == value
            assert {at(t) for t in range(max(limits[index], start), limits[index + 1])} <= {value}
        return
    assert len(drawn.start_ns) <= num
    assert limits[0] == start
    for index, (low, high) in enumerate(pairwise(limits)):
        held = {at(t) for t in range(low, high)}
        assert drawn.least[index] == min(held)
        assert drawn.most[index] == max(held)


@given(st.integers(-50, 50), st.integers(1, 100), st.integers(1, 30))
def test_even_limits_cut_a_window_into_even_pieces(start: int, length: int, num: int) -> None:
    limits = even_limits(start, start + length, num)
    assert (limits[0], limits[-1]) == (start, start + length)
    assert len(limits) == min(num, length) + 1
    pieces = np.diff(limits)
    assert pieces.min() >= 1
    assert pieces.max() - pieces.min() <= 1


def test_shares_add_up_to_what_is_covered() -> None:
    covered = intervals.union(np.array([3, 10], np.int64), np.array([7, 31], np.int64))
    limits = even_limits(0, 40, 7)
    share = covered_share(covered, limits)
    assert float((share * np.diff(limits)).sum()) == pytest.approx(4 + 21)
    assert share.max() <= 1


@given(st.integers(0, 200), st.integers(1, 40))
def test_groups_are_even_and_complete(count: int, most: int) -> None:
    starts = group_starts(count, most)
    assert len(starts) == min(count, most)
    sizes = np.diff([*starts.tolist(), count])
    if count:
        assert starts[0] == 0
        assert sizes.max() - sizes.min() <= 1


def test_times_are_the_report_s_own_or_since_the_first_operation() -> None:
    assert Clock(0).text(1_503_242_000) == "1.503242 s"
    utc = 1_726_722_437_796_624_059
    assert Clock(utc).text(utc + 42_000) == "+0.000042 s"
    assert Clock(utc).second(utc + 1) == 1e-9
    assert Clock(utc).seconds(np.array([utc, utc + 3], np.int64)).tolist() == [0, 3e-9]
