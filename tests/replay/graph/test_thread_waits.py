"""Waits for the lock of CUDA's driver, on planted calls of two threads."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from traceprof.intervals import NO_NUMBERS
from traceprof.replay.graph.columns import HostCalls
from traceprof.replay.graph.host_waits import MAX_UNLOCKING_NS, lock_waits


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
    start, end = 1_000 * np.array([holder_us, waiter_us]).T
    number = np.arange(2)
    calls = HostCalls(number, start, end, number, number >= 0, number, number, num_all=2)
    process: Any = SimpleNamespace(calls=calls, launching_threads=number)
    no_waits: Any = SimpleNamespace(call=NO_NUMBERS)
    found = lock_waits(process, no_waits)
    assert (found.call.tolist(), found.after.tolist()) == (([1], [0]) if waits else ([], []))
