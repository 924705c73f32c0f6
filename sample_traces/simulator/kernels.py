"""The kernels of a simulated transformer, as Nsight records them, and their durations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel as it is launched again in every step."""

    name: str  # demangled
    operator: str  # the PyTorch operator that launches it, as in the ranges of `emit_nvtx`
    grid_x: int  # thread blocks along x
    grid_y: int  # along y; along z it is 1
    block_x: int  # threads of a block along x; along y and z it is 1
    registers: int  # per thread
    static_bytes: int  # of shared memory
    dynamic_bytes: int  # of shared memory
    duration_ns: int  # nominal, on a GPU of its own

    @property
    def short_name(self) -> str:
        """The name as Nsight shortens it: no namespace, template arguments and parameters."""
        return self.name.removeprefix("void ").split("<")[0].split("(")[0].rpartition("::")[2]


def _elementwise(functor: str, operator: str, grid: int, duration_ns: int) -> Kernel:
    name = (
        f"void at::native::vectorized_elementwise_kernel<4, {functor}, "
        "std::array<char *, 2>>(int, T2, T3)"
    )
    return Kernel(name, operator, grid, 1, 128, 32, 0, 0, duration_ns)


def _gemm(tile: str, layout: str, grid: tuple[int, int], duration_ns: int) -> Kernel:
    name = f"ampere_bf16_s16816gemm_bf16_{tile}_ldg8_f2f_stages_64x3_{layout}"
    operator = "aten::addmm" if layout == "tn" else "aten::mm"
    return Kernel(name, operator, *grid, 128, 230, 0, 98304, duration_ns)


LAYER_NORM = Kernel(
    "void at::native::vectorized_layer_norm_kernel<c10::BFloat16, float, false>"
    "(int, T2, const T1 *, const T1 *, const T1 *, T2 *, T2 *, T1 *)",
    "aten::native_layer_norm", 4096, 1, 128, 39, 24, 0, 14_000,
)  # fmt: skip
QKV = _gemm("256x128", "tn", (16, 24), 118_000)
ATTENTION = Kernel(
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, "
    "cutlass::bfloat16_t>, false, true, false, false, true, true, false>(flash::Flash_fwd_params)",
    "aten::_flash_attention_forward", 8, 96, 128, 244, 0, 49152, 92_000,
)  # fmt: skip
PROJECTION = _gemm("128x128", "tn", (32, 8), 46_000)
ADD = _elementwise("at::native::CUDAFunctor_add<c10::BFloat16>", "aten::add_", 8192, 16_000)
UP = _gemm("128x256", "tn", (32, 16), 151_000)
GELU = _elementwise("at::native::GeluCUDAKernelImpl(lambda(float))", "aten::gelu", 32768, 38_000)
DOWN = _gemm("128x64", "tn", (32, 16), 139_000)
FORWARD_LAYER = (
    LAYER_NORM, QKV, ATTENTION, PROJECTION, ADD, LAYER_NORM, UP, GELU, DOWN, ADD,
)  # fmt: skip

SOFTMAX = Kernel(
    "void at::native::cunn_SoftMaxForward<8, c10::BFloat16, float, float, "
    "at::native::LogSoftMaxForwardEpilogue>(T4 *, const T2 *, int)",
    "aten::_log_softmax", 4096, 1, 1024, 32, 0, 4096, 71_000,
)  # fmt: skip
LOSS = Kernel(
    "void at::native::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>"
    "(T1 *, T1 *, const T1 *, const T3 *, const T1 *, bool, long, long, long, long)",
    "aten::nll_loss_forward", 1, 1, 32, 40, 256, 0, 6_000,
)  # fmt: skip
FORWARD_END = (SOFTMAX, LOSS)

SOFTMAX_BACKWARD = Kernel(
    "void at::native::cunn_SoftMaxBackward<8, float, float, c10::BFloat16, "
    "at::native::LogSoftMaxBackwardEpilogue>(T1 *, const T2 *, const T2 *, int)",
    "aten::_log_softmax_backward_data", 4096, 1, 1024, 32, 0, 4096, 88_000,
)  # fmt: skip
INPUT_GRADIENT = _gemm("256x128", "nn", (16, 16), 128_000)
WEIGHT_GRADIENT = _gemm("128x128", "nt", (24, 32), 134_000)
BIAS_GRADIENT = Kernel(
    "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::BFloat16, "
    "at::native::func_wrapper_t<c10::BFloat16, at::native::sum_functor<c10::BFloat16, float, "
    "c10::BFloat16>>, unsigned int, c10::BFloat16, 4, 4>>(T3)",
    "aten::sum", 12, 8, 32, 48, 16, 2048, 19_000,
)  # fmt: skip
GELU_BACKWARD = _elementwise(
    "at::native::GeluBackwardCUDAKernelImpl(lambda(float, float))", "aten::gelu_backward",
    32768, 52_000,
)  # fmt: skip
LAYER_NORM_BACKWARD = Kernel(
    "void at::native::layer_norm_grad_input_kernel_vectorized<c10::BFloat16, float, false>"
    "(const T1 *, const T1 *, const T2 *, const T2 *, const T1 *, T1 *, int)",
    "aten::native_layer_norm_backward", 4096, 1, 128, 32, 0, 128, 22_000,
)  # fmt: skip
ATTENTION_BACKWARD = Kernel(
    "void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64, 128, "
    "128, 8, 4, 4, 4, false, false, cutlass::bfloat16_t>, false, true, false, true, true, false>"
    "(flash::Flash_bwd_params)",
    "aten::_flash_attention_backward", 8, 96, 256, 255, 0, 147456, 196_000,
)  # fmt: skip
BACKWARD_START = (SOFTMAX_BACKWARD,)
BACKWARD_LAYER = (
    INPUT_GRADIENT, WEIGHT_GRADIENT, BIAS_GRADIENT, GELU_BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT,
    LAYER_NORM_BACKWARD, ADD, ATTENTION_BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, BIAS_GRADIENT,
)  # fmt: skip
FORWARD = (QKV, ATTENTION, UP, DOWN)
BACKWARD = (INPUT_GRADIENT, WEIGHT_GRADIENT, ATTENTION_BACKWARD, WEIGHT_GRADIENT)
"""The kernels of the main compute of a layer."""

