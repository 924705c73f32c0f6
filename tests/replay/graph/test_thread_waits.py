"""Hand-overs and locks between threads, on planted calls."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from traceprof.replay.graph.columns import HostCalls
from traceprof.replay.graph.host_waits import (
    MAX_UNLOCKING_NS,
    MIN_OF_A_PLACE,
    hand_overs,
    lock_waits,
)

_US, _PERIOD_US = 1_000, 10_000
Spans = list[tuple[int, int]]


def process(*threads: Spans, begin_ns: int = 0) -> Any:
    """A process whose threads all launch, with calls that begin and end at these times, in us."""
    spans = np.array([span for of_thread in threads for span in of_thread]) * _US
    thread = np.repeat(np.arange(len(threads)), [len(of_thread) for of_thread in threads])
    place = np.arange(len(thread))
    calls = HostCalls(
        place, spans[:, 0], spans[:, 1], thread, place >= 0, place, place, num_all=len(place)
    )
    names = np.zeros(len(place), np.int64)
    launching = np.arange(len(threads))
    return SimpleNamespace(
        begin_ns=begin_ns, calls=calls, call_names=names, launching_threads=launching
    )


def periods(num: int, gives_us: list[int], resumes_us: list[int]) -> Any:
    """In each period one thread's call returns, and the other one, silent since 10 us, resumes."""
    begins = [number * _PERIOD_US for number in range(num)]
    giver = [(at + gives - 5, at + gives) for at, gives in zip(begins, gives_us, strict=True)]
    taker = [
        span
        for at, resumes in zip(begins, resumes_us, strict=True)
        for span in ((at, at + 10), (at + resumes, at + resumes + 5))
    ]
    return process(giver, taker)


_VARIES = [300, 900, 400, 800, 500, 700, 350, 850]


@pytest.mark.parametrize(
    ("num", "resumes_us", "waited"),
    [
        (len(_VARIES), [gives + 12 for gives in _VARIES], True),
        (len(_VARIES), [1_000] * len(_VARIES), False),
        (MIN_OF_A_PLACE - 1, [1_000] * (MIN_OF_A_PLACE - 1), True),
    ],
    ids=["resumes when the call returns", "sleeps as long whatever returns", "of few silences"],
)
def test_a_thread_waited_for_a_call_of_another_or_slept(
    num: int, resumes_us: list[int], *, waited: bool
) -> None:
    overs = hand_overs(periods(num, _VARIES[:num], resumes_us))
    resumed = num + 2 * np.arange(num) + 1
    assert np.isin(resumed, overs.call).tolist() == [waited] * num
    if waited:
        assert overs.after[np.isin(overs.call, resumed)].tolist() == [*range(num)]


@pytest.mark.parametrize(("begin_us", "woken"), [(0, [1]), (100, [])])
def test_what_had_returned_before_the_replay_begins_woke_nobody(
    begin_us: int, woken: list[int]
) -> None:
    overs = hand_overs(process([(0, 5)], [(500, 505)], begin_ns=begin_us * _US))
    assert overs.call.tolist() == woken


@pytest.mark.parametrize(
    ("holder", "waiter", "waits"),
    [
        ((0, 1_000), (100, 1_020), True),
        ((0, 1_000), (100, 1_000 + MAX_UNLOCKING_NS // _US + 1), False),  # too late for its unlock
        ((200, 1_000), (100, 1_020), False),  # entered the driver first
        ((0, 90), (100, 300), False),  # was over before
    ],
)
def test_a_call_waits_for_the_lock_that_a_long_call_of_another_thread_held(
    holder: tuple[int, int], waiter: tuple[int, int], *, waits: bool
) -> None:
    no_waits: Any = SimpleNamespace(call=np.empty(0, np.int64))
    found = lock_waits(process([holder], [waiter]), no_waits)
    assert (found.call.tolist(), found.after.tolist()) == (([1], [0]) if waits else ([], []))
