"""`analyze --save` and `traceprof runs`."""

import json
from pathlib import Path

import pytest

from tests.support.commands import run
from traceprof.cli.main import EXIT_DONE, EXIT_ERROR

DDP = Path(__file__).parents[2] / "sample_traces" / "ddp.sqlite"


def test_runs_that_were_saved_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "runs.db"
    saving = ("analyze", DDP, "--format", "json", "--save", store)
    named = ("--name", "baseline", "--label", "batch=64", "--label", "commit=" + 40 * "a")
    assert run(*saving, *named) == EXIT_DONE
    written = capsys.readouterr()
    assert json.loads(written.out)["schema"] == "traceprof.analysis/1"
    assert written.err == f"traceprof: saved as 'baseline' in {store}\n"
    assert run(*saving, "-o", tmp_path / "result.json") == EXIT_DONE
    capsys.readouterr()
    assert run("runs", store) == EXIT_DONE
    heading, _, baseline, second, *rest = capsys.readouterr().out.splitlines()
    assert heading.split()[:3] == ["run", "labels", "commit"]
    assert baseline.split()[0] == "baseline"
    assert "batch=64" in baseline
    assert 10 * "a" in baseline
    assert "2026-01-01 00:00:00" in baseline
    assert baseline.endswith("3.55 ms")
    assert second.split()[:2] == ["ddp", "unknown"]
    assert rest == []
    assert run("runs", store, "--format", "json") == EXIT_DONE
    listed = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["num_ranks"]) for row in listed] == [("baseline", 2), ("ddp", 2)]


def test_numbers_of_runs_are_written_as_csv(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "runs.db"
    result = tmp_path / "result.json"
    for name, sample in (("before", "late-allreduce"), ("after", "ddp")):
        report = DDP.with_stem(sample)
        saving = ("--format", "json", "-o", result, "--save", store, "--name", name)
        assert run("analyze", report, *saving) == EXIT_DONE
    assert run("compare", f"{store}#before", f"{store}#after", "--format", "json") == EXIT_DONE
    compared = json.loads(capsys.readouterr().out)
    assert run("runs", store, "--format", "csv") == EXIT_DONE
    heading, *rows = [line.split(",") for line in capsys.readouterr().out.splitlines()]
    assert heading[:4] == ["time", "run", "commit", "step_ns"]
    for row, side in zip(rows, ("before", "after"), strict=True):
        assert row[1] == side
        assert int(row[3]) == compared["step"][f"{side}_ns"]
        parts = compared[f"mean_{side}"]
        for column, value in zip(heading[4:], row[4:], strict=True):
            assert int(value) == parts[column]
    metric = ("--metric", "finding:late-allreduce")
    assert run("runs", store, "--format", "csv", *metric) == EXIT_DONE
    heading, *rows = [line.split(",") for line in capsys.readouterr().out.splitlines()]
    assert heading == ["time", "run", "commit", "late_allreduce_ns"]
    (late,) = (row for row in compared["findings"] if row["id"] == "late-allreduce")
    assert [int(row[3]) for row in rows] == [late["before_ns"], 0]
    assert run("runs", store, *metric) == EXIT_ERROR
    assert "add --format csv" in capsys.readouterr().err
    assert run("runs", store, "--format", "csv", "--metric", "steps") == EXIT_ERROR
    assert "choose one of step, compute" in capsys.readouterr().err


def test_a_name_that_is_taken_is_told_before_the_analysis(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "runs.db"
    assert run("analyze", DDP, "--save", store, "--name", "a", "-o", tmp_path / "x") == EXIT_DONE
    capsys.readouterr()
    missing = tmp_path / "missing.sqlite"
    assert run("analyze", missing, "--save", store, "--name", "a") == EXIT_ERROR
    assert "there is a run named 'a' already" in capsys.readouterr().err
