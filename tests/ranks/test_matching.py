"""Operations of different ranks are matched, or given up with a reason."""

import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tests.support.builders import arrivals
from traceprof.intervals import Int64
from traceprof.ranks.arrivals import Arrivals
from traceprof.ranks.matching import Group, OperationList, Unmatched, match, shift_between, spread

MS = 1_000_000
RNG = np.random.default_rng(5)
STARTS = np.cumsum(RNG.integers(MS, 3 * MS, 30)).tolist()
ENDS = [start + MS // 2 for start in STARTS]


def cut(rank: int, first: int = 0, stop: int = 30, **how: Any) -> Arrivals:
    """Return a rank whose capture holds some of the operations."""
    return arrivals(rank, STARTS[first:stop], ENDS[first:stop], **how)


def found(*ranks: Arrivals, machines: Sequence[int] | None = None) -> list[Group | Unmatched]:
    domains = machines or list(range(len(ranks)))
    groups, unmatched = match(list(ranks), [0] * len(ranks), list(domains), [0] * len(ranks))
    return [*groups, *unmatched]


def one_group(*ranks: Arrivals, machines: Sequence[int] | None = None) -> Group:
    (group,) = found(*ranks, machines=machines)
    assert isinstance(group, Group)
    return group


def test_labels_need_no_order() -> None:
    first = cut(0, 0, 20, group="0", sequence=range(20), bytes=8)
    second = cut(1, 5, group="0", sequence=range(5, 30), bytes=8)
    group = one_group(first, second)
    assert (group.name, group.source, group.members) == ("group 0", "labels", (0, 1))
    assert group.num_ranks == -1  # no label says it
    assert group.place.tolist() == [[5 + index, index] for index in range(15)]
    assert group.is_whole.all()
    assert group.leaves_together.all()


def test_numbers_that_are_far_apart_take_no_memory() -> None:
    last = (1 << 62) - 1  # as of a counter that was damaged or began anew
    first = cut(0, group="0", sequence=[*range(29), last], bytes=8)
    second = cut(1, group="0", sequence=[*range(1, 29), 1 << 40, last], bytes=8)
    tracemalloc.start()
    try:
        (group,) = found(first, second)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(group, Group)
    assert group.place.tolist() == [[n, n - 1] for n in range(1, 29)] + [[29, 29]]
    assert peak < 1 << 20


def test_captures_that_begin_at_different_operations_are_lined_up() -> None:
    first = cut(0, 0, 25, communicator="0x5", bytes=8)
    second = cut(1, 3, communicator="0x5", bytes=8)
    third = cut(2, 1, 20, communicator="0x5", bytes=8)
    group = one_group(first, second, third)
    assert group.source == "communicator"
    of = dict(zip(group.members, group.place.T.tolist(), strict=True))
    both = [(a, b) for a, b in zip(of[0], of[1], strict=True) if a >= 0 and b >= 0]
    assert both == [(index, index - 3) for index in range(3, 25)]
    whole = group.chosen(group.is_whole)
    assert len(whole) == 17  # 3 to 19


def test_without_a_name_the_order_tells() -> None:
    first = cut(0)
    second = cut(1, 0, 28, operation="AllReduce")
    other = cut(2, operation="AllGather")
    group = one_group(first, second, other)
    assert (group.name, group.source, group.members) == (None, "order", (0, 1))


def test_what_was_launched_before_the_capture_is_no_group_of_its_own() -> None:
    labelled = [-1, *range(29)]
    first = cut(0, group="0", sequence=labelled)
    groups = [0 if label >= 0 else -1 for label in labelled]
    first = replace(first, group=np.array(groups, np.int64))
    second = cut(1, 1, group="0", sequence=range(29))
    group = one_group(first, second)
    assert group.source == "labels"
    assert len(group) == 29


def test_sizes_that_differ_are_given_up() -> None:
    first = cut(0, group="0", sequence=range(30), bytes=8)
    second = cut(1, group="0", sequence=range(30), bytes=16)
    (given_up,) = found(first, second)
    assert isinstance(given_up, Unmatched)
    assert given_up.ranks == (0, 1)
    assert "size of 30 of 30 operations differ" in given_up.reason


def test_parts_of_a_gather_may_differ() -> None:
    first, second = (
        cut(rank, operation="AllGather", group="0", sequence=range(30), bytes=size)
        for rank, size in enumerate((8, 16))
    )
    group = one_group(first, second)
    assert group.bytes.tolist() == [16] * 30


def test_what_cannot_be_lined_up_is_said() -> None:
    first = cut(0, communicator="0x5", bytes=8)
    second = cut(1, communicator="0x5", bytes=8)
    third = cut(2, communicator="0x5", bytes=24)
    group, lost = found(first, second, third)
    assert isinstance(group, Group)
    assert group.members == (0, 1)
    assert isinstance(lost, Unmatched)
    assert lost.ranks == (2,)
    assert "no alignment of these" in lost.reason


def test_one_operation_that_differs_does_not_spoil_a_hundred() -> None:
    starts = [number * MS for number in range(200)]
    ends = [start + 1000 for start in starts]
    sizes = [8] * 199 + [16]
    first = arrivals(0, starts, ends, group="0", sequence=range(200), bytes=8)
    second = arrivals(1, starts, ends, group="0", sequence=range(200), bytes=sizes)
    group = one_group(first, second)
    assert len(group) == 199


def test_sends_meet_receives() -> None:
    how: dict[str, Any] = {"operation": "SendRecv", "group": "pp", "bytes": 8}
    sends = cut(0, direction=1, peer=1, sequence=range(30), **how)
    receives = cut(1, 2, direction=2, peer=0, sequence=range(2, 30), **how)
    group = one_group(sends, receives)
    assert group.members == (0, 1)
    assert group.place.tolist() == [[index + 2, index] for index in range(28)]
    assert not group.leaves_together.any()


def test_peers_are_told_by_their_place_in_the_communicator() -> None:
    how: dict[str, Any] = {"operation": "SendRecv", "communicator": "0x5", "bytes": 8}
    ranks = [
        cut(4, direction=1, peer_in_communicator=2, **how),
        cut(5, 0, 9, direction=1, peer_in_communicator=0, **how),
        cut(6, 2, direction=2, peer_in_communicator=0, **how),
    ]
    group = one_group(*ranks)
    assert (group.source, group.members) == ("communicator", (0, 2))
    assert group.place[0].tolist() == [2, 0]


def test_two_ranks_that_do_not_say_whom_they_send_to_send_to_each_other() -> None:
    ranks = [cut(rank, operation="SendRecv", report=0) for rank in range(3)]
    group = one_group(*ranks[:2], machines=[0, 0])
    assert group.source == "order"
    (given_up,) = found(*ranks, machines=[0, 0, 0])
    assert isinstance(given_up, Unmatched)
    assert "it is unknown who sends to whom" in given_up.reason


def streams(rank: int, *of_stream: Sequence[int]) -> Arrivals:
    """Sends or receives on streams, which end at these times."""
    ends = sorted((end, stream) for stream, of_one in enumerate(of_stream) for end in of_one)
    return arrivals(
        rank, [end - 300_000 for end, _ in ends], [end for end, _ in ends], operation="SendRecv",
        report=0, stream=[stream for _, stream in ends],
    )  # fmt: skip


def moved(ends: Sequence[int], by_ns: int) -> list[int]:
    return [end + by_ns for end in ends]


def test_sides_of_sends_end_together() -> None:
    """From 0 to 1, from 1 to 2, and back from 1 to 0."""
    onward, back = moved(ENDS, 40_000), moved(ENDS, 90_000)
    ranks = [
        streams(0, ENDS, back),
        streams(1, moved(back, -700), moved(ENDS, 900), onward),
        streams(2, onward),
    ]
    groups = found(*ranks, machines=[0, 0, 0])
    sides = [
        {
            (member, int(ranks[member].stream[place]))
            for member, place in zip(group.members, group.place[0].tolist(), strict=True)
        }
        for group in groups
        if isinstance(group, Group)
    ]
    assert len(groups) == len(sides) == 3
    assert {(0, 0), (1, 1)} in sides
    assert {(0, 1), (1, 0)} in sides
    assert {(1, 2), (2, 0)} in sides


DRIFTED = [round(1.00002 * end) + 7 * MS for end in ENDS]
UNSTEADY = sorted(end + int(RNG.integers(0, 2 * MS)) for end in ENDS)
BESIDE = np.cumsum(RNG.integers(MS, 3 * MS, 30)).tolist()


@pytest.mark.parametrize(
    ("ranks", "num_groups", "machines"),
    [
        # Two pipelines that are never 10 us apart.
        ([[ENDS], [ENDS], [moved(ENDS, 4_000)], [moved(ENDS, 4_000)]], 0, [0] * 4),
        ([[ENDS], [ENDS], [moved(ENDS, 14_000)], [moved(ENDS, 14_000)]], 2, [0] * 4),
        ([[ENDS[:9]], [ENDS[:9]], [ENDS[1:10]]], 0, [0] * 3),  # too few to be no chance
        ([[ENDS], [ENDS], [moved(ENDS, 14_000)]], 0, [0, 1, 0]),  # either, on two clocks
        # A clock that is 7 ms ahead and 20 us a second fast; two others of another rhythm.
        ([[ENDS], [DRIFTED], [BESIDE], [moved(BESIDE, 8_000)]], 2, [0, 1, 2, 2]),
        ([[ENDS], [UNSTEADY], [BESIDE], [moved(BESIDE, 8_000)]], 1, [0, 1, 2, 2]),
        ([[ENDS], [moved(BESIDE, 9_000)], [moved(BESIDE, 9_000_000)]], 1, [0, 1, 2]),
        ([[ENDS], [ENDS[:-1]], [moved(ENDS, 14_000)]], 0, [0] * 3),
    ],
)
def test_sides_of_sends_that_may_be_others(
    ranks: Sequence[Sequence[Sequence[int]]], num_groups: int, machines: Sequence[int]
) -> None:
    groups = found(*(streams(rank, *ends) for rank, ends in enumerate(ranks)), machines=machines)
    assert sum(isinstance(group, Group) for group in groups) == num_groups


def test_reports_of_two_runs_are_not_matched() -> None:
    ranks = [cut(rank, group="0", sequence=range(30)) for rank in range(4)]
    groups, unmatched = match(ranks, [0] * 4, [0, 1, 2, 3], [0, 0, 1, 1])
    assert [group.members for group in groups] == [(0, 1), (2, 3)]
    assert not unmatched


def test_one_rank_alone_is_no_group() -> None:
    assert found(cut(0, group="0", sequence=range(30))) == []
    assert found(arrivals(0, [], []), arrivals(1, [], [])) == []


STEP = 1_000_000


def ends(num: int, seed: int = 0) -> Int64:
    """Return ends a millisecond apart, give or take a fifth."""
    steps = np.random.default_rng(seed).integers(STEP * 4 // 5, STEP * 6 // 5, num)
    return np.cumsum(steps).astype(np.int64)


def alike(num: int) -> Int64:
    return np.zeros(num, np.int64)


def shift_of(first: Int64, second: Int64, *, one_clock: bool = False) -> int | None:
    """Return the shift between operations of one size that end at these times."""
    one, other = (OperationList(alike(len(times)), times) for times in (first, second))
    return shift_between(one, other, one_clock=one_clock)


@pytest.mark.parametrize("ahead", [-30_000_000, 0, 5_000_000])
@pytest.mark.parametrize("shift", [-7, -1, 0, 1, 20])
def test_the_shift_is_found_whatever_the_clocks_are_apart(shift: int, ahead: int) -> None:
    all_ends = ends(120)
    first = all_ends[20:100]
    second = all_ends[20 + shift : 90 + shift] + ahead
    assert shift_of(first, second) == shift


def test_a_drifting_clock_does_not_matter() -> None:
    first = ends(200)
    second = first[50:150] + np.rint(first[50:150] * 50e-6).astype(np.int64)
    assert shift_of(first, second) == 50


def test_single_outliers_do_not_matter() -> None:
    first = ends(60)
    second = first[3:43].copy()
    second[::10] -= 400_000
    assert shift_of(first, second) == 3


def test_one_clock_or_sizes_decide_between_shifts_that_fit_as_well() -> None:
    regular = np.arange(60, dtype=np.int64) * STEP
    assert shift_of(regular, regular[:40] + STEP // 2) is None
    assert shift_of(regular, regular[9:49] + 3_000, one_clock=True) == 9
    sizes = np.random.default_rng(1).integers(0, 50, 60)
    first = OperationList(sizes, regular)
    second = OperationList(sizes[5:45], regular[5:45] + 7 * STEP)
    assert shift_between(first, second, one_clock=False) == 5
    first, second = OperationList(alike(40), ends(40)), OperationList(alike(40) + 1, ends(40))
    assert shift_between(first, second, one_clock=False) is None


def test_none_or_one_operation_to_line_up() -> None:
    assert shift_of(ends(0), ends(3), one_clock=True) is None
    assert shift_of(ends(3), ends(0), one_clock=True) is None
    one, near, far = (np.array([steps * STEP], np.int64) for steps in (10, 50, 5_000))
    assert shift_of(one, near) == 0
    assert shift_of(one, far) is None


def test_spread_is_about_a_line() -> None:
    line = np.arange(10, dtype=np.float64) * 5 + 3
    assert spread(line) == 0
    line[7] += 100
    assert spread(line) < 5
    assert spread(np.array([0.0, 50.0])) == 0


def test_groups_without_numbers_are_counted() -> None:
    first = cut(0, 0, 25, group="dp", bytes=8, world_size=3)
    second = cut(1, 3, group="dp", bytes=8, world_size=3)
    third = cut(2, group="dp", bytes=8, world_size=3)
    other = cut(3, group="tp", bytes=8)
    group = one_group(first, second, third, other)
    assert (group.name, group.num_ranks) == ("group dp", 3)
    of = dict(zip(group.members, group.place.T.tolist(), strict=True))
    assert set(of) == {0, 1, 2}
    both = [(a, b) for a, b in zip(of[0], of[1], strict=True) if a >= 0 and b >= 0]
    assert both == [(index, index - 3) for index in range(3, 25)]
