"""`python -m sample_traces.simulator`: a command for each scenario."""

from pathlib import Path

import pytest

from sample_traces.simulator import RUN_SCENARIOS, SCENARIOS
from tests.support.commands import run, run_simulator
from tests.support.selection import rows_long_after
from traceprof.cli.main import EXIT_DONE


def test_every_scenario_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_simulator("--help") == EXIT_DONE
    shown = capsys.readouterr().out
    names = ("ddp", "gloo", *SCENARIOS, *RUN_SCENARIOS)
    assert all(f"  {name} " in shown for name in names)


def test_a_scenario_and_its_truth_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, truth = tmp_path / "x.sqlite", tmp_path / "x.truth.json"
    arguments = ("peer-copies", "--schema-version", "3.7.2", "--seed", "3", "-o", path)
    assert run_simulator(*arguments) == EXIT_DONE
    assert capsys.readouterr().out.splitlines() == [str(path), str(truth)]
    assert truth.exists()
    assert run_simulator(*arguments) != EXIT_DONE
    assert "it exists already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("scenario", "said"),
    rows_long_after(
        1,
        [
            (["cpu-straggler-upstream"], ["from the labels of instrument"]),
            (
                ["straggler-host", "--no-labels"],
                ["its host launched late", "The rank numbers come from the names of the files"],
            ),
        ],
    ),
)
def test_a_run_and_its_truth_are_written(
    scenario: list[str], said: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    arguments = [*scenario, "--per", "rank", "-o", str(folder)]
    assert run_simulator(*arguments) == EXIT_DONE
    assert capsys.readouterr().out.splitlines() == [str(folder), str(folder / "truth.json")]
    names = sorted(path.name for path in folder.iterdir())
    assert names == [*(f"rank_{rank}.sqlite" for rank in range(8)), "truth.json"]
    assert run_simulator(*arguments) != EXIT_DONE
    assert "it exists already" in capsys.readouterr().err
    assert run("analyze", *sorted(folder.glob("*.sqlite")), "--verbose") == EXIT_DONE
    shown = " ".join(capsys.readouterr().out.split())
    assert all(text in shown for text in said)
