"""Kernel names of many libraries: communication, category, number format and tensor cores."""

import pytest

from tests.support.selection import known
from traceprof.errors import UsageError
from traceprof.kernel_names import (
    CommunicationPatterns,
    function_name,
    kernel_title,
    readable,
    user_patterns,
)
from traceprof.kernel_names.arithmetic import (
    FORMATS,
    GENERATIONS,
    PRECISIONS,
    capability_of_board,
    capability_of_code,
    tensor_cores,
)
from traceprof.kernel_names.categories import (
    MAIN_COMPUTE,
    Category,
    KernelKind,
    forget_names,
    is_main_compute,
    kernel_kind,
)

COMMUNICATION = """
# NCCL 2.4 to 2.7
AllReduce     ncclAllReduceRingLLKernel_sum_f32(ncclColl)
AllReduce     ncclAllReduceTreeLL128Kernel_sum_f16(ncclColl)
AllGather     ncclAllGatherRingKernel_copy_i8(ncclColl)
SendRecv      ncclSendRecvKernel_copy_i8(ncclColl)
# 2.8 to 2.18
AllReduce     ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)
AllReduce     ncclKernel_AllReduce_TREE_LL_Sum___nv_bfloat16(ncclDevComm*, ncclWorkElem)
ReduceScatter ncclKernel_ReduceScatter_RING_LL_Sum_half(ncclWorkElem)
Reduce        ncclKernel_Reduce_RING_LL_Sum_int8_t(ncclWorkElem)
SendRecv      ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)
# 2.19 and later
AllReduce     ncclDevKernel_AllReduce_Sum_u64_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4>)
AllGather     ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)
AllGatherV    ncclDevKernel_AllGatherV_RING_LL(ncclDevKernelArgsStorage<4096ul>)
Broadcast     ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)
SendRecv      ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)
# symmetric memory: 2.27, then 2.28 and later
AllReduce     ncclSymDevKernel_AllReduce_AGxLL_R_sum_f32(ncclSymDevArgs)
AllReduce     ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16(ncclSymkDevWorkArgs)
AllGather     ncclSymkDevKernel_AllGather_RailRing_LsaSTMC(ncclSymkDevWorkArgs)
# names that hide the operation, and back ends beside NCCL
Unknown       ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)
Unknown       ncclDevKernel_Generic_4(ncclDevKernelArgs)
AllReduce     void (anonymous namespace)::oneRankReduce<FuncPreMulSum<float>>(void*)
AllReduce     void c10d::two_shot_all_reduce_kernel<c10::BFloat16, 8>(c10::BFloat16**)
AllReduce     void c10d::symmetric_memory::multimem_all_reduce_kernel<float, 4>(float*)
AllReduce     void multimem_one_shot_all_reduce_kernel<float>(float*)
AllReduce     void vllm::cross_device_reduce_1stage<__half, 8>(vllm::RankData*)
AlltoAll      void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)
AlltoAll      void deep_ep::internode_ll::combine<true, 7168>(void*)
AlltoAll      void company::ep::internode::dispatch<false, 8, true, 8>(int4*, float*)
AlltoAll      void company::ep::internode::cached_notify<false>(int, int)
AlltoAll      void deep_ep::elastic::hybrid_dispatch_impl<8>(void*)
Unknown       void deep_ep::elastic::barrier_impl<8>(void*)
AlltoAll      void mori::moe::EpDispatchIntraNodeKernel<float>(mori::moe::EpDispatchArgs)
AllReduce     void aiter::cross_device_reduce_2stage_naive<float, 8>(aiter::RankData*)
ReduceScatter void aiter::reduce_scatter_cross_device_store<float, 8>(int)
AllGather     void aiter::allgather_vec<float, 8>(int)
AllReduce     void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport()
AllReduce     void tensorrt_llm::mnnvl::oneshotAllreduceFusionKernel<4, float>(float*)
AlltoAll      void moeA2ADispatchKernel<int>(void*)
AlltoAll      void c10d::nvshmem_extension::allToAllV_2d(void*)
Unknown       void mscclpp::collective::allreduceRsAg<float>(float*)
Unknown       void nvshmemi_transfer_put<0>(void*)
# compute: only arguments say nccl, or it computes with the result
-             ampere_sgemm_128x64_tn
-             void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(float)
-             void consume<ncclDevKernelArgsStorage<4096ul>>(ncclComm*)
-             void my_nccl_free_kernel(float*)
-             void dispatch<3>(int)
-             void moe::combine<3>(int)
-             triton_poi_fused_all_reduce_wait_tensor_3
-             void at::native::(anonymous namespace)::cat_array_batched_copy(float*)
"""


