"""Whether a program keeps memory, by its allocations beside its launches, and what is advised."""

from pathlib import Path

import pytest

from tests.support.builders import TraceBuilder
from tests.support.traces import ranks_of
from traceprof.analyses.gpu_idle.advice import advice
from traceprof.host.idle_causes import IdleCause
from traceprof.host.thread_evidence import Allocations, allocations
from traceprof.run.rank import Window

US = 1_000


@pytest.mark.parametrize(
    ("num", "is_uncached"),
    [((0, 100), False), ((19, 20), False), ((20, 80), True), ((20, 81), False), ((500, 100), True)],
)
def test_what_is_no_cache(num: tuple[int, int], is_uncached: bool) -> None:
    assert Allocations(*num, is_hip=False).is_uncached == is_uncached


def test_calls_that_count(tmp_path: Path) -> None:
    """Calls that begin in the window, which begins with the first kernel and ends with the last."""
    trace = TraceBuilder()
    names = "cudaMalloc_v3020", "cudaMallocAsync_v11020", "cudaFree_v3020", "cudaMallocHost_v3020"
    for number in range(10):
        now = number * 100 * US
        trace.kernel(now + 10 * US, now + 20 * US, launch=(now, now + 5 * US))
        for place, name in enumerate(names):
            trace.api(name, now + (30 + place) * US, now + (31 + place) * US)
    with ranks_of(trace.write(tmp_path)) as (rank,):
        assert allocations(rank, rank.window) == Allocations(9, 9, is_hip=False)
        assert allocations(rank, Window(30 * US, 130 * US)) == Allocations(1, 1, is_hip=False)


@pytest.mark.parametrize(
    ("allocated", "is_pytorch", "said", "not_said"),
    [
        (Allocations(90, 100, is_hip=False), True, "NO_CUDA_MEMORY_CACHING", "expandable"),
        (Allocations(90, 100, is_hip=True), True, "NO_HIP_MEMORY_CACHING", "CUDA"),
        (Allocations(3, 100, is_hip=False), True, "PYTORCH_CUDA_ALLOC_CONF", "NO_CUDA"),
        (Allocations(3, 100, is_hip=True), True, "PYTORCH_HIP_ALLOC_CONF", "CUDA"),
        (Allocations(0, 100, is_hip=False), True, "pin host buffers once", "ALLOC_CONF"),
        (Allocations(90, 100, is_hip=False), False, "Allocate before the loop", "PYTORCH"),
    ],
)
def test_advice(allocated: Allocations, is_pytorch: bool, said: str, not_said: str) -> None:
    text = "\n".join(advised(IdleCause.ALLOCATION, allocated, is_pytorch=is_pytorch))
    assert said in text
    assert not_said not in text


@pytest.mark.parametrize("is_of_profiler", [True, False])
def test_a_profilers_own_time_is_named(is_of_profiler: bool) -> None:
    none = Allocations(0, 0, is_hip=False)
    first, *_ = advised(IdleCause.LAUNCH_BOUND, none, is_of_profiler=is_of_profiler)
    assert first.startswith("torch.profiler itself") == is_of_profiler


def advised(
    cause: IdleCause,
    allocated: Allocations,
    *,
    is_pytorch: bool = True,
    is_of_profiler: bool = False,
) -> list[str]:
    return advice(
        [cause],
        setup="",
        is_pytorch=is_pytorch,
        is_of_profiler=is_of_profiler,
        uses_dali=False,
        has_pageable=False,
        held=(),
        how_to_collect=lambda _: "",
        allocated=allocated,
        reads_pages=False,
        longest={},
    )
