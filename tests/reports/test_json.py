"""JSON output: by the schema that ships, and the same numbers as the analysis."""

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.support.builders import TraceBuilder
from tests.support.claims import validator
from tests.support.commands import json_of
from tests.support.traces import SAMPLES, analysis_of, closed_analysis
from traceprof.analyses.registry import FINDINGS
from traceprof.reports import json as json_report


def document(path: Path, **options: Any) -> dict[str, Any]:
    result = closed_analysis(path, **options).result
    loaded: dict[str, Any] = json.loads(json_report.render(result))
    validator().validate(loaded)
    return loaded


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_metrics_of_findings_are_those_of_their_analyses(path: Path) -> None:
    with analysis_of(path) as analysis:
        assert bool(analysis.findings) == (path.stem not in {"healthy", "marks"})
        for finding in analysis.findings:
            metrics = FINDINGS[finding.id].metrics.declared()
            optional = {name for name, metric in metrics.items() if metric.is_optional}
            assert set(metrics) - optional <= set(finding.metrics) <= set(metrics)


def test_no_metric_may_be_missing_and_nothing_added(tmp_path: Path) -> None:
    found = document(TraceBuilder().kernel(0, 10).kernel(900, 1000).write(tmp_path))
    metrics, more = dict(found["findings"][0]["metrics"]), {"more": 1}
    del metrics["sync_ns"]
    for rows, change in (("findings", {"metrics": metrics}), ("findings", more), ("ranks", more)):
        changed = {**found, rows: [{**found[rows][0], **change}]}
        with pytest.raises(jsonschema.ValidationError):
            validator().validate(changed)


@pytest.mark.one_export
@pytest.mark.cpu_export
def test_every_real_export_gives_valid_json(real_trace: Path) -> None:
    with analysis_of(real_trace) as analysis:
        validator().validate(json.loads(json_report.render(analysis.result)))


def test_what_cannot_be_known_is_null(tmp_path: Path) -> None:
    found = document(TraceBuilder().kernel(0, 10).kernel(900, 1000).write(tmp_path))
    (rank,) = found["ranks"]
    unknown = {"gpu": None, "num_workers": None}
    assert rank == {"rank": 0, "report": 0, "pid": 1000, "device": 0, **unknown}
    idle = next(finding for finding in found["findings"] if finding["id"] == "gpu-idle")
    assert idle["metrics"]["per_step_ns"] is None  # no step is marked
    assert found["collectives"] == []


def test_only_and_skip_choose_findings(tmp_path: Path) -> None:
    path = TraceBuilder().kernel(0, 10).kernel(900, 1000).graph(20, 900).write(tmp_path)
    assert document(path, only=["exposed-communication"])["findings"] == []
    assert document(path, skip=["gpu-idle"])["findings"] == []
    only = document(path, only=["exposed-communication"])["not_applicable"]
    assert {finding["id"] for finding in only} == {"exposed-communication"}
    skipped = document(path, skip=["exposed-communication"])["not_applicable"]
    assert "exposed-communication" not in {finding["id"] for finding in skipped}


def test_a_path_that_is_not_utf_8_survives(tmp_path: Path) -> None:
    path, lost = (os.path.join(os.fsencode(tmp_path), name) for name in (b"a\xff.sqlite", b"b\xfe"))  # noqa: PTH118
    TraceBuilder().kernel(0, 9).write(tmp_path / "a.sqlite").rename(os.fsdecode(path))
    document = json_of("analyze", os.fsdecode(path), os.fsdecode(lost))
    assert os.fsencode(document["reports"][0]["path"]) == path
    assert os.fsencode(document["lost_reports"][0]["path"]) == lost
