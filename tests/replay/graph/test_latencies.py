"""Why operations of a hand-made timeline began no earlier."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.builders import TraceBuilder
from tests.support.traces import ranks_of
from traceprof.replay.graph.columns import gpu_work, host_calls
from traceprof.replay.graph.latencies import measured_latencies
from traceprof.replay.graph.stream_waits import NO_STREAM_WAITS, OperationWaits

US = 1_000
# Stream, start and end, call, us. The fourth begins 147 us later than 3 us after the one before it,
# and kernels ran in all but 3 of these; the fifth 57, and kernels ran in 10 of these.
KERNELS = (
    (7, 10, 110, 0, 5), (7, 113, 213, 6, 8),
    (9, 20, 40, 12, 15), (9, 190, 200, 30, 32), (9, 260, 270, 40, 42),
)  # fmt: skip
FIRST, FOURTH = np.array([0]), np.array([3])


@pytest.mark.parametrize(
    ("between", "crowded_us"),
    [
        (NO_STREAM_WAITS, 147),
        # From 3 us after the first ended, kernels always ran.
        (OperationWaits(FIRST, FOURTH, True, np.array([True])), 77),
        (OperationWaits(FIRST, FOURTH, True, np.array([False])), 147),
    ],
    ids=["no wait", "a wait", "a possible wait"],
)
def test_what_held_each_operation(between: OperationWaits, crowded_us: int, tmp_path: Path) -> None:
    trace = TraceBuilder()
    for stream, start, end, called, returned in KERNELS:
        launch = called * US, returned * US
        trace.kernel(start * US, end * US, stream=stream, launch=launch)
    # A copy takes no room of kernels.
    trace.memcpy(200 * US, 262 * US, "DtoD", stream=11, launch=(195 * US, 198 * US))
    with ranks_of(trace.write(tmp_path)) as (rank,):
        calls = host_calls(rank, 0)
        found = measured_latencies(calls, gpu_work([(0, rank)], calls, 0), between)
    assert (found.launched_ns // US).tolist() == [5, 8, 15, 32, 42, 198]
    assert (found.after_launch_ns // US).tolist() == [5, 5, 5, 5, 5, 2]
    assert (found.after_previous_ns[[1, 3, 4]] // US).tolist() == [3, 3, 3]
    assert (found.after_wait_ns // US).tolist() == [3] * len(between.consumer)
    assert (found.crowded_ns // US).tolist() == [0, 0, 0, crowded_us, 0, 0]
    assert (found.unexplained_ns // US).tolist() == [0, 0, 0, 0, 57, 0]


def test_a_launch_that_comes_too_late_to_hide_its_latency(tmp_path: Path) -> None:
    # A kernel begins 5 us after its launch call has returned, and 1 us after the one before it.
    trace, end, returned = TraceBuilder(), 0, 0
    # Each is launched so long before the stream is free, us: into an idle GPU, too late, in time.
    leads = [-40] * 3 + [1, 2, 3] * 4 + [5, 6, 30] * 2
    for number, lead in enumerate(leads):
        returned = end - lead
        start = max(end + 1, returned + 5) if number else 100
        launch = ((returned - 3) * US, returned * US) if number else (92 * US, 95 * US)
        trace.kernel(start * US, (start + 50) * US, launch=launch)
        end = start + 50
    with ranks_of(trace.write(tmp_path)) as (rank,):
        calls = host_calls(rank, 0)
        found = measured_latencies(calls, gpu_work([(0, rank)], calls, 0), NO_STREAM_WAITS)
    assert set(found.after_launch_ns[1:] // US) == {5}
    assert set(found.after_previous_ns[1:] // US) == {1}
    assert not found.unexplained_ns.any()
