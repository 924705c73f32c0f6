"""The reference for exposed copies, and the analysis, against timelines worked out by hand."""

from pathlib import Path

import pytest

from tests.reference.exposed_copy import ExposedCopy, reference
from tests.support.builders import ALL_REDUCE, TraceBuilder
from tests.support.claims import answer
from tests.support.traces import ranks_of
from traceprof.analyses import exposed_copy
from traceprof.run.opening import Window


def only(
    builder: TraceBuilder,
    tmp_path: Path,
    window: tuple[int, int] | None = None,
    name: str = "t.sqlite",
) -> ExposedCopy:
    """Return the reference's numbers, which are those of the analysis."""
    path = builder.write(tmp_path / name)
    (numbers,) = reference(path, window).values()
    with ranks_of(path) as (rank,):
        result = exposed_copy.run(rank, Window(*window) if window else rank.window)
    assert answer(result) == numbers
    return numbers


def test_what_neither_compute_nor_communication_hides(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 30, stream=7).kernel(50, 60, ALL_REDUCE, stream=20)
    builder.memcpy(20, 100, bytes=64, stream=9)  # exposed 30-50 and 60-100
    numbers = only(builder, tmp_path)
    assert (numbers.exposed_ns, numbers.bytes, numbers.num_copies) == (60, 64, 1)
    assert (numbers.copy_ns, numbers.window_ns, numbers.fraction) == (80, 100, 0.75)


def test_touching_is_not_hiding(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 10).memcpy(10, 20, stream=9).kernel(20, 30)
    assert only(builder, tmp_path).exposed_ns == 10


def test_hidden_and_empty_copies_do_not_count(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 100).memcpy(10, 20, stream=9).memset(100, 100)
    builder.memcpy(40, 100, stream=9)
    numbers = only(builder, tmp_path)
    assert (numbers.exposed_ns, numbers.num_copies, numbers.bytes) == (0, 0, 0)


def test_each_nanosecond_belongs_to_the_copy_that_began_first(tmp_path: Path) -> None:
    builder = TraceBuilder().memcpy(0, 50, "HtoD").memcpy(20, 80, "DtoH", stream=8)
    builder.memcpy(30, 40, "DtoD", stream=9).memset(80, 90)
    numbers = only(builder, tmp_path)
    assert numbers.by_kind == {"h2d": 50, "d2h": 30, "d2d": 0, "memset": 10}
    assert (numbers.exposed_ns, numbers.num_copies) == (90, 3)  # that within the device owns none


def test_of_those_that_begin_together_the_one_that_ends_first_owns(tmp_path: Path) -> None:
    builder = TraceBuilder().memcpy(0, 50, "HtoD").memcpy(0, 20, "DtoH", stream=8)
    assert only(builder, tmp_path).by_kind == {"h2d": 30, "d2h": 20, "d2d": 0, "memset": 0}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(1, "h2d"), (2, "d2h"), (3, "h2d"), (4, "d2h"), (5, "d2d"), (6, "d2d"), (7, "d2d"),
     (8, "d2d"), (9, "d2d"), (0, "d2d"), (11, "h2d"), (12, "d2h"), (13, "d2d"), (None, "d2d")],
)  # fmt: skip
def test_kinds_of_copies(tmp_path: Path, kind: int | None, expected: str) -> None:
    builder = TraceBuilder().kernel(0, 10)
    builder.raw("CUPTI_ACTIVITY_KIND_MEMCPY", start=10, end=30, deviceId=0, streamId=7,
                globalPid=1 << 48 | 1000 << 24, copyKind=kind)  # fmt: skip
    numbers = only(builder, tmp_path)
    assert numbers.by_kind == {**dict.fromkeys(("h2d", "d2h", "d2d", "memset"), 0), expected: 20}
    assert (numbers.bytes, numbers.pageable_ns) == (0, 0)


def test_peer_copies_are_communication(tmp_path: Path) -> None:
    builder = TraceBuilder().memcpy(0, 50, "PtoP", source=0, destination=1)
    builder.memcpy(50, 60, "DtoD", source=0, destination=1).memcpy(20, 70, stream=8)
    numbers = only(builder, tmp_path)
    assert (numbers.exposed_ns, numbers.num_copies) == (10, 1)


def test_pageable_copies(tmp_path: Path) -> None:
    builder = TraceBuilder().memcpy(0, 10, "HtoD", pageable=True).memcpy(10, 15, "DtoH")
    builder.memcpy(15, 18, "DtoH", pageable=True).memset(18, 20)
    assert only(builder, tmp_path).pageable_ns == 13


def test_pageable_is_what_the_export_calls_so(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 5)
    builder.raw("ENUM_CUDA_MEM_KIND", id=99, name="NEW", label="Pageable")
    builder.raw("CUPTI_ACTIVITY_KIND_MEMCPY", start=10, end=30, deviceId=0, streamId=7,
                globalPid=1 << 48 | 1000 << 24, copyKind=1, srcKind=99)  # fmt: skip
    assert only(builder, tmp_path).pageable_ns == 20
    builder = TraceBuilder().memcpy(0, 10, pageable=True).without("ENUM_CUDA_MEM_KIND")
    assert (
        only(builder, tmp_path, name="other.sqlite").pageable_ns == 10
    )  # 0, where the table is missing


