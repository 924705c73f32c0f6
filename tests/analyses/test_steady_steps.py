"""Steady steps: how long they take, and what kernels take in them."""

import statistics

import numpy as np
import pytest
from msgspec.structs import replace

from tests.support.selection import known
from tests.support.traces import SAMPLE_FOLDER, ranks_of
from traceprof.analyses import steps
from traceprof.analyses.breakdown import BreakdownResult, Measures, StepMeasures
from traceprof.analyses.kernels import kernel_table
from traceprof.analyses.steps import (
    LeftOutSteps,
    StepKind,
    block_of,
    num_blocks,
    slowest_rank,
    step_lengths,
    step_ns,
)
from traceprof.host.idle_causes import IdleCause
from traceprof.run.rank import WindowKind
from traceprof.run.steady_steps import StepUse, steady_steps
from traceprof.run.windows import training_window


def ran(
    *lengths: int, uses: dict[int, StepUse | None] | None = None, rank: int = 0
) -> BreakdownResult:
    """Steps of these lengths one after the other, steady if nothing else is said."""
    starts = np.cumsum([0, *lengths]).tolist()
    steps = tuple(
        StepMeasures(number, measures(start, length), use=(uses or {}).get(number, StepUse.STEADY))
        for number, (start, length) in enumerate(zip(starts, lengths, strict=False))
    )
    judged = measures(0, starts[-1])
    return BreakdownResult(rank, judged, steps, judged, WindowKind.TRAINING, None)


def measures(start: int, length: int) -> Measures:
    return Measures(start, length, length, 0, 0, 0, 0, 0, 0, 1, 0, 0)


def test_a_step_takes_the_mean_of_the_steady_ones() -> None:
    uses = {0: None, 1: StepUse.OPENING, 4: StepUse.RARE, 6: StepUse.CUT}
    lengths = known(step_lengths(ran(900, 70, 10, 30, 500, 11, 90, uses=uses)))
    assert (lengths.num_steps, lengths.mean_ns, lengths.median_ns) == (3, 17, 11)
    assert lengths.slowest.number == 4  # of all that are judged, whether it counts or not
    assert lengths.kinds == (StepKind(3, 17),)
    assert lengths.left_out == (
        LeftOutSteps("cut", 1, 90),
        LeftOutSteps("opening", 1, 70),
        LeftOutSteps("rare", 1, 500),
    )


def test_the_slowest_step_is_of_the_phase_that_counts() -> None:
    result = ran(10, 30, 900, uses={2: StepUse.PHASE})
    first, second, third = result.steps
    result = replace(result, steps=(first, second, replace(third, phase=1)))
    assert known(step_lengths(result)).slowest.number == 1


def test_two_kinds_of_steps_both_count() -> None:
    lengths = known(step_lengths(ran(*[100] * 30, *[400] * 10)))
    assert lengths.kinds == (StepKind(30, 100), StepKind(10, 400))
    assert lengths.mean_ns == 175


def test_without_steps_all_is_one_step() -> None:
    whole = measures(5, 70)
    result = BreakdownResult(0, whole, (), whole, WindowKind.TRAINING, None)
    assert step_lengths(result) is None
    assert step_ns(result) == 70


def test_the_slowest_rank_is_that_of_the_longest_mean() -> None:
    first, second = ran(100, 100, 100), ran(10, 10, 400, rank=1)
    assert slowest_rank([first, second]) is second
    assert slowest_rank([first, ran(100, 100, 100, rank=1)]) is first


@pytest.mark.parametrize("num", [1, 2, 3, 6, 11, 12, 30, 59, 199, 1000])
def test_blocks_are_neighbours_and_alike(num: int) -> None:
    blocks = block_of(num)
    assert (np.diff(blocks) >= 0).all()
    counts = np.bincount(blocks)
    assert len(counts) == max(num_blocks(num), 1)
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("sample", ["training", "ddp", "warm-up", "exposed-copy"])
def test_kernels_in_steps_are_those_of_a_plain_sum(sample: str) -> None:
    with ranks_of(SAMPLE_FOLDER / f"{sample}.sqlite") as ranks:
        for rank in ranks:
            window = training_window(rank)
            steps = steady_steps(rank, window)
            spans = list(zip(steps.start_ns.tolist(), steps.end_ns.tolist(), strict=True))
            kernels = rank.operations.kernels
            rows = list(
                zip(
                    kernels.start_ns.tolist(),
                    kernels.end_ns.tolist(),
                    [rank.kernel_names[id_] for id_ in kernels.name.tolist()],
                    strict=True,
                )
            )
            for use in kernel_table.run(rank, rank.window, window).uses:
                sums = [
                    sum(e - s for s, e, name in rows if name == use.name and low <= s < high)
                    for low, high in spans
                ]
                if use.in_steady_step is None:
                    assert not any(sums)
                    continue
                assert use.in_steady_step.ns == pytest.approx(statistics.mean(sums))
                assert 0 <= use.in_steady_step.place < 1
                if 2 < len(sums) < 12:  # a block is one step
                    error = statistics.stdev(sums) / len(sums) ** 0.5
                    assert use.in_steady_step.error_ns == pytest.approx(error)


def test_totals_are_exact() -> None:
    for sample in ("training", "ddp", "gloo", "launch-bound"):
        with ranks_of(SAMPLE_FOLDER / f"{sample}.sqlite") as ranks:
            for rank in ranks:
                totals = steps.step_totals(rank, training_window(rank))
                parts = totals.compute_ns + totals.exposed_communication_ns
                parts += totals.exposed_copy_ns + totals.idle_ns
                assert parts == totals.window_ns
                causes = [getattr(totals, f"{cause.value}_ns") for cause in IdleCause]
                assert sum(causes) == totals.idle_ns
                assert min(causes) >= 0
