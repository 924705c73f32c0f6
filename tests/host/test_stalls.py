"""Stalls of the host by hand: a call that takes far longer than others of its name, and no others.

A thread makes a call every 10 ms, which takes 5 µs; one takes 5 ms. Nothing else goes on then:

    call    |.        |.        |........ |.        |.
    GPU     .k        .k                k .k        .k
"""

from pathlib import Path
from typing import Any

import pytest

from tests.support.builders import TraceBuilder
from tests.support.profiler_events import PID, call, event, kernel, write
from tests.support.selection import known
from tests.support.traces import ranks_of
from traceprof.host import stalls
from traceprof.host.stalls import MIN_PENDING, host_stalls

US, MS = 1_000, 1_000_000
EVERY, SHORT, LONG = 10 * MS, 5 * US, 5 * MS
AT = 10 * EVERY  # when the long call begins
QUERY = "cudaEventQuery"


def launches(num: int = 30, *, place: int = 10, name: str = "gemm") -> TraceBuilder:
    """Launches of kernels, of which one is long; `name`: the kernel that it launches."""
    builder = TraceBuilder()
    for number in range(num):
        is_long = number == place
        begin, length = number * EVERY, LONG if is_long else SHORT
        start = begin + length + 10 * US
        kernel = name if is_long else "gemm"
        builder.kernel(start, start + 100 * US, kernel, launch=(begin, begin + length))
    return builder


def calls(name: str, *lengths: int) -> TraceBuilder:
    """Calls of these lengths, and two kernels with other calls."""
    builder = TraceBuilder()
    for number, length in enumerate(lengths):
        builder.api(name, number * EVERY, number * EVERY + length)
    end = len(lengths) * EVERY
    return builder.kernel(end, end + MS).kernel(end + MS, end + 2 * MS)


def stalled(builder: TraceBuilder, path: Path) -> list[tuple[int, int]]:
    """Return when stalls begin, and how long they are beyond the usual."""
    with ranks_of(builder.write(path)) as (rank,):
        found = host_stalls(rank)
        return [*zip(found.start_ns.tolist(), found.excess_ns.tolist(), strict=True)]


FOUND = [(AT, LONG - SHORT)]


def test_a_launch_that_takes_long_is_a_stall(tmp_path: Path) -> None:
    assert stalled(launches(), tmp_path) == FOUND


@pytest.mark.parametrize(
    ("usual", "length", "is_stall"),
    [
        (SHORT, MS + SHORT, False),  # 1 ms beyond the usual
        (SHORT, MS + SHORT + 1, True),
        (100 * US, 2 * MS, False),  # 20 times the usual
        (100 * US, 2 * MS + 1, True),
        (100, MS + US, False),  # the usual is 1 µs at least
        (100, MS + US + 1, True),
    ],
)
def test_far_longer_than_usual(tmp_path: Path, usual: int, length: int, is_stall: bool) -> None:
    found = stalled(calls(QUERY, usual, usual, length, usual, usual), tmp_path)
    assert found == ([(2 * EVERY, length - max(usual, US))] if is_stall else [])


@pytest.mark.parametrize(("num", "is_stall"), [(4, False), (5, True)])
def test_five_show_what_is_usual(tmp_path: Path, num: int, is_stall: bool) -> None:
    lengths = [SHORT] * num
    lengths[1] = LONG
    assert bool(stalled(calls(QUERY, *lengths), tmp_path)) is is_stall


@pytest.mark.parametrize(("num", "num_stalls"), [(39, 0), (40, 2)])
def test_what_recurs_is_no_stall(tmp_path: Path, num: int, num_stalls: int) -> None:
    """2 of 40 calls are 5 %."""
    lengths = [SHORT] * num
    lengths[5] = lengths[20] = LONG
    assert len(stalled(calls(QUERY, *lengths), tmp_path)) == num_stalls


