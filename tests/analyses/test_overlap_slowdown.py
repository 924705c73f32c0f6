"""Kernels beside communication against the same kernels alone."""

import json
import random
from pathlib import Path

import pytest

from tests.reference.overlap_slowdown import reference
from tests.support.builders import ALL_REDUCE as NCCL
from tests.support.builders import TraceBuilder
from tests.support.claims import assert_missing
from tests.support.kept_claims import Kept
from tests.support.selection import long_after
from tests.support.traces import GPU_SAMPLES, WITH_DDP, ranks_of
from traceprof.analyses import overlap_slowdown
from traceprof.analyses.kernels.placed_kernels import unit_starts
from traceprof.analyses.overlap_slowdown import OverlapSlowdownResult, slowed_kernels
from traceprof.findings import Finding, NotApplicable, Severity
from traceprof.run.opening import Window
from traceprof.run.steady_steps import steady_steps


def assert_agreement(
    path: Path, window: tuple[int, int] | None = None
) -> list[OverlapSlowdownResult]:
    results = []
    with ranks_of(path) as ranks:
        starts = {rank.process: unit_starts(rank) for rank in ranks if rank.calls is not None}
        units = {key: found.tolist() for key, found in starts.items() if found is not None}
        expected = reference(path, window, units=units)
        assert {(rank.process, rank.device) for rank in ranks} == expected.keys()
        for rank in ranks:
            result = overlap_slowdown.run(rank, Window(*window) if window else rank.window)
            results.append(result)
            other = expected[rank.process, rank.key.device]
            for name in ("num_communication", "num_beside", "num_half", "half_ns",
                         "half_wall_ns", "num_disturbed", "wall_excess_ns", "hidden_ns",
                         "num_sms_taken", "max_sms_taken"):  # fmt: skip
                assert getattr(result, name) == getattr(other, name), name
            for name in ("num_overlapped", "num_alone", "overlapped_ns", "expected_ns",
                         "expected_at_least_ns", "expected_at_most_ns", "noise_ns"):  # fmt: skip
                value = pytest.approx(float(getattr(other, name)), rel=1e-9, abs=1e-3)
                assert getattr(result.comparison, name) == value, name
            rows = {
                (key[0] or "", *map(_grid, (key[1:4], key[4:]))): row
                for key, row in other.signatures.items()
            }
            assert len(result.signatures) == len(rows)
            for found in result.signatures:
                numbers = (found.num_alone, found.num_overlapped, found.mean_alone_ns,
                           found.mean_overlapped_ns, found.excess_ns)  # fmt: skip
                row = rows[found.name, found.grid or (), found.block or ()]
                assert numbers == pytest.approx([float(one) for one in row], rel=1e-9, abs=1e-3)
            assert 0 <= result.wall_excess_ns <= result.window_ns
            assert 0 <= result.matched_fraction <= 1
            assert 0 <= result.coverage <= 1
    return results


def _grid(shape: tuple[int | None, ...]) -> tuple[int, ...]:
    known = [size for size in shape if size is not None]
    return tuple(known) if len(known) == 3 else ()


def judged(path: Path, window: tuple[int, int] | None = None) -> list[Finding | NotApplicable]:
    (result,) = assert_agreement(path, window)
    return overlap_slowdown.findings(result)


def run_of(*, alone: int = 100, beside: int = 150, times: int = 30, gap: int = 0) -> TraceBuilder:
    """Run a kernel `times` times alone, then as often beside one long all-reduce."""
    builder = TraceBuilder()
    time = 0
    for index in range(2 * times):
        length = alone if index < times else beside
        builder.kernel(time, time + length, grid=(8, 1, 1))
        time += length + gap
    return builder.kernel(times * (alone + gap), time, NCCL, stream=20, grid=(24, 1, 1))


