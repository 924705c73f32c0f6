"""Switches of a thread, off the CPU and on it."""

import numpy as np
import pytest

from traceprof.trace.model.host import ThreadSwitches


@pytest.mark.parametrize(
    ("switches", "sleeps"),
    [
        ([(10, True), (20, True)], []),  # when it left the CPU is not recorded
        ([(10, False), (20, False)], []),
        ([(5, True), (10, False), (30, True), (40, False), (60, True)], [(10, 30), (40, 60)]),
        ([(10, False), (30, True), (40, True)], [(10, 30)]),
        ([], []),
    ],
)
def test_sleeps_are_between_leaving_the_cpu_and_coming_back(
    switches: list[tuple[int, bool]], sleeps: list[tuple[int, int]]
) -> None:
    time_ns = np.array([time for time, _ in switches], np.int64)
    is_on = np.array([on for _, on in switches], np.bool_)
    found = ThreadSwitches(time_ns, np.zeros(len(switches), np.int64), is_on).sleeps()
    assert list(zip(*(column.tolist() for column in found), strict=True)) == sleeps
