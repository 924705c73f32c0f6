"""Tables of a run in files are its frames, of all ranks."""

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.support.builders import TraceBuilder
from tests.support.commands import in_process, run
from tests.support.selection import long_after
from tests.support.traces import analysis_of
from traceprof.cli import export
from traceprof.documents.analysis.records import TABLES
from traceprof.frames.events import EVENTS
from traceprof.frames.open_run import open_run
from traceprof.reports.table_files import file_of

SAMPLES = Path(__file__).parents[2] / "sample_traces"


def expected_events(*reports: Path) -> Mapping[str, pd.DataFrame]:
    with open_run(*reports) as opened:
        return {name: getattr(opened, name)() for name in EVENTS}


@pytest.mark.slow
@pytest.mark.parametrize("name", long_after(1, ["ddp", "gloo", "training"]))
def test_events_come_back(name: str, tmp_path: Path) -> None:
    report = SAMPLES / f"{name}.sqlite"
    for ending in ("parquet", "csv"):
        assert run("export", ending, report, "-o", tmp_path / ending) == 0
    for table, expected in expected_events(report).items():
        parquet = pd.read_parquet(tmp_path / "parquet" / f"{table}.parquet")
        pd.testing.assert_frame_equal(parquet, expected, check_categorical=False)
        read = pd.read_csv(tmp_path / "csv" / f"{table}.csv")
        as_csv = pd.read_csv(io.StringIO(expected.to_csv(index=False)))
        pd.testing.assert_frame_equal(read, as_csv, check_dtype=False)


def test_results_come_back(tmp_path: Path) -> None:
    report = SAMPLES / "training.sqlite"
    assert run("export", "parquet", report, "-o", tmp_path) == 0
    files = sorted(path.stem for path in tmp_path.iterdir())
    assert files == sorted([*EVENTS, *map(file_of, TABLES)])
    with analysis_of(report) as analysis:
        for table in ("steps", "breakdown", "links", "collectives", "kernels"):
            shown = pd.read_parquet(tmp_path / f"{file_of(table)}.parquet")
            expected = analysis.to_pandas(table)
            pd.testing.assert_frame_equal(shown, expected, check_categorical=False)
        findings = pd.read_parquet(tmp_path / "findings.parquet")
        for row, finding in zip(findings.to_dict("records"), analysis.findings, strict=True):
            assert row["id"] == finding.id
            assert json.loads(row["metrics"]) == dict(finding.metrics)
            assert json.loads(row["advice"]) == list(finding.advice)


def test_texts_are_no_json_and_nothing_is_written_where_nothing_is_known(tmp_path: Path) -> None:
    """Also with pandas 2, whose texts have the type of lists."""
    report = SAMPLES / "training.sqlite"
    assert run("export", "csv", report, "-o", tmp_path) == 0
    with analysis_of(report) as analysis:
        titles = [finding.title for finding in analysis.findings]
    with (tmp_path / "findings.csv").open(newline="") as file:
        assert [row["title"] for row in csv.DictReader(file)] == titles
    for path in tmp_path.glob("*.csv"):
        with path.open(newline="") as file:
            assert not any("null" in row.values() for row in csv.DictReader(file)), path


def test_names_are_no_formulas_for_spreadsheets(tmp_path: Path) -> None:
    name = '=HYPERLINK("http://host")'
    report = TraceBuilder().kernel(0, 90, name).kernel(100, 190, "gemm").write(tmp_path)
    for folder, options, written in (("a", [], name), ("b", ["--for-spreadsheets"], f"'{name}")):
        assert run("export", "csv", report, "-o", tmp_path / folder, *options) == 0
        with (tmp_path / folder / "kernels.csv").open(newline="") as file:
            rows = [*csv.DictReader(file)]
        assert [row["name"] for row in rows] == [written, "gemm"]
        assert [row["start_ns"] for row in rows] == ["0", "100"]
    assert run("export", "parquet", report, "-o", tmp_path / "c", "--for-spreadsheets") == 2


def test_flops_of_a_step_may_be_given(tmp_path: Path) -> None:
    given = "--flops-per-step", "4e14"
    assert run("export", "csv", SAMPLES / "healthy.sqlite", "-o", tmp_path, *given) == 0
    flops = pd.read_csv(tmp_path / "step_flops.csv")
    assert set(flops["flops"]) == {4e14}
    assert set(flops["source"]) == {"given"}
    assert run("export", "csv", SAMPLES / "healthy.sqlite", "-o", tmp_path, given[0], "0") == 2


def test_columns_of_texts_are_texts_where_there_is_none(tmp_path: Path) -> None:
    report = SAMPLES / "healthy.sqlite"
    assert run("export", "parquet", report, "-o", tmp_path, "--only", "straggler") == 0
    for table, columns in {"findings": ("id", "metrics"), "lost_reports": ("path",)}.items():
        schema = parquet.read_schema(tmp_path / f"{table}.parquet")
        for column in columns:
            kind = schema.field(column).type
            kind = kind.value_type if pa.types.is_dictionary(kind) else kind
            assert pa.types.is_string(kind) or pa.types.is_large_string(kind), (table, column)


@pytest.mark.long
def test_ranks_of_several_reports_are_in_one_table(tmp_path: Path, simulated: list[Path]) -> None:
    assert run("export", "parquet", *simulated, "-o", tmp_path) == 0
    for table, expected in expected_events(*simulated).items():
        shown = pd.read_parquet(tmp_path / f"{table}.parquet")
        pd.testing.assert_frame_equal(shown, expected, check_categorical=False)


def test_names_stay_names(tmp_path: Path) -> None:
    name = 'a, "b"\nc; =1+1'
    path = TraceBuilder().kernel(0, 10, name).kernel(20, 30).write(tmp_path)
    for ending in ("parquet", "csv"):
        assert run("export", ending, path, "-o", tmp_path / ending) == 0
    assert pd.read_csv(tmp_path / "csv" / "kernels.csv")["name"].tolist() == [name, "gemm"]
    parquet = pd.read_parquet(tmp_path / "parquet" / "kernels.parquet")
    assert parquet["name"].tolist() == [name, "gemm"]


def test_other_files_stay_and_nothing_is_left_behind(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    (folder / "kernels.csv").write_text("old")
    assert run("export", "csv", tmp_path / "none.sqlite", "-o", folder) == 2
    assert (folder / "kernels.csv").read_text() == "old"
    assert run("export", "csv", SAMPLES / "ddp.sqlite", "-o", folder) == 0
    assert (folder / "mine.txt").read_text() == "mine"
    assert len(pd.read_csv(folder / "kernels.csv")) == 480
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    refused = in_process("export", "csv", SAMPLES / "ddp.sqlite", "-o", folder / "mine.txt")
    assert "it is not a folder" in refused.line


def test_without_the_extra_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "find_spec", lambda _: None)
    for what in ("perfetto", "parquet"):
        refused = in_process("export", what, SAMPLES / "ddp.sqlite", "-o", tmp_path / "out")
        assert "pip install '.[export]'" in refused.line
