"""Options: what the shell completes, and what cannot be asked for: one line, exit 2."""

from pathlib import Path

import pytest

from tests.support.commands import in_process, printed, run
from tests.support.traces import SAMPLE
from traceprof.cli.main import EXIT_DONE

HEALTHY = SAMPLE.with_name("healthy.sqlite")
MISSING = "no.sqlite"  # never opened: else the line would be about it
OF_ANALYZE = [
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
]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["export"], "Missing command"),
        (["no-such-command"], "No such command 'no-such-command'"),
        (["analyze"], "Missing argument 'REPORT...'"),
        (["analyze", "--no-such-option", SAMPLE], "No such option"),
        (["analyze", "--format", "xml", SAMPLE], "'xml' is not one of"),
        (["analyze", "--steps", "5", SAMPLE], "it is not a range"),
        (["analyze", "--steps", ":", SAMPLE], "it is not a range"),
        (["analyze", "--steps", "a:b", SAMPLE], "it is not a whole number"),
        (["analyze", "--steps", "90:95", SAMPLE], "the steps found are 0 to 5"),
        (["analyze", "--time-range", "1:x", SAMPLE], "it is not a number with a unit"),
        (["analyze", "--time-range", "1.5:1.7", SAMPLE], "write 1.5s for seconds, 1.5ms for"),
        (["analyze", "--time-range", "5s:1s", SAMPLE], "it ends before it starts"),
        (["analyze", "--time-range", "1s:1s", SAMPLE], "it is empty: its end is not part of it"),
        (["analyze", "--time-range", "10s:20s", SAMPLE], "the capture lasts from 0 to 1"),
        (["analyze", "--time-range", ":-1", SAMPLE], "nothing was captured in it"),
        (["analyze", "--steps", "3:1", SAMPLE], "it ends before it starts"),
        (["analyze", "--steps", "3:3", SAMPLE], "it is empty: step B is not part of A:B"),
        (
            ["analyze", "--only", "nonsense", SAMPLE],
            "no finding 'nonsense': this version finds exposed-",
        ),
        (["analyze", "--step-pattern", "(", SAMPLE], "not a regular expression"),
        (["analyze", "--steps", "0:1", "--time-range", ":1s", SAMPLE], "both steps and a time"),
        (["explain", "nonsense"], "there is no finding 'nonsense'"),
        (["explain", "exposed"], "'exposed': exposed-communication, exposed-copy begin so; write"),
        (["analyze", "--only", "host-s", SAMPLE], "host-sync, host-stall begin so; write more of"),
        (["analyze", "s3://bucket/a.sqlite"], "it is an address, and only files are read; copy it"),
        (["record", "train.py"], "write: -- python train.py, or -- torchrun --nproc-per-node 8 tr"),
        (["record", "no-such-program"], "cannot run no-such-program: there is no such program; "),
        (["explain", "gpu-idel"], "; did you mean 'gpu-idle'?"),
        (["analyze", "--skip", "stragler", SAMPLE], "; did you mean 'straggler'?"),
        (["help", "analize"], "No such command or topic 'analize'. Did you mean 'analyze'?"),
        (["analize"], "No such command 'analize'. Did you mean 'analyze'?"),
        *((["analyze", MISSING, *options], line) for options, line in OF_ANALYZE),
        *(
            ([*command.split(), "-o", "no/such/out"], "cannot write no/such/out: No such file or")
            for command in (
                f"export csv {SAMPLE}",
                f"export parquet {SAMPLE}",
                f"whatif {SAMPLE}",
                f"export perfetto {SAMPLE}",
            )
        ),
        *(
            (command.split(), "cannot write to stdout: the result is several files; name a place")
            for command in (
                f"export csv {MISSING} -o -",
                f"export parquet {MISSING} -o -",
                "record -o - -- true",
            )
        ),
        (["compare", SAMPLE], "nothing is given for the side after"),
        (["compare"], "nothing is given for the side before"),
        (["compare", SAMPLE, HEALTHY, "-o", HEALTHY], "it is one of the reports"),
        (["compare", SAMPLE, MISSING], "no such file"),
        (["whatif", SAMPLE, "--assume", "no-snyc"], "did you mean"),
        (["whatif", SAMPLE, "--assume", "link"], "value"),
        (["analyze", MISSING, "--name", "a"], "cannot use --name: no run is saved"),
        (["analyze", MISSING, "--label", "a=b"], "cannot use --label: no run is saved"),
        (["analyze", MISSING, "--save", "a.db", "--label", "b"], "it has no key or no value"),
        (["analyze", MISSING, "--save", SAMPLE], "a database of something else"),
    ],
)
def test_usage_errors_take_one_line(
    arguments: list[str | Path], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = in_process(*arguments)
    assert (outcome.out, outcome.err.count("\n")) == ("", 1)
    assert outcome.line.startswith("traceprof: ")
    assert complaint in outcome.line
    assert list(tmp_path.iterdir()) == []


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
