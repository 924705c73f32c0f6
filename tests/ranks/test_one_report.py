"""Ranks of one report wait for each other as those of several reports do."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.changes import split_by_process
from tests.support.selection import long_after
from tests.support.traces import SAMPLE_FOLDER
from traceprof.analysis import Options, RunResult, analyze_reports
from traceprof.reports import json as json_report
from traceprof.reports import text

SAME = ("waits", "lateness", "matched", "unmatched")
WITH_WAITS = ["compute-stream-collective", "ddp", "nccl-serialization"]


def analyzed(paths: Sequence[Path]) -> RunResult:
    return analyze_reports(paths, Options(savings=False), jobs=1)


def run_of(result: RunResult) -> dict[str, Any]:
    run: dict[str, Any] = json.loads(json_report.render(result))["run"]
    return run


def assert_same_waits(path: Path, folder: Path) -> list[dict[str, int]]:
    """Compare one report with a report for each of its processes; return the waits."""
    parts = split_by_process(path, folder)
    assert len(parts) > 1
    together, apart = run_of(analyzed([path])), run_of(analyzed(parts))
    assert len(apart["clocks"]) == len(parts)
    for field in SAME:
        assert together[field] == apart[field], field
    waits: list[dict[str, int]] = together["waits"]
    return waits


@pytest.mark.parametrize("sample", long_after(1, WITH_WAITS))
def test_one_report_tells_the_waits_of_several(sample: str, tmp_path: Path) -> None:
    assert assert_same_waits(SAMPLE_FOLDER / f"{sample}.sqlite", tmp_path / "parts")


@pytest.mark.parametrize("sample", long_after(1, ["peer-copies", "healthy", "launch-bound"]))
def test_one_report_and_several_have_the_section_for_the_same_ranks(
    sample: str, tmp_path: Path
) -> None:
    path = SAMPLE_FOLDER / f"{sample}.sqlite"
    whole = analyzed([path])
    shown = text.render(whole, is_verbose=True)
    assert ("Who waited for whom" in shown) == bool(run_of(whole)["matched"])
    assert "Ranks on one clock" not in shown
    parts = split_by_process(path, tmp_path / "parts")
    assert ("Ranks on one clock" in text.render(analyzed(parts), is_verbose=True)) == (
        len(parts) > 1
    )
