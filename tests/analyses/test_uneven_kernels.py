"""Uneven kernels: planted ones, none in equal ranks, and what makes them uneven."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from sample_traces.simulator import kernels
from sample_traces.simulator.event_model.actions import Communicator
from sample_traces.simulator.event_model.answers import Ranks
from sample_traces.simulator.event_model.program_writer import Host
from sample_traces.simulator.scenarios import ranks
from sample_traces.simulator.scenarios.setup import Setup
from sample_traces.simulator.scenarios.training import programs
from tests.support.builders import US, TraceBuilder
from tests.support.changes import recorded
from tests.support.selection import known, long_after
from tests.support.traces import SAMPLE_FOLDER, closed_analysis, result_of
from traceprof.analyses import uneven_kernels
from traceprof.analyses.uneven_kernels import (
    ADVICE,
    CHANGING,
    CLOCK,
    HARDWARE,
    ONE_KERNEL,
    PARTS,
    UNKNOWN,
    WORK,
    UnevenKernelsMetrics,
    advice,
    because,
    cause_of,
)
from traceprof.analyses.verdict.three_lines import three_lines
from traceprof.findings import Finding, NotApplicable
from traceprof.trace.nsight import schema

ID = "uneven-kernels"
MS = 1_000_000


def judged(path: Path, **options: Any) -> tuple[list[Finding], list[NotApplicable], Any]:
    analysis = closed_analysis(path, **options)
    found = [finding for finding in analysis.findings if finding.id == ID]
    missing = [gap for gap in analysis.not_applicable if gap.id == ID]
    return found, missing, analysis.measured.placed


@pytest.mark.parametrize("num_ranks", long_after(1, [4, 8]))
@pytest.mark.parametrize("kind", long_after(1, ["experts", "clock"]))
def test_planted_excess(kind: str, num_ranks: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(num_ranks)
    build = ranks.slower_clock if kind == "clock" else ranks.uneven_experts
    setup = build(rng, num_ranks)
    path = recorded(setup, tmp_path / "run.sqlite")
    (truth,) = setup.findings(Ranks(setup.run()))
    (finding,), missing, placed = judged(path)
    assert not missing
    values: Any = finding.metrics
    assert values["is_constant"] is truth["metrics"]["is_constant"]
    assert values["category"] == "matmul"
    of_steps = truth["metrics"]["model_excess_ns_of_steps"]
    planted = sum(of_steps[number] for number in placed[0].number.tolist())
    # Of ranks that take turns, parts in which none is far beyond the others are not counted.
    least = 0.95 if kind == "clock" else 0.85
    assert least * planted <= values["excess_ns"] <= 1.05 * planted
    assert finding.impact_ns <= values["excess_ns"]
    assert len({seen.label for seen in finding.evidence}) == 5  # steps, the worst ones first
    waited = values["others_wait_ns"]
    assert waited == pytest.approx(planted * num_ranks / (num_ranks - 1), rel=0.25)
    if kind == "clock":
        assert finding.rank == truth["rank"] == 2
        assert values["slower"] == pytest.approx(1.15, abs=0.01)
        assert values["work"] == 1
        assert "slower" in finding.title
        assert finding.advice == advice(
            HARDWARE,
            "nsys profile --gpu-metrics-devices=cuda-visible"
            " (--gpu-metrics-device=… before 2024) …",
        )
    else:
        assert finding.advice == ADVICE[CHANGING]


def test_one_kernel_that_is_slower_on_a_rank(tmp_path: Path) -> None:
    """No clock makes one kernel slower and leaves the others."""
    world = Communicator(0x5EED_0000_0000_0001, "0", (0, 1, 2, 3))

    def step(host: Host) -> None:
        usual = kernels.ATTENTION_BACKWARD
        times = 1.5 if host.process == 1 else 1.0
        attention = dataclasses.replace(usual, duration_ns=round(times * usual.duration_ns))
        host.operator(host.compute, "aten::mm", *kernels.FORWARD * 3, attention)
        host.collective("all_reduce", world, host.nccl, 4 << 20, after=host.compute)
        host.follow(host.compute, host.nccl)

    hosts = programs(np.random.default_rng(3), 8, step, processes=world.processes)
    result = result_of(recorded(Setup(hosts, lambda _: []), tmp_path / "run.sqlite"))
    (finding,) = [one for one in result.findings if one.id == ID]
    (late,) = [one for one in result.findings if one.id == "straggler"]
    assert finding.advice == late.advice == ADVICE[ONE_KERNEL]
    said = known(three_lines(result))
    assert "seqk_parallel_kernel takes 1.49 times as long on rank 1 as on its peers" in said.problem


@pytest.mark.parametrize("num_ranks", long_after(1, [2, 4, 8]))
def test_equal_ranks_are_silent(num_ranks: int, tmp_path: Path) -> None:
    setup = ranks.equal_ranks(np.random.default_rng(num_ranks), num_ranks)
    found, missing, _ = judged(recorded(setup, tmp_path / "run.sqlite"))
    assert found == []
    assert missing == []


@pytest.mark.parametrize("gpus", ["ab", "aa"])
def test_jobs_on_one_gpu_are_not_compared(gpus: str, tmp_path: Path) -> None:
    """Each slows down the other's kernels."""
    trace = TraceBuilder()
    for pid, gpu, length in zip((1000, 1100), gpus, (300, 200), strict=True):
        for number in range(60):
            begin = number * 400 * US
            launch = begin - 5 * US, begin - 4 * US
            trace.kernel(
                begin, begin + length * US, f"gemm_{number % 5}", pid=pid, tid=pid, launch=launch
            )
        trace.raw(schema.CUDA_DEVICES, gpuId=ord(gpu), cudaId=0, pid=pid, uuid=f"GPU-{gpu}")
    found, missing, _ = judged(trace.write(tmp_path))
    assert [finding.rank for finding in found] == ([0] if gpus == "ab" else [])
    assert [gap.rank for gap in missing] == ([] if gpus == "ab" else [None])


