"""The command line as a user meets it."""

import json
import sys
from pathlib import Path

import pytest
from click import Context

from tests.support.builders import TraceBuilder
from tests.support.commands import output_of, run
from tests.support.selection import rows_long_after
from tests.support.traces import SAMPLE
from traceprof.analyses.registry import FINDING_IDS
from traceprof.cli.main import EXIT_DONE, EXIT_ERROR, EXIT_FINDINGS, EXIT_LEFT_OUT, cli

HEALTHY = SAMPLE.with_name("healthy.sqlite")


@pytest.fixture
def idle(tmp_path: Path) -> Path:
    """Write an export with one finding: half of the time the GPU is idle."""
    return TraceBuilder().kernel(0, 250).kernel(750, 1000).write(tmp_path / "idle.sqlite")


def test_text_is_the_default_and_stdout_has_the_result_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for options, said in (
        ((), "Where the time went"),
        (("--format", "json"), "traceprof.analysis/1"),
    ):
        assert run("analyze", *options, SAMPLE) == EXIT_DONE
        out, err = capsys.readouterr()
        assert said in out
        assert not err  # progress goes to a terminal only


@pytest.mark.parametrize("output_format", ["text", "json", "html"])
def test_output_to_a_file(
    tmp_path: Path, idle: Path, capsys: pytest.CaptureFixture[str], output_format: str
) -> None:
    target = tmp_path / "out"
    assert run("analyze", "--format", output_format, "-o", target, idle) == EXIT_DONE
    assert target.stat().st_size > 500
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("severity", ["info", "high"])
def test_findings_can_fail_a_job(idle: Path, severity: str) -> None:
    assert run("analyze", "--fail-on", severity, idle) == EXIT_FINDINGS
    assert run("analyze", idle) == EXIT_DONE


def test_findings_below_the_limit_do_not_fail_a_job() -> None:
    assert run("analyze", "--fail-on", "low", SAMPLE) == EXIT_FINDINGS
    assert run("analyze", "--fail-on", "medium", SAMPLE) == EXIT_DONE


