"""Runs of one simulated program: what differs by chance is no change, and one per cent is one."""

from pathlib import Path

import pytest

from sample_traces.simulator.ddp import simulate_ddp
from tests.support.builders import stretch
from tests.support.selection import known
from traceprof.analysis import Options
from traceprof.comparison.ask import compare

OPTIONS = Options(savings=False)


def simulated(path: Path, seed: int) -> Path:
    """Write a run of 62 steps, two of which are warm-up and the last one."""
    simulate_ddp(path, gpus=2, steps=62, kernels_per_step=24, seed=seed)
    return path


@pytest.mark.long
def test_one_per_cent_is_found_and_ten_are_more_than_recordings_differ(tmp_path: Path) -> None:
    num_runs, num_false, num_found, num_slower = 40, 0, 0, 0
    for run in range(num_runs):
        before, after = (
            simulated(tmp_path / f"{run}-{side}.sqlite", 2 * run + side) for side in (0, 1)
        )
        step = compare(before, after, options=OPTIONS).step
        num_false += not known(step.low) <= 0 <= known(step.high)
        stretch(after, 1.01)
        step = compare(before, after, options=OPTIONS).step
        num_found += known(step.low) > 0 and step.verdict == "differs"
        stretch(after, 1.09)
        num_slower += compare(before, after, options=OPTIONS).step.verdict == "slower"
    assert num_false <= 4  # 5 %, and what 40 runs leave open
    assert num_found == num_slower == num_runs