@pytest.mark.parametrize(
    ("places", "num_stalls"),
    [
        ([3, 3, 3, 3, 7, 9], 2),
        ([3, 3, 3, 5, 7, 9], 6),  # not in over half of the steps
        ([3, 3], 2),  # too few steps
    ],
)
def test_what_is_long_at_the_same_place_of_most_steps_is_no_stall(
    tmp_path: Path, places: list[int], num_stalls: int
) -> None:
    """A step has 29 short calls and a long one; 30 others come before the first step."""
    lengths = [SHORT] * 30 * (len(places) + 1)
    for step, place in enumerate(places, start=1):
        lengths[30 * step + place] = LONG
    builder = calls(QUERY, *lengths)
    for step in range(1, len(places) + 1):
        builder.nvtx(f"step {step}", 30 * step * EVERY - US, 30 * (step + 1) * EVERY - 2 * US)
    assert len(stalled(builder, tmp_path)) == num_stalls


def test_calls_of_another_thread_are_not_inside(tmp_path: Path) -> None:
    builder = launches()
    for number in range(30):
        begin = number * EVERY + MS
        builder.api("cudaGetDevice", begin, begin + 2 * MS, tid=1001)
    assert stalled(builder, tmp_path) == FOUND


def test_of_very_many_calls_some_show_what_is_usual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long one is looked at with all that it holds."""
    monkeypatch.setattr(stalls, "_MAX_ROWS", 64)
    monkeypatch.setattr(stalls, "_BLOCK_ROWS", 8)
    builder = launches(300, place=110).api(QUERY, 110 * EVERY + MS, 110 * EVERY + 2 * MS)
    assert stalled(builder, tmp_path) == [(110 * EVERY, LONG - SHORT - MS)]


@pytest.mark.parametrize(
    ("name", "num_stalls"),
    [
        (QUERY, 1),
        ("cudaStreamSynchronize", 0),
        ("cudaMalloc", 0),
        ("cudaStreamCreate", 0),
        ("cudaModuleLoadData", 0),
    ],
)
def test_waits_allocation_and_set_up_are_no_stalls(
    tmp_path: Path, name: str, num_stalls: int
) -> None:
    builder = calls(name, SHORT, LONG, *[SHORT] * 8)
    for number in range(8):  # another call stalls
        begin = number * EVERY + 6 * MS
        builder.api("cudaGetDevice", begin, begin + (2 * MS if number == 4 else SHORT))
    assert len(stalled(builder, tmp_path)) == 1 + num_stalls


def test_the_first_call_of_its_name_is_none(tmp_path: Path) -> None:
    assert stalled(calls(QUERY, LONG, *[SHORT] * 8), tmp_path) == []
    # The second one is.
    found = stalled(calls(QUERY, SHORT, LONG, *[SHORT] * 7), tmp_path / "second.sqlite")
    assert found == [(EVERY, LONG - SHORT)]


@pytest.mark.parametrize(("tid", "found"), [(1000, []), (999, FOUND), (1001, FOUND)])
def test_what_loads_data_itself_is_none(
    tmp_path: Path, tid: int, found: list[tuple[int, int]]
) -> None:
    builder = launches().nvtx("data loading", AT, AT + LONG, tid=tid)
    assert stalled(builder, tmp_path) == found


@pytest.mark.parametrize("is_first", [True, False])
def test_the_first_launch_of_a_kernel_is_none(tmp_path: Path, is_first: bool) -> None:
    builder = launches(name="other")
    if not is_first:
        builder.kernel(50 * US, 60 * US, "other", launch=(20 * US, 25 * US))
    assert stalled(builder, tmp_path) == ([] if is_first else FOUND)


@pytest.mark.parametrize(("before_ns", "found"), [(30 * US, []), (30 * US + 1, FOUND)])
def test_a_call_that_ends_with_an_operation_waited_for_it(
    tmp_path: Path, before_ns: int, found: list[tuple[int, int]]
) -> None:
    end = AT + LONG - before_ns
    builder = launches().kernel(end - US, end, launch=(AT - 50 * US, AT - 45 * US))
    assert stalled(builder, tmp_path) == found


@pytest.mark.parametrize(("late_ns", "found"), [(LONG // 2, []), (LONG // 2 + 1, FOUND)])
def test_no_call_waits_for_a_kernel_before_it_launches_it(
    tmp_path: Path, late_ns: int, found: list[tuple[int, int]]
) -> None:
    """Its own kernel begins with its first half (`CUDA_LAUNCH_BLOCKING`), or after it."""
    builder = launches(9)
    builder.kernel(AT + late_ns, AT + LONG - US, "gemm", launch=(AT, AT + LONG))
    assert stalled(builder, tmp_path) == found


@pytest.mark.parametrize(("num", "found"), [(MIN_PENDING - 2, FOUND), (MIN_PENDING - 1, [])])
def test_a_launch_into_a_full_queue_waits(
    tmp_path: Path, num: int, found: list[tuple[int, int]]
) -> None:
    """With its own kernel there are 199 or 200 that have been launched and are not over."""
    builder = launches()
    for number in range(num):
        begin = AT - 5 * MS + number * 20 * US
        builder.kernel(AT + LONG + MS, AT + LONG + 2 * MS, launch=(begin, begin + SHORT))
    assert stalled(builder, tmp_path) == found


@pytest.mark.parametrize(("waited_ns", "found"), [(LONG // 2, FOUND), (LONG // 2 + 1, [])])
def test_another_thread_that_waits_may_hold_the_lock(
    tmp_path: Path, waited_ns: int, found: list[tuple[int, int]]
) -> None:
    builder = launches().api("cudaDeviceSynchronize", AT, AT + waited_ns, tid=7)
    assert stalled(builder, tmp_path) == found


@pytest.mark.parametrize(
    ("kind", "pageable", "is_over", "is_stall"),
    [
        ("HtoD", False, False, True),
        ("HtoD", False, True, False),  # when its call returns
        ("HtoD", True, False, False),
        ("DtoH", False, False, False),
    ],
)
def test_calls_that_may_wait_for_their_own_copy(
    tmp_path: Path, kind: str, pageable: bool, is_over: bool, is_stall: bool
) -> None:
    builder = TraceBuilder().kernel(0, US)
    for number in range(12):
        begin, is_long = number * EVERY, number == 10
        end = begin + (LONG if is_long else SHORT)
        start = end - 100 * US if is_over and is_long else end + 10 * US
        builder.memcpy(
            start, start + 60 * US, kind if is_long else "HtoD",
            pageable=pageable and is_long, launch=(begin, end),
        )  # fmt: skip
    assert bool(stalled(builder, tmp_path)) is is_stall


def profiled(busy_us: int = 0) -> list[dict[str, Any]]:
    """Operators, and the launches between them; one of each takes 5 ms, and so does one pause.

    `busy_us`: how much of that pause another thread is in an operator.
    """
    events, at = [kernel(1_000_000, 1_000_010, number=1)], 0
    for number in range(30):
        for name in ("aten::mm", "aten::add"):
            if (number, name) == (20, "aten::add"):
                events.append(event("cpu_op", "aten::mul", at, busy_us, (PID, 2)))
                at += 4_900
            length = 5_000 if (number, name) == (10, "aten::mm") else 5
            at += 100
            events.append(event("cpu_op", name, at, length, (PID, 1)))
            at += length
        at += 100
        length = 5_000 if number == 15 else 5
        events.append(call(at, at + length, number=number + 1))
        at += length
    return events


@pytest.mark.parametrize(("busy_us", "is_silent"), [(0, True), (500, True), (501, False)])
def test_stalls_are_named_by_operators_calls_and_what_is_around_silences(
    tmp_path: Path, busy_us: int, is_silent: bool
) -> None:
    with ranks_of(write(tmp_path / "t.json", profiled(busy_us))) as (rank,):
        found = host_stalls(rank)
        assert {*found.thread.tolist()} == {*known(rank.calls).thread.tolist()}
    silence = ["between aten::mm and aten::add"] * is_silent
    assert sorted(found.names) == ["aten::mm", *silence, "cudaLaunchKernel"]
