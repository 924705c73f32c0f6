"""A replay with equal kernels, against runs simulated without what makes them uneven."""

from pathlib import Path

import numpy as np
import pytest

import traceprof
from sample_traces.simulator.scenarios import ranks
from sample_traces.simulator.scenarios.setup import Setup
from tests.support.changes import recorded
from tests.support.selection import known, long_after


def step_ns(path: Path) -> int:
    baseline = traceprof.whatif(path, assume=["communication=0"]).whatif.baseline
    return known(baseline).step_ns


@pytest.mark.parametrize("num_ranks", [4, pytest.param(8, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", long_after(1, ["clock", "experts"]))
def test_the_limit_is_not_beaten_and_close(kind: str, num_ranks: int, tmp_path: Path) -> None:
    def built(size: float) -> Setup:
        rng = np.random.default_rng(7)  # the same noise with and without
        if kind == "clock":
            return ranks.slower_clock(rng, num_ranks, times=1 + size)
        return ranks.uneven_experts(rng, num_ranks, most=4 * size)

    before, after = (
        recorded(built(size), tmp_path / f"{kind}-{size}.sqlite") for size in (0.15, 0.0)
    )
    asked = traceprof.whatif(before, assume=["equal-kernels"])
    (answer,) = asked.whatif.answers
    assert answer.is_bound
    assert answer.refused is None
    gained = known(asked.whatif.baseline).step_ns - step_ns(after)
    assert gained > 0
    # The kernels' noise is in both runs, and the mean of the ranks' kernels knows it roughly.
    assert 0.995 * gained <= -known(answer.change_ns) <= 1.15 * gained


@pytest.mark.long
def test_equal_ranks_have_nothing_to_even_out(tmp_path: Path) -> None:
    setup = ranks.equal_ranks(np.random.default_rng(1))
    path = recorded(setup, tmp_path / "equal.sqlite")
    (answer,) = traceprof.whatif(path, assume=["equal-kernels"]).whatif.answers
    assert answer.refused == "no rank's kernels take significantly longer than those of the others"
