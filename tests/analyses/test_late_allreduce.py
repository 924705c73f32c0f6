"""Gradients that are reduced when the backward is over."""

import random
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from tests.reference.late_allreduce import moved_ns, reference
from tests.support.builders import ALL_REDUCE as NCCL
from tests.support.builders import TraceBuilder
from tests.support.kept_claims import Kept
from tests.support.selection import long_after
from tests.support.traces import GPU_SAMPLES, SAMPLE_FOLDER, WITH_DDP, ranks_of
from traceprof.analyses import late_allreduce
from traceprof.analyses.late_allreduce import LateAllReduceResult
from traceprof.analysis import Options, analyze
from traceprof.run.opening import Window

SCATTER = "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def assert_agreement(
    path: Path, window: tuple[int, int] | None = None
) -> list[LateAllReduceResult]:
    expected = reference(path, window)
    results = []
    with ranks_of(path) as ranks:
        assert {(rank.process, rank.device) for rank in ranks} == expected.keys()
        for rank in ranks:
            result = late_allreduce.run(rank, Window(*window) if window else rank.window)
            results.append(result)
            other = expected[rank.process, rank.key.device]
            assert result.num_all_reduces == other.num_all_reduces
            assert result.num_reduce_scatters == other.num_reduce_scatters
            metrics, steps = result.metrics, result.steps
            assert (metrics.tail_ns, metrics.exposed_ns) == (other.tail_ns, other.exposed_ns)
            coverage = other.num_in_steps / other.num_all_reduces if other.num_all_reduces else 1
            assert metrics.coverage == coverage
            assert [
                (step.number, step.num_buckets, *step.tail, step.is_late) for step in other.steps
            ] == list(
                zip(steps.number.tolist(), steps.num_buckets.tolist(),
                    steps.tail_start_ns.tolist(), steps.tail_end_ns.tolist(),
                    steps.is_late.tolist(), strict=True)
            )  # fmt: skip
            assert steps.hideable.tolist() == pytest.approx(
                [float(step.hideable) for step in other.steps], abs=1e-12
            )
            assert 0 <= metrics.exposed_ns <= metrics.tail_ns <= result.window_ns
    return results


def steps_of(
    buckets: Sequence[tuple[int, int]],
    *,
    num: int = 4,
    compute: Sequence[tuple[int, int]] = ((0, 300), (300, 600), (900, 990)),
    name: str = NCCL,
) -> TraceBuilder:
    """Run steps of 1000 ns: forward, backward and optimizer, beside or between them buckets."""
    builder = TraceBuilder()
    for step in range(num):
        begin = 1000 * step
        builder.nvtx(f"step {step}", begin, begin + 1000)
        for start, end in compute:
            builder.kernel(begin + start, begin + end)
        for start, end in buckets:
            builder.kernel(begin + start, begin + end, name, stream=20)
    return builder


@pytest.mark.parametrize("name", ["late-allreduce", "host-stall", "busy-python"])
def test_until_the_last_rank_has_come_a_rank_waits(name: str) -> None:
    path = SAMPLE_FOLDER / f"{name}.sqlite"
    ranks = [rank for _, rank in sorted(reference(path).items())]
    with closing(analyze(path, options=Options(savings=False))) as analysis:
        results = analysis.measured.results.of(late_allreduce)
        assert len(results) == len(ranks)
        for number, result in enumerate(results):
            metrics = result.metrics
            assert metrics.waiting_ns is not None
            assert metrics.exposed_ns - metrics.waiting_ns == moved_ns(ranks, number)
        found = [one.rank for one in analysis.result.findings if one.id == late_allreduce.ID]
    # All of it is waiting for a rank whose host stalls: no other bucket would help.
    assert sorted(found) == ([0, 1] if name == "late-allreduce" else [])


