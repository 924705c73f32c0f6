"""A program of two phases: a step is one of the longer phase, and what lies in the other says so.

All times are planted, or computed a second time by `tests.reference.phases`.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.reference.nsight_export import export_of
from tests.reference.phases import longest, phases
from tests.support.builders import US
from tests.support.commands import run
from tests.support.selection import known
from tests.support.traces import closed_analysis
from tests.support.two_phases import LONGER, SHORTER, Planted, program
from traceprof.analyses.steps import phases as steps_phases
from traceprof.analysis import Analysis, analyze_reports
from traceprof.comparison.ask import compare
from traceprof.execution.options import Options
from traceprof.findings import Finding

_OPTIONS = Options(savings=False)


def idle(analysis: Analysis) -> Finding:
    return next(finding for finding in analysis.findings if finding.id == "gpu-idle")


def document(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert run("analyze", path, "--format", "json", "--no-savings") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("order", [(LONGER, SHORTER), (SHORTER, LONGER)], ids=["first", "second"])
def test_a_step_is_one_of_the_longer_phase(
    order: tuple[Planted, Planted], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, place = program(*order).write(tmp_path), order.index(LONGER)
    found = document(path, capsys)
    headline = found["headline"]
    assert headline["step_ns"] == headline["median_step_ns"] == 200 * US
    assert headline["step_kinds"] == [{"num_steps": 59, "mean_ns": 200 * US}]
    assert [phase["counts"] for phase in headline["phases"]] == [place == 0, place == 1]
    other = headline["phases"][1 - place]
    assert (other["num_steps"], other["step_ns"]) == (59, 100 * US)
    assert other["end_ns"] - other["start_ns"] == (59 * 100 + 40) * US
    (training,) = found["training"]
    judged_ns = training["end_ns"] - training["start_ns"]
    assert other["share"] == pytest.approx((59 * 100 + 40) * US / judged_ns)
    assert {part["why"]: part["num_steps"] for part in headline["left_out"]} == {
        "cut": 1,
        "phase": 60,
    }
    left_out = [step["left_out"] for step in found["steps"] if step["phase"] == 1 - place]
    assert left_out == ["phase"] * 59 + ["cut"]
    (totals,) = found["step_totals"]
    assert (totals["num_steps"], totals["window_ns"]) == (59, 59 * 200 * US)
    assert totals["idle_ns"] == 59 * 20 * US


def test_a_finding_that_lies_in_the_other_phase_says_what_it_costs_there(tmp_path: Path) -> None:
    analysis = closed_analysis(program(LONGER, SHORTER).write(tmp_path))
    finding = idle(analysis)
    in_phase = known(finding.elsewhere)
    assert finding.impact_ns == (60 * 20 + 59 * 60) * US  # of the whole training
    assert finding.metrics["per_step_ns"] == 20 * US
    assert known(finding.saving).high_ns == 20 * US
    assert (in_phase.phase, in_phase.step_ns) == (1, 100 * US)
    assert in_phase.impact_ns == 59 * 60 * US
    assert in_phase.impact_fraction == pytest.approx(59 * 60 / (59 * 100 + 40))
    assert known(in_phase.saving).high_ns == in_phase.most_ns == 60 * US
    # What lies in the longer phase says nothing of the other one.
    alone = idle(closed_analysis(program(LONGER, Planted(60, 75, 5)).write(tmp_path / "b.sqlite")))
    assert alone.elsewhere is None
    assert alone.impact_ns == (60 * 20 + 59 * 5) * US


def test_the_text_names_the_other_phase_and_its_range(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = program(LONGER, SHORTER).write(tmp_path)
    assert run("analyze", path, "--no-savings") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "In the second phase the GPU idles 60.0 % of the iteration" in shown
    assert " µs of 100 µs an iteration of the second phase (" in shown
    assert (
        "An iteration takes 200 µs on rank 0 (mean of 59 in the first phase; 1 left out)" in shown
    )
    others = "Second phase: 59 iterations of 100 µs, 33.1 % of the training (--time-range "
    assert others in shown
    low, high = shown.partition(others)[2].partition(")")[0].removesuffix("s").split("s:")
    time_range = round(float(low) * 1e9), round(float(high) * 1e9)
    assert time_range == (60 * 200 * US, (60 * 200 + 59 * 100 + 40) * US)
    alone = closed_analysis(path, time_range=time_range)
    assert known(alone.result.headline).step_ns == 100 * US
    assert idle(alone).impact_ns == 59 * 60 * US
    assert run("analyze", program(LONGER).write(tmp_path / "one.sqlite"), "--no-savings") == 0
    assert "phase" not in capsys.readouterr().out


def test_one_phase_adds_no_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(program(LONGER).write(tmp_path), capsys)
    assert "phases" not in found["headline"]
    assert found["findings"]
    assert not any("in_phase" in finding for finding in found["findings"])


def test_equally_long_phases_are_the_first_one(tmp_path: Path) -> None:
    """Else the chance of a measurement would choose, on each rank another one."""
    planted = [Planted(60, 90, 10), Planted(60, 91, 10)]
    for number, order in enumerate((planted, planted[::-1])):
        path = program(*order).write(tmp_path / f"{number}.sqlite")
        assert known(closed_analysis(path).result.headline).step_ns == (order[0].busy_us + 10) * US


def test_what_if_replays_the_longer_phase(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = program(LONGER, SHORTER).write(tmp_path)
    assert run("whatif", path, "--format", "json", "--assume", "kernel:sweep=0.5x") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["baseline"]["step_ns"], found["baseline"]["num_steps"]) == (200 * US, 59)
    assert run("whatif", path, "--format", "json", "--assume", "kernel:advect=0.5x") == 0
    (answer,) = json.loads(capsys.readouterr().out)["answers"]
    assert answer.get("change_ns", 0) == 0
    assert run("whatif", path, "--assume", "kernel:sweep=0.5x") == 0
    assert "An iteration of the first phase takes 200 µs (mean of 59)" in capsys.readouterr().out


def test_compared_is_the_longer_phase(tmp_path: Path) -> None:
    before = program(LONGER, SHORTER).write(tmp_path / "before.sqlite")
    after = program(LONGER, Planted(60, 60, 60)).write(tmp_path / "after.sqlite")
    found = compare(before, after, options=_OPTIONS)
    assert (found.step.before_ns, found.step.after_ns) == (200 * US, 200 * US)
    assert found.before.num_steps == 59
    assert any(
        "second phase is not compared: 100 µs a step before and 120 µs after (+20.0 %)" in note
        for note in found.notes
    )
    swapped = program(Planted(60, 40, 20), SHORTER).write(tmp_path / "swapped.sqlite")
    found = compare(before, swapped, options=_OPTIONS)
    assert "another phase of the program is the longest" in found.notes[0]


@pytest.mark.parametrize(
    "names",
    [["jacobi_mpi/rank_0", "jacobi_mpi/rank_1"], ["v100_single_process_jacobi_peer_copies"]],
    ids=["jacobi_mpi", "jacobi"],
)
def test_real_phases_are_those_of_the_reference(names: list[str], traces: Path) -> None:
    paths = [traces / f"{name}.sqlite" for name in names]
    analysis = analyze_reports(paths, _OPTIONS)
    breakdowns = {result.rank: result for result in analysis.breakdown}
    measured = {result.rank: result for result in analysis.measured.step_totals}
    num_in_phase = 0
    for rank in analysis.run.ranks:
        key = (rank.process, known(rank.device))
        found = phases(export_of(paths[rank.report]), *key)
        named = steps_phases(breakdowns[rank.rank])
        assert len(named) == (len(found) if len(found) > 1 else 0)
        at = longest(found)
        for number, (one, other) in enumerate(zip(named, found, strict=False)):
            assert (one.start_ns, one.end_ns) == (other.start, other.end)
            assert (one.num_steps, one.counts) == (len(other.steady), number == at)
            assert one.step_ns == round(other.step_ns)
        totals = measured[rank.rank]
        assert totals.num_steps == len(found[at].steady)
        assert totals.idle_ns == pytest.approx(found[at].idle_per_step_ns * totals.num_steps)
        finding = next(
            one for one in analysis.findings if (one.id, one.rank) == ("gpu-idle", rank.rank)
        )
        assert finding.metrics["per_step_ns"] == round(found[at].idle_per_step_ns)
        others = [
            (sum(end - start for start, end in phase.idle), number)
            for number, phase in enumerate(found)
            if number != at
        ]
        idle_ns, number = max(others, default=(0, 0))
        if 2 * idle_ns <= finding.impact_ns:
            assert finding.elsewhere is None
            continue
        num_in_phase += 1
        in_phase = known(finding.elsewhere)
        assert (in_phase.phase, in_phase.impact_ns) == (number, idle_ns)
    assert num_in_phase == (2 if "jacobi_mpi" in names[0] else 0)
