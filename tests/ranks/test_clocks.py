"""The clocks of machines, against offsets and drifts that are known."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tests.support.builders import arrivals, session
from traceprof.ranks.arrivals import Arrivals
from traceprof.ranks.comparison import measured
from traceprof.ranks.matching import match
from traceprof.run.session_clocks import NTP_NS, ONE_MACHINE_NS, Clocks, seeded

MS = 1_000_000
STARTS = [(3 + 7 * index) * MS for index in range(40)]
ENDS = [start + MS for start in STARTS]


def clocks_of(ranks: list[Arrivals], hosts: list[str | None], starts: list[int | None]) -> Clocks:
    seeds = seeded([session(host, start) for host, start in zip(hosts, starts, strict=True)])
    of = [rank.report for rank in ranks]
    groups, unmatched = match(
        ranks,
        [seeds.seeds_ns[report] for report in of],
        [seeds.host_of[report] for report in of],
        [0] * len(ranks),
    )
    assert not unmatched
    return measured(seeds, ranks, groups)


def shown(times: list[int], ahead: int, drift: float = 0.0) -> list[int]:
    """Return true times as a report has them whose clock is ahead and runs fast."""
    return [round(time * (1 + drift)) + ahead for time in times]


def seen(
    rank: int, ahead: int = 0, drift: float = 0.0, ends: list[int] = ENDS, **how: Any
) -> Arrivals:
    """Return a rank's numbered operations by a clock that is ahead."""
    times = shown(STARTS, ahead, drift), shown(ends, ahead, drift)
    return arrivals(rank, *times, **({"group": "0", "sequence": range(40)} | how))


def test_reports_of_one_machine_need_their_sessions_starts_only() -> None:
    later = 250_000
    first, second = seen(0), seen(1, -later)
    clocks = clocks_of([first, second], ["a", "a"], [0, later])
    assert [host.source for host in clocks.hosts] == ["reference"]
    assert clocks.to_run(0, first.start_ns).tolist() == STARTS
    assert clocks.to_run(1, second.start_ns).tolist() == STARTS
    assert clocks.uncertainty_ns(0, 1) == ONE_MACHINE_NS


@pytest.mark.parametrize("drift", [0.0, 30e-6, -80e-6])
@pytest.mark.parametrize("ahead", [-17 * MS, 4 * MS])
def test_offset_and_drift_are_found(ahead: int, drift: float) -> None:
    late = 2 * MS
    rng = np.random.default_rng(3)
    jitter = rng.integers(-5_000, 5_000, 40)
    ends = [end + int(by) for end, by in zip(ENDS, jitter, strict=True)]
    other = seen(1, ahead - late, drift, ends)
    clocks = clocks_of([seen(0), other], ["a", "b"], [0, late])
    clock = clocks.of(1)
    assert clock.source == "operations"
    assert clock.num_operations == 40
    uncertainty = clock.uncertainty_ns
    assert uncertainty is not None
    assert 4_000 < uncertainty < 8_000  # of the 5 µs, 95 % and what the slope gets wrong
    error = clocks.to_run(1, other.start_ns) - np.array(STARTS)
    assert np.abs(error).max() < uncertainty
    assert clocks.uncertainty_ns(0, 1) == uncertainty


def test_single_outliers_do_not_matter() -> None:
    ends = [end - (900_000 if index % 7 == 0 else 0) for index, end in enumerate(ENDS)]
    clocks = clocks_of([seen(0), seen(1, MS, ends=ends)], ["a", "b"], [0, 0])
    assert clocks.of(1).offset_ns == -MS
    assert clocks.of(1).drift == pytest.approx(0, abs=1e-9)


def test_machines_are_reached_by_way_of_others() -> None:
    ranks = [seen(0, group="ab"), seen(1, MS, group="ab")]
    ranks += [seen(2, MS, report=1, group="bc"), seen(3, 5 * MS, report=2, group="bc")]
    clocks = clocks_of(ranks, ["a", "b", "c"], [0, 0, 0])
    assert [host.offset_ns for host in clocks.hosts] == [0, -MS, -5 * MS]


