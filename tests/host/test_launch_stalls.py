"""Launches that a full queue blocks: edges of what counts as one, and of what was late by them."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.builders import TraceBuilder
from tests.support.selection import as_rows
from tests.support.traces import ranks_of
from traceprof import intervals
from traceprof.host.launch_stalls import (
    Holder,
    Stalls,
    find_stalls,
    late_launches,
    launch_queue,
    queue_holders,
)

KERNEL_NS, GAP_NS, AFTER_NS = 100_000, 1_000, 4_000


def filled(
    num_blocked: int = 80, cap: int = 300, launch_ns: int = 5_000
) -> tuple[TraceBuilder, list[tuple[int, int]], int]:
    """Launch kernels of 0.1 ms into one stream, in which `cap` may be pending, until some block.

    Return when these were called and returned, 4 us after the next end, and when the last is over.
    """
    builder, ends, blocked, called = TraceBuilder(), list[int](), list[tuple[int, int]](), 0
    while len(blocked) < num_blocked:
        returned = called + launch_ns
        if len(ends) >= cap and ends[-cap] > called:
            returned = ends[-cap] + AFTER_NS
            blocked += [(called, returned)] if returned - called > 50_000 else []
        start = max(returned + 2_000, ends[-1] + GAP_NS if ends else 0)
        builder.kernel(start, start + KERNEL_NS, launch=(called, returned))
        ends.append(start + KERNEL_NS)
        called = returned + 1_000
    return builder, blocked, called


def stalls_of(builder: TraceBuilder, folder: Path) -> Stalls:
    with ranks_of(builder.write(folder)) as (rank,):
        return find_stalls(rank)


@pytest.mark.parametrize("cap", [300, 256, 255])
def test_the_limit_is_learned(cap: int, tmp_path: Path) -> None:
    """The smallest one that was ever seen is far more than 256."""
    builder, blocked, _ = filled(cap=cap)
    stalls = stalls_of(builder, tmp_path)
    if cap < 256:
        assert (stalls.cap, stalls.cap_scope, len(stalls)) == (None, None, 0)
        return
    assert (stalls.source, stalls.cap, stalls.cap_scope) == ("inferred", cap, "stream")
    assert as_rows(stalls.start_ns - 5_000, stalls.end_ns) == blocked
    assert {*stalls.device.tolist()} == {0}


@pytest.mark.parametrize(("num", "num_stalls"), [(2, 0), (3, 3)])
def test_three_launches_at_the_limit_show_it(num: int, num_stalls: int, tmp_path: Path) -> None:
    assert len(stalls_of(filled(num)[0], tmp_path)) == num_stalls


@pytest.mark.parametrize(("launch_ns", "is_stall"), [(9_900, True), (10_100, False)])
def test_ten_times_the_usual_is_no_stall(launch_ns: int, is_stall: bool, tmp_path: Path) -> None:
    """Launches into the full queue take 0.1 ms."""
    stalls = stalls_of(filled(launch_ns=launch_ns)[0], tmp_path)
    assert bool(len(stalls)) is is_stall
    assert stalls.usual_ns == launch_ns


@pytest.mark.parametrize(
    ("begins_after", "waits", "is_late"),
    [(50_000, False, True), (50_001, False, False), (9_000, True, False)],
)
def test_what_starts_soon_after_its_launch_was_late_by_stalls(
    begins_after: int, waits: bool, is_late: bool, tmp_path: Path
) -> None:
    """Another stream was idle all the time; time before a wait does not count."""
    builder, blocked, called = filled()
    if waits:
        builder.api("cudaDeviceSynchronize", called, called + 60_000)
        called += 61_000
    start = called + 5_000 + begins_after
    builder.kernel(start, start + 9_000, stream=20, launch=(called, called + 5_000))
    with ranks_of(builder.write(tmp_path)) as (rank,):
        assert rank.calls is not None
        stalls = find_stalls(rank)
        late = late_launches(rank, rank.calls, stalls, rank.window)
        assert len(stalls) == len(blocked)
        stalled_ns = int((stalls.end_ns - stalls.start_ns).sum())
    assert late.late_ns.tolist() == ([stalled_ns] if is_late else [])
    assert late.stream.tolist() == ([20] if is_late else [])


@pytest.mark.parametrize(("num_others", "is_stall"), [(15, True), (16, False)])
def test_a_call_during_which_many_operations_end_waits_for_something_else(
    num_others: int, is_stall: bool, tmp_path: Path
) -> None:
    builder, blocked, _ = filled(10)
    for called, _ in blocked:
        for number in range(num_others):
            at = called + 1_000 * (number + 1)
            builder.kernel(at, at + 500, stream=9, launch=False, correlation=0)
    assert len(stalls_of(builder, tmp_path)) == len(blocked) * is_stall


def test_the_series_begins_with_what_was_queued(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(50, 60, launch=False).kernel(60, 70, launch=False)
    with ranks_of(builder.kernel(80, 90, launch=(10, 20)).write(tmp_path)) as (rank,):
        queue = launch_queue(rank)
        assert as_rows(*queue.series) == [(19, 2), (20, 3), (60, 2), (70, 1), (90, 0)]
        windows = [(0, 18), (0, 19), (0, 20), (20, 20), (59, 60), (60, 69), (70, 99), (90, 99)]
        deepest = [int(queue.series_within(*one)[1].max(initial=0)) for one in windows]
        assert deepest == [0, 2, 3, 3, 3, 2, 1, 0]


def test_what_ran_while_launches_were_blocked(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 60, "gemm").kernel(70, 90, "gemm").kernel(40, 55, "sum")
    builder.memcpy(10, 20, "HtoD").memcpy(58, 100, "DtoH", stream=9)
    with ranks_of(builder.write(tmp_path)) as (rank,):
        blocked = intervals.union(np.array([20, 50]), np.array([30, 80]))
        assert queue_holders(rank, blocked) == (
            Holder("gemm", 10 + 10 + 10),
            Holder("Device-to-Host copy", 22),
            Holder("sum", 5),
        )
        assert queue_holders(rank, intervals.empty()) == ()
