"""The reference for exposed copies, and the analysis, against timelines worked out by hand.

What both say of each is kept as text.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.reference.exposed_copy import reference
from tests.support.builders import ALL_REDUCE, How, TraceBuilder
from tests.support.claims import answer
from tests.support.kept_claims import KeptText
from tests.support.traces import ranks_of
from traceprof.analyses import exposed_copy
from traceprof.run.opening import Window

HERE = {"deviceId": 0, "streamId": 7, "globalPid": 1 << 48 | 1000 << 24}
SIZES = (256, 1024, 20, 4096)
ADAM = "void multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor>(int)"


def of_kind(kind: int | None) -> TraceBuilder:
    """Build a copy of a kind by its number, of unknown size and memory."""
    row = {"start": 10, "end": 30, "copyKind": kind}
    return TraceBuilder().kernel(0, 10).raw("CUPTI_ACTIVITY_KIND_MEMCPY", **row, **HERE)


def of_new_memory() -> TraceBuilder:
    """Build a copy from memory that the export calls pageable, by another number."""
    builder = TraceBuilder().kernel(0, 5)
    builder.raw("ENUM_CUDA_MEM_KIND", id=99, name="NEW", label="Pageable")
    row = {"start": 10, "end": 30, "copyKind": 1, "srcKind": 99}
    return builder.raw("CUPTI_ACTIVITY_KIND_MEMCPY", **row, **HERE)


def step(
    builder: TraceBuilder, number: int, sizes: tuple[int, ...] = SIZES, *, optimizer: str = ADAM,
    stream: int = 7, between: bool = False, reduce_after: bool = False,
) -> TraceBuilder:  # fmt: skip
    """Add a step of 1000 ns: compute, AllReduce until 190, copies of 10 ns each, optimizer."""
    base = 1000 * number
    builder.nvtx(f"step {number}", base, base + 900)
    builder.kernel(base + 10, base + 110)
    builder.kernel(base + 100, base + 190, ALL_REDUCE, launch=(base + 20, base + 21), stream=20)
    for index, size in enumerate(sizes):
        start, call = base + 200 + 10 * index, base + 30 + index
        how: How = {"launch": (call, call), "stream": stream}
        builder.memcpy(start, start + 10, "DtoD", bytes=size, **how)
        if between and index == 1:
            builder.memset(start + 10, start + 10, launch=(call, call + 1), stream=stream)
    if reduce_after:
        builder.kernel(base + 290, base + 300, ALL_REDUCE, launch=(base + 50, base + 50), stream=20)
    return builder.kernel(base + 300, base + 400, optimizer, launch=(base + 60, base + 60))


def two_steps(**how: Any) -> TraceBuilder:
    return step(step(TraceBuilder(), 0, **how), 1, **how)


def beside_kernels() -> TraceBuilder:
    """A kernel may run before the row or after it."""
    builder = two_steps()
    for base, called in ((0, 25), (1000, 25), (0, 50), (1000, 50)):
        start = base + (190 if called == 25 else 240)
        builder.kernel(start, start + 10, launch=(base + called, base + called))
    return builder


def beside_other_steps() -> TraceBuilder:
    """A step without an optimizer or an AllReduce is not asked."""
    builder = step(two_steps(), 2, (), optimizer="gemm")
    return builder.nvtx("step 3", 3000, 3900).kernel(3000, 3100)


def with_a_range() -> TraceBuilder:
    builder = two_steps(optimizer="vectorized_elementwise_kernel")
    for number in range(2):
        builder.nvtx("optimizer step", 1000 * number + 55, 1000 * number + 70)
    return builder


def clipped() -> TraceBuilder:
    return TraceBuilder().memcpy(0, 40, bytes=64).kernel(40, 50).memcpy(50, 90, bytes=8)


TIMELINES: dict[str, TraceBuilder] = {
    "hidden by compute and communication": TraceBuilder()  # but for 30-50 and 60-100
    .kernel(0, 30, stream=7)
    .kernel(50, 60, ALL_REDUCE, stream=20)
    .memcpy(20, 100, bytes=64, stream=9),
    "touching is not hiding": TraceBuilder().kernel(0, 10).memcpy(10, 20, stream=9).kernel(20, 30),
    "hidden and empty copies": TraceBuilder()
    .kernel(0, 100)
    .memcpy(10, 20, stream=9)
    .memset(100, 100)
    .memcpy(40, 100, stream=9),
    "the copy that began first owns": TraceBuilder()
    .memcpy(0, 50, "HtoD")
    .memcpy(20, 80, "DtoH", stream=8)
    .memcpy(30, 40, "DtoD", stream=9)
    .memset(80, 90),
    "of two that begin together the one that ends first owns": TraceBuilder()
    .memcpy(0, 50, "HtoD")
    .memcpy(0, 20, "DtoH", stream=8),
    **{f"kind {kind}": of_kind(kind) for kind in (*range(10), 11, 12, 13, None)},
    "peer copies are communication": TraceBuilder()
    .memcpy(0, 50, "PtoP", source=0, destination=1)
    .memcpy(50, 60, "DtoD", source=0, destination=1)
    .memcpy(20, 70, stream=8),
    "pageable copies": TraceBuilder()
    .memcpy(0, 10, "HtoD", pageable=True)
    .memcpy(10, 15, "DtoH")
    .memcpy(15, 18, "DtoH", pageable=True)
    .memset(18, 20),
    "pageable by another number": of_new_memory(),
    "without a table of kinds": TraceBuilder()
    .memcpy(0, 10, pageable=True)
    .without("ENUM_CUDA_MEM_KIND"),
    "on the stream of the compute that follows": TraceBuilder()
    .memcpy(0, 10, stream=7)
    .memcpy(10, 30, stream=8)
    .kernel(30, 40, stream=7)
    .memcpy(40, 45, stream=7),  # nothing follows the last
    "several kernels follow at once": TraceBuilder()
    .memcpy(0, 10, stream=8)
    .kernel(20, 30, stream=7)
    .kernel(20, 40, stream=8),
    "without copies or launches": TraceBuilder()
    .kernel(0, 10)
    .memset(10, 20)
    .without("CUPTI_ACTIVITY_KIND_RUNTIME"),
    "gradients": two_steps(),
    "gradients beside kernels": beside_kernels(),
    "gradients in another order": step(step(TraceBuilder(), 0), 1, SIZES[::-1]),
    "gradients beside other steps": beside_other_steps(),
    "gradients before the range of an optimizer": with_a_range(),
    # They have to be alike in each step.
    "other sizes": step(two_steps(), 2, (256, 1024, 20, 4097)),
    "too few": step(two_steps(), 2, SIZES[:3]),
    "none": step(two_steps(), 2, ()),
    "not in a row": step(two_steps(), 2, between=True),
    "not on the compute stream": step(two_steps(), 2, stream=9),
    "before the last AllReduce": step(two_steps(), 2, reduce_after=True),
    "one step": step(TraceBuilder(), 0),
    "no step is marked": two_steps().without("NVTX_EVENTS"),
    "a window": clipped(),
    "an empty window": TraceBuilder().memcpy(0, 40),
}
WINDOWS = {"a window": (30, 60), "an empty window": (50, 50)}


@pytest.mark.parametrize("name", TIMELINES)
def test_timelines(name: str, tmp_path: Path, kept_text: KeptText) -> None:
    path, window = TIMELINES[name].write(tmp_path), WINDOWS.get(name)
    (numbers,) = reference(path, window).values()
    with ranks_of(path) as (rank,):
        result = exposed_copy.run(rank, Window(*window) if window else rank.window)
    assert answer(result) == numbers
    kept_text(", ".join(f"{name} {value}" for name, value in asdict(numbers).items() if value))
