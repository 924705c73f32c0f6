"""Options: what the shell completes, and what cannot be asked for: one line, exit 2."""

from pathlib import Path

import pytest

from tests.support.commands import export, in_process, run
from tests.support.traces import SAMPLE
from traceprof.cli.main import EXIT_DONE, EXIT_ERROR

MISSING = "no.sqlite"  # never opened: else the line would be about it


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--steps", "-1:"], "steps -1:: steps are numbered from 0, never from the end; write A:B"),
        (["--steps", ":-1"], "steps :-1: steps are numbered from 0, never from the end; write A:B"),
        (["--steps", ""], "cannot read --steps '': it is not a range; write A:B"),
        (["--time-range", ""], "cannot read --time-range '': it is not a range; write A:B"),
        (["--only", ""], "cannot use --only '': it names no finding; write ids"),
        (["--skip", " , "], "cannot use --skip ' , ': it names no finding; write ids"),
        (["--only", "gpu-idle", "--skip", "gpu-idle"], "cannot judge anything: each finding"),
        (["-o", ""], "cannot write the result: its name is empty; choose"),
        (["-o", "no/such/out"], "cannot write no/such/out: No such file or directory; choose"),
        (["-o", "."], "cannot write .: Is a directory; choose"),
        (["--save", ""], "as a store of runs: it is not a file; name a file"),
        (["--save", "-"], "cannot use - as a store of runs: it is not a file; name a file"),
        (["--save", "/dev/null"], "as a store of runs: it is not a file; name a file"),
        (["--save", "no/such.db"], "as a store of runs: its folder does not exist; create it"),
        (["--save", "a.db", "-o", "./a.db"], "cannot write ./a.db: it is also the store of --save"),
    ],
)
def test_wrong_options(
    arguments: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = in_process("analyze", MISSING, *arguments)
    assert outcome.code == EXIT_ERROR
    assert line in outcome.line
    assert outcome.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("commands", "why"),
    [
        (
            [
                f"{command} {SAMPLE} -o no/such/out"
                for command in ("export csv", "export parquet", "export perfetto", "whatif")
            ],
            "cannot write no/such/out: No such file or directory; choose another place",
        ),
        (
            [f"export csv {MISSING} -o -", f"export parquet {MISSING} -o -", "record -o - -- true"],
            "cannot write to stdout: the result is several files; name a place",
        ),
    ],
)
def test_places_are_refused_alike(
    commands: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in commands:
        assert in_process(*command.split()).line == f"traceprof: {why}\n"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_made_in_one_that_exists(tmp_path: Path) -> None:
    report = export(tmp_path)
    for _ in range(2):
        assert in_process("export", "csv", report, "-o", tmp_path / "new").code == EXIT_DONE
    (tmp_path / "file").touch()
    assert "it is not a folder" in in_process("export", "csv", report, "-o", tmp_path / "file").line


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("traceprof ana", {"analyze"}),
        ("traceprof explain gpu", {"gpu-idle"}),
        ("traceprof analyze --only host-s", {"host-stall", "host-sync"}),
        ("traceprof analyze --skip gpu-idle,host-sy", {"gpu-idle,host-sync"}),
        ("traceprof export par", {"parquet"}),
    ],
)
def test_a_word_is_completed(
    line: str,
    expected: set[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("_TRACEPROF_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
    assert run() == EXIT_DONE
    out, err = capsys.readouterr()
    assert {answer.partition(",")[2] for answer in out.splitlines()} == expected
    assert not err


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_script_of_a_shell_is_written(
    shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_TRACEPROF_COMPLETE", f"{shell}_source")
    assert run() == EXIT_DONE
    script = capsys.readouterr().out
    assert "_TRACEPROF_COMPLETE" in script
    monkeypatch.delenv("_TRACEPROF_COMPLETE")
    assert run("completion", shell) == EXIT_DONE
    assert capsys.readouterr().out == script