_APPLY = "void at::native::multi_tensor_apply_kernel<at::native::TensorListMetadata"
GRADIENT_NORM = Kernel(
    f"{_APPLY}<1>, at::native::LpNormFunctor<c10::BFloat16, 2, float, 1, 1, 0>, float *, int>"
    "(T1, T2, T3...)",
    "aten::_foreach_norm", 320, 1, 512, 48, 1024, 0, 34_000,
)  # fmt: skip
ADAM = Kernel(
    f"{_APPLY}<4>, at::native::FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)0, false>, "
    "double, double, double, double, double, bool, float *, float *>(T1, T2, T3...)",
    "aten::_fused_adamw_", 320, 1, 512, 64, 0, 0, 160_000,
)  # fmt: skip
# Adam's state is created in the first step of the optimizer.
STATE_FILL = _elementwise("at::native::FillFunctor<float>", "aten::zeros_like", 4096, 12_000)

ALL_REDUCE = Kernel(
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclAllReduce", 16, 1, 544, 96, 21568, 82240, 0,
)  # fmt: skip

KERNELS = tuple(
    dict.fromkeys(
        (*FORWARD_LAYER, *FORWARD_END, *BACKWARD_START, *BACKWARD_LAYER, GRADIENT_NORM, ADAM,
         STATE_FILL, ALL_REDUCE)
    )
)  # fmt: skip

# For the scenarios, which do not use the index of kernels.
SEND_RECV = Kernel(
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "ncclSend", 4, 1, 544, 96, 21568, 82240, 0,
)  # fmt: skip
TINY = tuple(
    _elementwise(f"at::native::CUDAFunctor_{functor}<float>", f"aten::{functor}", grid, duration)
    for functor, grid, duration in (("mul", 64, 2_600), ("sub", 32, 2_200), ("div", 96, 3_100))
)
HISTOGRAM = Kernel(
    "void at::native::kernelHistogram1D<float, float, int, 1, 2, -1, "
    "at::native::CUDAHistogramMemoryType::SHARED>(at::cuda::detail::TensorInfo<float, int>, "
    "at::cuda::detail::TensorInfo<const float, int>, int, float, float, int)",
    "aten::histc", 432, 1, 512, 32, 0, 512, 60_000,
)  # fmt: skip
SGEMM = (
    Kernel("ampere_sgemm_128x64_tn", "aten::addmm", 32, 64, 128, 122, 12544, 0, 940_000),
    Kernel("ampere_sgemm_128x128_nn", "aten::mm", 32, 32, 256, 122, 16640, 0, 1_010_000),
)
"""Matrix multiplications in FP32, which leave tensor cores unused: PyTorch's default."""
NORM_IN_FEW_BLOCKS = Kernel(
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float,"
    " at::native::NormTwoOps<float, float, float>, unsigned int, float, 4, 4>>(T3)",
    "aten::linalg_vector_norm", 4, 1, 512, 32, 16, 0, 420_000,
)  # fmt: skip
SCALE = _elementwise("at::native::BUnaryFunctor<float, MulFunctor>", "aten::mul", 32768, 47_000)
UNFUSED_NORM = (SCALE, ADD, LAYER_NORM)
"""What one kernel could do: each writes what the next one reads."""


def _foreach(functor: str, operator: str, num_lists: int, duration_ns: int) -> Kernel:
    name = f"{_APPLY}<{num_lists}>, at::native::{functor}, float>(T1, T2, T3...)"
    return Kernel(name, f"aten::_foreach_{operator}_", 320, 1, 512, 48, 0, 0, duration_ns)


_LERP = _foreach(
    "TernaryOpScalarFunctor<float, 2, 2, 0>, at::native::LerpFunctor", "lerp", 2, 71_000
)
_MUL = _foreach("BinaryOpScalarFunctor<float, 1, 1, 0>, std::multiplies", "mul", 1, 52_000)
_ADDCMUL = _foreach(
    "PointwiseOpScalarFunctor<float, 3, 3, 0>, std::multiplies", "addcmul", 3, 88_000
)
_SQRT = _foreach("UnaryOpFunctor<float, 2, 1, 1>, at::native::Sqrt", "sqrt", 2, 50_000)
_ADDCDIV = _foreach(
    "PointwiseOpScalarListFunctor<float, 3, 3, 0>, std::divides", "addcdiv", 3, 90_000
)
UNFUSED_ADAM = (_LERP, _LERP, _MUL, _MUL, _ADDCMUL, _ADDCMUL, _SQRT, _SQRT, _ADDCDIV, _ADDCDIV)
"""Adam over lists of tensors, each of them in two kernels."""
JACOBI = Kernel(
    "void jacobi_kernel<32, 32>(float *, const float *, float *, int, int, int, bool)", "",
    256, 256, 32, 26, 0, 0, 1_900_000,
)  # fmt: skip
