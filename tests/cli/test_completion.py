"""What the shell completes, by the protocol that its script speaks."""

import os
import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("traceprof ana", {"analyze"}),
        ("traceprof explain gpu", {"gpu-idle"}),
        ("traceprof analyze --only host-s", {"host-stall", "host-sync"}),
        ("traceprof analyze --skip gpu-idle,host-sy", {"gpu-idle,host-sync"}),
        ("traceprof simulate data", {"data-loading"}),
    ],
)
def test_a_word_is_completed(line: str, expected: set[str]) -> None:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    done = subprocess.run(
        [sys.executable, "-m", "traceprof"],
        env={**os.environ, "_TRACEPROF_COMPLETE": "bash_complete", **words},
        capture_output=True,
        text=True,
        check=True,
    )
    assert {answer.partition(",")[2] for answer in done.stdout.splitlines()} == expected
    assert not done.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_script_of_a_shell_is_written(shell: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "traceprof"],
        env={**os.environ, "_TRACEPROF_COMPLETE": f"{shell}_source"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "_TRACEPROF_COMPLETE" in done.stdout
