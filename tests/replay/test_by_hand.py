"""Answers for steps whose times under each assumption can be worked out by hand."""

from pathlib import Path

import pytest

from tests.support.builders import ALL_REDUCE, TraceBuilder
from traceprof.replay.whatif import whatif

US = 1_000
STEP_US = 1200


def program() -> TraceBuilder:
    """Eight steps of 1.2 ms: a copy, three kernels 1 us apart, and a wait that returns 9 us later.

    GPU    copy[15..115] gemm[116..416] NCCL[417..617] softmax[618..918]
    host   launches[5..15]  wait[20..927]    the next launch is 278 us after the wait
    """
    trace = TraceBuilder()
    for step in range(8):
        begin = step * STEP_US * US

        def at(start: int, end: int, begin: int = begin) -> tuple[int, int]:
            return begin + start * US, begin + end * US

        trace.nvtx(f"step {step}", *at(0, 1190))
        trace.memcpy(*at(15, 115), "HtoD", launch=at(5, 8))
        trace.kernel(*at(116, 416), "gemm", launch=at(8, 10))
        trace.kernel(*at(417, 617), ALL_REDUCE, launch=at(10, 13))
        trace.kernel(*at(618, 918), "softmax", launch=at(13, 15))
        trace.api("cudaDeviceSynchronize", *at(20, 927))
    return trace


def test_every_answer_is_that_worked_out_by_hand(tmp_path: Path) -> None:
    changes_us = {
        "kernel:gemm=0.5x": -150,
        "kernel:softmax=2x": 300,
        "kernel:.=0.5x": -400,
        "link=2x": -100,
        "communication=0": -202,  # with the pauses before and after it
        "perfect-overlap": -202,
        # For a host that launches in no time, as limits of the GPU's work are: the copy begins 10
        # us after its call began, so that gemm begins 111 us after that; without the copy, 7 us.
        # A limit has 1 % more. As recorded: 116 to 14, since gemm's launch returns 3 us sooner.
        "copies-hidden": -104 * 1.01,
        "no-serialization": 0,
        # The GPU is idle between operations only; before a copy for as long as is usual elsewhere.
        "no-kernel-sync": 900 + 3 * 1 + 1.5 - STEP_US,
    }
    asked = whatif(program().write(tmp_path), assume=[*changes_us]).whatif
    assert asked.refused is None
    assert asked.baseline is not None
    assert (asked.baseline.step_ns, asked.baseline.replayed_ns) == (STEP_US * US, STEP_US * US)
    assert asked.baseline.misfit == 0
    assert asked.answers[-1].assume == " + ".join(changes_us)
    answers = asked.answers[: len(changes_us)]
    assert {one.assume: one.change_ns for one in answers} == {
        name: change * US for name, change in changes_us.items()
    }
    # What is no bound is known to 1 % of the change.
    for one, change in zip(answers, [*changes_us.values()][:4], strict=False):
        expected = STEP_US + change
        assert (one.is_bound, one.step_ns) == (False, expected * US)
        margin = abs(change) / 100
        limits = [round((expected + side * margin) * US) for side in (-1, 1)]
        assert [one.low_ns, one.high_ns] == limits


@pytest.mark.parametrize(
    ("gpu", "why"),
    [
        (None, "whether the GPUs have tensor cores is not in the report"),
        ("NVIDIA A100-SXM4-80GB", "no kernel is known to multiply matrices of FP32 numbers"),
    ],
)
def test_half_precision_needs_known_kernels_and_gpus(
    gpu: str | None, why: str, tmp_path: Path
) -> None:
    trace = program() if gpu is None else program().gpu(gpu)
    (answer,) = whatif(trace.write(tmp_path), assume=["half-precision"]).whatif.answers
    assert (answer.refused, answer.step_ns) == (why, None)


@pytest.mark.parametrize(
    ("end_us", "value"),
    [
        # Work of the step before the recording began, over when the host launches the first step.
        (5, 0),
        # It runs on, so that the host is ahead by something unknown: one of 33 operations.
        (6, 1 / 33),
    ],
)
def test_only_launches_of_the_steps_must_be_known(
    end_us: int, value: float, tmp_path: Path
) -> None:
    trace = program()
    for begin, end in ((0, 1), (2, 3), (4, end_us)):
        trace.kernel(begin * US, end * US, "adamw", stream=8, launch=False)
    asked = whatif(trace.write(tmp_path), assume=["kernel:gemm=0.5x"]).whatif
    assert asked.baseline is not None
    launches = next(gate for gate in asked.baseline.gates if gate.name == "launches")
    assert launches.value == pytest.approx(value)
    assert launches.holds == (value == 0)
    assert asked.answers[0].change_ns == (-150 * US if value == 0 else None)


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        ("DtoH", "record from the beginning of the training"),
        ("unified DtoH", "no recorder is known to show more"),
    ],
)
def test_recording_again_shows_no_launch_of_unified_memory(
    kind: str, remedy: str, tmp_path: Path
) -> None:
    trace = program().memcpy(0, 6 * US, kind, stream=8, launch=False)
    (answer,) = whatif(trace.write(tmp_path), assume=["kernel:gemm=0.5x"]).whatif.answers
    assert "the report lacks the calls that launched" in (answer.refused or "")
    assert remedy in (answer.how_to_collect or "")
