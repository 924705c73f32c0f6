"""Options: what the shell completes, and what cannot be asked for: one line, exit 2."""

import shlex
from pathlib import Path

import pytest

from tests.support.commands import in_process, printed, run
from tests.support.kept_claims import KeptText
from tests.support.traces import SAMPLE
from traceprof.cli.main import EXIT_DONE

HEALTHY = SAMPLE.with_name("healthy.sqlite")
# Of no.sqlite nothing is read: else the line would be about it.
WRONG = """
export
no-such-command
analyze
analyze --no-such-option SAMPLE
analyze --format xml SAMPLE
analyze --steps 5 SAMPLE
analyze --steps : SAMPLE
analyze --steps a:b SAMPLE
analyze --steps 90:95 SAMPLE
analyze --time-range 1:x SAMPLE
analyze --time-range 1.5:1.7 SAMPLE
analyze --time-range 5s:1s SAMPLE
analyze --time-range 1s:1s SAMPLE
analyze --time-range 10s:20s SAMPLE
analyze --time-range :-1 SAMPLE
analyze --steps 3:1 SAMPLE
analyze --steps 3:3 SAMPLE
analyze --only nonsense SAMPLE
analyze --step-pattern '(' SAMPLE
analyze --steps 0:1 --time-range :1s SAMPLE
explain nonsense
explain exposed
analyze --only host-s SAMPLE
analyze s3://bucket/a.sqlite
record train.py
record no-such-program
explain gpu-idel
analyze --skip stragler SAMPLE
help analize
analize
analyze no.sqlite --steps -1:
analyze no.sqlite --steps :-1
analyze no.sqlite --steps ''
analyze no.sqlite --time-range ''
analyze no.sqlite --only ''
analyze no.sqlite --skip ' , '
analyze no.sqlite --only gpu-idle --skip gpu-idle
analyze no.sqlite -o ''
analyze no.sqlite -o no/such/out
analyze no.sqlite -o .
analyze no.sqlite --save ''
analyze no.sqlite --save -
analyze no.sqlite --save /dev/null
analyze no.sqlite --save no/such.db
analyze no.sqlite --save a.db -o ./a.db
export csv SAMPLE -o no/such/out
export parquet SAMPLE -o no/such/out
whatif SAMPLE -o no/such/out
export perfetto SAMPLE -o no/such/out
export csv no.sqlite -o -
export parquet no.sqlite -o -
record -o - -- true
compare SAMPLE
compare
compare SAMPLE HEALTHY -o HEALTHY
compare SAMPLE no.sqlite
whatif SAMPLE --assume no-snyc
whatif SAMPLE --assume link
analyze no.sqlite --name a
analyze no.sqlite --label a=b
analyze no.sqlite --save a.db --label b
analyze no.sqlite --save SAMPLE
"""


def test_usage_errors_take_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_text: KeptText
) -> None:
    monkeypatch.chdir(tmp_path)
    reports = {"SAMPLE": str(SAMPLE), "HEALTHY": str(HEALTHY)}
    said = []
    for command in WRONG.strip().splitlines():
        outcome = in_process(*(reports.get(word, word) for word in shlex.split(command)))
        assert (outcome.out, outcome.err.count("\n")) == ("", 1)
        said += [command, f"  {outcome.line}"]
    assert list(tmp_path.iterdir()) == []
    kept_text("\n".join(said))


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
    assert printed("completion", shell) == script
