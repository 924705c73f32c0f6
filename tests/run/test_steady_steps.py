"""Steady steps of a rank: number of kernels, and what else ran, as a recording shows it."""

from pathlib import Path

import pytest

from tests.support.builders import TraceBuilder
from tests.support.claims import os_call
from tests.support.traces import ranks_of
from traceprof.run.steady_steps import steady_steps
from traceprof.run.steps.steady_rules import StepUse
from traceprof.run.windows import training_window

_STEP, _LONG, _NUM = 1_000_000, 9_000_000, 20
_AT = 10


def steps(num_kernels_of_long: int = 10) -> TraceBuilder:
    """Twenty steps of ten kernels, and one that ends the recording; the eleventh is far longer.

    step    0 … 9   | 10: kernels, then 9 ms of something else | 11 … 19, 20
    """
    builder = TraceBuilder()
    for step in range(_NUM + 1):
        begin = step * _STEP + (_LONG if step > _AT else 0)
        builder.nvtx(f"step {step}", begin, begin + _STEP - 1)
        num = num_kernels_of_long if step == _AT else 10
        for kernel in range(num):
            builder.kernel(begin + kernel * _STEP // num, begin + (kernel + 1) * _STEP // num)
    return builder


_BEGIN, _END = (_AT + 1) * _STEP, (_AT + 1) * _STEP + _LONG


@pytest.mark.parametrize(
    ("builder", "is_rare"),
    [
        (steps(), False),  # a stall
        (steps(12), True),
        (steps().nvtx("save checkpoint", _BEGIN, _END - 1), True),
        (steps().nvtx("validate", _BEGIN, _END - 1), True),
        (steps().nvtx("validate", _BEGIN, _BEGIN + _STEP), False),  # too little of it
        (steps().nvtx("load batch", _BEGIN, _END - 1), False),
        (os_call(steps(), "fsync", _BEGIN, _END - 1), True),
        (os_call(steps(), "read", _BEGIN, _END - 1), False),  # training pays for its input
    ],
)
def test_a_rare_step_is_told_from_a_stall(
    builder: TraceBuilder, is_rare: bool, tmp_path: Path
) -> None:
    with ranks_of(builder.write(tmp_path)) as (rank,):
        found = steady_steps(rank, training_window(rank))
        uses = [StepUse(use) for use in found.uses.tolist()]
        assert uses[-1] is StepUse.CUT
        assert uses[_AT] is (StepUse.RARE if is_rare else StepUse.STEADY)
        assert uses.count(StepUse.STEADY) == _NUM - is_rare
        assert len(found.step) == _NUM - is_rare


def test_one_of_two_steps_at_the_same_time_is_no_step(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for step in range(5):
        begin = step * _STEP
        for inside in (0, 1):
            builder.nvtx(f"step {step}", begin + inside, begin + _STEP - 1 - inside)
        builder.kernel(begin + 10, begin + _STEP)
    with ranks_of(builder.write(tmp_path)) as (rank,):
        found = steady_steps(rank, training_window(rank))
        assert (found.end_ns - found.start_ns).tolist() == [_STEP] * 4
