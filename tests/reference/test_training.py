"""The reference for steps and training: hand-made runs, and real ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.reference.nsight_export import Export, export_of
from tests.reference.training import Training, is_main_compute, training
from tests.support.builders import TraceBuilder, global_tid

if TYPE_CHECKING:
    from pathlib import Path

MS = 1_000_000


def trained(trace: TraceBuilder, folder: Path) -> Training:
    export = Export(trace.write(folder / "t.sqlite"))
    return training(export, *min(export.ranks))


def upload_then_kernels(*names: str) -> TraceBuilder:
    """A copy from 0 to 5 ms, then kernels of 5 ms from 10 ms on every 10 ms."""
    trace = TraceBuilder().memcpy(0, 5 * MS)
    for number, name in enumerate(names, start=1):
        start = number * 10 * MS
        trace.kernel(start, start + 5 * MS, name, launch=(start - MS, start))
    return trace


def test_marked_steps(tmp_path: Path) -> None:
    trace = upload_then_kernels("a", "b", "c", "d")
    trace.nvtx("step 3", 8 * MS, 19 * MS - 1).nvtx("step 4", 19 * MS - 1, 30 * MS)
    result = trained(trace, tmp_path)
    assert [(s.number, s.start / MS, s.end / MS) for s in result.steps] == [
        (3, 10, 20),
        (4, 20, 35),
    ]
    expected = ("steps", 10 * MS, 35 * MS, 10 * MS, 10 * MS)
    found = result.basis, result.start, result.end, result.before_ns, result.after_ns
    assert found == expected


@pytest.mark.parametrize(
    "name", ["optimizer step", "Optimizer.step#AdamW.step", "Optimizer.step#SGD.step, op_id = 7"]
)
def test_from_optimizer_step_to_optimizer_step(name: str, tmp_path: Path) -> None:
    trace = upload_then_kernels("cast", "gemm", "adam", "gemm", "adam", "gemm", "adam", "test")
    for start in (28, 48, 68):
        trace.nvtx(name, start * MS, (start + 5) * MS)
        trace.nvtx(name, (start + 1) * MS, (start + 2) * MS, tid=1001)  # of another thread: inside
    result = trained(trace, tmp_path)
    assert result.basis == "optimizer"
    assert [(s.start / MS, s.end / MS) for s in result.steps] == [(20, 40), (40, 60), (60, 75)]
    assert (result.before_ns / MS, result.after_ns / MS) == (20, 10)


def test_main_compute_by_name(tmp_path: Path) -> None:
    names = ("fill", "ampere_sgemm_128x64_tn", "fill", "fill")
    result = trained(upload_then_kernels(*names), tmp_path)
    found = result.basis, result.start / MS, result.end / MS, result.steps
    assert found == ("main compute", 20, 45, ())


def test_main_compute_by_time(tmp_path: Path) -> None:
    result = trained(upload_then_kernels("fill", "stencil", "stencil", "fill2"), tmp_path)
    assert (result.basis, result.start / MS, result.before_ns / MS) == ("main compute", 20, 20)


def test_warm_up_is_not_training(tmp_path: Path) -> None:
    trace = upload_then_kernels("gemm", "gemm", "gemm").nvtx("Warm-up", 0, 25 * MS)
    assert trained(trace, tmp_path).start == 30 * MS
    (tmp_path / "only").mkdir()
    trace = upload_then_kernels("gemm", "gemm").nvtx("warmup", 0, 25 * MS)
    assert trained(trace, tmp_path / "only").start == 10 * MS


def test_warm_up_steps_are_not_training(tmp_path: Path) -> None:
    trace = upload_then_kernels("a", "b", "c").nvtx("warm up", 0, 18 * MS)
    for number in range(3):
        start = (number * 10 + 8) * MS
        trace.nvtx(f"step {number}", start, start + 9 * MS)
    assert [step.number for step in trained(trace, tmp_path).steps] == [1, 2]


def test_steps_that_the_profiler_distorts(tmp_path: Path) -> None:
    trace = upload_then_kernels("a", "b", "c").raw("StringIds", id=90_000, value="CUPTI …")
    for number in range(3):
        start = (number * 10 + 8) * MS
        trace.nvtx(f"step {number}", start, start + 9 * MS)
    for start in (12, 31):  # 3 of 10 ms of the first, all of the last
        trace.raw(
            "PROFILER_OVERHEAD", start=start * MS, end=(start + 3) * MS, globalTid=global_tid(),
            nameId=90_000, returnValue=0,
        )  # fmt: skip
    result = trained(trace, tmp_path)
    assert [step.number for step in result.steps] == [1, 2]
    assert (result.start, result.end) == (20 * MS, 35 * MS)


def test_without_compute_it_is_the_window(tmp_path: Path) -> None:
    trace = TraceBuilder().memcpy(MS, 2 * MS).kernel(3 * MS, 4 * MS, "ncclDevKernel_AllReduce_Sum")
    result = trained(trace.memset(5 * MS, 6 * MS), tmp_path)
    assert (result.basis, result.start, result.end) == ("window", MS, 6 * MS)


@pytest.mark.parametrize(
    ("name", "is_main"),
    [
        ("ampere_sgemm_128x64_tn", True),
        ("void cutlass::Kernel<cutlass_80_tensorop_bf16_s16816gemm>(Params)", True),
        ("cudnn::cnn::implicit_convolve_sgemm<float>(int)", True),
        ("pytorch_flash::flash_fwd_kernel<T>(P)", True),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(P)", True),
        ("matrixMulKernel(float*, float*)", True),
        ("void at::native::vectorized_elementwise_kernel<4, convert_functor>(int)", False),
        ("nchwToNhwcKernel", False),
        ("multi_tensor_apply_kernel", False),
    ],
)
def test_kernels_of_the_main_compute(name: str, is_main: bool) -> None:
    assert is_main_compute(name) == is_main


@pytest.mark.long
def test_real_trainings(traces: Path) -> None:
    """The upload of a model, and a loader's last prefetch, are not training."""
    export = export_of(traces / "pairs" / "warm_up_and_upload.sqlite")
    key = min(export.ranks)
    start = training(export, *key).start
    assert all(op.end <= start for op in export.ranks[key] if op.pageable)
    export = export_of(traces / "a100x4_ddp_baseline_rank0.sqlite")
    key = min(export.ranks)
    result = training(export, *key)
    assert (len(result.steps), result.basis) == (59, "steps")
    assert result.after_ns > 11 * MS  # a sleep of 11 ms, then a copy of DALI's
