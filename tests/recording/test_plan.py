"""The plan of a recording."""

from pathlib import Path

import pytest

from traceprof.errors import UsageError
from traceprof.recording.plan import TORCH, make_plan

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
