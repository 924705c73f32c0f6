"""Advice about matrix multiplications in FP32, for the GPU, the program and the kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.kernel_names.tensor_cores import has_tf32

if TYPE_CHECKING:
    from traceprof.kernel_names.tensor_cores import Capability, TensorCores

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
_SLOW_TF32 = 2  # times FP32 on the largest board of a generation; on others often 1
ALL_ADVICE = (
    _TORCH_BF16,
    _TORCH_FP16,
    _TORCH_TF32,
    _TORCH_CONVOLUTION,
    _BLAS_TF32,
    _BLAS_HALF,
    _DNN,
    _FRAMEWORKS,
)


def advice(
    capability: Capability,
    cores: TensorCores,
    *,
    is_pytorch: bool,
    multiplies: bool,
    convolves: bool,
) -> tuple[str, ...]:
    """Return what to do, most promising first.

    Args:
        capability: the GPU's compute capability.
        cores: the formats and rates of its tensor cores.
        is_pytorch: whether the program is known to use PyTorch.
        multiplies: whether some of the kernels are not convolutions.
        convolves: whether some are convolutions.
    """
    tf32 = has_tf32(capability)
    if is_pytorch:
        lines = [_TORCH_BF16 if tf32 else _TORCH_FP16]
        if multiplies and tf32:
            # The smaller step comes first where it is a fast one.
            lines.insert(0 if (cores.tf32 or 0) > _SLOW_TF32 else 1, _TORCH_TF32)
        return (*lines, _TORCH_CONVOLUTION) if convolves else tuple(lines)
    return (
        *((_BLAS_TF32,) if multiplies and tf32 else ()),
        *((_BLAS_HALF,) if multiplies else ()),
        *((_DNN,) if convolves else ()),
        _FRAMEWORKS,
    )