def test_a_kernel_whose_name_hides_the_operation_is_known_by_its_call(tmp_path: Path) -> None:
    # RCCL has one kernel for all operations.
    generic = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"
    for operation, num_late in (("all_reduce", 3), ("all_gather", 0)):
        builder = steps_of([])
        for begin in range(0, 4000, 1000):
            builder.label(f"{operation} bytes=64 group=0 rank=0 size=2", begin + 500, begin + 520)
            launch = begin + 505, begin + 510
            builder.kernel(begin + 610, begin + 880, generic, stream=20, launch=launch)
        with ranks_of(builder.write(tmp_path / f"{operation}.sqlite")) as (rank,):
            result = late_allreduce.run(rank, rank.window)
            assert result.metrics.num_late_steps == num_late
            assert len(late_allreduce.findings(result)) == (num_late > 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", long_after(2, range(12)))
def test_generated_exports_agree_with_the_reference(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    builder = TraceBuilder()
    for pid in (1, 2):
        time = 0
        for step in range(12):
            length = chance.randrange(60, 140)
            builder.nvtx(f"step {step}", time, time + length - chance.randrange(10), pid=pid)
            time += length
    for _ in range(400):
        call = chance.randrange(1200)
        start = call + chance.randrange(80)
        end = start + chance.choice([0, 1, 5, chance.randrange(40)])
        name = chance.choice(["gemm", "relu", "relu", "relu", NCCL])
        pid = chance.choice([1, 2])
        if chance.random() < 0.1:
            builder.kernel(start, end, name, pid=pid, launch=False)
        else:
            builder.kernel(start, end, name, pid=pid, launch=(call, call + 1))
    builder.graph(300, 320, pid=1)
    path = builder.shuffled(seed).write(tmp_path)
    assert sum(len(answer.steps.number) for answer in assert_agreement(path)) > 5
    first, last = sorted(chance.randrange(1300) for _ in range(2))
    assert_agreement(path, (first, last))


@pytest.mark.parametrize("sample", GPU_SAMPLES, ids=lambda path: path.stem)
def test_samples_agree_with_the_reference(sample: Path) -> None:
    assert assert_agreement(sample)


def test_real_exports_agree_with_the_reference(real_trace: Path) -> None:
    results = assert_agreement(real_trace)
    assert any(len(result.steps.number) for result in results) or real_trace.stem not in WITH_DDP
    for result in results:
        if len(result.steps.number):
            with ranks_of(real_trace) as ranks:
                start = ranks[0].window.start_ns
            assert_agreement(real_trace, (start + 10**8, start + 4 * 10**8))


def mostly_early() -> TraceBuilder:
    """Two of four steps that are judged are late: most must be."""
    builder = steps_of([(610, 880)], num=3)
    for step in (3, 4):
        builder.nvtx(f"step {step}", 1000 * step, 1000 * step + 1000)
        builder.kernel(1000 * step, 1000 * step + 900)
        builder.kernel(1000 * step + 300, 1000 * step + 400, NCCL, stream=20)
        builder.kernel(1000 * step + 600, 1000 * step + 700, NCCL, stream=20)
    return builder


PROGRAMS = {
    # compute  |0      600|             |900 990|
    # nccl                  |610    880|
    "one bucket after the backward": steps_of([(610, 880)]),
    # After each bucket DDP copies it into the gradients: that is not a backward to hide behind.
    "several buckets that wait for the end": steps_of(
        [(600, 700), (700, 800), (800, 880)],
        compute=((0, 300), (300, 600), (700, 710), (800, 810), (900, 990)),
    ),
    "before nine tenths of the compute": steps_of([(539, 700), (700, 880)]),
    "after nine tenths of the compute": steps_of([(540, 700), (700, 880)]),
    "mostly early": mostly_early(),
    "a tail of less than a hundredth": steps_of([(610, 620)]),
    "unknown operations": steps_of([]).kernel(50, 60, "ncclDevKernel_Generic_4"),
    "no steps": TraceBuilder().kernel(0, 9).kernel(9, 20, NCCL),
    "few steps": steps_of([(610, 880)], num=2),
    "reduce-scatters": steps_of([(610, 880)]).kernel(50, 60, SCATTER),
    "without calls": steps_of([(610, 880)]).without("CUPTI_ACTIVITY_KIND_RUNTIME"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, tmp_path: Path, kept: Kept) -> None:
    (result,) = assert_agreement(PROGRAMS[name].write(tmp_path))
    kept([result.metrics, *late_allreduce.findings(result)])