def metrics(**changes: Any) -> UnevenKernelsMetrics:
    values: dict[str, Any] = {
        "excess_ns": MS, "rank": 1, "num_kernels": 8, "is_constant": True, "category": "matmul",
        "category_fraction": 0.9, "slower": 1.1, "share_longest": 1.0, "others_wait_ns": MS,
        "compute_ns": 2 * MS, "least_ns": MS, "most_ns": MS, "num_peers": 3, "num_in_group": 4,
        "stage": None, "clock": None, "work": None, "kernel": None,
        "alike_fraction": 0.0, "coverage": 1.0,
    }  # fmt: skip
    return UnevenKernelsMetrics(**values | changes)


@pytest.mark.parametrize(
    ("changes", "cause", "words"),
    [
        ({"clock": 0.87, "work": 1.0}, CLOCK, "the clock of its GPU is 13.0 % lower"),
        ({"clock": 1.0, "work": 1.0}, HARDWARE, "with as many thread blocks at the same clock"),
        ({}, HARDWARE, "throttled, shared, or another kind of board"),
        ({"work": 1.5, "clock": 0.9}, WORK, "1.50 × the thread blocks of the others"),
        ({"kernel": "flash", "clock": 0.9}, ONE_KERNEL, "its other kernels take as long as theirs"),
        ({"alike_fraction": 0.2}, PARTS, "as fast as theirs in 20.0 % of its matrix products"),
        ({"alike_fraction": 0.2, "clock": 0.87}, CLOCK, "13.0 % lower"),
        ({"is_constant": False}, CHANGING, "sequences or experts"),
        ({"is_constant": None}, UNKNOWN, "too few steps"),
        ({"is_constant": None, "work": 1.5}, WORK, "1.50 × the thread blocks of the others"),
    ],
)
def test_the_reason_has_its_numbers(changes: Any, cause: str, words: str) -> None:
    found = metrics(**changes)
    assert cause_of(found) == cause
    assert words in because(found)


def test_only_clocks_that_were_not_sampled_are_to_be_recorded() -> None:
    assert "Record clocks, too, to see whether it is throttled: HOW" in advice(HARDWARE, "HOW")
    assert "clocks" not in " ".join(advice(HARDWARE, None))
    assert advice(CHANGING, "HOW") == ADVICE[CHANGING]


@pytest.mark.long
def test_equal_ranks_take_no_turns(tmp_path: Path) -> None:
    analysis = closed_analysis(
        recorded(ranks.equal_ranks(np.random.default_rng(9)), tmp_path / "run.sqlite")
    )
    assert not any("straggler" in text for _, text in analysis.notes)


def test_clocks_are_read_without_those_that_overflowed() -> None:
    *_, placed = judged(SAMPLE_FOLDER / "link-counters.sqlite")
    assert [one.clock_hz for one in placed] == [1.41e9, 1.41e9]


def test_the_clock_of_the_slow_rank_is_its_share_of_the_others() -> None:
    measured = closed_analysis(SAMPLE_FOLDER / "uneven-clock.sqlite").measured
    clocks = (1.4e9, 1.42e9, 1.2e9)
    placed = tuple(
        replace(one, clock_hz=clock) for one, clock in zip(measured.placed, clocks, strict=True)
    )
    found = known(uneven_kernels.run(replace(measured, placed=placed)).metrics)
    assert found.clock == pytest.approx(1.2 / ((1.4 + 1.42) / 2))
    assert cause_of(found) == CLOCK
