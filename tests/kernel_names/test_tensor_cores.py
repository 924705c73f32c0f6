"""Which GPUs have tensor cores, by capability, board and the code that ran."""

import pytest

from traceprof.kernel_names.tensor_cores import (
    GENERATIONS,
    capability_of_board,
    capability_of_code,
    tensor_cores,
)


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
    of_generation = {generation.capability: generation.cores for generation in GENERATIONS}
    for capability, first in {(7, 2): (7, 0), (8, 7): (8, 6), (12, 1): (12, 0)}.items():
        assert tensor_cores(capability) == of_generation[first]


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


def test_rates_are_those_of_the_named_board() -> None:
    assert [generation.capability for generation in GENERATIONS] == sorted(
        generation.capability for generation in GENERATIONS
    )
    for generation in GENERATIONS:
        rates = {word: rate for rate, word in _rates(generation.source)}
        cores = generation.cores
        assert cores.half == pytest.approx(rates["FP16"] / rates["FP32"], rel=0.02)
        assert (cores.tf32 is None) == ("TF32" not in rates) == (not cores.has_bf16)
        if cores.tf32 is not None:
            assert cores.tf32 == pytest.approx(rates["TF32"] / rates["FP32"], rel=0.03)


def _rates(source: str) -> list[tuple[float, str]]:
    """Read `BOARD: 19.5 TFLOPS in FP32, 156 in TF32`."""
    parts = source.partition(": ")[2].replace(" TFLOPS", "").split(", ")
    return [(float(part.split(" in ")[0]), part.split(" in ")[1]) for part in parts]
