"""`analyze --save` and `traceprof runs`."""

import json
from pathlib import Path

import pytest

from tests.support.commands import in_process, json_of, printed
from tests.support.kept_claims import KeptText
from traceprof.cli.main import EXIT_DONE

DDP = Path(__file__).parents[2] / "sample_traces" / "ddp.sqlite"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def test_runs_that_were_saved_are_listed(store: Path, kept_text: KeptText) -> None:
    saving = ("analyze", DDP, "--format", "json", "--save", store)
    named = ("--name", "baseline", "--label", "batch=64", "--label", "commit=" + 40 * "a")
    saved = in_process(*saving, *named)
    assert saved.document["schema"] == "traceprof.analysis/1"
    assert saved.err == f"traceprof: saved as 'baseline' in {store}\n"
    assert in_process(*saving).code == EXIT_DONE
    kept_text(printed("runs", store))
    listed = json.loads(printed("runs", store, "--format", "json"))
    assert [(row["name"], row["num_ranks"]) for row in listed] == [("baseline", 2), ("ddp", 2)]


def test_numbers_of_runs_are_written_as_csv(store: Path) -> None:
    for name, sample in (("before", "late-allreduce"), ("after", "ddp")):
        printed("analyze", DDP.with_stem(sample), "--save", store, "--name", name)
    compared = json_of("compare", f"{store}#before", f"{store}#after")
    csv = ("runs", store, "--format", "csv")
    heading, *rows = [line.split(",") for line in printed(*csv).splitlines()]
    assert heading[:4] == ["time", "run", "commit", "step_ns"]
    for row, side in zip(rows, ("before", "after"), strict=True):
        assert row[1] == side
        assert int(row[3]) == compared["step"][f"{side}_ns"]
        parts = compared[f"mean_{side}"]
        for column, value in zip(heading[4:], row[4:], strict=True):
            assert int(value) == parts[column]
    metric = ("--metric", "finding:late-allreduce")
    heading, *rows = [line.split(",") for line in printed(*csv, *metric).splitlines()]
    assert heading == ["time", "run", "commit", "late_allreduce_ns"]
    (late,) = (row for row in compared["findings"] if row["id"] == "late-allreduce")
    assert [int(row[3]) for row in rows] == [late["before_ns"], 0]
    assert "add --format csv" in in_process("runs", store, *metric).line
    assert "choose one of step, compute" in in_process(*csv, "--metric", "steps").line


def test_a_name_that_is_taken_is_an_error_before_the_analysis(store: Path) -> None:
    printed("analyze", DDP, "--save", store, "--name", "a")
    again = in_process("analyze", store.with_name("missing.sqlite"), "--save", store, "--name", "a")
    assert "there is a run named 'a' already" in again.line