@pytest.mark.parametrize(
    "row", [row for row in COMMUNICATION.splitlines() if row[:1] not in {"", "#"}]
)
def test_communication_kernels(row: str) -> None:
    operation, name = row.split(maxsplit=1)
    assert (CommunicationPatterns().operation(name) or "-") == operation


def test_patterns_of_the_user_come_first() -> None:
    patterns = CommunicationPatterns(user_patterns(["mine::.*=AllToAll", "other_comm"]))
    assert patterns.operation("void mine::exchange<3>(float*)") == "AllToAll"
    assert patterns.operation("other_comm(int)") == "Unknown"
    assert patterns.operation("other_comm_not(int)") is None
    assert patterns.operation("ncclDevKernel_SendRecv(x)") == "SendRecv"


def test_a_pattern_that_is_no_expression() -> None:
    with pytest.raises(UsageError, match="not a regular expression"):
        user_patterns(["(unclosed"])


_LAMBDA = (
    "at::native::sqrt_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}::operator()() const::"
    "{lambda(float)#1}"
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("void at::native::kernel<4, Add<float>>(int, Add<float>)", "at::native::kernel"),
        ("at::native::<unnamed>::layer_norm<float>(int)", "at::native::{unnamed}::layer_norm"),
        ("std::enable_if<true, void>::type foo<3>(int)", "foo"),
        # Comparisons in template arguments, and what follows a comparison.
        ("std::enable_if<(((8)>(0)))&&a::b<c>::d, void>::type e::f<c, 8>(c*)", "e::f"),
        ("void f<(bool)(1<2), g<3>>(int)", "f"),
        ("void f<(bool)(2>1)>(int)", "f"),
        ("void (anonymous namespace)::f<int>(int)", "{unnamed}::f"),
        # Kernels of lambdas name the lambda's operator() in template arguments and parameters.
        (f"void a::elementwise_kernel<4, {_LAMBDA}>(int, {_LAMBDA})", "a::elementwise_kernel"),
        ("gemm", "gemm"),
        ("void broken<(int)", "broken<"),
    ],
)
def test_function_names(name: str, expected: str) -> None:
    assert function_name(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bLi64EEvPT0_", "aiter::add_rmsnorm_quant_kernel"),
        ("_ZN2ck12_GLOBAL__N_111kernel_gemmIfEEvT_", "ck::{unnamed}::kernel_gemm"),
        ("_Z6matmulPfi", "matmul"),
        ("_Z", "_Z"),
        ("_ZTS", "_ZTS"),
        ("at::native::kernel", "at::native::kernel"),
    ],
)
def test_mangled_names_are_read(name: str, expected: str) -> None:
    assert readable(name) == expected
    assert kernel_title(name) == expected


@pytest.mark.parametrize(
    ("name", "detail"),
    [
        (
            "void at::native::reduce_kernel<512, 1, at::native::MeanOps<float, float>>(int)",
            "MeanOps",
        ),
        (
            "void a::vectorized_elementwise_kernel<4, gpu_kernel<leaky_relu_kernel(int)>>()",
            "leaky_relu_kernel",
        ),
        ("void at::native::elementwise_kernel<4, at::native::BinaryFunctor<float>>(int)", ""),
        ("void a::gemm<at::native::MulFunctor<float>>(int)", ""),
    ],
)
def test_titles_say_what_kernels_of_many_uses_compute(name: str, detail: str) -> None:
    assert kernel_title(name).partition(": ")[2] == detail


