"""`traceprof whatif` as a user runs it."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

import traceprof
from tests.support.builders import TraceBuilder
from tests.support.claims import US, validator
from tests.support.commands import in_process, json_of, printed
from tests.support.kept_claims import KeptText
from tests.support.traces import CPU_SAMPLE, SAMPLE
from traceprof.documents.whatif import WhatIfDocument


def test_text(kept_text: KeptText) -> None:
    kept_text(printed("whatif", SAMPLE, "--path-of", "3"))
    assert in_process("whatif", SAMPLE, "--path-of", "99").line


def test_without_steps_the_training_takes_its_time(
    tmp_path: Path, kept_text: KeptText, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # lines are broken where names of files are long
    trace = TraceBuilder().kernel(5 * US, 9 * US, launch=(0, US))
    trace.kernel(80 * US, 99 * US, launch=(70 * US, 71 * US))
    kept_text(printed("whatif", trace.write(Path("t.sqlite")), "--assume", "launch=0"))


def answer(report: Path, *more: str) -> dict[str, Any]:
    """Return what is answered as JSON, which follows the schema."""
    document = json_of("whatif", report, *more)
    validator("whatif").validate(document)
    return document


def test_json_is_the_document() -> None:
    assumed = ("--assume", "no-sync", "--assume", "link=2x", "--path-of", "3")
    found = answer(SAMPLE, *assumed)
    assert found["step_paths"]
    for path in found["step_paths"]:
        parts = path["parts"]
        assert sum(part["end_ns"] - part["start_ns"] for part in parts) == path["length_ns"]
    document = msgspec.convert(found, WhatIfDocument)
    assert document.schema == "traceprof.whatif/1"
    assert [one.assume for one in document.answers] == ["no-sync", "link=2x", "no-sync + link=2x"]
    assert document.baseline is not None
    assert [gate.name for gate in document.baseline.gates] == [
        "launches", "records", "hidden-host-waits", "hidden-stream-waits", "misfit", "unexplained",
        "host-floor", "floor",
    ]  # fmt: skip
    for one in document.answers:
        assert one.step_ns is not None
        assert one.change_ns == one.step_ns - document.baseline.step_ns


def test_a_path_that_is_not_utf_8(tmp_path: Path) -> None:
    path = TraceBuilder().kernel(0, 90).write(tmp_path).rename(tmp_path / "t\udcff.sqlite")
    assert answer(path)["reports"] == [str(path)]


def test_bounds_have_one_number() -> None:
    (only,) = answer(SAMPLE, "--assume", "perfect-overlap")["answers"]
    assert only["kind"] == "bound"
    assert only["low_ns"] == only["step_ns"] == only["high_ns"]


def test_a_run_without_a_gpu_is_refused() -> None:
    assert "This report cannot answer it: a rank has no GPU" in printed("whatif", CPU_SAMPLE)
    assert answer(CPU_SAMPLE)["refused"]


@pytest.mark.long
def test_the_package_is_its_own_door() -> None:
    asked = traceprof.whatif(SAMPLE, assume=["no-sync"])
    again = traceprof.whatif(SAMPLE, assume=["no-sync"])
    assert asked.whatif.answers == again.whatif.answers


def test_a_step_without_length_has_no_misfit(tmp_path: Path) -> None:
    baseline = answer(TraceBuilder().kernel(0, 0).write(tmp_path))["baseline"]
    assert (baseline["step_ns"], baseline["misfit"]) == (0, None)
