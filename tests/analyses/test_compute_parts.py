"""What compute consists of: rows add up to the compute of the breakdown, to the nanosecond."""

import random
from pathlib import Path

import pytest

from tests.reference.compute import Kind, compute_of, parts
from tests.support.builders import ALL_REDUCE as NCCL
from tests.support.builders import TraceBuilder
from tests.support.selection import long_after
from tests.support.traces import GPU_SAMPLES, ranks_of
from traceprof.analyses import compute_parts
from traceprof.analyses.compute_parts import ComputeParts
from traceprof.analyses.kernels import launched_kernels
from traceprof.intervals import clip
from traceprof.kernel_names.categories import kernel_kind
from traceprof.run.rank import Window

NAMES = ("ampere_sgemm_128x64_nn", "relu", NCCL, "softmax_warp_forward", "ampere_h16816gemm_nn")


def kind_of(name: str) -> Kind:
    kind = kernel_kind(name, communicates=False)
    return str(kind.category), kind.precision, kind.tensor_cores


def assert_agreement(path: Path, window: tuple[int, int] | None = None) -> list[ComputeParts]:
    """Compare each rank with the reference, and with the compute of the breakdown."""
    work = compute_of(path)
    measured = []
    with ranks_of(path) as ranks:
        for rank in ranks:
            chosen = Window(*window) if window else rank.window
            launched = launched_kernels.run(rank, chosen)
            parts_of_rank = compute_parts.run(rank, chosen, launched)
            measured.append(parts_of_rank)
            compute = clip(rank.compute, chosen.start_ns, chosen.end_ns)
            assert parts_of_rank.total_ns == compute.measure_ns
            rows = {(row.category, row.precision, row.tensor_cores): row.total_ns
                    for row in parts_of_rank.parts if row.total_ns}  # fmt: skip
            span = (chosen.start_ns, chosen.end_ns)
            assert rows == parts(work[rank.process, rank.key.device], span, kind_of)
            num = sum(row.num_kernels or 0 for row in parts_of_rank.parts)
            assert num <= int((~rank.is_communication_kernel).sum())
            if chosen.is_whole:
                assert num == int((~rank.is_communication_kernel).sum())
    return measured


def rows_of(measured: ComputeParts) -> list[tuple[str, str | None, int, int | None]]:
    return [(row.category, row.precision, row.total_ns, row.num_kernels) for row in measured.parts]


def test_of_kernels_at_once_the_one_that_began_first_counts(tmp_path: Path) -> None:
    # matmul  0-------100     200-210
    # relu          90----120         (30 of it alone)
    # NCCL    0--------------------300
    # graph                  205---------230
    builder = TraceBuilder().kernel(0, 100, NAMES[0]).kernel(90, 120, "relu", stream=8)
    builder.kernel(0, 300, NCCL, stream=20).kernel(200, 210, NAMES[0]).graph(205, 230, stream=9)
    (measured,) = assert_agreement(builder.write(tmp_path))
    assert rows_of(measured) == [
        ("matmul", "fp32", 110, 2),
        ("graph", None, 20, None),
        ("other", None, 20, 1),
    ]
    assert [(use.name, use.total_ns, use.num_kernels) for use in measured.largest] == [
        (NAMES[0], 110, 2),
        ("relu", 20, 1),
    ]


@pytest.mark.parametrize("window", [(5, 25), (10, 20), (20, 20), (30, 40), (0, 30)])
def test_kernels_are_cut_by_the_window(tmp_path: Path, window: tuple[int, int]) -> None:
    builder = TraceBuilder().kernel(0, 10).kernel(10, 20, "relu").kernel(20, 20).kernel(20, 30)
    assert_agreement(builder.write(tmp_path), window)


def test_without_compute_there_are_no_rows(tmp_path: Path) -> None:
    builder = TraceBuilder().memcpy(0, 10).kernel(20, 30, NCCL)
    (measured,) = assert_agreement(builder.write(tmp_path))
    assert (measured.parts, measured.largest, measured.total_ns) == ((), (), 0)


def test_kernels_that_began_together_count_alike_in_any_order(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for index, name in enumerate(NAMES):
        builder.kernel(0, 10, name, stream=index + 7).kernel(20, 30 + index, name, stream=index + 7)
    measured = [
        assert_agreement(builder.shuffled(seed).write(tmp_path / f"{seed}.sqlite"))
        for seed in range(3)
    ]
    assert measured[0] == measured[1] == measured[2]


def test_peaks_are_those_of_the_gpu(tmp_path: Path) -> None:
    builder = TraceBuilder().gpu("NVIDIA A100-SXM4-80GB")
    for index, name in enumerate((*NAMES, "sm80_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n")):
        builder.kernel(100 * index, 100 * index + 50, name)
    (measured,) = assert_agreement(builder.write(tmp_path))
    peaks = {(row.precision, row.category): row.peak_flops_per_s for row in measured.parts}
    assert peaks["fp32", "matmul"] == 19.5e12
    assert peaks["fp16", "matmul"] == 312e12
    assert {peak for (_, category), peak in peaks.items() if category != "matmul"} == {None}


@pytest.mark.parametrize("seed", long_after(2, range(4)))
def test_generated_exports_agree_with_the_reference(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    builder = TraceBuilder()
    for _ in range(300):
        start = chance.randrange(3000)
        pid, stream = chance.choice([1, 2]), chance.randrange(7, 11)
        if chance.random() < 0.1:
            end = start + chance.randrange(90)
            builder.graph(start, end, launch=False, pid=pid, stream=stream)
        else:
            name, grid = chance.choice(NAMES), (chance.choice([1, 2]), 1, 1)
            end = start + chance.randrange(60)
            builder.kernel(start, end, name, launch=False, grid=grid, pid=pid, stream=stream)
    path = builder.shuffled(seed).write(tmp_path)
    assert all(measured.parts for measured in assert_agreement(path))
    first, last = sorted(chance.randrange(3100) for _ in range(2))
    assert_agreement(path, (first, last))


@pytest.mark.parametrize("sample", GPU_SAMPLES, ids=lambda path: path.stem)
def test_samples_agree_with_the_reference(sample: Path) -> None:
    assert all(measured.parts for measured in assert_agreement(sample))


def test_real_exports_agree_with_the_reference(real_trace: Path) -> None:
    assert_agreement(real_trace)