TABLE = """
# category    format       tensor cores and name; ? is unknown
# cuBLAS, by age
matmul        fp32         no  volta_sgemm_64x64_nn
matmul        fp32         no  sgemm_32x32x32_NN_vec
matmul        fp32         no  void magma_sgemmEx_kernel<float, float, float, false, true>(int, int)
matmul        fp64         no  volta_dgemm_64x64_nn
matmul        complex-fp32 no  volta_gcgemm_32x32_nt
matmul        fp16         yes volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn
matmul        fp16         yes volta_h884gemm_128x64_ldg8_nn
matmul        fp16         yes turing_fp16_s1688gemm_fp16_128x64_sliced1x2_ldg8_f2f_tn
matmul        bf16         yes ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn
matmul        fp32         no  sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas
matmul        tf32         yes sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4_warpsize2x2x1_tensor16x8x8_execute_kernel_cublas
matmul        bf16         yes sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas
matmul        fp8          yes sm89_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x64_stage4_tensor16x8x32_execute_kernel_cublas
matmul        bf16         yes nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN
matmul        fp16         yes nvjet_sm90_hsh_128x256_64x4_2x1_v_bz_coopA_NNT
matmul        bf16         yes Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT128x160x64_MI16x16x1_SN_LDSB1_AFC1
matmul        fp16         yes Cijk_Ailk_Bljk_HHS_BH_MT64x64x32_MI32x32x8x1_SN_1LDSB0
matmul        ?            ?   Cijk_Ailk_Bljk_SB_MT64x64x16_SN_APM1
convolution   bf16         yes igemm_bwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x256x32_wt32x32x8_ws1x2_wr2x2
matmul        fp32         ?   void splitKreduce_kernel<32, 16, int, float, float, float>(cublasSplitKParams<float>)
matmul        fp32         ?   void gemv2T_kernel_val<int, int, float, float, float, 128, 16, 4, 4, false>(float)
# CUTLASS
matmul        fp32         no  void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nt_align1>(T1::Params)
matmul        tf32         yes void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x256_32x3_nn_align4>(T1::Params)
matmul        fp16         yes void cutlass::Kernel<cutlass_75_tensorop_f16_s1688gemm_f16_256x128_nn_align8>(T1::Params)
matmul        bf16         yes void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_tn_align8>()
convolution   bf16         yes void cutlass_cudnn_infer::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized_bf16_128x128_32x5_nhwc_align8>(T1::Params)
attention     bf16         yes void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::Collective<cutlass::bfloat16_t, float>>>>(T1::Params)
# attention
# The next: three multiplications in TF32
attention     fp32         yes fmha_cutlassF_f32_aligned_64x64_rf_sm80(Kernel<cutlass::arch::Sm80, float>::Params)
attention     fp32         no  fmha_cutlassB_f32_aligned_64x64_k64_sm75(Kernel<cutlass::arch::Sm75, float>::Params)
attention     bf16         yes void pytorch_fmha::fmha_fwd_loop_kernel<FMHA_kernel_traits<256, __nv_bfloat16>, false>()
attention     fp16         yes void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, cutlass::half_t>, false>()
attention     fp16         yes cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x64x64_4x1x1_kernel0
attention     ?            ?   _attn_fwd
attention     ?            ?   void vllm::paged_attention_v1_kernel<unsigned short, 128>(unsigned short*)
# cuDNN
convolution   fp32         no  volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1
convolution   fp16         no  volta_fp16_scudnn_fp16_128x64_relu_medium_nn_v1
convolution   fp16         yes volta_fp16_s884cudnn_fp16_256x128_ldg8_relu_f2f_exp_interior_nhwc2nchw_tn_v1
convolution   fp32         no  void implicit_convolveNd_sgemm<float, (int)3, (int)1024, (bool)1>(int, const T1 *)
convolution   fp16         no  void convolveNd_dgrad_float_engine<__half, (int)3, (int)512>(int, const T1 *, float)
convolution   tf32         yes void xmma_cudnn::gemm::kernel<xmma_cudnn::implicit_gemm::wgrad_indexed::Kernel_traits<xmma_cudnn::Ampere_hmma_tf32_traits<unsigned int, float>, (int)2>>(T1::Params)
convolution   fp16         yes void xmma_cudnn::gemm::kernel<xmma_cudnn::implicit_gemm::fprop_indexed::Kernel_traits<xmma_cudnn::Ampere_hmma_fp32_traits, (int)2>>(T1::Params)
elementwise   fp32         no  void cudnn::ops::nchwToNhwcKernel<float, float, float, (bool)0>(const T1 *, T2 *)
normalization fp32         no  void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(float)
# PyTorch
elementwise   fp32         no  void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3> >(int, at::native::CUDAFunctor_add<float>)
elementwise   bf16         no  void at::native::elementwise_kernel<128, 4, at::native::AddFunctor<c10::BFloat16>>(int)
# The next: two formats
elementwise   ?            no  void at::native::unrolled_elementwise_kernel<MulFunctor<c10::Half, float>>(int)
reduction     fp32         no  void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(T3)
normalization fp32         no  void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)
normalization fp32         no  void (anonymous namespace)::softmax_warp_forward<float, float, float, 6, true>(float*)
optimizer     fp32         no  void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<4>, at::native::FusedAdamMathFunctor<float, 4>, float>(T1)
optimizer     fp32         no  void multi_tensor_apply_kernel<TensorListMetadata<(int)4>, AdamFunctor<float>, float>(int)
elementwise   fp32         no  void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<2>, at::native::BinaryOpScalarFunctor<float, 2, 1, 1>>(T1)
reduction     fp32         no  void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<1>, at::native::LpNormFunctor<float, (at::native::NormType)1, float, 1, 1, 0>>(T1)
# compilers
elementwise   ?            no  triton_poi_fused_add_gelu_3
normalization ?            no  triton_per_fused_native_layer_norm_1
reduction     ?            no  triton_red_fused_sum_2
matmul        ?            ?   triton_tem_fused_addmm_5
attention     ?            ?   triton_tem_fused_flex_attention_1
reduction     ?            no  input_reduce_fusion_7
elementwise   ?            no  loop_add_fusion_2
# communication
communication bf16         no  ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)
communication fp32         no  ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)
communication ?            no  ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)
# known, and none of these
other         fp32         ?   void dali::kernels::normalize_impl::NormalizeInvStdDevKernel<float>(const T1 *, float)
# nobody's
other         fp32         ?   jacobi_kernel(float*, float const*, float*, int, int, int)
other         ?            ?   compute_tendencies_z_410_gpu
elementwise   ?            no  batched_transpose_32x32_half
elementwise   ?            no  SubTensorOpWithCastTensor1d
other         ?            ?   void thrust::cuda_cub::core::_kernel_agent<x>(int)
other         fp32         ?   void split_embedding_codegen_forward_kernel<float>(int)
# Batched multiplications of TensorRT-LLM: the formats of the product and of both factors
matmul        mxfp8        yes bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1
matmul        nvfp4        yes bmm_Bfloat16_E2m1E2m1_Fp32_t128x8x512_s4
matmul        nvfp4        yes _ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalIN4cute5tupleIJiiiiEEENS1_10collective13CollectiveMmaINS1_42MainloopSm120TmaWarpSpecializedBlockScaledILi2ELi3ENS5_IJNS4_1CILi1EEESB_SB_EEENS1_51KernelTmaWarpSpecializedCooperativeBlockScaledSm120ILi3EEEEENS5_IJNS_12float_e2m1_tENS_13float_ue4m3_tEEEE
matmul        mxfp4        yes void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>, cutlass::gemm::collective::CollectiveMma<cutlass::gemm::MainloopSm100TmaUmmaWarpSpecializedBlockScaled<6, 2>, cute::tuple<cutlass::float_e2m1_t, cutlass::float_ue8m0_t>>>>(int)
matmul        mxfp8        yes void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>, cutlass::gemm::collective::CollectiveMma<cutlass::gemm::MainloopSm103TmaUmmaWarpSpecializedBlockScaled<6, 2>, cute::tuple<cutlass::float_e4m3_t, cutlass::float_ue8m0_t>>>>(int)
matmul        bf16         ?   _matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1
matmul        bf16         yes bmm_Bfloat16_Bfloat16Bfloat16_Fp32_t128x8x128u2
matmul        bf16         yes Custom_Cijk_Alik_Bljk_B_BS_BH_MT256x224x64_MI16x16x1_SN
matmul        bf16         ?   void marlin::Marlin<__nv_bfloat16, 256>(int4 const*)
matmul        ?            ?   _sdd_kernel
attention     ?            ?   void ck_tile::kentry<256, 2, ck_tile::FmhaFwdKernel<X>>(X)
attention     ?            ?   sage_fwd
normalization fp32         no  void cuComputePartGradGammaBeta<float, float, float, false>(long)
normalization ?            no  liger_cross_entropy_kernel
elementwise   ?            no  _geglu_tanh_forward_kernel
elementwise   ?            no  rotary_kernel
elementwise   ?            no  wrapped_transpose
elementwise   ?            no  input_concatenate_fusion_2
# Known, and of no other category: no chain of PyTorch's own operators is made of them
other         ?            ?   void transformer_engine::(anonymous namespace)::cast_transpose_general_kernel<8>(int)
other         ?            ?   void transformer_engine::gated_kernels::cast_fp8_gated_kernel<true>(int)
other         bf16         ?   void kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 2>(int)
other         ?            ?   void selective_scan_fwd_kernel<X>(SSMParamsBase)
other         ?            ?   _chunk_scan_fwd_kernel
other         fp32         ?   void cublasLt::epilogue::impl::globalKernel<8, float>(int)
other         fp32         ?   void epilogue::impl::globalKernel<8, float>(int)
other         ?            ?   void vllm::reshape_and_cache_flash_kernel<X>(int)
other         ?            ?   __amd_rocclr_fillBufferAligned
# Any category: PyTorch 2.0 to 2.3 names Inductor's kernels by their arguments
other         ?            ?   triton__0d1d2de3de
other         ?            ?   triton__0d1d2d3d4d5d6d78d9d
"""  # noqa: E501 - names are long
_UNITS = {"yes": True, "no": False, "?": None}


