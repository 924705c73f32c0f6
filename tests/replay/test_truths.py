"""What the replay says of simulated runs, beside what the simulator gives for the changed program.

`coverage` prints the table of docs/testing.md: `python -m tests.replay.test_truths`.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sample_traces.simulator.event_model.answers import Ranks
from sample_traces.simulator.scenarios.setup import Setup
from tests.support.changed_programs import (
    PAIRS,
    Pair,
    launch_bound_reductions,
    statistics_behind_gradients,
)
from tests.support.changes import each_on_its_own_stream, recorded, step_ns, without_launching
from tests.support.selection import long_after
from traceprof.replay.whatif import whatif

Build = Callable[[np.random.Generator], Setup]

_NUM_SEEDS = 20
_MIN_COVERAGE = 0.95
_CLOSE = 0.05  # of the true change
_LARGE, _MAX_WIDTH = 0.05, 0.5  # of a step; of the true change


@dataclass(frozen=True)
class Outcome:
    """What was said of a change, and what is true of it, ns; `step_ns` without it."""

    step_ns: float
    true_ns: float
    said_ns: int
    low_ns: int
    high_ns: int
    is_bound: bool

    @property
    def is_close(self) -> bool:
        """Whether it is within 5 % of the truth."""
        return abs(self.said_ns - self.true_ns) <= _CLOSE * abs(self.true_ns)

    @property
    def holds_truth(self) -> bool:
        """Whether the interval does."""
        return self.low_ns <= self.true_ns <= self.high_ns

    @property
    def width(self) -> float:
        """The interval's, as a share of the true change."""
        return (self.high_ns - self.low_ns) / max(abs(self.true_ns), 1)

    @property
    def is_large(self) -> bool:
        """Whether the change is as large as to limit the interval."""
        return abs(self.true_ns) > _LARGE * self.step_ns


def outcome(pair: Pair, seed: int, path: Path, *, has_events: bool = True) -> Outcome:
    setup = pair.setup(seed)
    result = setup.run()
    before = step_ns(result, counts_first=pair.counts_first)
    recorded(setup, path, result, has_events=has_events)
    asked = whatif(path, assume=[pair.assume]).whatif
    (only,) = asked.answers
    assert only.refused is None, only.refused
    assert asked.baseline is not None
    assert only.change_ns is not None
    low, high = (limit - asked.baseline.step_ns for limit in (only.low_ns or 0, only.high_ns or 0))
    true_ns = pair.changed_step_ns(setup, seed, result) - before
    return Outcome(before, true_ns, only.change_ns, low, high, only.is_bound)


# One of each kind always, but for those of which `test_second_truths`, or what a finding saves,
# is always held to the truth; the others with `make verify`.
_OFTEN = {
    "queue-filled", "sleeping-loader", "buckets-of-100", "stalled: one rank",
    "full-precision-matmul", "pipeline-sends",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0])
@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(pair, id=str(pair), marks=[] if pair.program in _OFTEN else [pytest.mark.long])
        for pair in PAIRS
    ],
)
def test_the_change_is_what_the_simulator_gives(pair: Pair, seed: int, tmp_path: Path) -> None:
    of_seed = outcome(pair, seed, tmp_path / "run.sqlite")
    assert of_seed.is_close or of_seed.holds_truth
    if of_seed.is_large and not of_seed.is_bound:
        assert of_seed.width <= _MAX_WIDTH


def test_communicators_are_waited_for_apart_or_may_be_together(tmp_path: Path) -> None:
    """An event behind statistics is for these; whether gradients before are needed, is not told."""
    apart = partial(statistics_behind_gradients, is_apart=True)
    together = partial(statistics_behind_gradients, is_apart=False)
    pair = Pair("statistics", "no-serialization", None, together, apart)
    of_apart = outcome(pair, 0, tmp_path / "run.sqlite")
    assert of_apart.is_close
    assert of_apart.is_large
    needed = replace(pair, changed=each_on_its_own_stream)
    of_both = outcome(needed, 0, tmp_path / "other.sqlite")
    for limit in (of_apart, of_both):
        assert limit.is_bound
        assert limit.said_ns <= limit.true_ns
    assert abs(of_both.true_ns) < 0.5 * abs(of_apart.true_ns)