@pytest.mark.parametrize(
    ("operation", "groups", "host", "start", "source", "uncertainty"),
    [
        ("AllReduce", "01", "b", MS, "session start", NTP_NS),
        ("AllReduce", "01", None, None, "none", None),
        ("Broadcast", "00", "b", MS, "session start", NTP_NS),  # its members may leave early
    ],
)
def test_a_machine_without_common_operations_keeps_its_seed(
    operation: str,
    groups: str,
    host: str | None,
    start: int | None,
    source: str,
    uncertainty: int | None,
) -> None:
    first, other = (
        seen(rank, operation=operation, group=group) for rank, group in enumerate(groups)
    )
    clocks = clocks_of([first, other], ["a", host], [0, start])
    assert [host.source for host in clocks.hosts] == ["reference", source]
    assert clocks.of(1).host == (host or "machine of report 1")
    assert clocks.to_run(1, other.start_ns).tolist() == [at + (start or 0) for at in STARTS]
    assert clocks.uncertainty_ns(0, 1) == uncertainty


@pytest.mark.parametrize(
    ("spans", "offset_ns", "uncertainty_ns"),
    [
        # As good as its ends agree on one machine; between the medians 9.965 and 10.99 ms.
        ([(0, 0, 10 * MS), (0, 0, 10 * MS - 70_000), (1, MS, 11 * MS), (1, MS, 11 * MS - 20_000)],
         -MS - 25_000, 70_000),
        ([(0, 0, 10 * MS), (1, 9 * MS, 12 * MS)], -2 * MS, 10 * MS),  # of two: as it is short
    ],
)  # fmt: skip
def test_clocks_of_one_operation(
    spans: list[tuple[int, int, int]], offset_ns: int, uncertainty_ns: int
) -> None:
    ranks = [
        arrivals(rank, [start], [end], report=report, communicator="0x1")
        for rank, (report, start, end) in enumerate(spans)
    ]
    clock = clocks_of(ranks, ["a", "b"], [0, 0]).of(1)
    assert (clock.offset_ns, clock.uncertainty_ns) == (offset_ns, uncertainty_ns)


def test_times_in_utc_are_brought_to_the_first_session() -> None:
    epoch = 1_767_225_600_000_000_000
    first = arrivals(0, [start + epoch for start in STARTS], [end + epoch for end in ENDS])
    clocks = seeded([session("a", 5, is_utc=True), session("a", 9, is_utc=True)])
    assert clocks.start_utc_ns == epoch + 5
    assert clocks.to_run(0, first.start_ns).tolist() == [start - 5 for start in STARTS]
    assert clocks.to_run(1, first.start_ns).tolist() == [start - 5 for start in STARTS]


@pytest.mark.parametrize("seed", range(20))
def test_threads_that_leave_far_apart_bound_clocks_by_who_was_there(seed: int) -> None:
    # Members leave when they are scheduled: some ms later than they could, the second on average
    # a ms later than the first.
    rng, num = np.random.default_rng(seed), 200
    begin = 20 * MS * np.arange(1, num + 1)[:, np.newaxis]
    start = begin + rng.integers(0, 8 * MS, (num, 2))
    could = start.max(axis=1, keepdims=True) + rng.integers(200_000, 400_000, (num, 1))
    end = could + (rng.exponential(3 * MS, (num, 2)) * (rng.random((num, 2)) < 0.8)).astype(int)
    end[:, 1] += (rng.random(num) < 0.5) * 2 * MS
    ahead = int(rng.integers(-20 * MS, 20 * MS))
    ranks = [
        arrivals(
            rank, shown(start[:, rank].tolist(), ahead * rank),
            shown(end[:, rank].tolist(), ahead * rank), group="0", sequence=range(num),
        )
        for rank in range(2)
    ]  # fmt: skip
    clocks = clocks_of(ranks, ["a", "b"], [0, 0])
    found = clocks.of(1)
    # By hand: whatever the offset, nobody left before the other one had come.
    pairs = [
        (*map(int, ranks[0].start_ns[[row]]), *map(int, ranks[0].end_ns[[row]]),
         *map(int, ranks[1].start_ns[[row]]), *map(int, ranks[1].end_ns[[row]]))
        for row in range(num)
    ]  # fmt: skip
    low = max(begun - over for begun, _, _, over in pairs)
    high = min(over - begun for _, over, begun, _ in pairs)
    assert low <= -ahead <= high
    assert found.uncertainty_ns is not None
    assert abs(found.offset_ns + ahead) <= found.uncertainty_ns
    # Within the bounds, and by how much clocks may drift in 2 s.
    assert found.uncertainty_ns < (high - low) + 2 * 400_000 + 2 * ONE_MACHINE_NS + MS
    assert found.drift == 0.0  # which so much noise would not tell


