"""Recording with torch.profiler: the steps asked for, with the ranges of `instrument`."""

import gzip
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

import instrument
from tests.support.commands import ended
from tests.support.selection import long_after
from tests.support.traces import ranks_of
from traceprof.trace.model.special_values import NULL

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "support" / "programs" / "recorded.py"
FLOPS = 2 * 4 * 8 * 8  # of its layer


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run the program; return its exit status and what it printed."""
    kept = {name: value for name, value in os.environ.items() if "TRACEPROF" not in name}
    environ = {**kept, "PYTHONPATH": str(ROOT)}
    done = ended(sys.executable, PROGRAM, folder, *arguments, env=environ)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def annotated(folder: Path) -> Counter[str]:
    """Return how often each annotation is in the trace, which is the only file that is read."""
    (file,) = (path for path in folder.iterdir() if not path.name.startswith("."))
    content = file.read_bytes()  # a process that is told to end does not compress it any more
    is_packed = file.name.endswith(".pt.trace.json.gz")
    assert is_packed or file.name.endswith(".pt.trace.json")
    events = json.loads(gzip.decompress(content) if is_packed else content)["traceEvents"]
    return Counter(event["name"] for event in events if event.get("cat") == "user_annotation")


def greatest_flops(file: Path) -> int:
    """Return the work of the operator that computes most."""
    with ranks_of(file) as (rank,):
        operators = rank.trace.operators(rank.process)
        assert operators is not None
        return int(operators.work_of(slice(None))[0].max())


@pytest.mark.long
@pytest.mark.parametrize("has_shapes", [True, False])
def test_a_script_records_its_steps_and_shapes_where_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_shapes: bool
) -> None:
    if has_shapes:
        monkeypatch.setenv("SHAPES", "1")
    folder = tmp_path / "made" / "for it"
    assert run(folder) == (0, "True\n")
    names = annotated(folder)
    assert [name for name in sorted(names) if name.startswith("step ")] == [
        *("step 2", "step 3", "step 4")
    ]
    assert names["optimizer step"] == names["backward"] == 3
    assert greatest_flops(*folder.iterdir()) == (FLOPS if has_shapes else NULL)


@pytest.mark.parametrize("number", long_after(1, [signal.SIGTERM, signal.SIGHUP]))
def test_a_process_that_a_signal_ends_leaves_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setenv("SHAPES", "1")
    folder = tmp_path / "made" / "for it"
    status, _ = run(folder, "3", str(number.value))
    assert status == -number
    names = annotated(folder)
    assert [name for name in sorted(names) if name.startswith("step ")] == ["step 2", "step 3"]
    assert greatest_flops(*folder.iterdir()) == FLOPS


@pytest.mark.long
def test_a_signal_before_the_first_step_changes_nothing(tmp_path: Path) -> None:
    status, _ = run(tmp_path, "0")
    assert status == -signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_range(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no step in '3:3'"):
        instrument.record(tmp_path, steps=(3, 3))
