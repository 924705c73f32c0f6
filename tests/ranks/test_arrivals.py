"""What a rank spent until each operation; arrivals packed and unpacked are the same."""

from pathlib import Path
from typing import Any

import numpy as np

from tests.support.builders import TraceBuilder, arrivals
from tests.support.traces import ranks_of
from traceprof.ranks.arrivals import TIME_CATEGORIES, Arrivals, PackedArrivals, run

US, MS = 1_000, 1_000_000
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def _of(num: int) -> Arrivals:
    rng = np.random.default_rng(5)
    start = np.cumsum(rng.integers(1, 1 << 40, num))
    spent = {name: np.cumsum(rng.integers(0, 1 << 20, num)).tolist() for name in TIME_CATEGORIES}
    columns: dict[str, Any] = {
        name: rng.integers(-1, 1 << 40, num)
        for name in ("bytes", "sequence", "launch_ns", "stalled", "kernels", "peer", "stream")
    }
    length = rng.integers(0, 1 << 33, num)
    return arrivals(3, start.tolist(), (start + length).tolist(), spent=spent, **columns)


def test_what_is_unpacked_is_what_was_packed() -> None:
    for num in (0, 1, 1000):
        before = _of(num)
        after = PackedArrivals.of(before).unpacked
        assert after.__struct_fields__
        for name in after.__struct_fields__:
            expected, value = getattr(before, name), getattr(after, name)
            np.testing.assert_array_equal(value, expected, err_msg=name)
            assert getattr(value, "dtype", None) == getattr(expected, "dtype", None)


def test_numbers_of_the_run_are_those_of_what_is_unpacked() -> None:
    after = PackedArrivals.of(_of(2)).numbered(7, 4).unpacked
    assert (after.rank, after.report) == (7, 4)


def test_what_was_spent_until_each_operation(tmp_path: Path) -> None:
    """Gaps with different causes, whose last 10 us are launching; all of the last one is a wait."""
    trace = TraceBuilder()

    def kernel(start: int, end: int, name: str = "gemm", **how: Any) -> None:
        call = start * MS - 10 * US
        trace.kernel(start * MS, end * MS, name, launch=(call, start * MS), **how)

    kernel(0, 10)
    trace.kernel(10 * MS, 14 * MS, NCCL, stream=20, launch=(9 * MS, 9 * MS + US))
    trace.kernel(12 * MS, 14 * MS, launch=(9 * MS + US, 9 * MS + 2 * US))
    trace.memcpy(14 * MS, 15 * MS, "DtoD", launch=(9 * MS + 2 * US, 9 * MS + 3 * US))
    trace.nvtx("data loading", 15 * MS, 19 * MS - 10 * US)
    kernel(19, 20)
    kernel(23, 24)  # what the host did before is not known
    trace.api("cudaMalloc", 24 * MS, 28 * MS - 10 * US)
    kernel(28, 29)
    trace.nvtx("save_checkpoint", 29 * MS, 33 * MS - 10 * US)
    kernel(33, 34)
    trace.api("cudaDeviceSynchronize", 33 * MS, 34 * MS + 15 * US)
    kernel(35, 36)
    kernel(36, 38, NCCL, stream=20)
    with ranks_of(trace.write(tmp_path)) as (rank,):
        found = run(rank, rank.window)
    before = {"compute": 10 * MS}
    between = {"compute": 12 * MS, "communication": 2 * MS}
    after = {
        "compute": 17 * MS, "communication": 2 * MS, "copy": 1 * MS, "launch": 3 * MS + 30 * US,
        "sync": 1 * MS, "data loading": 4 * MS - 10 * US, "host code": 4 * MS - 10 * US,
        "set-up": 4 * MS - 10 * US,
    }  # fmt: skip
    at_start, at_end = (
        [{name: ns for name, ns in zip(TIME_CATEGORIES, row, strict=True) if ns} for row in rows]
        for rows in (found.cumulative_ns_at_start.tolist(), found.spent_at_end_ns.tolist())
    )
    assert at_start == [before, after]
    assert at_end == [between, {**after, "communication": 4 * MS}]
    assert (found.kernels_at_start.tolist(), found.kernels_at_end.tolist()) == ([1, 7], [2, 7])
    assert found.stalled_at_end_ns.tolist() == [0, 0]
