"""AnalysisProgress and transfer, against what they are by definition."""

from math import hypot, pi, sqrt
from statistics import median
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tests.support.builders import arrivals, session
from tests.support.selection import known
from traceprof.intervals import Int64
from traceprof.ranks.arrivals import Arrivals
from traceprof.ranks.comparison import RankComparison, measured
from traceprof.ranks.lateness import is_habit, lateness
from traceprof.ranks.matching import Unmatched, match
from traceprof.ranks.waits import (
    GroupWaits,
    latency_and_rate,
    split_by_leaving,
    transfers,
    wait_matrix,
    waits_of,
)
from traceprof.run.session_clocks import Clocks, seeded
from traceprof.trace.grouping import mean_of, middle_of_others

MS = 1_000_000


def met(
    start: Int64, end: Int64, hosts: list[str], *, operation: str = "AllReduce",
    size: int | Int64 = 1 << 20, root: int = -1, num_ranks: int | None = None,
) -> tuple[GroupWaits, Clocks, list[Arrivals]]:  # fmt: skip
    """Return the waits of ranks (columns) in labelled operations (rows)."""
    ranks = [
        arrivals(
            rank, start[:, rank].tolist(), end[:, rank].tolist(), group="0",
            sequence=range(len(start)), bytes=size, world_size=num_ranks or start.shape[1],
            operation=operation, root=root,
        )
        for rank in range(start.shape[1])
    ]  # fmt: skip
    seeds = seeded([session(host) for host in hosts])
    groups, _ = match(ranks, [0] * len(ranks), list(seeds.host_of), [0] * len(ranks))
    clocks = measured(seeds, ranks, groups)
    waits = waits_of(groups[0], ranks, clocks)
    assert isinstance(waits, GroupWaits)
    return waits, clocks, ranks


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 7])
def test_waits_are_what_they_are_by_definition(num_ranks: int) -> None:
    rng = np.random.default_rng(num_ranks)
    begin = np.arange(20)[:, np.newaxis] * 10 * MS
    start = begin + rng.integers(0, 3 * MS, (20, num_ranks))
    took = rng.integers(MS, 2 * MS, (20, 1))
    end = np.broadcast_to(start.max(axis=1, keepdims=True) + took, start.shape)
    waits, _, _ = met(start, end, ["a"] * num_ranks)
    for row in range(20):
        starts = start[row].tolist()
        assert waits.last[row] == starts.index(max(starts))
        assert waits.wait_ns[row].tolist() == [max(starts) - time for time in starts]
        assert waits.transfer_ns[row] == took[row, 0]
        late = [
            of_rank - median(starts[:rank] + starts[rank + 1 :])
            for rank, of_rank in enumerate(starts)
        ]
        assert np.abs(waits.late_ns[row] - late).max() <= 0.5  # halves are cut
    matrix = wait_matrix([waits], num_ranks)
    certain = waits.is_resolved
    assert matrix.sum() == waits.wait_ns[certain].sum()
    assert (matrix.diagonal() == 0).all()


