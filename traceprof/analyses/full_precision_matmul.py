"""Advice about matrix multiplications of FP32 numbers, for the GPU, the program and the kernels."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

import numpy as np

from traceprof import findings as f
from traceprof import intervals
from traceprof.analyses.kernels.kernel_table import named_signatures
from traceprof.analyses.results import CostResult, facts_of
from traceprof.intervals import Int64, Intervals, Mask
from traceprof.kernel_names import function_name
from traceprof.kernel_names.arithmetic import (
    FULL_PRECISION,
    ROUNDED_PRECISION,
    Capability,
    TensorCores,
    capability_of_board,
    capability_of_code,
    tensor_cores,
)
from traceprof.kernel_names.categories import MAIN_COMPUTE, Category, KernelKind, kernel_kind
from traceprof.run.rank import Rank, Window
from traceprof.trace.grouping import distinct_values
from traceprof.units import counted, duration, percent, times

_TORCH_BF16 = (
    "Mixed precision: forward and loss under torch.autocast('cuda', dtype=torch.bfloat16) (PyTorch"
    " 1.10; in Hugging Face's Trainer bf16=True, in Lightning precision='bf16-mixed')"
)
_TORCH_FP16 = (
    "Mixed precision: forward and loss under torch.autocast('cuda', dtype=torch.float16) (PyTorch"
    " 1.10), the loss scaled by torch.amp.GradScaler('cuda') (PyTorch 2.3;"
    " torch.cuda.amp.GradScaler before): this GPU has no tensor cores for BF16"
)
_TORCH_TF32 = (
    "Keep FP32 and multiply in TF32, with 10 bits of mantissa:"
    " torch.set_float32_matmul_precision('high') (PyTorch 1.12)"
)
_TORCH_CONVOLUTION = (
    "Convolutions: see that torch.backends.cudnn.allow_tf32 is True (the default); channels in"
    " multiples of 8, the memory format channels_last (channels_last_3d for volumes) and"
    " torch.backends.cudnn.benchmark = True give cuDNN more kernels to choose from"
)
_TORCH_ATTENTION = (
    "Attention: scaled_dot_product_attention takes the kernels of FlashAttention and cuDNN for FP16"
    " and BF16 only; for FP32 the memory-efficient one multiplies three times as much"
    " (torch.nn.attention.sdpa_kernel, PyTorch 2.3, chooses and says why one cannot be taken)"
)
_BLAS_TF32 = (
    "cuBLAS: CUBLAS_COMPUTE_32F_FAST_TF32, or cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH)"
    " (11.0); see that NVIDIA_TF32_OVERRIDE=0 is not set"
)
_BLAS_HALF = (
    "Where the accuracy allows it, multiply FP16 or BF16 and sum in FP32: cublasGemmEx with"
    " CUBLAS_COMPUTE_32F"
)
_FRAMEWORKS = (
    "TensorFlow: tf.keras.mixed_precision.set_global_policy('mixed_bfloat16'); JAX: arrays of"
    " bfloat16, or jax_default_matmul_precision='tensorfloat32'"
)
_MIN_PLAIN = 0.1  # of the time: else TF32 is in use, or next to nothing to gain
_SLOW_TF32 = 2.5  # times FP32 on the largest board of a generation; on others often 1
ALL_ADVICE = (
    _TORCH_BF16,
    _TORCH_FP16,
    _TORCH_TF32,
    _TORCH_ATTENTION,
    _TORCH_CONVOLUTION,
    _BLAS_TF32,
    _BLAS_HALF,
    _FRAMEWORKS,
)


def advice(
    cores: TensorCores, *, is_pytorch: bool, plain: float, categories: Collection[Category]
) -> tuple[str, ...]:
    """Return what to do, most promising first.

    `plain`: the share of the time that is multiplications or convolutions without TF32.
    """
    multiplies = Category.MATMUL in categories
    convolves = Category.CONVOLUTION in categories
    rounds = plain >= _MIN_PLAIN and multiplies and cores.tf32 is not None
    if is_pytorch:
        lines = [_TORCH_BF16 if cores.has_bf16 else _TORCH_FP16]
        if rounds:
            # The smaller step comes first where it is a fast one, of most of the time.
            is_fast = (cores.tf32 or 0) > _SLOW_TF32 and plain > 0.5
            lines.insert(0 if is_fast else 1, _TORCH_TF32)
        attends = [_TORCH_ATTENTION] if Category.ATTENTION in categories else []
        return (*lines, *attends, *([_TORCH_CONVOLUTION] if convolves else []))
    return (*((_BLAS_TF32,) if rounds else ()), *((_BLAS_HALF,) if multiplies else ()), _FRAMEWORKS)


ID = "full-precision-matmul"


class FullPrecisionMatmulMetrics(f.Metrics):
    """Numbers of `full-precision-matmul`."""

    kernel_ns: Annotated[
        f.Ns, "time in which matrix multiplications, attention or convolutions of FP32 numbers ran"
    ]
    fraction: Annotated[f.Fraction, "its share of the time in which any kernel computed"]
    num_kernels: Annotated[f.Count, "the number of such kernels"]
    convolution_ns: Annotated[f.Ns, "the part of `kernel_ns` that is convolutions"]
    attention_ns: Annotated[f.Ns, "the part of `kernel_ns` that is attention"]
    tf32_ns: Annotated[
        f.Ns, "the part of `kernel_ns` in which nothing but tensor cores in TF32 multiplied"
    ]
    precision: Annotated[
        str,
        f.one_of(FULL_PRECISION, ROUNDED_PRECISION),
        "the number format that makes up most of `kernel_ns`",
    ]
    compute_capability: Annotated[
        str | None,
        "the compute capability of the GPU; if the report lacks it, the lowest"
        " that can run its kernels; null for GPUs that are not from NVIDIA",
    ]
    coverage: Annotated[
        f.Fraction,
        "the share of the time of matrix multiplications, attention and"
        " convolutions for which the kernel names show the number format",
    ]


FINDINGS = {
    ID: f.FindingKind(
        FullPrecisionMatmulMetrics,
        removed_by=("half-precision",),
        changes_kernels=True,
        only_compute=True,
        needs=f.Sight.NAMES,
        counts_gaps=False,
    )
}


class FullPrecisionMatmulResult(CostResult, frozen=True):
    """The matrix multiplications of FP32 numbers of one rank."""

    metrics: FullPrecisionMatmulMetrics  # the numbers of its finding
    capability: Capability | None  # the GPU's compute capability; None if that is unknown
    gpu: str | None  # its name; None if that is unknown


_HALF_THE_BYTES = 0.5
_WIDE = {None, FULL_PRECISION, ROUNDED_PRECISION}


def run(rank: Rank, window: Window) -> FullPrecisionMatmulResult:
    """Add up the kernels whose names say that they multiply FP32 numbers."""
    kernels = rank.operations.kernels
    names, of_signature = named_signatures(rank)
    communicating = {rank.kernel_names[id_] for id_ in rank.communication_operations}
    kinds = [kernel_kind(name, communicates=name in communicating) for name in names]
    multiplies = [kind.category in MAIN_COMPUTE for kind in kinds]
    is_matrix = np.array(multiplies, np.bool_)[of_signature]
    # With another format it is no such kernel.
    known = [
        kind.category in MAIN_COMPUTE
        and (kind.tensor_cores is not None or kind.precision not in _WIDE)
        for kind in kinds
    ]
    is_known = np.array(known, np.bool_)[of_signature]
    precisions = [multiplied_precision(kind) for kind in kinds]
    is_slow = np.array([precision is not None for precision in precisions], np.bool_)[of_signature]
    signature = kernels.packed_signature.kept
    inside = window.holds_start(kernels.start_ns)
    matrix = np.flatnonzero(inside & is_matrix.take(signature))
    length = kernels.packed_length.at(matrix)
    slow = np.flatnonzero(is_slow.take(signature))
    start, end = kernels.start_ns[slow], kernels.ends(slow)
    of_slow = of_signature[signature[slow]]

    def cover(chosen: Mask | slice) -> Intervals:
        covered = intervals.union(start[chosen], end[chosen])
        return window.clip(covered)

    def measure(chosen_names: list[bool]) -> int:
        return cover(np.array(chosen_names, np.bool_)[of_slow]).measure_ns

    covered = cover(slice(None))
    started = slow[inside[slow]]
    compute_ns = window.clip(rank.compute).measure_ns
    matrix_ns, kernel_ns = intervals.total(length), covered.measure_ns
    known_ns = intervals.total(length.compress(is_known.take(signature.take(matrix))))
    plain_ns = measure([precision == FULL_PRECISION for precision in precisions])
    capability = _capability(rank, names)
    metrics = FullPrecisionMatmulMetrics(
        kernel_ns=kernel_ns,
        fraction=f.share(kernel_ns, compute_ns),
        num_kernels=len(started),
        convolution_ns=measure([kind.category is Category.CONVOLUTION for kind in kinds]),
        attention_ns=measure([kind.category is Category.ATTENTION for kind in kinds]),
        tf32_ns=kernel_ns - plain_ns,
        precision=ROUNDED_PRECISION if kernel_ns > 2 * plain_ns else FULL_PRECISION,
        compute_capability="{}.{}".format(*capability) if capability else None,
        coverage=known_ns / matrix_ns if matrix_ns else 1.0,
    )
    return FullPrecisionMatmulResult(
        **facts_of(rank, window, covered),
        metrics=metrics,
        capability=capability,
        gpu=rank.gpu,
        evidence=_evidence(rank, started, of_signature[signature[started]], names),
    )


def half_precision_shares(rank: Rank) -> dict[int, float] | None:
    """Return by name which share of their time kernels take at least under autocast.

    Multiplications of FP32 numbers take that of the peak rates, what only moves numbers of 32 bits
    half. Optimizers and communication stay as they are: weights and gradients keep their format.

    Returns:
        By the name's id, of those that become faster; empty if no matrices are multiplied in
        FP32. None if no tensor cores are known of the GPU.
    """
    ids = distinct_values(rank.operations.kernels.name_of_signature).tolist()
    names = [rank.kernel_names[id_] for id_ in ids]
    cores = tensor_cores(_capability(rank, names), rank.gpu)
    if cores is None:
        return None
    kinds = [
        kernel_kind(name, communicates=id_ in rank.communication_operations)
        for id_, name in zip(ids, names, strict=True)
    ]
    if not any(map(multiplied_precision, kinds)):
        return {}
    shares = {id_: _half_precision_share(kind, cores) for id_, kind in zip(ids, kinds, strict=True)}
    return {id_: share_ for id_, share_ in shares.items() if share_ < 1}


def findings(result: FullPrecisionMatmulResult) -> list[f.Finding | f.NotApplicable]:
    """Judge the most that tensor cores could save, by their peak rate."""
    metrics = result.metrics
    if f.severity_of_cost(f.share(metrics.kernel_ns, result.window_ns)) is None:
        return []
    cores = tensor_cores(result.capability, result.gpu)
    if cores is None and result.capability is None:
        return [
            f.NotApplicable(
                ID,
                f"{duration(metrics.kernel_ns)} of matrix multiplications ran on FP32 numbers, and"
                " whether the GPU has tensor cores is not in the report",
                "look up the compute capability of the GPU: those from 7.0 on have tensor cores",
                result.rank,
            )
        ]
    if cores is None:
        return []
    plain_ns = metrics.kernel_ns - metrics.tf32_ns
    impact_ns = int(
        plain_ns * (1 - 1 / cores.half) + metrics.tf32_ns * (1 - (cores.tf32 or 1) / cores.half)
    )
    categories = _categories(metrics)
    *most, last = [_NOUNS[category] for category in categories]
    rounded = f", {duration(metrics.tf32_ns)} of it in TF32" if metrics.tf32_ns else ""
    title = (
        f"{percent(metrics.fraction)} of the compute time goes to"
        f" {' and '.join(filter(None, (', '.join(most), last)))} on FP32 numbers:"
        f" {duration(metrics.kernel_ns)} in {counted(metrics.num_kernels, 'kernel')}"
        f"{rounded if plain_ns else ', all in TF32'}"
    )
    lines = advice(
        cores,
        is_pytorch=result.is_pytorch,
        plain=f.share(max(plain_ns - metrics.attention_ns, 0), metrics.kernel_ns),
        categories=categories,
    )
    return result.finding(ID, title, impact_ns, metrics, lines)


def _capability(rank: Rank, names: list[str]) -> Capability | None:
    of_gpu = rank.trace.compute_capability(rank.key) or capability_of_board(rank.gpu)
    return of_gpu or capability_of_code(names)


def multiplied_precision(kind: KernelKind) -> str | None:
    """Return the format in which a kernel multiplies FP32 numbers, `fp32` or `tf32`, or None.

    Attention in FP32 (PyTorch's `fmha_cutlassF_f32_…`) counts as plain also from sm_80 on, where
    it multiplies three times in TF32 to keep the precision.
    """
    if kind.category not in MAIN_COMPUTE or kind.tensor_cores is None:
        return None
    if kind.precision == FULL_PRECISION:
        is_plain = kind.category is Category.ATTENTION or not kind.tensor_cores
        return FULL_PRECISION if is_plain else ROUNDED_PRECISION
    return kind.precision if kind.precision == ROUNDED_PRECISION else None


def _half_precision_share(kind: KernelKind, cores: TensorCores) -> float:
    precision = multiplied_precision(kind)
    if precision is not None:
        peak = 1 if precision == FULL_PRECISION else cores.tf32 or 1
        return min(peak / cores.half, 1.0)
    if kind.precision not in _WIDE or kind.category in {Category.COMMUNICATION, Category.OPTIMIZER}:
        return 1.0
    # A multiplication of an unknown format may be one of FP32 numbers.
    is_unknown = kind.category in MAIN_COMPUTE and kind.precision is None
    return 1 / cores.half if is_unknown else _HALF_THE_BYTES


def _evidence(
    rank: Rank, chosen: Int64, name_of_kernel: Int64, names: list[str]
) -> tuple[f.Evidence, ...]:
    kernels = rank.operations.kernels
    length = kernels.packed_length.at(chosen)
    spent = np.bincount(name_of_kernel, weights=length, minlength=len(names))
    evidence = []
    for name in intervals.largest(spent.astype(np.int64), f.MAX_EVIDENCE).tolist():
        of_name = np.flatnonzero(name_of_kernel == name)
        if len(of_name) == 0:
            break
        index = int(of_name[np.argmax(length[of_name])])
        start, end = int(kernels.start_ns[chosen[index]]), int(kernels.ends(chosen[[index]])[0])
        text = f"{function_name(names[name])}, {times(len(of_name))}: {duration(int(spent[name]))}"
        evidence.append(f.Evidence(start, end, text))
    return tuple(evidence)


def _categories(metrics: FullPrecisionMatmulMetrics) -> tuple[Category, ...]:
    of_others = metrics.convolution_ns + metrics.attention_ns
    present = {
        Category.MATMUL: metrics.kernel_ns > of_others,
        Category.ATTENTION: metrics.attention_ns > 0,
        Category.CONVOLUTION: metrics.convolution_ns > 0,
    }
    return tuple(category for category, is_present in present.items() if is_present)


_NOUNS = {
    Category.MATMUL: "matrix multiplications",
    Category.ATTENTION: "attention",
    Category.CONVOLUTION: "convolutions",
}


PAGE = {"advice": f.bullets(ALL_ADVICE)}
