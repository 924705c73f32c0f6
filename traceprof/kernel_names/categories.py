"""Kernel categories by name: category, number format, and use of tensor cores.

Names are all that an export has of a kernel's work. Some libraries put much into them, others
nothing: a name that no row matches is `other`, and unknown values are null. Each row says which
libraries use the name; it states only what the name itself says, never a guess.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import cache

from traceprof.kernel_names import CommunicationPatterns, function_name
from traceprof.kernel_names.arithmetic import arithmetic, reduced_format, single_format
from traceprof.structs import Record


class Category(str, Enum):
    """The kind of work that a kernel does."""

    MATMUL = "matmul"
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    NORMALIZATION = "normalization"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    OPTIMIZER = "optimizer"
    COMMUNICATION = "communication"
    OTHER = "other"

    def __str__(self) -> str:
        return self.value


MAIN_COMPUTE = frozenset({Category.MATMUL, Category.ATTENTION, Category.CONVOLUTION})
"""The main work of a training step: the first of these kernels begins the compute."""


class KernelKind(Record, frozen=True):
    """The properties of a kernel that its name shows."""

    category: Category  # the kind of work; `OTHER` also if no row matches the name
    # the number format that it computes in, one of `PRECISIONS`; None if the name has none, or
    # several
    precision: str | None
    # whether it computes on tensor cores; None if the name does not show it
    tensor_cores: bool | None
    is_known: bool  # whether a row matches the name


_GENERIC = re.compile(
    r"multi_tensor_apply_kernel|foreach_tensor|^cutlass|^(?:\w+::)*(?:device_)?[kK]ernel2?$|::kentry$"
)
"""Functions with a generic name, whose template arguments show the work."""


Rows = tuple[tuple[Category, str], ...]

# Generic functions, by the whole name.
_OF_ARGUMENTS: Rows = (
    # PyTorch ATen/native/cuda/fused_*_impl.cu, AmpKernels.cu; NVIDIA apex csrc/multi_tensor_*
    (
        Category.OPTIMIZER,
        r"(?i)(?:adam|sgd|lamb|adagrad|rmsprop|novograd|lion)\w*functor|non_finite_check_and_unscale",
    ),
    # PyTorch ATen/native/cuda/ForeachReduceOp.cu; NVIDIA apex multi_tensor_l2norm_kernel.cu
    (Category.REDUCTION, r"LpNorm|L2Norm"),
    # PyTorch ATen/native/cuda/MultiTensorApply.cuh: torch._foreach_*
    (Category.ELEMENTWISE, r"multi_tensor_apply_kernel|foreach_tensor"),
    # FlashAttention 3 (hopper/flash_fwd_kernel_sm90.h); CUTLASS examples 41, 77 and 88; AMD's
    # ck_tile::kentry<…, FmhaFwdKernel<…>>
    (Category.ATTENTION, r"FlashAttn|[aA]ttention|fmha|Fmha"),
    # CUTLASS include/cutlass/conv; cuDNN's cutlass_cudnn_*
    (Category.CONVOLUTION, r"fprop|dgrad|wgrad|::conv::|Conv2d|Conv3d|ImplicitGemm"),
    # CUTLASS include/cutlass/gemm; cuBLAS's cutlass_80_*gemm_*
    (Category.MATMUL, r"(?i)gemm(?!a)|gemv"),
)
CATEGORIES: Rows = (
    # -- attention
    # FlashAttention 1 and 2; PyTorch mem_eff_attention (fmha_cutlassF/B); cuDNN's
    # cudnn_generated_fort_native_sdpa_*_flash_*
    (
        Category.ATTENTION,
        r"(?:^|::)fmha_|^_?flash_attn|flash_(?:fwd|bwd)_|(?:fwd|bwd)_flash_|_flash_(?:fprop|bprop)_",
    ),
    # vLLM paged_attention_v*_kernel; Triton's _attn_fwd; PyTorch Inductor
    # triton_tem_fused_flex_attention; FlashInfer *With(Paged|Ragged)KVCacheKernel; SageAttention
    (
        Category.ATTENTION,
        r"(?i)attention|(?<![a-z])attn(?![a-z])|(?<![a-z])sdpa(?![a-z])|PagedKV|^sage_fwd",
    ),
    # -- convolutions, before matrix multiplications: many are "implicit GEMM"
    # cuDNN 7 to 9: sm80_xmma_fprop_implicit_gemm_*, xmma_cudnn::, dgrad2d_alg1_1
    (Category.CONVOLUTION, r"fprop|dgrad|wgrad|winograd|implicit_gemm|xmma_cudnn"),
    # cuDNN 7 and 8: volta_scudnn_*, volta_fp16_s884cudnn_*, turing_fp16_s1688cudnn_*
    (Category.CONVOLUTION, r"(?:^|_)(?:[shid]\d*|i8816)cudnn_|(?:^|_)scudnn"),
    # cuDNN implicit_convolve_sgemm; PyTorch ATen/native/cuda/im2col.cuh, DepthwiseConv2d.cu
    (
        Category.CONVOLUTION,
        r"(?i)convol|(?<![a-z])conv(?:[123]d|_depthwise)?(?![a-z])|im2col|col2im|vol2col",
    ),
    # cuDNN: helpers of its convolutions; its FFT algorithms (CUDNN_CONVOLUTION_*_ALGO_FFT)
    (
        Category.CONVOLUTION,
        r"^cudnn::cnn::|cudnn::gemm::|cask_cudnn::|^flip_filter$|^fft[12]d_[cr]2[cr]_\d+",
    ),
    # AMD MIOpen
    (Category.CONVOLUTION, r"^miopen\w*Conv|^igemm_(?:fwd|bwd|wrw)"),
    # -- matrix multiplications
    # cuBLAS 12.6 and later on Hopper and Blackwell: nvjet_tst_*, nvjet_sm90_hss_*
    (Category.MATMUL, r"^nvjet_"),
    # cuBLAS volta_sgemm_*, ampere_*gemm_*, sm80_xmma_gemm_*, gemv2T_kernel_val,
    # splitKreduce_kernel; XLA gemm_fusion_*; DeepGEMM; bitsandbytes kgemm_*
    (Category.MATMUL, r"(?i)gemm(?!a)|gemv|splitk_?reduce"),
    # Triton's matmul_kernel; PyTorch triton_tem_fused_*mm_*; vLLM fused_moe_kernel
    (
        Category.MATMUL,
        r"(?i)(?<![a-z])mat(?:rix)?_?mul|^triton_(?:tem|mm)_\w*mm|^mm_kernel$|^fused_moe_kernel",
    ),
    # AMD Tensile (rocBLAS, hipBLASLt): Cijk_Ailk_Bljk_*
    (Category.MATMUL, r"^(?:Custom_)?Cijk_[A-Z]"),
    # TensorRT-LLM's and FlashInfer's batched multiplications: bmm_E4m3_*; Marlin; MegaBlocks
    (Category.MATMUL, r"^bmm_[A-Z]\w+_t\d+x\d+|(?:^|::)[mM]arlin$|^_(?:sdd|dsd|dds)_kernel$"),
    # -- normalization, softmax among it
    # PyTorch ATen/native/cuda/*norm*.cu, SoftMax.cu; NVIDIA apex, Transformer Engine ln_fwd_*;
    # cuDNN bn_fw_tr_1C11_kernel_NCHW
    (
        Category.NORMALIZATION,
        r"(?i)(?:batch|layer|group|instance|rms|weight)_?norm|soft_?max|(?<![a-z])(?:ln|bn)_(?:fwd|bwd|fw|bw)",
    ),
    # PyTorch ATen/native/cuda/layer_norm_kernel.cu, group_norm_kernel.cu; NVIDIA apex
    # csrc/layer_norm_cuda_kernel.cu; cross entropy of Liger, Unsloth, FlashAttention
    (
        Category.NORMALIZATION,
        (
            r"GammaBeta|RowwiseMoments|ComputeInternalGradients|Compute(?:Backward)?FusedParams|cuComputeGradInput"
            r"|(?i:cross_?entropy)"
        ),
    ),
    # -- optimizers
    # NVIDIA apex and DeepSpeed; bitsandbytes csrc/kernels.cu; PyTorch AmpKernels.cu
    (
        Category.OPTIMIZER,
        (
            r"(?i)(?:fused_?|multi_tensor_)(?:adam|sgd|lamb|adagrad)|adam_cuda|^kOptimizer|^kPreconditionOptimizer"
            r"|amp_update_scale|amp_non_finite"
        ),
    ),
    # -- data pipelines on the GPU
    # NVIDIA DALI: decoding and augmentation of samples
    (Category.OTHER, r"^dali::"),
    # -- reductions
    # PyTorch ATen/native/cuda/Reduce.cuh, NLLLoss2d.cu; CUB; cuBLAS dot
    (
        Category.REDUCTION,
        (
            r"(?:^|::)reduce_kernel$|DeviceReduce|DeviceSegmentedReduce|^reduce_1Block_kernel$|^dot_kernel$"
            r"|nll_loss_(?:forward|backward)_reduce"
        ),
    ),
    # PyTorch Inductor: triton_red_fused_*, triton_per_fused_*; XLA input_reduce_fusion
    (Category.REDUCTION, r"^triton_(?:red|per)_|^input_\w*reduce\w*fusion|lpnorm_cleanup"),
    # -- one element at a time, and copies within the GPU's memory
    # PyTorch ATen/native/cuda/CUDALoops.cuh, Shape.cu, Dropout.cu, IndexKernel.cu
    (
        Category.ELEMENTWISE,
        (
            r"elementwise_kernel|elementwise_grid_stride_kernel|CatArrayBatchedCopy|fused_dropout_kernel"
            r"|masked_scale_kernel|vectorized_gather_kernel"
        ),
    ),
    # cuDNN: changes of layout around its convolutions
    (
        Category.ELEMENTWISE,
        r"(?i)nchwToNhwc|nhwcToNchw|cudnn::ops::(?:convertTensor|setTensor|scaleTensor|addTensor)\w*",
    ),
    # MIOpen src/kernels: changes of layout around its convolutions, MIOpenSubTensorOp*
    (Category.ELEMENTWISE, r"^batched_transpose_\d|^SubTensorOpWith|^transpose_[A-Z]+2[A-Z]+_"),
    # PyTorch Inductor: triton_poi_fused_*; XLA loop_*_fusion; TensorFlow's Eigen
    (
        Category.ELEMENTWISE,
        r"^triton_poi_|^triton_for_|^loop_\w*fusion|^EigenMetaKernel$|Eigen::internal::EigenMetaKernel",
    ),
    # XLA: fusions of one operation, and of what changes the layout
    (
        Category.ELEMENTWISE,
        (
            r"^(?:input_)?(?:transpose|concatenate|slice)\w*fusion"
            r"|^wrapped_(?:convert|transpose|broadcast|slice|concatenate|copy|add|multiply)(?:_\d+)?$"
        ),
    ),
    # CuPy _core/_kernel.pyx: cupy_NAME__TYPES
    (
        Category.ELEMENTWISE,
        r"^cupy_(?:fill|copy|equal|not_equal|add|subtract|multiply|true_divide|power|sqrt|exp)(?:_|$)",
    ),
    # vLLM csrc/activation_kernels.cu, pos_encoding_kernels.cu; Transformer Engine; Liger;
    # FlashAttention's rotary_kernel
    (
        Category.ELEMENTWISE,
        r"(?i)(?<![a-z])(?:gelu|silu|swiglu|geglu|act_and_mul|rotary(?:_embedding|_kernel)|rope)(?![a-z])",
    ),
    # -- known kernels of other categories
    # CUB; PyTorch DilatedMaxPool2d.cu, Indexing.cu; cuRAND
    (
        Category.OTHER,
        (
            r"RadixSort|DeviceScan|_pool_|[Pp]ool(?:ing)?[123]?d?_|index\w*_backward_kernel|embedding_backward"
            r"|distribution_\w+kernel|generate_seed_pseudo|gen_sequenced"
        ),
    ),
    # Thrust and CUB; FBGEMM's embedding tables and permutations
    (
        Category.OTHER,
        (
            r"^(?:thrust|cub)::|^split_embedding_|^permute_pooled_embs|^linearize_index|^bounds_check_ind"
            r"|^recat_copy|^fbgemm"
        ),
    ),
    # bitsandbytes, TensorRT-LLM, vLLM and Transformer Engine: changes of number formats
    (
        Category.OTHER,
        r"(?i)quanti[sz]e|(?:^|_|::)(?:scaled_fp8|per_token_group)_quant|transformer_engine::.*(?:cast|act_kernel|unary_|padding|transpose)",
    ),
    # Mamba: state space models
    (
        Category.OTHER,
        r"^selective_scan_|^_chunk_(?:scan|state|cumsum)_|^_bmm_chunk_|^_state_passing_",
    ),
    # Mixtures of experts in TensorRT-LLM, MegaBlocks and Transformer Engine; caches of keys and
    # values in vLLM and SGLang
    (
        Category.OTHER,
        r"^moe::dev::|::reshape_and_cache|::store_kvcache|^_padded_(?:gather|scatter|copy)|^_(?:un)?permute_kernel$",
    ),
    # torchvision; MIOpen; ROCm's fills and copies by kernels; cuDNN; cuBLAS
    (
        Category.OTHER,
        (
            r"^vision::ops::|^MIOpenPool|^Op(?:\dd)?Tensor|^__amd_rocclr_|^op_generic_tensor_kernel$|(?:^|_)(?:scal|axpy)_kernel"
            r"|(?:^|::)epilogue::impl::"
        ),
    ),
    # PyTorch Inductor 2.0 to 2.3: kernels of any category, named by their arguments only:
    # triton__0d1d2de3de
    (Category.OTHER, r"^triton__\d[\dcde]*$"),
    # PyTorch ATen: the rest of its own kernels
    (Category.OTHER, r"^at::(?:native|cuda)::"),
)
"""By category, names of functions, with the libraries that use them; the first match counts."""


# Categories whose kernels multiply no matrices: the category is enough.
_WITHOUT_MATRICES = frozenset(
    {
        Category.NORMALIZATION,
        Category.ELEMENTWISE,
        Category.REDUCTION,
        Category.OPTIMIZER,
        Category.COMMUNICATION,
    }
)
_COMMUNICATION = CommunicationPatterns()
_MANY_NAMES = 1 << 14


def kernel_kind(demangled_name: str, *, communicates: bool | None = None) -> KernelKind:
    """Properties of a kernel that its name shows.

    `demangled_name` has the template arguments and parameters that the export has. `communicates`
    is the decision of the user's own patterns; None for the built-in ones.
    """
    if communicates is None:
        communicates = _COMMUNICATION.operation(demangled_name) is not None
    if communicates:
        precision = reduced_format(demangled_name)
        return KernelKind(Category.COMMUNICATION, precision, tensor_cores=False, is_known=True)
    return _compute_kind(demangled_name)


def forget_names() -> None:
    """Forget all kernels' names if there are very many, as when a report is closed.

    A report with one name more than a cache limit would find none of them in its next pass.
    """
    if function_name.cache_info().currsize > _MANY_NAMES:
        function_name.cache_clear()
        _compute_kind.cache_clear()


def is_main_compute(demangled_name: str) -> bool:
    """Whether a kernel is a matrix multiplication, attention or convolution, by name."""
    return _compute_kind(demangled_name).category in MAIN_COMPUTE


def updates_parameters(demangled_name: str) -> bool:
    """Whether a kernel is an optimizer's, by name, or one on lists of tensors, as these use."""
    kind = _compute_kind(demangled_name)
    return kind.category is Category.OPTIMIZER or "multi_tensor_apply" in demangled_name


@cache  # until `forget_names`
def _compute_kind(name: str) -> KernelKind:
    function = function_name(name)
    rows = [(of, function) for of in CATEGORIES]
    if _GENERIC.search(function):
        rows = [*((of, name) for of in _OF_ARGUMENTS), *rows]
    categories = (of for (of, expression), text in rows if re.search(expression, text))
    category = next(categories, None)
    if category is None:
        return KernelKind(Category.OTHER, single_format(name), None, is_known=False)
    if category not in MAIN_COMPUTE:
        never = False if category in _WITHOUT_MATRICES else None
        return KernelKind(category, single_format(name), never, is_known=True)
    precision, tensor_cores = arithmetic(name)
    return KernelKind(category, precision, tensor_cores, is_known=True)