def test_reports_that_were_left_out_can_fail_a_job(
    tmp_path: Path, idle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.sqlite").touch()
    assert run("analyze", "--format", "json", tmp_path) == EXIT_DONE
    expected = capsys.readouterr().out
    assert run("analyze", "--format", "json", "--strict", tmp_path) == EXIT_LEFT_OUT
    assert capsys.readouterr().out == expected  # the result of the others is written all the same
    # It holds also of findings that fail the job: they are not all there are.
    assert run("analyze", "--strict", "--fail-on", "info", tmp_path) == EXIT_LEFT_OUT
    assert run("analyze", "--strict", "--fail-on", "info", idle) == EXIT_FINDINGS
    assert run("analyze", "--strict", idle) == EXIT_DONE
    assert run("analyze", "--strict", tmp_path / "empty.sqlite") == EXIT_ERROR


def test_what_was_not_asked_for_does_not_fail_a_job(idle: Path) -> None:
    assert run("analyze", "--fail-on", "info", "--skip", "gpu-idle", idle) == EXIT_DONE
    assert run("analyze", "--fail-on", "info", "--only", "gpu-idle", idle) == EXIT_FINDINGS


def test_steps_and_times(idle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("analyze", "--format", "json", "--time-range", "0.1us:400ns", idle) == EXIT_DONE
    (measures,) = json.loads(capsys.readouterr().out)["breakdown"]
    assert (measures["window_start_ns"], measures["window_ns"]) == (100, 300)
    assert measures["idle_ns"] == 150
    assert run("analyze", "--format", "json", "--steps", "2:4", SAMPLE) == EXIT_DONE
    steps = json.loads(capsys.readouterr().out)["steps"]
    assert [(step["rank"], step["step"]) for step in steps] == [(0, 2), (0, 3), (1, 2), (1, 3)]


def test_several_reports_are_one_run(
    tmp_path: Path, idle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = TraceBuilder().kernel(0, 10, device=3).write(tmp_path / "other.sqlite")
    assert run("analyze", "--format", "json", idle, other) == EXIT_DONE
    found = json.loads(capsys.readouterr().out)
    assert [(rank["rank"], rank["report"], rank["device"]) for rank in found["ranks"]] == [
        (0, 0, 0),
        (1, 1, 3),
    ]
    # a pattern that the shell left alone
    assert run("analyze", "--format", "json", tmp_path / "*.sqlite") == EXIT_DONE
    assert len(json.loads(capsys.readouterr().out)["reports"]) == 2
    # a report named twice is one report
    assert run("analyze", "--format", "json", idle, tmp_path / "*.sqlite", idle) == EXIT_DONE
    assert len(json.loads(capsys.readouterr().out)["reports"]) == 2


def test_a_folder_is_all_reports_directly_in_it(
    tmp_path: Path, idle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    TraceBuilder().kernel(0, 10, device=3).write(tmp_path / "other.sqlite")
    (tmp_path / "empty.sqlite").touch()
    assert run("analyze", "--format", "json", tmp_path, idle) == EXIT_DONE
    out, err = capsys.readouterr()
    result = json.loads(out)
    paths = [report["path"] for report in result["reports"]]
    assert paths == [str(tmp_path / "idle.sqlite"), str(tmp_path / "other.sqlite")]
    assert [report["path"] for report in result["lost_reports"]] == [str(tmp_path / "empty.sqlite")]
    assert "the file is empty" in err
    assert run("info", tmp_path) == EXIT_DONE
    assert "1 kernel (" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["analyze", "info", "dashboard"])
def test_a_folder_of_which_nothing_can_be_read_takes_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    for name in ("a.sqlite", "b.sqlite"):
        (tmp_path / name).write_bytes(b"SQLite format 3\0")
    assert (
        run(command, *(("--port", "0") if command == "dashboard" else ()), tmp_path) == EXIT_ERROR
    )
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1
    assert "none of the 2 reports can be" in err


@pytest.mark.parametrize(
    "command", [[], ["export", "csv"], *([name] for name in cli.list_commands(Context(cli)))]
)
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert run(*command, "--help") == EXIT_DONE
    shown = capsys.readouterr().out
    assert "Usage: traceprof" in shown
    assert command in ([], ["export"]) or "xample: " in shown or shown.count("traceprof ") > 1
    assert "\\b" not in shown


def test_help_of_a_command_is_that_of_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("runs", "whatif"):
        shown = []
        for arguments in (["help", name], [name, "--help"]):
            assert run(*arguments) == EXIT_DONE
            shown.append(capsys.readouterr().out)
        assert shown[0] == shown[1]


@pytest.mark.parametrize("command", ["analyze", "whatif", "compare", "dashboard", "export csv"])
def test_options_that_commands_share_are_explained_once(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert run(*command.split(), "--help") == EXIT_DONE
    _, _, rest = capsys.readouterr().out.partition("Shared options (see: traceprof help reports):")
    names, _, _ = rest.lstrip().partition("\n\n")
    assert run("help", "reports") == EXIT_DONE
    explained = capsys.readouterr().out
    assert "--step-pattern REGEX" in names
    assert "around a" not in names
    assert all(name in explained for name in names.split())
    assert "its first group is the" in explained


def test_bare_traceprof_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == EXIT_DONE
    expected = capsys.readouterr()
    assert run() == EXIT_DONE
    assert capsys.readouterr() == expected


def test_the_begin_of_an_id_will_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", "exposed-comm") == EXIT_DONE
    shown = capsys.readouterr().out
    assert run("explain", "exposed-communication") == EXIT_DONE
    assert capsys.readouterr().out == shown
    documents = []
    for id_ in ("gpu-i", "gpu-idle"):
        assert run("analyze", "--format", "json", "--only", id_, SAMPLE) == EXIT_DONE
        documents.append(json.loads(capsys.readouterr().out)["findings"])
    assert documents[0] == documents[1] != []
    assert {finding["id"] for finding in documents[0]} == {"gpu-idle"}


def test_explain_lists_all_findings(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain") == EXIT_DONE
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*FINDING_IDS]
    assert all(len(line.split()) > 4 for line in lines)


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    for finding in FINDING_IDS:
        assert run("explain", finding) == EXIT_DONE
        shown = capsys.readouterr().out
        assert finding in shown
        assert "What to do" in shown


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("info", SAMPLE) == EXIT_DONE
    shown = capsys.readouterr().out
    assert "480 kernels" in shown
    assert "6 training steps" in shown


@pytest.mark.long
@pytest.mark.cpu_export
def test_info_of_every_real_export(real_trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("info", real_trace) == EXIT_DONE
    assert "exported by" in capsys.readouterr().out


def test_info_names_ranges_that_may_be_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    builder = TraceBuilder().nvtx("my epoch 1", 0, 90).kernel(10, 20)
    assert run("info", builder.write(tmp_path)) == EXIT_DONE
    assert "'my epoch 1'" in capsys.readouterr().out


def test_as_a_module_in_a_process_of_its_own() -> None:
    printed = output_of(sys.executable, "-m", "traceprof", "--version")
    assert printed.startswith("traceprof, version 0.")


def test_importing_traceprof_is_light() -> None:
    heavy = "{'numpy', 'pandas', 'torch', 'rich', 'click', 'dash'}"
    code = f"import sys, traceprof, traceprof.labels; print(*({heavy} & set(sys.modules)))"
    assert output_of(sys.executable, "-c", code).strip() == ""


@pytest.mark.parametrize(
    ("arguments", "absent"),
    rows_long_after(
        2,
        [
            (["--help"], ["numpy", "rich", "traceprof.trace", "traceprof.analyses"]),
            (["analyze", str(SAMPLE), "--format", "json"], ["rich"]),
            (["info", str(SAMPLE)], ["traceprof.replay"]),
            (["analyze", str(HEALTHY)], ["traceprof.replay"]),
        ],
    ),
    ids=["help", "analyze", "info", "nothing to replay"],
)
def test_commands_import_what_they_need(arguments: list[str], absent: list[str]) -> None:
    never = [
        *("pandas", "sqlite_utils", "jinja2", "pyarrow", "perfetto", "google.protobuf"),
        *("concurrent.futures", "difflib", "html", "traceprof.reports.html"),
        *("traceprof.trace.kineto.trace", "traceprof.trace.nsight.conversion"),
        *("traceprof.execution.many_reports", "traceprof.execution.analysis_future"),
    ]
    code = (
        f"import sys\nfrom traceprof.cli.main import main\ntry: main({arguments!r})\n"
        "except SystemExit as end: assert not end.code\n"
        f"print('needless:', *({{*{[*absent, *never]!r}}} & set(sys.modules)))"
    )
    assert output_of(sys.executable, "-c", code).strip().rpartition("\n")[2] == "needless:"
