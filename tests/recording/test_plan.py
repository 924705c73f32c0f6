"""The plan of a recording, and what is said of the machine before it."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.recording.test_doctor import DIAGNOSIS
from traceprof.errors import UsageError
from traceprof.recording import record
from traceprof.recording.plan import NSYS, TORCH, make_plan
from traceprof.recording.versions import Versions

TRAIN = ["python", "train.py"]


@pytest.mark.parametrize("steps", ["10:20", "0:1", ":1", "3:"])
def test_a_range_of_steps_is_passed_on(tmp_path: Path, steps: str) -> None:
    plan = make_plan(TRAIN, tmp_path, {}, steps=steps, tool=TORCH)
    assert plan.words[-3:] == ("--steps", steps, "train.py")
    assert plan.variables["TRACEPROF_RECORD_STEPS"] == steps


@pytest.mark.parametrize("steps", ["", ":", "5", "5:5", "5:4", ":0", "a:3", "1:-2", "1:2:3"])
def test_what_is_no_range_of_steps_is_refused(tmp_path: Path, steps: str) -> None:
    with pytest.raises(UsageError, match="it is not a range of steps"):
        make_plan(TRAIN, tmp_path, {}, steps=steps, tool=TORCH)


@pytest.mark.parametrize(
    ("tool", "nsys_cuda", "said"),
    [(NSYS, "12.4", ["too new"]), (NSYS, "13.0", []), (TORCH, "12.4", [])],
)
def test_only_an_nsys_that_is_too_old_for_cuda_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, nsys_cuda: str, said: list[str]
) -> None:
    versions = Versions("2024.1", "580.65", "13.0", "2.9.0", nsys_cuda=nsys_cuda)
    diagnosis = replace(DIAGNOSIS, versions=versions, misfits=("too new",))
    monkeypatch.setattr(record, "diagnose", lambda: diagnosis)
    plan = replace(make_plan(TRAIN, tmp_path, {}, tool=TORCH), tool=tool)
    messages: list[str] = []
    assert record._diagnosed(plan, messages.append) is diagnosis
    assert messages == said
    assert [path.name for path in tmp_path.iterdir()] == ["doctor-node7.json"]