def _named(row: str) -> tuple[str, tuple[str, str | None, bool | None]]:
    category, precision, unit, name = row.split(maxsplit=3)
    return name, (category, None if precision == "?" else precision, _UNITS[unit])


_ROWS = [row for row in TABLE.splitlines() if row[:1] not in {"", "#"}]
NAMES = {**dict(map(_named, _ROWS)), "": ("other", None, None)}


@pytest.mark.parametrize("name", NAMES)
def test_kinds(name: str) -> None:
    kind = kernel_kind(name)
    assert (str(kind.category), kind.precision, kind.tensor_cores) == NAMES[name]


@pytest.mark.parametrize(
    "name",
    [
        "triton__0d1d2de3de", "triton__0d1d2c",  # known, though these show no category
        "my_kernel", "convertTensor", "scanner", "reformat", "gemma_decode", "triton__all_to_all",
        f"triton__{'1' * 99}_",  # in no time
    ],
)  # fmt: skip
def test_names_that_only_look_alike_are_unknown(name: str) -> None:
    is_known = name.startswith("triton__0d1d2")
    assert kernel_kind(name) == KernelKind(Category.OTHER, None, None, is_known)


def test_main_compute_is_matmul_attention_and_convolution() -> None:
    assert {str(category) for category in MAIN_COMPUTE} == {"matmul", "attention", "convolution"}
    for name, (category, _, _) in NAMES.items():
        assert is_main_compute(name) == (category in {"matmul", "attention", "convolution"})


