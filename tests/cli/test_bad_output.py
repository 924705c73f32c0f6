"""Where a result cannot be written: one line, and nothing that was there is lost."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import Outcome, assert_contract, export, fifo, folder_of, in_process
from tests.support.commands import outcome_of as process
from tests.support.selection import long_after
from tests.support.traces import SAMPLE
from traceprof.cli.main import EXIT_DONE, EXIT_ERROR


@pytest.mark.parametrize("how", ["itself", "symlink", "hard link", "detour", "not read yet"])
def test_a_report_is_never_written_over(tmp_path: Path, how: str) -> None:
    path = export(tmp_path)
    target = tmp_path / "other"
    if how == "symlink":
        target.symlink_to(path)
    elif how == "hard link":
        target.hardlink_to(path)
    elif how == "detour":
        target = Path(f"{tmp_path}/../{tmp_path.name}/t.sqlite")
    else:
        target = path
    reports = [tmp_path / "no.sqlite", path] if how == "not read yet" else [path]
    before = folder_of(path)
    outcome = in_process("analyze", "-o", target, *reports)
    assert "it is one of the reports; choose another name" in outcome.line
    assert_contract(outcome)
    assert folder_of(path) == before


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("", "Is a directory"),
        ("no/such/out", "No such file or directory"),
        ("t.sqlite/out", "Not a directory"),
        ("n" * 300, "File name too long"),
        ("/dev/full", "No space left on device"),
        ("pipe", "No such device or address"),
        ("a\0b", "null"),
    ],
)
def test_output_that_cannot_be_written(tmp_path: Path, target: str, why: str) -> None:
    path = export(tmp_path)
    fifo(tmp_path)
    before = folder_of(path)
    outcome = in_process("analyze", "--format", "json", "-o", tmp_path / target, path)
    assert why in outcome.line
    assert_contract(outcome)
    assert folder_of(path) == before


def test_output_to_what_is_no_file(tmp_path: Path) -> None:
    path = export(tmp_path)
    assert in_process("analyze", "-o", "/dev/null", path) == Outcome(EXIT_DONE, "", "")
    with subprocess.Popen(["cat", fifo(tmp_path)], stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        code = EXIT_ERROR
        while code == EXIT_ERROR:  # until the reader has opened the pipe
            code = in_process("analyze", "--format", "json", "-o", tmp_path / "pipe", path).code
        assert json.loads(reader.stdout.read())["schema"]


SHELL = f"set -o pipefail; unset PYTHONUNBUFFERED; '{sys.executable}' -m traceprof"


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    long_after(1, ["explain gpu-idle", f"analyze '{SAMPLE}'", f"info '{SAMPLE}'", "--help"]),
)
@pytest.mark.parametrize(
    ("redirection", "code", "said"),
    [
        ("| true", EXIT_DONE, ""),
        (">&-", EXIT_DONE, ""),
        ("> /dev/full", EXIT_ERROR, "cannot write the result: No space left on device; "),
    ],
)
def test_stdout_that_takes_nothing(command: str, redirection: str, code: int, said: str) -> None:
    outcome = process("bash", "-c", f"{SHELL} {command} {redirection}")
    assert outcome.code == code
    assert said in outcome.err
    assert_contract(outcome, is_json=False)


@pytest.mark.slow
def test_stderr_that_takes_nothing() -> None:
    for redirection in ("2>&-", "2> /dev/full"):
        outcome = process("bash", "-c", f"{SHELL} analyze no.sqlite {redirection}")
        assert outcome == Outcome(EXIT_ERROR, "", "")
