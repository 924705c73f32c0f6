"""Kernel names of every NCCL era and of the other back ends."""

import pytest

from traceprof.errors import UsageError
from traceprof.kernel_names import CommunicationPatterns, function_name, user_patterns
from traceprof.kernel_names.titles import kernel_title, readable


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        # NCCL 2.4 to 2.7
        ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "AllReduce"),
        ("ncclAllReduceTreeLL128Kernel_sum_f16(ncclColl)", "AllReduce"),
        ("ncclAllGatherRingKernel_copy_i8(ncclColl)", "AllGather"),
        ("ncclSendRecvKernel_copy_i8(ncclColl)", "SendRecv"),
        # 2.8 to 2.18
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "AllReduce"),
        ("ncclKernel_AllReduce_TREE_LL_Sum___nv_bfloat16(ncclDevComm*, ncclWorkElem)", "AllReduce"),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_half(ncclWorkElem)", "ReduceScatter"),
        ("ncclKernel_Reduce_RING_LL_Sum_int8_t(ncclWorkElem)", "Reduce"),
        (
            "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
            "SendRecv",
        ),
        # 2.19 and later
        (
            "ncclDevKernel_AllReduce_Sum_u64_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4>)",
            "AllReduce",
        ),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "AllGather"),
        ("ncclDevKernel_AllGatherV_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "AllGatherV"),
        ("ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "Broadcast"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "SendRecv"),
        # symmetric memory: 2.27, then 2.28 and later
        ("ncclSymDevKernel_AllReduce_AGxLL_R_sum_f32(ncclSymDevArgs)", "AllReduce"),
        ("ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16(ncclSymkDevWorkArgs)", "AllReduce"),
        ("ncclSymkDevKernel_AllGather_RailRing_LsaSTMC(ncclSymkDevWorkArgs)", "AllGather"),
        # names that hide the operation, and back ends beside NCCL
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "Unknown"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgs)", "Unknown"),
        ("void (anonymous namespace)::oneRankReduce<FuncPreMulSum<float>>(void*)", "AllReduce"),
        ("void c10d::two_shot_all_reduce_kernel<c10::BFloat16, 8>(c10::BFloat16**)", "AllReduce"),
        ("void c10d::symmetric_memory::multimem_all_reduce_kernel<float, 4>(float*)", "AllReduce"),
        ("void multimem_one_shot_all_reduce_kernel<float>(float*)", "AllReduce"),
        ("void vllm::cross_device_reduce_1stage<__half, 8>(vllm::RankData*)", "AllReduce"),
        ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)", "AlltoAll"),
        ("void deep_ep::internode_ll::combine<true, 7168>(void*)", "AlltoAll"),
        ("void company::ep::internode::dispatch<false, 8, true, 8>(int4*, float*)", "AlltoAll"),
        ("void company::ep::internode::cached_notify<false>(int, int)", "AlltoAll"),
        ("void deep_ep::elastic::hybrid_dispatch_impl<8>(void*)", "AlltoAll"),
        ("void deep_ep::elastic::barrier_impl<8>(void*)", "Unknown"),
        ("void mori::moe::EpDispatchIntraNodeKernel<float>(mori::moe::EpDispatchArgs)", "AlltoAll"),
        ("void aiter::cross_device_reduce_2stage_naive<float, 8>(aiter::RankData*)", "AllReduce"),
        ("void aiter::reduce_scatter_cross_device_store<float, 8>(int)", "ReduceScatter"),
        ("void aiter::allgather_vec<float, 8>(int)", "AllGather"),
        (
            "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport()",
            "AllReduce",
        ),
        ("void tensorrt_llm::mnnvl::oneshotAllreduceFusionKernel<4, float>(float*)", "AllReduce"),
        ("void moeA2ADispatchKernel<int>(void*)", "AlltoAll"),
        ("void c10d::nvshmem_extension::allToAllV_2d(void*)", "AlltoAll"),
        ("void mscclpp::collective::allreduceRsAg<float>(float*)", "Unknown"),
        ("void nvshmemi_transfer_put<0>(void*)", "Unknown"),
    ],
)
def test_communication_kernels(name: str, operation: str) -> None:
    assert CommunicationPatterns().operation(name) == operation


@pytest.mark.parametrize(
    "name",
    [
        "ampere_sgemm_128x64_tn",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(float)",
        "void consume<ncclDevKernelArgsStorage<4096ul>>(ncclComm*)",  # only its arguments say nccl
        "void my_nccl_free_kernel(float*)",
        "void dispatch<3>(int)",
        "void moe::combine<3>(int)",
        "triton_poi_fused_all_reduce_wait_tensor_3",  # what is computed with the result
        "void at::native::(anonymous namespace)::cat_array_batched_copy(float*)",
        "",
    ],
)
def test_compute_kernels(name: str) -> None:
    assert CommunicationPatterns().operation(name) is None


def test_no_protocol_or_algorithm_is_read_from_a_name() -> None:
    told = CommunicationPatterns().operation("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(args)")
    assert told == "AllReduce"  # the kernel prints RING_LL whatever ran inside


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
