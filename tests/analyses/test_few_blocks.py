"""Kernels with blocks for at most half of the multiprocessors."""

import random
from functools import partial
from pathlib import Path

import pytest

from tests.reference.few_blocks import few_blocks as expected
from tests.support.builders import TraceBuilder
from tests.support.claims import results_of
from tests.support.kept_claims import Kept
from tests.support.traces import GPU_SAMPLES, ranks_of
from traceprof.analyses import few_blocks
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


A100 = "NVIDIA A100-SXM4-40GB"


PROGRAMS = {
    "a block for all": on()
    .kernel(0, 60 * US, "add", block=(1, 1, 1))
    .kernel(60 * US, 100 * US, "many", grid=(T4, 1, 1)),
    "seven blocks on an unknown board": TraceBuilder().kernel(0, 100 * US, grid=(7, 1, 1)),
    "eight blocks on an unknown board": TraceBuilder().kernel(0, 100 * US, grid=(8, 1, 1)),
    "a board with a known number": on(A100, None).kernel(0, 100 * US, grid=(54, 1, 1)),
    "a part of a board": on(f"{A100} MIG 1g.5gb", 108).kernel(0, 100 * US),
    "pages move meanwhile": on()
    .kernel(0, 100 * US, "few")
    .memcpy(10 * US, 40 * US, "unified HtoD", launch=False, stream=0),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, tmp_path: Path, kept: Kept) -> None:
    (result,) = judged(PROGRAMS[name].write(tmp_path))
    kept(few_blocks.findings(result))


def test_only_the_part_in_the_window_counts(tmp_path: Path, kept: Kept) -> None:
    builder = on().kernel(0, 100 * US).kernel(100 * US, 300 * US, grid=(400, 1, 1))
    (result,) = judged(builder.write(tmp_path), Window(80 * US, 280 * US))
    kept(few_blocks.findings(result))


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
