"""Steady steps: what kernels take in them, by a plain second computation."""

import statistics

import numpy as np
import pytest

from tests.support.traces import SAMPLE_FOLDER, ranks_of
from traceprof.analyses.kernels import kernel_table
from traceprof.analyses.steps import step_means
from traceprof.analyses.steps.step_means import block_of, num_blocks
from traceprof.host.idle_causes import IdleCause
from traceprof.run.steady_steps import steady_steps
from traceprof.run.windows import training_window


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
            for use in kernel_table.run(rank, rank.window, window):
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
                totals = step_means.run(rank, training_window(rank))
                parts = totals.compute_ns + totals.exposed_communication_ns
                parts += totals.exposed_copy_ns + totals.idle_ns
                assert parts == totals.window_ns
                causes = [getattr(totals, f"{cause.value}_ns") for cause in IdleCause]
                assert sum(causes) == totals.idle_ns
                assert min(causes) >= 0
