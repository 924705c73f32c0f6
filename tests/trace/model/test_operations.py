"""What columns of operations and of a thread's switches tell without being unpacked."""

from contextlib import closing
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.support.builders import TraceBuilder
from tests.support.selection import as_rows
from traceprof.trace.model.host import ThreadSwitches
from traceprof.trace.open import open_trace


@pytest.mark.parametrize("num_ranks", [1, 2, 5])
def test_ranks_whose_rows_stand_between_each_other(tmp_path: Path, num_ranks: int) -> None:
    chosen, builder = Random(num_ranks), TraceBuilder()
    planted: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for number in range(400):
        rank = chosen.randrange(num_ranks)
        key = (1000 + rank // 2, rank % 2)
        start = number // 3 * 10 - chosen.choice([0, 0, 0, 25]) + 100
        end = start + chosen.choice([0, 5, 40])
        builder.kernel(start, end, pid=key[0], device=key[1], correlation=number)
        planted.setdefault(key, []).append((start, end, number))
    builder.memcpy(5, 7, pid=999)  # of a rank without kernels
    with closing(open_trace(builder.write(tmp_path))) as trace:
        (copying, *found) = trace.operations.items()
        assert (trace.pid(copying[0].process), copying[1].span_ns) == (999, (5, 7))
        assert len(copying[1].kernels) == 0
        assert [(trace.pid(key.process), key.device) for key, _ in found] == sorted(planted)
        for (_, operations), (_, rows) in zip(found, sorted(planted.items()), strict=True):
            rows.sort(key=lambda row: row[:2])
            assert len(operations) == len(rows)
            assert operations.span_ns == (rows[0][0], max(end for _, end, _ in rows))
            for _ in range(2):
                kernels = operations.kernels
                assert operations.kernels is kernels
                assert as_rows(kernels.start_ns, kernels.end_ns, kernels.correlation) == rows
                operations.release()
                assert operations.kernels is kernels  # one copy


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
    assert as_rows(*found) == sleeps
