"""Steps that nobody marked, in text, JSON and what-if; `--no-period` goes without."""

from pathlib import Path

import pytest

from tests.support.builders import US, TraceBuilder, solver
from tests.support.commands import json_of, printed
from tests.support.kept_claims import KeptText
from tests.support.selection import long_after

_ITERATION = (20 + 4 * 32) * US


@pytest.mark.parametrize("format_", long_after(1, ["text", "markdown", "html"]))
def test_a_report_says_from_where_to_where_a_step_goes(format_: str, tmp_path: Path) -> None:
    path = solver(30).write(tmp_path)
    shown = " ".join(printed("analyze", path, "--format", format_, "-o", "-").split())
    assert "An iteration takes 148 µs on rank 0 (mean of 29; 1 left out)" in shown
    assert "No range marks steps; an iteration is from one norm to the next (4 kernels)" in shown
    without = printed("analyze", path, "--format", format_, "-o", "-", "--no-period")
    assert "No range marks steps" not in without


def test_one_kernel_more_in_the_last_iteration_but_one(tmp_path: Path) -> None:
    body = [f"kernel_{number}" for number in range(24)]
    builder = solver(8, body)
    begin = 8 * (20 + 24 * 32) * US
    solver(1, [*body[:12], "norm", *body[12:]], builder=builder, begin_ns=begin)
    solver(1, body, builder=builder, begin_ns=begin + (20 + 25 * 32) * US)
    path = builder.write(tmp_path)
    assert json_of("analyze", path)["headline"]["periods"] == [
        {"kernel": "kernel_0", "num_kernels": 24, "is_only": True}
    ]
    assert "9 iterations, which no range marks" in printed("info", path)
    assert json_of("whatif", path)["baseline"]["num_steps"] == 8
    printed("compare", path, solver(10, body).write(tmp_path / "before.sqlite"))
    printed("export", "perfetto", path, "-o", tmp_path / "trace.json.gz")


def test_the_headline_says_what_share_of_the_gpu_time_it_is_about(tmp_path: Path) -> None:
    """A copy of 10 ms comes before thirty iterations, of 4 x 30 us of kernels."""
    builder = TraceBuilder().memcpy(0, 10_000 * US)
    path = solver(30, builder=builder, begin_ns=11_000 * US).write(tmp_path)
    found = json_of("analyze", path)["headline"]
    kernels_us = 30 * 4 * 30
    assert found["judged_fraction"] == pytest.approx((kernels_us - 30) / (kernels_us + 10_000))
    shown = " ".join(printed("analyze", path).split())
    assert "The training holds 26.2 % of the recorded GPU time. No range marks steps" in shown
    chosen = ("--time-range", ":")
    assert json_of("analyze", path, *chosen)["headline"]["judged_fraction"] == 1
    assert "of the recorded GPU time" not in printed("analyze", path, *chosen)
    almost = solver(30).write(tmp_path / "almost.sqlite")  # one kernel comes before the first step
    assert json_of("analyze", almost)["headline"]["judged_fraction"] == pytest.approx(119 / 120)
    assert "of the recorded GPU time" not in printed("analyze", almost)


def test_json(tmp_path: Path, kept_text: KeptText) -> None:
    """One `sweep` comes before the first period."""
    path = solver(30).write(tmp_path)
    lines = []
    for options in ((), ("--no-period",), ("--steps", "4:6")):
        found = json_of("analyze", path, *options)
        steps = [(step["step"], step["phase"]) for step in found["steps"]]
        names = ("steps_source", "periods", "step_ns", "median_step_ns")
        headline = {name: found["headline"][name] for name in names}
        lines.append(f"{options} {headline} {found['training']} {steps}")
    kept_text("\n".join(lines))


def test_info_says_what_steps_are(
    tmp_path: Path, kept_text: KeptText, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of periods it says nothing about training steps that cannot be analysed."""
    monkeypatch.chdir(tmp_path)
    shown = ""
    for mark in (None, "step 0", "Optimizer.step#SGD.step"):
        trace = solver(30)
        if mark:
            trace.nvtx(mark, 0, 10 * _ITERATION)
        shown += printed("info", trace.write(Path(f"{mark}.sqlite")))
    kept_text(shown)


def test_what_if(tmp_path: Path) -> None:
    path = solver(30).write(tmp_path)
    asked = ("whatif", path, "--assume", "kernel:norm=0.5x")
    found = json_of(*asked)
    assert found["baseline"]["step_ns"] == _ITERATION
    assert found["baseline"]["num_steps"] == 29
    without = json_of(*asked, "--no-period")
    assert without["baseline"]["num_steps"] == 1
    assert without["baseline"]["step_ns"] > 29 * _ITERATION


def test_ranks_with_other_numbers_of_periods_are_not_replayed(tmp_path: Path) -> None:
    asked = ["whatif", "--assume", "no-sync"]
    for rank, num in enumerate((30, 31)):
        asked.append(str(solver(num).write(tmp_path / f"rank_{rank}.sqlite")))
    found = json_of(*asked)
    differ = "kernels repeat a different number of times on different ranks"
    assert f"no range marks steps, and {differ}" in found["answers"][0]["refused"]
    assert "--no-period" in found["how_to_collect"]
    without = json_of(*asked, "--no-period")
    assert "kernels repeat" not in (without["refused"] or "")
