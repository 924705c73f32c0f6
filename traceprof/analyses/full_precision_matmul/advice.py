"""Advice about matrix multiplications of FP32 numbers, for the GPU, the program and the kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.kernel_names.categories import Category

if TYPE_CHECKING:
    from collections.abc import Collection

    from traceprof.kernel_names.tensor_cores import TensorCores

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
_DNN = (
    "cuDNN: cudnnSetConvolutionMathType(…, CUDNN_TENSOR_OP_MATH), or in the graph API a compute"
    " type and tensors of 16 bits; channels in multiples of 8, and NHWC"
)
_FRAMEWORKS = (
    "TensorFlow: tf.keras.mixed_precision.set_global_policy('mixed_bfloat16'); JAX: arrays of"
    " bfloat16, or jax_default_matmul_precision='tensorfloat32'"
)
_MIN_PLAIN = 0.1  # of the time: else TF32 is in use, or next to nothing to gain
_SLOW_TF32 = 2.5  # times FP32 on the largest board of a generation; on others often 1
ALL_ADVICE = (
    _TORCH_BF16, _TORCH_FP16, _TORCH_TF32, _TORCH_ATTENTION, _TORCH_CONVOLUTION, _BLAS_TF32,
    _BLAS_HALF, _DNN, _FRAMEWORKS,
)  # fmt: skip


def advice(
    cores: TensorCores, *, is_pytorch: bool, plain: float, categories: Collection[Category]
) -> tuple[str, ...]:
    """Return what to do, most promising first.

    Args:
        cores: the formats and rates of the GPU's tensor cores.
        is_pytorch: whether the program is known to use PyTorch.
        plain: the share of the time that is multiplications or convolutions without TF32.
        categories: the kinds of work that they do.
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
    return (
        *((_BLAS_TF32,) if rounds else ()),
        *((_BLAS_HALF,) if multiplies else ()),
        *((_DNN,) if convolves else ()),
        _FRAMEWORKS,
    )