def test_kernels_count_in_the_window_that_they_start_in(tmp_path: Path) -> None:
    path = run_of().write(tmp_path)
    (result,) = assert_agreement(path, (1000, 4000))
    assert (result.comparison.num_alone, result.comparison.num_overlapped) == (20, 7)
    # The last one starts at 3900 and reaches beyond the window: its excess lies outside.
    assert result.wall_excess_ns == 6 * 50
    (result,) = assert_agreement(path, (5000, 5000))
    assert (result.num_half, result.window_ns) == (0, 0)
    assert judged(path, (5000, 5000)) == []


def test_no_kernel_gains_by_communication(tmp_path: Path) -> None:
    """Kernels that are shorter beside communication are so by chance: the most is no loss."""
    with ranks_of(run_of(beside=80).write(tmp_path)) as (rank,):
        slowed = slowed_kernels(rank)
        assert slowed.rate.tolist() == pytest.approx([-20 / 80] * 30)
        assert slowed.most.tolist() == [0] * 30


def test_a_kernel_that_never_ran_alone_loses_its_time_beside_communication_at_most(
    tmp_path: Path,
) -> None:
    builder = run_of().kernel(7500, 7600, "other").kernel(7400, 7600, NCCL, stream=20)
    with ranks_of(builder.write(tmp_path)) as (rank,):
        slowed = slowed_kernels(rank)
        known = (slowed.rate[-1], slowed.least[-1], slowed.most[-1], slowed.limit[-1])
        assert known == (0, 0, 1, 1)
        assert (slowed.num_unknown, slowed.most[0]) == (1, pytest.approx(1 / 3))


@pytest.mark.parametrize(("uuid", "num_compared"), [("GPU-1", 29), ("GPU-2", 30)])
def test_other_processes_on_the_same_gpu_disturb(
    tmp_path: Path, uuid: str, num_compared: int
) -> None:
    builder = run_of().kernel(3010, 3020, "infer", pid=2000)
    for pid, name in ((1000, "GPU-1"), (2000, uuid)):
        builder.raw("TARGET_INFO_CUDA_DEVICE", gpuId=0, cudaId=0, pid=pid, uuid=name)
    first, other = assert_agreement(builder.write(tmp_path))
    assert first.comparison.num_overlapped == num_compared
    assert other.num_beside == 0


def steps_of(*kernels: tuple[int, int, bool], num_steps: int = 8) -> TraceBuilder:
    """Run kernels of one name and grid in every step: length, longer by, beside an all-reduce.

    What is longer by something is so in odd steps only, as is the all-reduce beside it.
    """
    builder = TraceBuilder()
    time = 0
    for step in range(num_steps):
        begin = time
        for length, longer, is_beside in kernels:
            odd = step % 2 or not longer
            end = time + length + (longer if odd else 0)
            builder.kernel(time, end, grid=(8, 1, 1))
            if is_beside and odd:
                builder.kernel(time, end, NCCL, stream=20, grid=(24, 1, 1))
            time = end + 10
        builder.nvtx(f"step {step}", begin, time - 5)
    return builder


