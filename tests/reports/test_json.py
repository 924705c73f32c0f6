"""JSON output: by the schema that ships, and the same numbers as the analysis."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from tests.support.builders import TraceBuilder
from tests.support.schema import validator
from tests.support.traces import SAMPLE
from traceprof.analysis import Options, analyze
from traceprof.reports import json as json_report

if TYPE_CHECKING:
    from pathlib import Path


def document(path: Path, **options: Any) -> dict[str, Any]:
    analysis = analyze(path, options=Options(**options))
    try:
        loaded: dict[str, Any] = json.loads(json_report.render(analysis.result))
    finally:
        analysis.close()
    validator().validate(loaded)
    return loaded


def test_the_schema_is_one() -> None:
    validator()


def test_every_real_export_gives_valid_json(real_trace: Path) -> None:
    document(real_trace)


def test_the_sample_gives_valid_json_that_holds_its_truth() -> None:
    found = document(SAMPLE)
    truth = json.loads(SAMPLE.with_suffix(".truth.json").read_text())
    assert found["breakdown"] == truth["breakdown"]
    assert found["steps"] == truth["steps"]


def test_what_cannot_be_known_is_null(tmp_path: Path) -> None:
    path = TraceBuilder().kernel(0, 10).kernel(900, 1000).write(tmp_path / "t.sqlite")
    found = document(path)
    (rank,) = found["ranks"]
    assert rank == {"rank": 0, "report": 0, "pid": 1000, "device": 0, "gpu": None}
    idle = next(each for each in found["findings"] if each["id"] == "gpu-idle")
    assert idle["metrics"]["per_step_ns"] is None  # no step is marked
    assert found["collectives"] == []


def test_the_schema_refuses_what_is_wrong(tmp_path: Path) -> None:
    path = TraceBuilder().kernel(0, 10).kernel(900, 1000).write(tmp_path / "t.sqlite")
    found = document(path)
    del found["findings"][0]["metrics"]["sync_ns"]
    with pytest.raises(jsonschema.ValidationError):
        validator().validate(found)


def test_only_and_skip_choose_findings(tmp_path: Path) -> None:
    path = TraceBuilder().kernel(0, 10).kernel(900, 1000).write(tmp_path / "t.sqlite")
    assert document(path, only=["exposed-communication"])["findings"] == []
    assert document(path, skip=["gpu-idle"])["findings"] == []
    only = document(path, only=["exposed-communication"])["not_applicable"]
    assert {each["id"] for each in only} == {"exposed-communication"}
    skipped = document(path, skip=["exposed-communication"])["not_applicable"]
    assert "exposed-communication" not in {each["id"] for each in skipped}
