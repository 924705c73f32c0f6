"""Kernels that wait for pages of unified memory."""

import random
from pathlib import Path

import pytest

from tests.reference.idle_causes import unified_memory as expected
from tests.support.builders import TraceBuilder
from tests.support.kept_claims import Kept
from tests.support.traces import ranks_of
from traceprof.analyses import unified_memory
from traceprof.analyses.unified_memory import UnifiedMemoryResult
from traceprof.run.rank import Window

US = 1_000


def judged(path: Path) -> UnifiedMemoryResult:
    """Return the result of the only rank, which the reference agrees with."""
    (answer,) = expected(path).values()
    with ranks_of(path) as (rank,):
        result = unified_memory.run(rank, rank.window)
    metrics = result.metrics
    found = metrics.moving_ns, metrics.kernel_ns, metrics.num_kernels, metrics.num_moves
    assert found == answer
    return result


def page(builder: TraceBuilder, start: int, end: int) -> TraceBuilder:
    return builder.memcpy(start, end, "unified HtoD", bytes=1 << 16, launch=False, stream=0)


def test_a_kernel_that_waits(tmp_path: Path, kept: Kept) -> None:
    # kernels |= add 0-100 =|  |= mul 110-120 =|
    # pages      20-40, 60-70            (118-130: 2 of it while mul runs)
    builder = TraceBuilder().kernel(0, 100 * US, "add").kernel(110 * US, 120 * US, "mul")
    for start, end in ((20, 40), (60, 70), (118, 130)):
        page(builder, start * US, end * US)
    kept(unified_memory.findings(judged(builder.write(tmp_path))))


def test_the_evidence_lies_in_the_window(tmp_path: Path) -> None:
    path = page(TraceBuilder().kernel(0, 100 * US), 20 * US, 40 * US).write(tmp_path / "t.sqlite")
    with ranks_of(path) as (rank,):
        result = unified_memory.run(rank, Window(10 * US, 30 * US))
    assert [(one.start_ns, one.end_ns) for one in result.evidence] == [(10 * US, 30 * US)]


def test_other_copies_hide_behind_kernels(tmp_path: Path, kept: Kept) -> None:
    builder = TraceBuilder().kernel(0, 100 * US).memcpy(10 * US, 90 * US, "HtoD", stream=8)
    builder.memcpy(10 * US, 90 * US, "unified DtoH", launch=False, stream=0)
    kept(unified_memory.findings(judged(builder.write(tmp_path))))


def test_what_a_program_prefetches_does_not_count(tmp_path: Path, kept: Kept) -> None:
    builder = page(TraceBuilder().kernel(0, 100 * US), 20 * US, 40 * US)
    builder.api("cudaMemPrefetchAsync_v8000", 50 * US, 51 * US)
    page(builder, 60 * US, 70 * US)
    kept(unified_memory.findings(judged(builder.write(tmp_path))))


@pytest.mark.parametrize("seed", range(20))
def test_drawn_kernels_and_pages(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    builder = TraceBuilder()
    for stream in (7, 8):
        time = rng.randrange(50)
        for _ in range(rng.randrange(1, 12)):
            end = time + rng.randrange(40)
            name = rng.choice(["a", "b", "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)"])
            builder.kernel(time, end, name, stream=stream)
            time = end + rng.randrange(20)
    time = 0
    for _ in range(rng.randrange(20)):
        time += rng.randrange(30)
        page(builder, time, time + rng.randrange(30))
    if rng.random() < 0.3:
        at = rng.randrange(200)
        builder.api("cuMemPrefetchAsync", at, at + 1)
    judged(builder.write(tmp_path))