def test_the_users_patterns_decide_what_communicates() -> None:
    assert kernel_kind("my_allreduce", communicates=True).category is Category.COMMUNICATION
    kind = kernel_kind("ncclDevKernel_SendRecv(int)", communicates=False)
    assert kind.category is Category.OTHER


def test_formats_are_those_of_the_documents() -> None:
    assert {precision for precision, _ in FORMATS} <= set(PRECISIONS)


def test_each_name_is_read_once_however_many_there_are() -> None:
    names = [f"void kernel_{number}<float>(int)" for number in range(5000)]
    before = function_name.cache_info().misses
    for _ in range(3):
        for name in names:
            kernel_kind(name)
    assert function_name.cache_info().misses - before == len(names)
    forget_names()
    assert function_name.cache_info().currsize >= len(names)


def test_very_many_names_are_forgotten_with_their_report() -> None:
    for number in range(20_000):
        function_name(f"other_{number}")
    forget_names()
    assert function_name.cache_info().currsize == 0


@pytest.mark.parametrize(
    ("gpu", "capability"),
    [
        ("NVIDIA A100-SXM4-40GB", (8, 0)), ("NVIDIA A10G", (8, 6)), ("NVIDIA A10", (8, 6)),
        ("NVIDIA H100 80GB HBM3", (9, 0)), ("NVIDIA GH200 480GB", (9, 0)),
        ("NVIDIA GB200", (10, 0)), ("NVIDIA L40S", (8, 9)),
        ("NVIDIA RTX 6000 Ada Generation", (8, 9)), ("NVIDIA GeForce RTX 4070 SUPER", (8, 9)),
        ("NVIDIA GeForce RTX 5090", (12, 0)), ("NVIDIA GeForce RTX 2070 SUPER", (7, 5)),
        ("TITAN RTX", (7, 5)), ("Quadro RTX 6000", (7, 5)), ("Tesla T4", (7, 5)),
        ("Tesla V100-PCIE-32GB", (7, 0)), ("Tesla P100-PCIE-16GB", (6, 0)),
        ("AMD Instinct MI300X", None), ("", None), (None, None),
    ],
)  # fmt: skip
def test_boards(gpu: str | None, capability: tuple[int, int] | None) -> None:
    assert capability_of_board(gpu) == capability


