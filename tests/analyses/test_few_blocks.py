"""Kernels with blocks for at most half of the multiprocessors."""

import random
from functools import partial
from pathlib import Path

import pytest

from tests.reference.few_blocks import few_blocks as expected
from tests.support.builders import TraceBuilder
from tests.support.claims import only_finding, results_of
from tests.support.traces import GPU_SAMPLES, ranks_of
from traceprof.analyses import few_blocks
from traceprof.analyses.few_blocks import FewBlocksResult
from traceprof.findings import Finding, NotApplicable, Severity
from traceprof.run.rank import Window

US = 1_000
T4 = 40  # its multiprocessors


judged = partial(results_of, few_blocks.run)


def assert_agreement(path: Path, num_sms: int) -> None:
    answers = expected(path, num_sms)
    with ranks_of(path) as ranks:
        for rank in ranks:
            result = few_blocks.run(rank, rank.window)
            answer = answers[rank.process, rank.key.device]
            if few_blocks.findings(result) or result.unused_ns:
                assert result.unused_ns == answer.unused_ns
                assert result.metrics.kernel_ns == answer.kernel_ns
            else:  # negligible, and not measured
                assert answer.unused_ns < 0.01 * rank.window.length_ns
            assert result.metrics.num_kernels == answer.num_kernels


def on(gpu: str = "Tesla T4", num_sms: int | None = T4) -> TraceBuilder:
    return TraceBuilder().gpu(gpu, num_sms=num_sms)


def one(result: FewBlocksResult) -> Finding:
    return only_finding(few_blocks.findings(result))


def test_a_block_for_all(tmp_path: Path) -> None:
    builder = on().kernel(0, 60 * US, "add", block=(1, 1, 1))
    builder.kernel(60 * US, 100 * US, "many", grid=(T4, 1, 1))
    (result,) = judged(builder.write(tmp_path))
    assert result.metrics.kernel_ns == 60 * US
    assert result.unused_ns == 60 * US * (T4 - 1) // T4
    finding = one(result)
    assert finding.severity is Severity.HIGH
    assert finding.evidence[0].label == "add, 1 block of 1 thread"
    assert finding.saving is not None
    assert finding.saving.high_ns == pytest.approx(60 * US, rel=0.02)


def test_only_the_part_in_the_window_counts(tmp_path: Path) -> None:
    builder = on().kernel(0, 100 * US).kernel(100 * US, 300 * US, grid=(400, 1, 1))
    (result,) = judged(builder.write(tmp_path), Window(80 * US, 280 * US))
    assert result.metrics.kernel_ns == 20 * US
    assert result.unused_ns == 20 * US * (T4 - 1) // T4


@pytest.mark.parametrize("blocks", [7, 8])
def test_without_the_number_of_multiprocessors(tmp_path: Path, blocks: int) -> None:
    builder = TraceBuilder().kernel(0, 100 * US, grid=(blocks, 1, 1))
    (result,) = judged(builder.write(tmp_path))
    claims = few_blocks.findings(result)
    assert [type(claim) for claim in claims] == [NotApplicable] * (blocks < 8)


def test_a_known_board_has_a_known_number(tmp_path: Path) -> None:
    builder = on("NVIDIA A100-SXM4-40GB", num_sms=None).kernel(0, 100 * US, grid=(54, 1, 1))
    finding = one(judged(builder.write(tmp_path))[0])
    assert (finding.metrics["num_sms"], finding.impact_fraction) == (108, 0.5)


def test_a_part_of_a_board_has_another_number(tmp_path: Path) -> None:
    builder = on("NVIDIA A100-SXM4-40GB MIG 1g.5gb", num_sms=108).kernel(0, 100 * US)
    (result,) = judged(builder.write(tmp_path))
    assert result.metrics.num_sms is None


@pytest.mark.parametrize("seed", range(30))
def test_drawn_kernels(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    builder = on()
    for stream in (7, 8, 9):
        time = rng.randrange(50 * US)
        for _ in range(rng.randrange(1, 20)):
            end = time + rng.choice([0, 5, 10, 30, 200]) * US
            grid = (rng.choice([1, 3, 10, 20, 21, 40, 500]), rng.choice([1, 1, 2]), 1)
            name = rng.choice(["a", "b", "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)"])
            if rng.random() < 0.1:
                builder.graph(time, end, stream=stream)
            else:
                builder.kernel(time, end, name, grid=grid, stream=stream)
            time = end + rng.choice([0, 3, 40]) * US
    assert_agreement(builder.write(tmp_path), T4)


@pytest.mark.parametrize("path", GPU_SAMPLES, ids=lambda path: path.stem)
def test_samples(path: Path) -> None:
    assert_agreement(path, 108)


def test_time_in_which_pages_move_does_not_count(tmp_path: Path) -> None:
    builder = on().kernel(0, 100 * US, "few")
    builder.memcpy(10 * US, 40 * US, "unified HtoD", launch=False, stream=0)
    (result,) = judged(builder.write(tmp_path))
    assert result.metrics.kernel_ns == 70 * US
