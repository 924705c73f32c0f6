"""Comparisons of programs whose steps nobody marked: periods on both sides, or on none."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.builders import US, TraceBuilder, solver
from tests.support.claims import OPTIONS
from tests.support.selection import known, rows_long_after
from traceprof.analysis import analyze_reports
from traceprof.comparison.ask import compare
from traceprof.reports.json import render


def phases(num: tuple[int, int], length_us: int = 30, seed: int = 0) -> TraceBuilder:
    """A program that sweeps so often, and then projects so often, which takes far less."""
    builder = solver(num[0], ("sweep", "norm"), noise=0.02, length_us=length_us, seed=seed)
    begin = num[0] * (20 + 2 * 40) * US
    return solver(
        num[1], ("project",), builder=builder, begin_ns=begin, length_us=length_us // 10,
        noise=0.02, seed=seed,
    )  # fmt: skip


def at_random(num: int = 200) -> TraceBuilder:
    builder = TraceBuilder()
    for place, name in enumerate(np.random.default_rng(1).integers(0, 9, num).tolist()):
        builder.kernel(place * 40 * US, (place * 40 + 30) * US, f"kernel_{name}(float*)")
    return builder


def test_iterations_are_compared_as_steps(tmp_path: Path) -> None:
    before = solver(60, noise=0.02).write(tmp_path / "before.sqlite")
    after = solver(60, noise=0.02, seed=1, length_us=27).write(tmp_path / "after.sqlite")
    found = compare(before, after, options=OPTIONS)
    assert found.step.verdict == "faster"
    true = (20 + 4 * 29) / (20 + 4 * 32) - 1
    assert known(found.step.low) < true < known(found.step.high) < 0
    assert found.before.num_steps == found.after.num_steps == 59
    assert "an iteration is from one norm to the next (4 kernels)" in found.notes[0]
    assert found.comparable.is_comparable


@pytest.mark.parametrize(
    ("other", "why"),
    rows_long_after(
        1,
        [
            (at_random(), "a step is a period of the program on one side only"),
            (solver(60, ("sweep",)), "periods have 1 and 4 kernels"),
            (phases((40, 60)), "different numbers of phases"),
        ],
    ),
    ids=["no period", "a part", "phases"],
)
def test_both_sides_go_without(other: TraceBuilder, why: str, tmp_path: Path) -> None:
    one = solver(60, noise=0.02).write(tmp_path / "one.sqlite")
    two = other.write(tmp_path / "two.sqlite")
    found = compare(one, two, options=OPTIONS)
    assert found.before.num_steps == found.after.num_steps == 0
    assert found.step.basis == "training"
    assert found.step.verdict == "inconclusive"
    assert why in found.notes[0]
    # A saved analysis cannot be made anew.
    (tmp_path / "one.json").write_text(render(analyze_reports([one], OPTIONS)))
    found = compare(tmp_path / "one.json", two, options=OPTIONS)
    assert found.step.verdict == "not comparable"
    assert found.comparable.kinds == ["steps"]


@pytest.mark.parametrize(
    ("length_us", "expected"),
    [(30, ("same", "inconclusive")), (33, ("slower",)), (40, ("slower",))],
)
def test_the_longer_phase_is_compared(
    length_us: int, expected: tuple[str, ...], tmp_path: Path
) -> None:
    """Twice as many steps of the shorter phase make no step faster."""
    before = phases((40, 60)).write(tmp_path / "before.sqlite")
    after = phases((40, 120), length_us, seed=1).write(tmp_path / "after.sqlite")
    found = compare(before, after, options=OPTIONS)
    assert {found.before.num_steps, found.after.num_steps} <= {37, 38}  # of 40
    assert known(found.step.change) == pytest.approx((2 * length_us + 24) / 84 - 1, abs=0.02)
    assert found.step.verdict in expected
