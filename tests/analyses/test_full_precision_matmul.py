"""Matrix multiplications of FP32 numbers, by their names."""

from pathlib import Path

import pytest

from tests.reference.kernels import full_precision, kernels_of
from tests.support.builders import TraceBuilder
from tests.support.kept_claims import Kept
from tests.support.traces import GPU_SAMPLES, ranks_of
from traceprof.analyses import full_precision_matmul
from traceprof.analyses.full_precision_matmul import FullPrecisionMatmulResult
from traceprof.findings import Finding, NotApplicable
from traceprof.kernel_names.categories import kernel_kind
from traceprof.run.rank import Window

SGEMM = "ampere_sgemm_128x64_tn"
TF32 = "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x256_32x3_nn_align4>(T1::Params)"
BF16 = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn"
CONVOLUTION = "void implicit_convolveNd_sgemm<float, (int)3, (int)1024>(int, const T1 *)"
TORCH = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int)"
ATTENTION = "fmha_cutlassF_f32_aligned_64x64_rf_sm80(AttentionKernel<float, Sm80>::Params)"
A100 = "NVIDIA A100-SXM4-40GB"


def is_slow(name: str) -> bool:
    """Return whether a name shows multiplications of FP32 numbers, by the table of names."""
    kind = kernel_kind(name, communicates=False)
    is_full = kind.precision in {"fp32", "tf32"} and kind.tensor_cores is not None
    return str(kind.category) in {"matmul", "attention", "convolution"} and is_full


def assert_agreement(
    path: Path, window: tuple[int, int] | None = None
) -> list[FullPrecisionMatmulResult]:
    kernels = kernels_of(path)
    results = []
    with ranks_of(path) as ranks:
        for rank in ranks:
            result = full_precision_matmul.run(rank, Window(*window) if window else rank.window)
            results.append(result)
            of_rank = kernels[rank.process, rank.key.device]
            span = window or (rank.window.start_ns, rank.window.end_ns)
            slow_ns, compute_ns, _ = full_precision(of_rank, span, is_slow)
            metrics = result.metrics
            assert metrics.kernel_ns == slow_ns
            if not len(rank.operations.graphs):
                assert metrics.fraction == (slow_ns / compute_ns if compute_ns else 0)
            stop = span[1] + (window is None)
            starts = [start for start, _, name, told in of_rank if not told and is_slow(name)]
            assert metrics.num_kernels == sum(span[0] <= start < stop for start in starts)
            assert 0 <= metrics.coverage <= 1
            assert 0 <= metrics.convolution_ns <= metrics.kernel_ns
            assert metrics.fraction <= 1
    return results


def judged(path: Path) -> list[Finding | NotApplicable]:
    (result,) = assert_agreement(path)
    return full_precision_matmul.findings(result)


def program(name: str = SGEMM, *, gpu: str | None = A100, torch: bool = True) -> TraceBuilder:
    """Multiply for half of the time, and add for the other half."""
    builder = TraceBuilder()
    if gpu is not None:
        builder.gpu(gpu)
    for start in range(0, 10_000, 1000):
        builder.kernel(start, start + 500, name)
        builder.kernel(start + 500, start + 1000, TORCH if torch else "add")
    return builder


def test_a_window_cuts_kernels(tmp_path: Path) -> None:
    path = program().write(tmp_path)
    (result,) = assert_agreement(path, (250, 2100))
    assert (result.metrics.kernel_ns, result.metrics.num_kernels) == (250 + 500 + 100, 2)
    (result,) = assert_agreement(path, (5000, 5000))
    metrics = result.metrics
    assert (metrics.kernel_ns, metrics.num_kernels, metrics.coverage) == (0, 0, 1.0)
    assert full_precision_matmul.findings(result) == []


@pytest.mark.parametrize("sample", GPU_SAMPLES, ids=lambda path: path.stem)
def test_samples_agree_with_the_reference(sample: Path) -> None:
    assert_agreement(sample)


def test_real_exports_agree_with_the_reference(real_trace: Path) -> None:
    assert_agreement(real_trace)
    with ranks_of(real_trace) as ranks:
        windows = [rank.window for rank in ranks]
    for window in windows[:1]:
        third = window.length_ns // 3
        assert_agreement(real_trace, (window.start_ns + third, window.end_ns - third))


def beside_tf32(num: int) -> TraceBuilder:
    builder = program()
    for start in range(10_000, 10_000 + 500 * num, 500):
        builder.kernel(start, start + 500, TF32)
    return builder


OLD = "sgemm_32x32x32_NN_vec"
GPUS = (
    *("Tesla V100-SXM2-16GB", "NVIDIA GeForce RTX 3090", "NVIDIA A10G", "NVIDIA H100 80GB HBM3"),
    *("NVIDIA B200", "Tesla P100-SXM2-16GB"),
)


PROGRAMS = {
    "FP32": program(),  # at FP16's peak rate on an A100, 16 times that of FP32, 312.5 ns remain
    # An A100 multiplies BF16 16 times as fast as FP32 and twice as fast as TF32.
    "TF32 and attention": program(TF32).kernel(10_000, 14_000, ATTENTION),
    "kernels tell the GPU": program(gpu=None),
    "an unknown GPU": program(OLD, gpu=None),
    "little of it on an unknown GPU": program(OLD, gpu=None).kernel(10**7, 2 * 10**7, "add"),
    "convolutions": program(CONVOLUTION),
    "of an old GPU": program("volta_sgemm_64x64_nn", gpu="Tesla V100-SXM2-16GB"),
    "not PyTorch": program(torch=False),
    "convolutions, not PyTorch": program(CONVOLUTION, torch=False),
    "TF32 brings much": program(gpu="NVIDIA A100-SXM4-80GB"),
    "TF32 brings less": program(gpu="NVIDIA A10"),
    "some are in TF32": beside_tf32(6),
    "most are in TF32": beside_tf32(30),
    "nearly all are in TF32": beside_tf32(120),
    # The impact is bounded by the GPU's tensor cores; the last two have none.
    **{gpu: program(OLD, gpu=gpu) for gpu in GPUS},
    "NVIDIA GeForce GTX 1660 Ti": program("volta_sgemm_64x64_nn", gpu="NVIDIA GeForce GTX 1660 Ti"),
    "kernels that coincide": program().kernel(100, 400, SGEMM, stream=8),
    "a name that does not tell": program().kernel(20_000, 25_000, "my_matmul_kernel"),
    **{name: program(name) for name in (BF16, "gemm", "my_matmul_kernel", "triton_tem_fused_mm_1")},
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, tmp_path: Path, kept: Kept) -> None:
    kept(judged(PROGRAMS[name].write(tmp_path)))