def test_copies_on_the_stream_of_the_compute_that_follows(tmp_path: Path) -> None:
    builder = TraceBuilder().memcpy(0, 10, stream=7).memcpy(10, 30, stream=8)
    builder.kernel(30, 40, stream=7).memcpy(40, 45, stream=7)  # nothing follows the last
    assert only(builder, tmp_path).same_stream_ns == 10


def test_several_kernels_follow_at_once(tmp_path: Path) -> None:
    builder = TraceBuilder().memcpy(0, 10, stream=8).kernel(20, 30, stream=7)
    builder.kernel(20, 40, stream=8)
    assert only(builder, tmp_path).same_stream_ns == 10


def test_a_window_clips(tmp_path: Path) -> None:
    builder = TraceBuilder().memcpy(0, 40, bytes=64).kernel(40, 50).memcpy(50, 90, bytes=8)
    numbers = only(builder, tmp_path, (30, 60))
    assert (numbers.exposed_ns, numbers.window_ns, numbers.bytes) == (20, 30, 72)
    numbers = only(TraceBuilder().memcpy(0, 40), tmp_path, (50, 50), "other.sqlite")
    assert (numbers.exposed_ns, numbers.fraction) == (0, 0.0)


def test_without_copies_or_launches(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 10).memset(10, 20)
    builder.without("CUPTI_ACTIVITY_KIND_RUNTIME")
    numbers = only(builder, tmp_path)
    assert (numbers.exposed_ns, numbers.by_kind["memset"]) == (10, 10)
    assert only_gradients(numbers) == (0, 0, 0)


# -- gradient copies ------------------------------------------------------------------------------

SIZES = (256, 1024, 20, 4096)
ADAM = "void multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor>(int)"


def only_gradients(numbers: ExposedCopy) -> tuple[int, int, int]:
    return numbers.gradient_ns, numbers.gradient_bytes, numbers.num_gradient_copies


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
        how = {"launch": (call, call), "stream": stream}
        builder.memcpy(start, start + 10, "DtoD", bytes=size, **how)  # type: ignore[arg-type]
        if between and index == 1:
            builder.memset(start + 10, start + 10, launch=(call, call + 1), stream=stream)
    if reduce_after:
        builder.kernel(base + 290, base + 300, ALL_REDUCE, launch=(base + 50, base + 50), stream=20)
    return builder.kernel(base + 300, base + 400, optimizer, launch=(base + 60, base + 60))


def test_gradient_copies(tmp_path: Path) -> None:
    numbers = only(step(step(TraceBuilder(), 0), 1), tmp_path)
    assert only_gradients(numbers) == (80, 2 * sum(SIZES), 8)


def test_a_kernel_may_run_before_the_row_or_after_it(tmp_path: Path) -> None:
    builder = step(step(TraceBuilder(), 0), 1)
    for base, called in ((0, 25), (1000, 25), (0, 50), (1000, 50)):
        start = base + (190 if called == 25 else 240)
        builder.kernel(start, start + 10, launch=(base + called, base + called))
    assert only_gradients(only(builder, tmp_path)) == (80, 2 * sum(SIZES), 8)


def test_the_order_of_sizes_may_differ(tmp_path: Path) -> None:
    numbers = only(step(step(TraceBuilder(), 0), 1, SIZES[::-1]), tmp_path)
    assert numbers.num_gradient_copies == 8


@pytest.mark.parametrize(
    "second",
    [
        {"sizes": (256, 1024, 20, 4097)},  # other sizes
        {"sizes": SIZES[:3]},  # too few
        {"sizes": ()},
        {"between": True},  # not in a row
        {"stream": 9},  # not on the compute stream
        {"reduce_after": True},  # before the last AllReduce
    ],
)
def test_what_is_not_a_gradient_copy(tmp_path: Path, second: dict[str, object]) -> None:
    builder = step(step(TraceBuilder(), 0), 1)
    numbers = only(step(builder, 2, **second), tmp_path)  # type: ignore[arg-type]
    assert only_gradients(numbers) == (0, 0, 0)


def test_a_step_without_an_optimizer_or_an_all_reduce_is_not_asked(tmp_path: Path) -> None:
    builder = step(step(TraceBuilder(), 0), 1)
    step(builder, 2, (), optimizer="gemm")
    builder.nvtx("step 3", 3000, 3900).kernel(3000, 3100)
    assert only(builder, tmp_path).num_gradient_copies == 8


def test_an_optimizer_by_its_range(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for number in range(2):
        step(builder, number, optimizer="vectorized_elementwise_kernel")
        builder.nvtx("optimizer step", 1000 * number + 55, 1000 * number + 70)
    assert only(builder, tmp_path).num_gradient_copies == 8


def test_one_step_or_none_marked_is_no_evidence(tmp_path: Path) -> None:
    assert only(step(TraceBuilder(), 0), tmp_path).num_gradient_copies == 0
    builder = step(step(TraceBuilder(), 0), 1).without("NVTX_EVENTS")
    assert only(builder, tmp_path, name="other.sqlite").num_gradient_copies == 0