@pytest.mark.parametrize("size", [8, 1 << 26])
def test_large_messages_join_the_clocks_of_machines_that_nothing_else_joins(size: int) -> None:
    """Ranks 0 and 1 reduce together, so do 2 and 3; rank 2 gets what rank 0 sends."""
    ahead = {0: 0, 1: 3 * MS, 2: -8 * MS, 3: 5 * MS}
    later = np.random.default_rng(7).integers(2 * MS, 4 * MS, 40).tolist()
    sent = tuple(
        [time + by for time, by in zip(times, later, strict=True)] for times in (STARTS, ENDS)
    )

    def rank(number: int, group: str, peer: int, direction: int) -> Arrivals:
        of_group = [shown(times, ahead[number]) for times in (STARTS, ENDS)]
        if peer < 0:
            return arrivals(number, *of_group, group=group, sequence=range(40))
        starts, ends = (
            [*own, *shown(list(of_messages), ahead[number])]
            for own, of_messages in zip(of_group, sent, strict=True)
        )
        order = np.argsort(starts, kind="stable")
        is_message = order >= 40

        def column(of_collective: int, of_message: int) -> list[int]:
            return [of_message if which else of_collective for which in is_message.tolist()]

        one = arrivals(
            number,
            np.array(starts)[order].tolist(),
            np.array(ends)[order].tolist(),
            group=group,
            sequence=np.where(is_message, -1, order).tolist(),
            bytes=column(8, size),
            peer=column(-1, peer),
            direction=column(-1, direction),
        )
        names = one.operations
        kinds = column(names.index("AllReduce"), names.index("SendRecv"))
        groups = column(0, 1)
        return replace(one, operation=np.array(kinds), group=np.array(groups), groups=(group, "pp"))

    ranks = [rank(0, "a", 2, 1), rank(1, "a", -1, 0), rank(2, "b", 0, 2), rank(3, "b", -1, 0)]
    clocks = clocks_of(ranks, ["a", "b", "c", "d"], [0] * 4)
    offsets = [clocks.of(index).offset_ns for index in range(4)]
    is_joined = size > 1 << 20
    assert [clock.source == "session start" for clock in clocks.hosts] == [
        False, False, not is_joined, not is_joined,
    ]  # fmt: skip
    if is_joined:
        assert offsets == [-ahead[index] for index in range(4)]


def test_streams_that_end_together_join_clocks_before_what_only_order_matches() -> None:
    """Ranks 0 and 1, 1 and 2 exchange; the reductions of 0 and 2 are those of other groups."""
    ahead = {0: 0, 1: 3 * MS, 2: -8 * MS}
    rng = np.random.default_rng(3)
    reduced, onward, further = np.cumsum(rng.integers(2 * MS, 9 * MS, (3, 40)), axis=1).tolist()
    elsewhere = sorted(end + int(rng.integers(0, MS)) for end in reduced)

    def rank(number: int, reduced: list[int], *exchanged: list[int]) -> Arrivals:
        of_streams = [shown(ends, ahead[number]) for ends in (reduced, *exchanged)]
        ends = sorted((end, stream) for stream, own in enumerate(of_streams) for end in own)
        streams = np.array([stream for _, stream in ends])
        one = arrivals(number, [end - MS for end, _ in ends], [end for end, _ in ends])
        kinds = [one.operations.index(name) for name in ("AllReduce", "SendRecv")]
        return replace(one, stream=streams, operation=np.array(kinds)[np.minimum(streams, 1)])

    ranks = [rank(0, reduced, onward), rank(1, elsewhere, onward, further)]
    ranks.append(rank(2, elsewhere, further))
    clocks = clocks_of(ranks, ["a", "b", "c"], [0] * 3)
    assert [clocks.of(number).offset_ns for number in ahead] == [0, -3 * MS, 8 * MS]
