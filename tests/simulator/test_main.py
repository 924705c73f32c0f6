"""`python -m sample_traces.simulator`: a report for each name."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from sample_traces.simulator import RUN_SCENARIOS, SCENARIOS
from sample_traces.simulator.__main__ import command
from tests.support.commands import run
from tests.support.databases import query
from tests.support.selection import long_after, rows_long_after
from traceprof.analysis import analyze_reports
from traceprof.cli.main import EXIT_DONE


def simulate(*arguments: str | Path) -> str:
    """Run the simulator with these arguments; return what it printed."""
    done = CliRunner().invoke(command, [*map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.output


def test_every_scenario_is_listed() -> None:
    shown = simulate("--help")
    assert all(f"  {name} " in shown for name in ("ddp", "gloo", *SCENARIOS, *RUN_SCENARIOS))


def test_a_scenario_and_its_truth_are_written(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    simulate("peer-copies", "--schema-version", "3.7.2", "--seed", "3", "-o", path)
    truth = json.loads((tmp_path / "x.truth.json").read_text())
    assert truth["arguments"] == {"seed": 3, "schema_version": "3.7.2"}
    assert dict(query(path, "SELECT * FROM META_DATA_EXPORT"))["EXPORT_SCHEMA_VERSION"] == "3.7.2"


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
    simulate(*scenario, "--per-rank", "-o", folder)
    names = sorted(path.name for path in folder.iterdir())
    assert names == [*(f"rank_{rank}.sqlite" for rank in range(8)), "truth.json"]
    assert run("analyze", *sorted(folder.glob("*.sqlite")), "--verbose") == EXIT_DONE
    shown = " ".join(capsys.readouterr().out.split())
    assert all(text in shown for text in said)


@pytest.mark.parametrize(
    "arguments", long_after(1, [["gloo", "--pairs", "2"], ["ddp"], ["healthy"]])
)
def test_a_trace_of_each_rank_is_written(arguments: list[str], tmp_path: Path) -> None:
    simulate(*arguments, "-o", tmp_path / "x.json.gz")
    traces = sorted(tmp_path.glob("x-rank*.json.gz"))
    assert len(traces) > 1
    assert json.loads((tmp_path / "x.truth.json").read_text())["schema"] == "traceprof.truth/1"
    ranks = analyze_reports(traces).run.ranks
    assert [rank.rank for rank in ranks] == [*range(len(traces))]
