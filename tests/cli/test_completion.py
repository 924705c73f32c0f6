"""What the shell completes, by the protocol that its script speaks."""

import pytest

from tests.support.commands import run
from traceprof.cli.main import EXIT_DONE


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