def test_a_rank_that_waits_in_two_operations_at_once_waits_once() -> None:
    first, _, _ = met(np.array([[0, 4, 0]]) * MS, np.array([[5, 5, 5]]) * MS, ["a"] * 3)
    second, _, _ = met(np.array([[2, 2, 7]]) * MS, np.array([[8, 8, 8]]) * MS, ["a"] * 3)
    assert (second.wait_ns // MS).tolist() == [[5, 5, 0]]
    for waits in ([first, second], [second, first]):
        matrix = wait_matrix(waits, 3) // MS
        assert matrix.tolist() == [[0, 4, 3], [0, 0, 5], [0, 4, 0]]


def test_nothing_is_claimed_below_the_clocks_uncertainty() -> None:
    rng = np.random.default_rng(2)
    start = np.arange(40)[:, np.newaxis] * 10 * MS + np.array([[0, 0, 0, 50_000]])
    end = start.max(axis=1, keepdims=True) + MS - rng.integers(0, 200_000, (40, 4))
    waits, clocks, _ = met(start, end, ["a", "b", "c", "d"])
    assert (clocks.of(3).uncertainty_ns or 0) > 50_000
    assert not waits.is_resolved.any()
    assert not wait_matrix([waits], 4).any()
    waits, _, _ = met(start, end, ["a"] * 4)
    assert waits.is_resolved.all()
    assert (waits.last == 3).all()


def test_members_that_left_before_another_came_were_elsewhere() -> None:
    start = np.array([0, 10 * MS, 20 * MS])
    how: dict[str, Any] = {"group": "0", "sequence": range(3), "report": 0}
    first, second = (
        arrivals(rank, start + late, start + late + MS, **how)  # type: ignore[arg-type]
        for rank, late in enumerate((0, 2 * MS))
    )
    groups, _ = match([first, second], [0, 0], [0, 0], [0, 0])
    clocks = seeded([session("a")])
    found = waits_of(groups[0], [first, second], clocks)
    assert isinstance(found, Unmatched)
    assert "had left before another one came" in found.reason


@pytest.mark.parametrize("operation", ["Broadcast", "Scatter"])
def test_receivers_wait_for_the_root_alone(operation: str) -> None:
    # Rank 1 sends. In the first two it comes last, in the last two rank 3 does.
    start = np.array([[0, 3, 0, 1], [10, 14, 11, 10], [20, 20, 21, 25], [30, 31, 30, 39]]) * MS
    end = np.array([[4, 4, 4, 4], [15, 15, 15, 15], [22, 21, 22, 26], [33, 32, 33, 40]]) * MS
    waits, _, ranks = met(start, end, ["a"] * 4, operation=operation, root=1)
    assert waits.last.tolist() == [1, 1, 1, 1]
    expected = [[3, 0, 3, 2], [4, 0, 3, 4], [0, 0, 0, 0], [1, 0, 1, 0]]
    assert (waits.wait_ns // MS).tolist() == expected
    # Of the third, none waited: what the longest-staying saw is the median of 2, 1 and 1.
    assert (waits.transfer_ns // MS).tolist() == [1, 1, 1, 2]
    matrix = wait_matrix([waits], 4)
    assert (matrix[:, [0, 2, 3]] == 0).all()
    # What is laid to the root is where it came later than the others at their median.
    assert (matrix[:, 1] // MS).tolist() == [3 + 4 + 1, 0, 3 + 3 + 1, 2 + 4]
    assert (operation, "group 0") in transfers([waits], ranks, ["a"] * len(ranks))[0]
    assert lateness([waits], ranks) == []  # no rank need wait for all others


@pytest.mark.parametrize("operation", ["Reduce", "Gather"])
def test_the_root_alone_waits_for_the_last_sender(operation: str) -> None:
    start = np.array([[0, 3, 0, 1], [10, 14, 11, 16], [20, 29, 21, 25]]) * MS
    end = np.array([[1, 4, 1, 2], [11, 17, 12, 17], [21, 30, 22, 26]]) * MS
    waits, _, _ = met(start, end, ["a"] * 4, operation=operation, root=1)
    assert (waits.wait_ns // MS).tolist() == [[0, 0, 0, 0], [0, 2, 0, 0], [0, 0, 0, 0]]
    assert (waits.transfer_ns // MS).tolist() == [1, 1, 1]
    matrix = wait_matrix([waits], 4)
    assert matrix[1, 3] == 2 * MS
    assert matrix.sum() == 2 * MS


@pytest.mark.parametrize(("num_ranks", "is_known"), [(2, True), (8, False)])
def test_rates_need_all_ranks(num_ranks: int, is_known: bool) -> None:
    """Of eight ranks two are given: both may wait for another one all the time."""
    start = np.array([[0, 3], [10, 14], [20, 21]]) * MS
    waits, _, ranks = met(start, start + 8 * MS, ["a"] * 2, num_ranks=num_ranks)
    assert bool(transfers([waits], ranks, ["a"] * 2)) == is_known


def test_without_the_root_nothing_is_said() -> None:
    start = np.array([[0, 3, 0, 1], [10, 14, 11, 10]]) * MS
    waits, _, ranks = met(start, start + 5 * MS, ["a"] * 4, operation="Broadcast")
    assert not waits.is_known.any()
    assert not waits.is_resolved.any()
    assert not waits.wait_ns.any()
    assert not transfers([waits], ranks, ["a"] * len(ranks))


@pytest.mark.parametrize("operation", ["Broadcast", "Reduce", "Gather", "Scatter"])
def test_clocks_are_not_measured_by_operations_that_members_leave_early(operation: str) -> None:
    start = np.arange(20)[:, np.newaxis] * 10 * MS + np.zeros((1, 3), np.int64)
    _, clocks, _ = met(start, start + MS, ["a", "b", "c"], operation=operation, root=0)
    sources = [clock.source for clock in clocks.hosts]
    assert sources == ["reference", "session start", "session start"]


def test_who_sent_before_it_was_asked_for_did_not_wait() -> None:
    sent = np.array([0, 10 * MS, 20 * MS])
    how: dict[str, Any] = {"operation": "SendRecv", "group": "0", "sequence": range(3), "report": 0}
    ranks = [
        arrivals(rank, sent + late, sent + late + MS, peer=1 - rank, direction=1 + rank, **how)  # type: ignore[arg-type]
        for rank, late in enumerate((0, 4 * MS))
    ]
    ranks = [replace(rank, device=None) for rank in ranks]
    groups, _ = match(ranks, [0, 0], [0, 0], [0, 0])
    clocks = seeded([session("a")])
    (waits,) = (waits_of(group, ranks, clocks) for group in groups)
    assert isinstance(waits, GroupWaits)
    assert not waits.wait_ns.any()
    assert not wait_matrix([waits], 2).any()


@pytest.mark.parametrize(
    ("apart_ns", "how", "expected"),
    [
        (MS // 2, {}, [(0, 1, 2, 3)]),  # half of the time that they stay
        (MS // 2 + 1, {}, [(0, 2), (1, 3)]),
        (MS // 2 + 1, {"group": "0", "sequence": range(20)}, [(0, 1, 2, 3)]),  # numbered
    ],
)
def test_ranks_of_two_communicators_are_split_by_when_they_leave(
    apart_ns: int, how: dict[str, Any], expected: list[tuple[int, ...]]
) -> None:
    start = np.cumsum(np.random.default_rng(8).integers(5 * MS, 15 * MS, 20))
    ranks = [
        arrivals(rank, times.tolist(), (times + MS).tolist(), report=0, **how)
        for rank, times in enumerate((start, start + apart_ns, start, start + apart_ns))
    ]
    groups, _ = match(ranks, [0] * 4, [0, 1, 2, 3], [0] * 4)
    clocks = seeded([session("a")])
    split = [part for group in groups for part in split_by_leaving(group, ranks, clocks)]
    assert sorted(tuple(sorted(group.members)) for group in split) == expected


def test_the_rate_is_that_of_the_transfer() -> None:
    start = np.array([[0, 3 * MS], [10 * MS, 12 * MS]])
    end = np.array([[4 * MS, 4 * MS], [13 * MS, 13 * MS]])
    waits, _, ranks = met(start, end, ["a", "a"])
    found = transfers([waits], ranks, ["a"] * len(ranks))[0]["AllReduce", "group 0"]
    assert (found.num_matched, found.wait_ns, found.transfer_ns) == (2, 5 * MS, 2 * MS)
    assert found.algbw_gb_per_s == pytest.approx(2 * (1 << 20) / (2 * MS))
    assert found.busbw_gb_per_s == found.algbw_gb_per_s  # 2 (n − 1) / n of two ranks is 1
    assert found.scope == "intra-node"
    assert (found.latency_ns, found.rate_gb_per_s) == (None, None)


def test_latency_and_rate_are_recovered() -> None:
    sizes = np.array([1e3, 1e4, 1e5, 1e6, 1e7] * 3)
    took = np.rint(20_000 + sizes / 50).astype(np.int64)
    took[0] *= 30  # one that waited
    fit = known(latency_and_rate(sizes, took))
    assert fit.latency_ns == pytest.approx(20_000, rel=0.01)
    assert fit.rate_gb_per_s == pytest.approx(50, rel=0.01)


@pytest.mark.parametrize("num_of_size", [5, 8, 23])
def test_the_interval_of_a_latency_by_definition(num_of_size: int) -> None:
    rng, small, large = np.random.default_rng(num_of_size), 1_000, 10_000_000
    few = [round(20_000 + rng.normal(0, 2_000)) for _ in range(num_of_size)]
    many = [round(200_000 + rng.normal(0, 20_000)) for _ in range(num_of_size)]
    fit = latency_and_rate(
        np.repeat([small, large], num_of_size).astype(float), np.array(few + many), 1_500
    )

    def error(times: list[int]) -> float:
        """The standard error of a median, as a normal one of as many degrees of freedom."""
        apart = median(abs(time - median(times)) for time in times)
        freedom = 0.37 * num_of_size
        student = 1 + 1.21 / freedom + 1.44 / freedom**2
        return student * 1.4826 * apart * sqrt(pi / 2 / num_of_size)

    # The line through two points meets size 0 at this mean of their times.
    weight = large / (large - small)
    parts = weight * error(few), (weight - 1) * error(many), 1_500
    assert fit is not None
    assert fit.latency_ns == round(weight * median(few) - (weight - 1) * median(many))
    assert fit.uncertainty_ns == pytest.approx(2 * hypot(*parts), abs=1)


@pytest.mark.long
@pytest.mark.parametrize("is_share", [False, True], ids=["ns", "share"])
@pytest.mark.parametrize(
    "counts", [(22, 22, 46), (4, 4, 8), (3, 3, 6), (2, 2, 4), (2, 2, 2), (1,) * 6, (1,) * 30]
)
def test_intervals_hold_the_latency(counts: tuple[int, ...], *, is_share: bool) -> None:
    rng, holds = np.random.default_rng(sum(counts)), []
    size = np.repeat(np.geomspace(4096, 50e6, len(counts)), counts)
    planned = 30_000 + size / 134
    for _ in range(1_000):
        noise = rng.normal(0, 0.05 * planned if is_share else 3_000, len(size))
        fit = latency_and_rate(size, np.rint(planned + noise).astype(np.int64))
        if fit is not None and fit.latency_ns is not None:
            holds.append(abs(fit.latency_ns - 30_000) <= (fit.uncertainty_ns or 0))
    assert len(holds) > 200
    # Of 1000, 0.7 % is the standard error of 95 %; quantiles are two terms of a series.
    assert np.mean(holds) > 0.92


@pytest.mark.parametrize("seed", range(2))
def test_the_error_of_clocks_is_shared_by_all_transfers(seed: int) -> None:
    # Two of eight ranks on each of four machines: the last always on the last one.
    rng, num = np.random.default_rng(seed), 90
    begin = 30 * MS * np.arange(num)[:, np.newaxis]
    start = begin + np.append(np.zeros(7, np.int64), MS)
    end = begin + 2 * MS - rng.integers(0, 20_000, (num, 8))
    waits, _, _ = met(start, end, [f"{rank // 2}" for rank in range(8)])
    left = waits.end_ns.tolist()
    errors = []
    for host in range(4):
        apart = [median(row[2 * host : 2 * host + 2]) - median(row) for row in left]
        distance = median(abs(value - median(apart)) for value in apart)
        errors.append(1.4826 * distance * sqrt(pi / 2 / num))
    assert waits.clock_error_ns == pytest.approx(max(errors), rel=1e-9)
    on_one, *_ = met(start, end, ["a"] * 8)
    assert on_one.clock_error_ns == 0


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    "sizes", [[25e6], [25e6, 25e6], [25e6, 100e6], [8e6, 25e6, 50e6, 100e6], [1e3, 2e3, 3e3]]
)
def test_no_latency_is_told_of_sizes_that_do_not_tell_it(sizes: list[float], seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = np.array(sizes * 30)
    took = np.rint((30_000 + size / 80) * rng.normal(1, 0.1, len(size))).astype(np.int64)
    fit = latency_and_rate(size, took)
    if fit is not None:
        assert fit.rate_gb_per_s == pytest.approx(80, rel=0.15)
        if fit.latency_ns is not None:  # one in forty, by its own account
            assert abs(fit.latency_ns - 30_000) < 2 * known(fit.uncertainty_ns)


def test_the_shortest_stay_is_the_transfer_where_clocks_tell_no_waits() -> None:
    start = np.array([[0, 3 * MS], [10 * MS, 12 * MS]])
    end = np.array([[4 * MS, 4 * MS], [13 * MS, 13 * MS]])
    ranks = [
        arrivals(rank, start[:, rank].tolist(), end[:, rank].tolist(), group="0", sequence=range(2))
        for rank in range(2)
    ]
    groups, _ = match(ranks, [0, 0], [0, 1], [0, 0])
    waits = waits_of(groups[0], ranks, seeded([session("a"), session("b")]))  # as good as NTP
    assert isinstance(waits, GroupWaits)
    assert waits.transfer_ns.tolist() == [MS, MS]


def test_alike_sizes_tell_no_latency() -> None:
    assert latency_and_rate(np.array([1e6, 2e6]), np.array([10_000, 20_000])) is None
    assert latency_and_rate(np.array([np.nan, 2e6]), np.array([10_000, 20_000])) is None
    sizes, took = np.array([1e6, 4e6]), np.array([10_000, 50_000])
    assert latency_and_rate(sizes, took) is None  # two times may be anything
    fit = known(latency_and_rate(np.tile(sizes, 2), np.tile(took, 2)))
    assert fit.latency_ns is None  # the line would begin below nothing


def test_lateness_of_each_rank() -> None:
    start = np.arange(30)[:, np.newaxis] * 10 * MS + np.array([[0, 1000, 0, 2 * MS]])
    end = np.broadcast_to(start.max(axis=1, keepdims=True) + MS, start.shape)
    waits, _, ranks = met(start, end, ["a"] * 4)
    late = lateness([waits], ranks)
    assert [of_member.num_last for of_member in late] == [0, 0, 0, 30]
    assert late[3].late_ns == 2 * MS
    assert late[3].share_last == 1.0
    assert late[3].coverage == 1.0
    assert is_habit(late[3].num_last, late[3].num_operations, 4)
    assert late[3].total_ns == 30 * 2 * MS
    for rank in ranks:
        rank.spent_inside_ns[:, 0] += rank.end_ns - rank.start_ns
    assert lateness([waits], ranks)[3].total_ns == 0  # beside compute


@pytest.mark.parametrize(("num_unknown", "expected"), [(0, False), (2, False), (3, True)])
def test_waits_of_a_rank_are_unknown_where_those_of_most_operations_are(
    num_unknown: int, *, expected: bool
) -> None:
    start = np.arange(6)[:, np.newaxis] * 10 * MS + np.array([[0, 1000]])
    waits, clocks, _ = met(start, start[:, 1:] + np.array([[MS, MS]]), ["a"] * 2)
    is_unknown = (np.arange(6) < num_unknown) | (np.arange(6) >= 4)
    waits = replace(
        waits,
        uncertainty_ns=np.full(2, MS),
        late_ns=np.where(is_unknown, 0, 2 * MS)[:, np.newaxis].repeat(2, axis=1),
        is_known=np.ones(6, np.bool_),
        is_inside=np.arange(6) < 4,  # what lies outside the window counts for nothing
    )
    assert waits.is_unknown.tolist() == is_unknown.tolist()
    compared = RankComparison((0, 1), (0, 0), ("a", "a"), clocks, (waits,), (), {}, (), 1)
    assert compared.are_waits_unknown(0) == expected


@pytest.mark.parametrize("num", [2, 3, 4, 9, 16])
@pytest.mark.parametrize("highest", [3, 10**9])
def test_middle_of_others(num: int, highest: int) -> None:
    values = np.random.default_rng(num).integers(-highest, highest, (50, num))
    found = mean_of(*middle_of_others(values))
    for column in range(num):
        others = np.median(np.delete(values, column, axis=1), axis=1).astype(np.int64)
        assert found[:, column].tolist() == others.tolist()
