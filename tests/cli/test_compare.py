"""`traceprof compare` as a user runs it."""

import json
from pathlib import Path

import pytest

from tests.support.builders import TraceBuilder
from tests.support.claims import validator
from tests.support.commands import in_process, printed
from tests.support.selection import rows_long_after
from tests.support.traces import SAMPLE_FOLDER
from traceprof.cli.main import EXIT_DONE, EXIT_ERROR, EXIT_FINDINGS

BEFORE, AFTER = SAMPLE_FOLDER / "late-allreduce.sqlite", SAMPLE_FOLDER / "ddp.sqlite"


def test_json_is_by_the_schema() -> None:
    gates = ("--gate", "finding:late-allreduce", "--gate", "step:-32.2%")
    outcome = in_process("compare", BEFORE, AFTER, "--format", "json", *gates)
    assert outcome.code == EXIT_FINDINGS
    written = json.loads(outcome.out)
    validator("comparison").validate(written)
    assert written["schema"] == "traceprof.comparison/1"
    assert [gate["outcome"] for gate in written["gates"]] == ["met", "inconclusive"]


@pytest.mark.parametrize(
    ("gates", "code"),
    rows_long_after(
        1,
        [
            (("--gate", "finding:late-allreduce"), EXIT_DONE),
            (("--gate", "step:-50%"), EXIT_FINDINGS),
            (("--gate", "step:-20%", "--gate", "exposed-communication:-10pp"), EXIT_DONE),
            (("--gate", "finding:late-allreduc"), EXIT_ERROR),
        ],
    ),
)
def test_the_exit_status_tells_whether_gates_are_met(gates: tuple[str, ...], code: int) -> None:
    outcome = in_process("compare", BEFORE, AFTER, *gates)
    assert outcome.code == code
    assert outcome.out or code == EXIT_ERROR


@pytest.mark.long
def test_options_and_places_name_the_same_sides() -> None:
    expected = printed("compare", BEFORE, AFTER)
    assert "Not comparable" not in expected
    assert "mean over ranks" in expected
    assert "late-allreduce" in expected
    pattern = str(SAMPLE_FOLDER / "late-allred*.sqlite")
    for sides in (("--before", BEFORE, "--after", AFTER), (pattern, "--after", AFTER)):
        assert printed("compare", *sides) == expected


def test_text_says_first_what_is_not_comparable(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for step in range(4):
        trace.nvtx(f"step {step}", 100 * step, 100 * step + 90)
        trace.kernel(100 * step + 10, 100 * step + 80)
    path = trace.write(tmp_path)
    same = "compare", path, path
    lines = printed(*same).splitlines()
    assert lines[1] == "Not comparable: the same recording stands on both sides."
    gate = ("--gate", "step:+90%", "--format", "junit")
    refused = in_process(*same, *gate)
    assert refused.code == EXIT_FINDINGS
    assert 'message="not comparable: the same recording stands on both sides"' in refused.out
    assert "<failure" not in printed(*same, *gate, "--allow-different", "recording")
    wrong = in_process(*same, "--allow-different", "gpus")
    assert "choose one of gpu, world-size, recording" in wrong.line


def test_a_store_is_no_output_of_its_own_comparison(tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    printed("analyze", BEFORE, "--save", store, "--name", "a")
    refused = in_process("compare", f"{store}#a", AFTER, "-o", store)
    assert "it is one of the reports" in refused.line
    printed("compare", f"{store}#a", AFTER)
