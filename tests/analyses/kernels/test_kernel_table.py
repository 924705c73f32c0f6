"""The table of kernels: the same numbers as a plain second computation, and edges."""

import random
from pathlib import Path

import pytest

from tests.reference.kernels import kernels_of, table
from tests.support.builders import ALL_REDUCE as NCCL
from tests.support.builders import TraceBuilder
from tests.support.selection import long_after
from tests.support.traces import GPU_SAMPLES, ranks_of
from traceprof.analyses.kernels import kernel_table
from traceprof.analyses.kernels.kernel_table import KernelTable
from traceprof.run.rank import Rank, Window


def assert_agreement(path: Path, window: tuple[int, int] | None = None) -> list[KernelTable]:
    kernels = kernels_of(path)
    tables = []
    with ranks_of(path) as ranks:
        for rank in ranks:
            of_rank = kernels[rank.process, rank.key.device]
            low, high = window or (rank.window.start_ns, rank.window.end_ns + 1)
            measured = kernel_table.run(rank, Window(*window) if window else rank.window)
            tables.append(measured)
            rows = {use.name: (use.count, use.total_ns, use.median_ns) for use in measured.uses}
            assert rows == table(of_rank, low, high)
            communicates = {name: told for *_, name, told in of_rank}
            totals = [use.total_ns for use in measured.uses]
            assert totals == sorted(totals, reverse=True)
            for use in measured.uses:
                assert (str(use.kind.category) == "communication") == communicates[use.name]
            assert_steps_agree(rank, measured, of_rank, (low, high))
    return tables


def assert_steps_agree(
    rank: Rank,
    measured: KernelTable,
    kernels: list[tuple[int, int, str, bool]],
    window: tuple[int, int],
) -> None:
    """Compare the means over steps with those of steps that lie in the window."""
    spans = []
    if rank.steps is not None:
        both = zip(rank.steps.start_ns.tolist(), rank.steps.end_ns.tolist(), strict=True)
        spans = [(start, end) for start, end in both if start >= window[0] and end <= window[1]]
    for use in measured.uses:
        spent = sum(
            end - start
            for start, end, name, _ in kernels
            if name == use.name and spans and spans[0][0] <= start < spans[-1][1]
        )
        assert use.per_step_ns == (spent // len(spans) if spans else None)


def test_names_add_up_whatever_their_grids(tmp_path: Path) -> None:
    builder = TraceBuilder().kernel(0, 10, grid=(1, 1, 1)).kernel(20, 50, grid=(2, 1, 1))
    builder.kernel(60, 65, "relu").kernel(70, 170, NCCL, stream=20)
    (measured,) = assert_agreement(builder.write(tmp_path))
    assert [(use.name, use.count, use.total_ns, use.median_ns) for use in measured.uses] == [
        (NCCL, 1, 100, 100),
        ("gemm", 2, 40, 20),
        ("relu", 1, 5, 5),
    ]


def test_kernels_count_where_they_start(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for start in range(0, 1000, 100):
        builder.kernel(start, start + 150)
    path = builder.write(tmp_path)
    (measured,) = assert_agreement(path, (100, 300))
    assert [(use.count, use.total_ns) for use in measured.uses] == [(2, 300)]
    (measured,) = assert_agreement(path, (101, 200))
    assert measured.uses == ()
    copy = TraceBuilder().memcpy(0, 10).write(tmp_path / "copy.sqlite")
    assert [measured.uses for measured in assert_agreement(copy)] == [()]


def test_per_step_is_the_mean_of_the_steps_in_the_window(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for step in range(4):
        builder.nvtx(f"step {step}", 1000 * step, 1000 * step + 900)
        builder.kernel(1000 * step + 100, 1000 * step + 200 + step)
    path = builder.kernel(5000, 5077).write(tmp_path)
    (measured,) = assert_agreement(path)
    (use,) = measured.uses
    assert (use.count, use.total_ns) == (5, 4 * 100 + 6 + 77)
    assert use.per_step_ns == (4 * 100 + 6) // 4
    (measured,) = assert_agreement(path, (1100, 3100))
    assert [use.per_step_ns for use in measured.uses] == [(100 + 101 + 2) // 2 - 0]


@pytest.mark.slow
@pytest.mark.parametrize("seed", long_after(1, range(6)))
def test_generated_exports_agree_with_the_reference(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    builder = TraceBuilder()
    for _ in range(400):
        start = chance.randrange(5000)
        name = chance.choice(["gemm", "relu", NCCL, "softmax", "a", "b"])
        builder.kernel(
            start, start + chance.randrange(60), name, launch=False,
            pid=chance.choice([1, 2]), device=chance.choice([0, 1]),
        )  # fmt: skip
    path = builder.shuffled(seed).write(tmp_path)
    assert sum(len(measured.uses) for measured in assert_agreement(path)) == 4 * 6
    first, last = sorted(chance.randrange(5100) for _ in range(2))
    assert_agreement(path, (first, last))


@pytest.mark.parametrize("sample", GPU_SAMPLES, ids=lambda path: path.stem)
def test_samples_agree_with_the_reference(sample: Path) -> None:
    assert all(measured.uses for measured in assert_agreement(sample))


def test_real_exports_agree_with_the_reference(real_trace: Path) -> None:
    with ranks_of(real_trace) as ranks:
        windows = [rank.window for rank in ranks]
    assert_agreement(real_trace)
    for window in windows[:1]:
        third = window.length_ns // 3
        assert_agreement(real_trace, (window.start_ns + third, window.end_ns - third))


PYTORCH = (
    "h100x2_torchrun_nccl_on_compute_stream", "small_bwd_3.27.0", "gpt2_result_2_7B_3.16.1",
    "a100_single_4workers_dataloader", "a100_single_dali_amp_bf16", "a100x4_ddp_baseline_rank0",
    "inference_no_mangled_names",
)  # fmt: skip


@pytest.mark.parametrize("name", long_after(2, PYTORCH))
def test_of_pytorch_programs_the_table_knows_nearly_all_the_time(traces: Path, name: str) -> None:
    with ranks_of(traces / f"{name}.sqlite") as ranks:
        uses = kernel_table.run(ranks[0], ranks[0].window).uses
    unknown = sum(use.total_ns for use in uses if not use.kind.is_known)
    assert unknown < 0.02 * sum(use.total_ns for use in uses)
