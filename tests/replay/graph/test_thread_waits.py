"""Waits of threads for each other and for the lock of CUDA's driver, on two planted calls."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from traceprof.intervals import NO_NUMBERS
from traceprof.replay.graph.columns import HostCalls
from traceprof.replay.graph.host_waits import MAX_UNLOCKING_NS, hand_overs, lock_waits


def process(*calls_us: tuple[int, int], begin_us: int = 0) -> Any:
    """A process of threads that all launch, with one call each."""
    start, end = 1_000 * np.array(calls_us).T
    number = np.arange(len(calls_us))
    calls = HostCalls(number, start, end, number, number >= 0, number, number, num_all=len(number))
    return SimpleNamespace(
        begin_ns=begin_us * 1_000, calls=calls, call_names=0 * number, launching_threads=number
    )


@pytest.mark.parametrize(("begin_us", "woken"), [(0, [1]), (100, [])])
def test_what_had_returned_before_the_replay_begins_woke_nobody(
    begin_us: int, woken: list[int]
) -> None:
    assert hand_overs(process((0, 5), (500, 505), begin_us=begin_us)).call.tolist() == woken


@pytest.mark.parametrize(
    ("holder_us", "waiter_us", "waits"),
    [
        ((0, 1_000), (100, 1_020), True),
        ((0, 1_000), (100, 1_001 + MAX_UNLOCKING_NS // 1_000), False),  # too late for its unlock
        ((200, 1_000), (100, 1_020), False),  # entered the driver first
        ((0, 90), (100, 300), False),  # was over before
    ],
)
def test_a_call_waits_for_the_lock_that_a_long_call_of_another_thread_held(
    holder_us: tuple[int, int], waiter_us: tuple[int, int], *, waits: bool
) -> None:
    no_waits: Any = SimpleNamespace(call=NO_NUMBERS)
    found = lock_waits(process(holder_us, waiter_us), no_waits)
    assert (found.call.tolist(), found.after.tolist()) == (([1], [0]) if waits else ([], []))