def test_operations_that_never_ran_alone_may_cost_all_of_their_time_beside(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for number, begin in enumerate(range(0, 8000, 1000)):
        builder.nvtx(f"step {begin}", begin, begin + 990)
        took = 150 if number % 2 else 100
        at = begin + 100
        builder.kernel(at, at + took, "gemm", launch=(begin + 10, begin + 11))
        builder.kernel(at + 150, at + 210, "other", launch=(begin + 12, begin + 13))
        builder.memcpy(at + 210, at + 230, launch=(begin + 14, begin + 15))
        builder.graph(at + 230, at + 260, launch=(begin + 16, begin + 17))
        if number % 2:
            builder.kernel(at, at + 150, NCCL, stream=20, launch=(begin + 18, begin + 19))
        builder.kernel(at + 180, at + 220, NCCL, stream=20, launch=(begin + 20, begin + 21))
        builder.kernel(at + 240, at + 255, NCCL, stream=20, launch=(begin + 22, begin + 23))
    with ranks_of(builder.write(tmp_path)) as (rank,):
        result = overlap_slowdown.run(rank, rank.window)
        steps = steady_steps(rank, rank.window)
    # Known: 50 in every second step. Not known: 30 of `other`, 10 of the copy, 15 of the graph.
    odd = (steps.start_ns // 1000 % 2).mean()
    assert result.per_step_at_most_ns == pytest.approx(50 * odd + 30 + 10 + 15, abs=1)


def test_without_steps_nothing_ran_alone_at_the_same_place(tmp_path: Path) -> None:
    """Kernels of one name may then do other work: all of their time beside counts, not a third.

    Each kernel is a period, and half of them are beside.
    """
    with ranks_of(run_of().write(tmp_path)) as (rank,):
        result = overlap_slowdown.run(rank, rank.window)
    assert result.per_step_at_most_ns == pytest.approx(150 / 2, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("seed", long_after(2, range(12)))
def test_generated_exports_agree_with_the_reference(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    builder = TraceBuilder()
    for _ in range(600):
        start = chance.randrange(4000)
        where = {"pid": chance.choice([1, 2]), "device": chance.choice([0, 0, 1])}
        kind = chance.choice(["kernel"] * 8 + ["nccl", "nccl", "peer", "graph", "copy"])
        longest = 150 if kind == "nccl" else 15
        end = start + chance.choice([0, 1, 5, chance.randrange(longest)])
        if kind in ("kernel", "nccl"):
            name = NCCL if kind == "nccl" else chance.choice(["gemm", "relu"])
            grid = (chance.choice([1, 2]), 1, 1)
            builder.kernel(start, end, name, grid=grid, launch=False, **where)  # type: ignore[arg-type]
        elif kind == "graph":
            builder.graph(start, end, **where)  # type: ignore[arg-type]
        else:
            builder.memcpy(start, end, "PtoP" if kind == "peer" else "HtoD", **where)  # type: ignore[arg-type]
    path = builder.shuffled(seed).write(tmp_path)
    assert sum(answer.comparison.num_overlapped for answer in assert_agreement(path)) > 20
    first, last = sorted(chance.randrange(4100) for _ in range(2))
    assert_agreement(path, (first, last))


_SAMPLES = sorted(GPU_SAMPLES, key=lambda path: path.stem not in {"ddp", "overlap-slowdown"})


@pytest.mark.all_samples
@pytest.mark.parametrize("sample", long_after(2, _SAMPLES), ids=lambda path: path.stem)
def test_samples_agree_with_the_reference_and_cost_what_the_model_says(sample: Path) -> None:
    truth = json.loads(sample.with_suffix(".truth.json").read_text())
    model_ns = {
        finding["rank"]: finding["metrics"]["model_excess_ns"]
        for finding in truth.get("findings", [])
        if finding["id"] == "overlap-slowdown"
    }
    for number, result in enumerate(assert_agreement(sample)):
        found = [
            finding
            for finding in overlap_slowdown.findings(result)
            if isinstance(finding, Finding) and finding.severity > Severity.INFO
        ]
        assert bool(found) == (number in model_ns)
        if found:  # medians of jittering durations differ from the model's by chance
            chance_ns = 3 * result.comparison.noise_ns
            assert found[0].impact_ns <= 1.001 * model_ns[number] + chance_ns


def test_real_exports_agree_with_the_reference(real_trace: Path) -> None:
    results = assert_agreement(real_trace)
    assert any(result.num_half for result in results) or real_trace.stem not in WITH_DDP
    for result in results:
        if result.num_half:
            with ranks_of(real_trace) as ranks:
                start = ranks[0].window.start_ns
            assert_agreement(real_trace, (start + 10**8, start + 4 * 10**8))


def in_twos() -> TraceBuilder:
    builder = run_of()
    for index in range(30):
        builder.kernel(3000 + 150 * index, 3150 + 150 * index, grid=(8, 1, 1), stream=8)
    return builder


def beside_peer_copies() -> TraceBuilder:
    """During little more than half of each kernel: overlap gains less than it costs."""
    builder = TraceBuilder()
    for index in range(30):
        builder.kernel(1000 * index, 1000 * index + 100)
    for index in range(30, 60):
        builder.kernel(1000 * index, 1000 * index + 900)
        builder.memcpy(1000 * index + 50, 1000 * index + 510, "PtoP")
    return builder


def without_grids() -> TraceBuilder:
    builder = run_of()
    for column in ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"):
        builder.without("CUPTI_ACTIVITY_KIND_KERNEL", column)
    return builder


def without_length() -> TraceBuilder:
    """Nothing can communicate during no time."""
    builder = TraceBuilder().kernel(5, 50, NCCL, stream=20)
    for start in (0, 0, 1, 10, 60):
        builder.kernel(start, start)
    return builder


def of_two_kinds() -> TraceBuilder:
    """One name and grid: 100 ns mostly, and 10 µs now and then, wherever it runs."""
    chance, builder = random.Random(5), TraceBuilder()
    for index in range(400):
        length = 100 if chance.random() < 0.9 else 10_000
        builder.kernel(20_000 * index, 20_000 * index + length)
        if index % 4 == 0:
            builder.kernel(20_000 * index, 20_000 * index + length, NCCL, stream=20)
    return builder


def with_an_unsure_mean() -> TraceBuilder:
    """Three of thirty alone take ten times as long: their mean is twice the median."""
    builder, time = TraceBuilder(), 0
    for length in [*[1000, *[100] * 9] * 3, *[200] * 30]:
        builder.kernel(time, time + length, grid=(8, 1, 1))
        time += length
    return builder.kernel(time - 30 * 200, time, NCCL, stream=20)


PROGRAMS = {
    "slower by half": run_of(),
    "a tax of more than a quarter is smaller than the gain": run_of(beside=190, times=20),
    # Kernels that take three times as long cost twice what communication they can hide.
    "a tax that nearly is the gain": run_of(beside=300, times=20),
    "a tax that is larger": beside_peer_copies(),
    "too little": run_of(beside=103),
    "a little": run_of(beside=108),
    "too few": run_of(times=19),
    "too little of their time": run_of(beside=100)
    .kernel(10_000, 40_000, NCCL)
    .kernel(10_000, 40_000, "relu"),
    "beside other compute": in_twos(),
    "without grids": without_grids(),
    "without length": without_length(),
    "hardly any length": without_length().kernel(12, 15).kernel(13, 13, stream=8),
    "whole graphs, which are not judged": run_of(times=31).graph(7700, 7720).graph(9000, 9100),
    # Each step: one of 100 ns alone, and in odd steps of 150 ns beside communication; one of 300 ns
    # that always is beside: that may be other work.
    "other places": steps_of((100, 50, True), (300, 0, True)),
    "what chance explains": of_two_kinds(),
    "an unsure mean": with_an_unsure_mean(),
    # Each step: two of 100 ns alone, then one of 178 ns that always is beside communication.
    "never alone at its place": steps_of(
        (100, 0, False), (100, 0, False), (178, 0, True), num_steps=90
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, tmp_path: Path, kept: Kept) -> None:
    (result,) = assert_agreement(PROGRAMS[name].write(tmp_path))
    kept([result.comparison, result.assumed, *overlap_slowdown.findings(result)])


def test_too_few_at_the_same_place_of_a_real_step_are_not_judged(traces: Path) -> None:
    # By signature alone 357 could be compared; only 17 of them ran alone at their place.
    missing = judged(traces / "a100x4_ddp_bucketcap100mb_2021.sqlite")
    assert_missing(missing, "17 (2.3 % of their time)", "no_sync()")
