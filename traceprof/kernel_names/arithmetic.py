"""Number formats and tensor cores: of matrix multiplications by kernel name, and of GPUs.

A row states only what the name itself says: a name without a format or a unit has none. The format
is that of the factors; sums are often wider.

The compute capability of a GPU comes from the report, the name of the GPU, or the names of kernels,
which show the lowest one that they run on. A board whose rates are not known has those of the
fastest board of its generation: a number here is a bound for a gain, never a promise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from traceprof.hardware import board
from traceprof.structs import Record

PRECISIONS = (
    *("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4", "mxfp4", "fp4", "int8"),
    *("complex-fp32", "complex-fp64"),
)
FULL_PRECISION, ROUNDED_PRECISION = "fp32", "tf32"


FORMATS: tuple[tuple[str, str], ...] = (
    # CUTLASS include/cutlass/detail/blockwise_scale_layout.hpp: blocks of 16 float_e2m1_t with
    # scales of float_ue4m3_t (nv_float4_t); TensorRT-LLM's bmm_*, where MxE2m1 is MXFP4
    ("nvfp4", r"(?i)nvfp4|nv_float4|e2m1.*ue4m3|^bmm_[a-z0-9]+_E2m1E2m1_"),
    # OCP Microscaling Formats: blocks of 32 with scales of E8M0 (CUTLASS mx_float4_t). Where the
    # other factor is bf16, as in Triton's matmul_ogs, it multiplies in bf16
    ("mxfp4", r"(?i)(?<!bf16x)(?<!fp8x)mxfp4|mx_float4|e2m1.*ue8m0|^bmm_[a-z0-9]+_(?:MxE2m1){2}_"),
    # the same with factors of E4M3 or E5M2 (CUTLASS mx_float8_t), one of them at least
    ("mxfp8", r"(?i)mxfp8|mx_float8|e(?:4m3|5m2)(?!.*ue4m3).*ue8m0|^bmm_[a-z0-9]+_\w*MxE4m3"),
    # CUTLASS float_e2m1_t with unknown scales
    ("fp4", r"(?i)e2m1"),
    # CUTLASS float_e4m3_t; cuBLAS sm89_xmma_gemm_e4m3*, nvjet_qq*; TensorRT-LLM's bmm_*, named by
    # the formats of the product and of both factors
    ("fp8", r"e4m3|e5m2|(?<![a-z0-9])fp8(?![0-9])|^nvjet_(?:sm\d+_)?[qr][qr]|^bmm_\w+E4m3"),
    # cuBLAS and cuDNN: imma is the integer instruction of the tensor cores
    ("int8", r"(?<![a-z])i8i8|_imma_|[_a-z]i(?:8816|16832)(?:gemm|cudnn|fprop)|(?<![a-z])s8_"),
    # cuDNN's xmma: hmma multiplies halves, fp32 or fp16 is what it sums in
    ("fp16", r"_hmma_fp(?:32|16)_traits"),
    # cuBLAS and cuDNN; in CUTLASS 16x8x8 with factors of 32 bits is TF32, from sm_80 on
    (
        "tf32",
        (
            r"tf32|tfloat32|TF32|cutlass_8\d_tensorop_s1688(?:gemm|fprop|dgrad|wgrad)_"
            r"(?!(?:\w+_)?b?f16)"
        ),
    ),
    # cuBLAS, cuDNN, CUTLASS; nvjet_tst; Tensile: factors, product and sums are B, B and S
    (
        "bf16",
        r"(?i)bf16|(?<!^bmm_)bfloat16|^nvjet_(?:sm\d+_)?t[st]|^(?:Custom_)?Cijk_[A-Za-z]+_[A-Za-z]+_B_?BS_",
    ),
    # cuBLAS: cgemm, c1688gemm
    ("complex-fp32", r"(?<![a-z])g?c(?:1688)?gemm|(?<![a-z])cgemv"),
    # cuBLAS: zgemm, z884gemm
    ("complex-fp64", r"(?<![a-z])g?z(?:884)?gemm|(?<![a-z])zgemv"),
    # cuBLAS: dgemm, d884gemm
    ("fp64", r"(?<![a-z])d(?:884|16168)?gemm|d884|(?<![a-z])double(?![a-z])"),
    # cuBLAS volta_fp16_s884gemm_fp16_*, ampere_h16816gemm_*; cuDNN f16f16_f16f32; nvjet_hsh
    (
        "fp16",
        (
            r"(?<![a-z])f(?:p)?16|f16f16|(?<![a-z])h(?:884|1688|16816)|(?<![a-z])hgemm"
            r"|__half|half_t|(?<![A-Za-z])Half|<half|^nvjet_(?:sm\d+_)?h[sh]"
            r"|^(?:Custom_)?Cijk_[A-Za-z]+_[A-Za-z]+_H_?HS_"
        ),
    ),
    # cuBLAS ampere_sgemm_*, cutlass_80_simt_sgemm_*; cuDNN f32f32_f32f32_f32, scudnn
    (
        "fp32",
        r"(?<![a-z])sgemm|(?<![a-z])sgemv|simt_s|(?<![a-z])f32f32_|_f32_|scudnn|(?<![A-Za-z_])float(?![a-z_])",
    ),
)
"""By format, names of matrix multiplications, attention and convolutions, with their libraries.