@pytest.mark.parametrize(
    ("names", "capability"),
    [
        (["volta_sgemm_64x64_nn"], (7, 0)),
        (["volta_sgemm_64x64_nn", "ampere_sgemm_128x64_tn"], (8, 0)),
        (["nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN"], (9, 0)),
        (["sm80_xmma_gemm_f32f32_f32f32_f32_tn_n"], (8, 0)),
        (["sm100_xmma_gemm"], (10, 0)),
        (["void cutlass::Kernel<cutlass_75_tensorop_f16_s1688gemm_f16>()"], (7, 5)),
        (["jacobi_kernel", "transformer_sm80", "alarm_sm"], None),
        ([], None),
    ],
)
def test_code_runs_on_no_generation_before_its_own(
    names: list[str], capability: tuple[int, int] | None
) -> None:
    assert capability_of_code(names) == capability


def test_tensor_cores() -> None:
    assert tensor_cores((6, 1)) is None
    assert tensor_cores((7, 5), "NVIDIA GeForce GTX 1660 Ti") is None
    assert tensor_cores((7, 5), "Quadro T2000") is None
    assert tensor_cores((9, 4), "AMD Instinct MI350P") is None  # no capability of CUDA
    assert [*GENERATIONS] == sorted(GENERATIONS)
    for first, name in GENERATIONS.items():
        assert capability_of_board(f"NVIDIA {name}") == first
        cores = known(tensor_cores(first))
        assert cores == tensor_cores(None, name)
        assert (cores.tf32 is not None) == cores.has_bf16 == (first >= (8, 0))
    for capability, first in {(7, 2): (7, 0), (8, 7): (8, 6), (12, 1): (12, 0)}.items():
        assert tensor_cores(capability) == tensor_cores(first)


@pytest.mark.parametrize(
    ("gpu", "tf32", "half"),
    [
        ("NVIDIA A100-SXM4-80GB", 8, 16), ("NVIDIA GeForce RTX 3090", 1, 2),
        ("NVIDIA H20", 1.7, 3.4), ("Tesla T4", None, 8), ("AMD Instinct MI300X VF", 4, 8),
    ],
)  # fmt: skip
def test_rates_of_a_known_board(gpu: str, tf32: float | None, half: float) -> None:
    cores = tensor_cores(None, gpu)
    assert cores is not None
    assert (cores.tf32 or 0, cores.half) == pytest.approx((tf32 or 0, half), rel=0.02)
    assert cores.has_bf16 == (tf32 is not None)