def test_a_wait_that_is_longer_than_clocks_may_be_off_goes_with_its_cause(tmp_path: Path) -> None:
    """Clocks of one machine may be off by 10 us: over 1 % of this step, under each of its waits."""
    (pair,) = (pair for pair in PAIRS if pair.program == "launch-bound")
    of_seed = outcome(pair, 8, tmp_path / "run.sqlite")
    assert of_seed.step_ns < 1_000_000
    assert of_seed.is_close


@pytest.mark.parametrize(
    ("num_steps", "num_reductions"),
    [
        (3, 1),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in ((4, 1), (12, 1), (4, 4), (6, 12))
        ),
    ],
)
def test_launches_in_no_time_gain_no_more_than_is_said_of_few_steps_of_staggered_ranks(
    num_steps: int, num_reductions: int, tmp_path: Path
) -> None:
    """Nor where streams wait for each other, which launching hid: each wait may be a quick one."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        setup = launch_bound_reductions(num_steps, num_reductions, rng)
        result = setup.run()
        asked = whatif(recorded(setup, tmp_path / f"{seed}.sqlite", result), assume=["launch=0"])
        assert asked.whatif.baseline is not None
        counted = range(asked.whatif.baseline.num_steps)  # the last one is cut
        before, after = (
            np.mean([row["window_ns"] for row in steps if row["step"] in counted])
            for steps in (
                Ranks(run).breakdown()["steps"] for run in (result, without_launching(setup))
            )
        )
        (limit,) = asked.whatif.answers
        assert limit.is_bound
        assert limit.change_ns is not None
        assert limit.change_ns <= after - before < -0.25 * before
        assert limit.change_ns >= 1.1 * (after - before)


_WITHOUT_EVENTS = (
    "short-last:no-serialization", "exposed-late-launch:kernel:gemm=0.5x",
    *(f"{name}:no-serialization" for name in ("nccl-serialization", "buckets-in-a-row")),
)  # fmt: skip


@pytest.mark.parametrize("name", long_after(2, _WITHOUT_EVENTS))
def test_without_event_records_no_answer_is_too_good(name: str, tmp_path: Path) -> None:
    """Streams waited for each other, and a host for a stream behind another: nothing tells it."""
    (pair,) = (pair for pair in PAIRS if str(pair) == name)
    of_seed = outcome(pair, 0, tmp_path / "run.sqlite", has_events=False)
    assert of_seed.holds_truth
    assert of_seed.is_close


@pytest.mark.long
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_intervals_hold_the_truth(pair: Pair, tmp_path: Path) -> None:
    outcomes = [outcome(pair, seed, tmp_path / f"{seed}.sqlite") for seed in range(_NUM_SEEDS)]
    assert all(one.is_close or one.holds_truth for one in outcomes)
    if not outcomes[0].is_bound:
        num_held = sum(one.holds_truth for one in outcomes)
        assert num_held >= _MIN_COVERAGE * _NUM_SEEDS, num_held
        assert all(one.width <= _MAX_WIDTH for one in outcomes if one.is_large)


def coverage(pairs: Sequence[Pair] = PAIRS, num_seeds: int = _NUM_SEEDS) -> list[str]:
    """Return a row of Markdown for each pair: what is true, said, how far off, how often held."""
    rows = []
    for pair in pairs:
        with tempfile.TemporaryDirectory() as folder:
            outcomes = [
                outcome(pair, seed, Path(folder) / f"{seed}.sqlite") for seed in range(num_seeds)
            ]
        off = max(abs(one.said_ns - one.true_ns) / max(abs(one.true_ns), 1) for one in outcomes)
        is_nothing = max(abs(one.true_ns) for one in outcomes) < 1000
        step, true, said, width = (
            float(np.median([getattr(one, name) for one in outcomes]))
            for name in ("step_ns", "true_ns", "said_ns", "width")
        )
        held = sum(one.holds_truth for one in outcomes)
        of_interval = "a limit" if outcomes[0].is_bound else f"{held} of {num_seeds}"
        rows.append(
            f"| {pair.program} | `{pair.assume}` | {step / 1e6:.3f} ms | {true / 1e6:.3f} ms"
            f" | {said / 1e6:.3f} ms | {'-' if is_nothing else f'{100 * off:.1f} %'}"
            f" | {of_interval} | {'-' if is_nothing else f'{100 * width:.0f} %'} |"
        )
    return rows


if __name__ == "__main__":
    print(*coverage(), sep="\n")  # noqa: T201