Searched for in the whole name; the first match counts: the narrowest format of the factors.
"""


UNITS: tuple[tuple[bool | None, str], ...] = (
    # parts of such an operation, or matrix by vector, in which tensor cores do not matter
    (
        None,
        (
            r"(?i)gemv|gemmSN|splitk_?reduce|gemm::split_k_kernel|kernel_helper_stage|dot_do_o|convert_dq"
            r"|combine|winograd_nonfused|im2col|col2im|computeOffsets|compute_gemm_pointers"
        ),
    ),
    # CUTLASS 3: main loops of wgmma (sm_90), tcgen05 (sm_100, sm_103) and mma with block scales
    # (sm_120), which multiply on tensor cores only; FlashAttention 4 in CuTe DSL
    (
        True,
        (
            r"Mainloop(?:Sm(?:90|1[012]\d)\w*(?:Gmma|Umma|WarpSpecialized)|Intermediate\w*Sm1\d\d)"
            r"|SM1[012]\d_(?:MMA|16x8x\d+)|tcgen05|FlashAttention(?:Forward|Backward)Sm\d"
        ),
    ),
    # cuBLAS, cuDNN and CUTLASS: the instruction, or TF32, which nothing else multiplies
    (
        True,
        r"tensorop|_tensor\d+x\d+x\d+|[hi]mma_|wgmma|warpgroupsize|OpClassTensorOp|(?i:tf32|tfloat32)",
    ),
    # cuBLAS, cuDNN and CUTLASS: the shape of the tensor cores' instruction (m8n8k4 and so on)
    (True, r"(?<![a-z])[shidcz](?:884|8816|1688|16816|16832|16864|161616)(?=[a-z])"),
    # cuBLAS and TensorRT-LLM on Hopper and later: 16 bits and fewer are multiplied by tensor cores
    # only
    (True, r"^nvjet_(?:sm\d+_)?(?:t[st]|h[sh]|[qr][qr])|^bmm_[A-Z]\w+_t\d+x\d+"),
    # PyTorch mem_eff_attention/gemm_kernel_utils.h, DefaultGemmType: fp32 from sm_80 on is three
    # TF32 multiplications (OpMultiplyAddFastF32)
    (
        True,
        r"fmha_cutlass[FB]_b?f16_\w*sm(?:7\d|[89]\d|1\d\d)|fmha_cutlass[FB]_f32_\w*sm(?:[89]\d|1\d\d)",
    ),
    # the same: OpClassSimt
    (False, r"fmha_cutlass[FB]_(?:f32_\w*sm(?:5|6|7)\d|f16_\w*sm(?:5|6)\d)"),
    # FlashAttention computes in fp16 and bf16 only, by mma instructions
    (
        True,
        r"flash_(?:fwd|bwd)_(?!dot_do_o|convert|combine)|pytorch_fmha::fmha_(?:fwd|bwd_q)|FlashAttn(?:Fwd|Bwd)Sm",
    ),
    # Tensile (rocBLAS, hipBLASLt): the matrix instruction; MIOpen: xdlops
    (True, r"^(?:Custom_)?Cijk_\w+_MI\d+x\d+x\d|^igemm_[a-z]+_gtcx\d?_"),
    # cuBLAS and cuDNN: one multiplication a thread at a time (FFMA)
    (
        False,
        (
            r"(?<![a-z])[sdh]gemm|(?<![a-z])g?[cz]gemm|_simt_|_ffma_|scudnn_|\w*convolve(?:Nd)?_sgemm"
            r"|convolveNd_(?:dgrad|wgrad)_float_engine|[dw]grad(?:\w*_alg\w+)?_engine|dgrad2d_alg|wgrad2d"
        ),
    ),
)
"""By whether tensor cores multiply, names of the same; the first match in the whole name counts."""

_NUMBER = re.compile(
    r"(?<![A-Za-z_])(double|float|__half2?|half|Half|half_t|__nv_bfloat16|BFloat16|bfloat16_t)(?![A-Za-z_0-9])"
)
_NUMBER_FORMATS = {"double": "fp64", "float": "fp32"}
# NCCL compiles a kernel per reduction and number format, and names it after both; kernels that only
# move bytes are named `int8`.
_REDUCED = re.compile(r"_sum_(bf16|f16|f32|f64|half|float|double)(?![a-z0-9])", re.IGNORECASE)
_REDUCED_FORMATS = {
    "bf16": "bf16",
    "f16": "fp16",
    "half": "fp16",
    "f32": "fp32",
    "float": "fp32",
    "f64": "fp64",
    "double": "fp64",
}


def arithmetic(name: str) -> tuple[str | None, bool | None]:
    """Format of the factors, and whether tensor cores multiply; None if unknown.

    `name`: the whole demangled name of a matrix multiplication, an attention or a convolution.
    """
    precision = next(
        (format_ for format_, expression in FORMATS if re.search(expression, name)), None
    )
    unit = next((unit for unit, expression in UNITS if re.search(expression, name)), None)
    return precision, unit


def reduced_format(name: str) -> str | None:
    """Number format in which a communication kernel reduces; None if unknown."""
    reduced = _REDUCED.search(name)
    return _REDUCED_FORMATS[reduced[1].lower()] if reduced else None


def single_format(name: str) -> str | None:
    """Number format among the types of a name; None for none or several."""
    formats = {
        _NUMBER_FORMATS.get(word, "bf16" if "bf" in word.lower() else "fp16")
        for word in _NUMBER.findall(name)
    }
    return formats.pop() if len(formats) == 1 else None


Capability = tuple[int, int]


class TensorCores(Record, frozen=True):
    """The rates of tensor cores, as multiples of the rate of the same GPU for FP32 without them."""

    tf32: float | None  # for TF32; None if they have no TF32
    half: float  # for FP16, and for BF16 where they have it
    has_bf16: bool  # whether they have it


# The fastest board of each generation, by its first compute capability.
GENERATIONS: dict[Capability, str] = {
    (7, 0): "V100-SXM2",
    (7, 5): "T4",
    (8, 0): "A100",
    (8, 6): "A40",
    (8, 9): "L40S",
    (9, 0): "H100 SXM",
    (10, 0): "B200",
    (12, 0): "RTX PRO 6000",
}

# NVIDIA, "CUDA GPUs": the first matching pattern counts.
_BOARDS: tuple[tuple[str, Capability], ...] = (
    (r"\bG?B[23]00\b", (10, 0)),
    (r"\b(?:GH200|H[12]00|H800|H20)\b", (9, 0)),
    (r"\bRTX 50[5-9]0|\bRTX PRO [2-6]\d00\b", (12, 0)),
    (r"\bGB10\b", (12, 1)),
    (r"\bL(?:4|20|40S?)\b|\bAda\b|\bRTX 40[5-9]0", (8, 9)),
    (r"\b(?:A100|A800|A30)\b", (8, 0)),
    (r"\b(?:A2|A10G?|A16|A40)\b|\bRTX A[2-6]\d00\b|\bRTX 30[5-9]0", (8, 6)),
    (r"\bT4\b|\bRTX 20[6-8]0|\bTITAN RTX\b|\bQuadro RTX\b", (7, 5)),
    (r"\bV100\b|\bTITAN V\b", (7, 0)),
    (r"\bP(?:4|6|40|100)\b|\bGTX 10\d0|\bTITAN Xp?\b", (6, 0)),
)
# TU116 and TU117, of capability 7.5; and of AMD the capability is no CUDA capability.
_WITHOUT = re.compile(r"\bAMD\b|\bGTX 16\d0|\bT(?:400|500|550|600|1000|1200|2000)\b|\bMX4[05]0\b")
# Code for one generation runs on none before it.
_CODE_NAMES: dict[str, Capability] = {
    "volta": (7, 0),
    "turing": (7, 5),
    "ampere": (8, 0),
    "hopper": (9, 0),
    "nvjet": (9, 0),
}
_CODE = re.compile(
    r"(?:\A|[\s<:])(?:(volta|turing|ampere|hopper|nvjet)_|(?:sm|cutlass_)(\d{2,3})_)"
)


def capability_of_board(gpu: str | None) -> Capability | None:
    """Compute capability of a GPU by its name; None for an unknown one."""
    if gpu is None:
        return None
    return next((capability for board, capability in _BOARDS if re.search(board, gpu)), None)


def capability_of_code(kernel_names: Iterable[str]) -> Capability | None:
    """Lowest compute capability that can run all of these kernels, by their names."""
    needed = [
        _CODE_NAMES[match[1]] if match[1] else divmod(int(match[2]), 10)
        for match in map(_CODE.search, kernel_names)
        if match
    ]
    return max(needed, default=None)


def tensor_cores(capability: Capability | None, gpu: str | None = None) -> TensorCores | None:
    """Tensor cores of a GPU; None if it has none or is unknown.

    An unknown capability counts as the one before. Rates of a board known by the name of the `gpu`
    come before those of its generation.
    """
    known = board(gpu)
    if known is None or known.rates is None:
        if capability is None or (gpu is not None and _WITHOUT.search(gpu)):
            return None
        older = [of for first, of in GENERATIONS.items() if first <= capability]
        known = board(older[-1]) if older else None
    if known is None or known.rates is None:
        return None
    rates = known.rates
    tf32 = None if rates.tf32 is None else rates.tf32 / rates.fp32
    half = max(rates.fp16, rates.bf16 or 0) / rates.fp32
    return TensorCores(tf32, half, rates.bf16 is not None)
