"""The command line as a user meets it."""

import sys
from pathlib import Path

import pytest
from click import Context

from tests.support.builders import TraceBuilder
from tests.support.commands import in_process, json_of, output_of, printed
from tests.support.selection import rows_long_after
from tests.support.traces import SAMPLE
from traceprof.analyses.registry import FINDING_IDS
from traceprof.cli.main import EXIT_DONE, EXIT_ERROR, EXIT_FINDINGS, EXIT_LEFT_OUT, cli

HEALTHY = SAMPLE.with_name("healthy.sqlite")


@pytest.fixture
def idle(tmp_path: Path) -> Path:
    """Write an export with one finding: half of the time the GPU is idle."""
    return TraceBuilder().kernel(0, 250).kernel(750, 1000).write(tmp_path / "idle.sqlite")


def test_text_is_the_default_and_stdout_has_the_result_alone() -> None:
    for options, said in (
        ((), "Where the time went"),
        (("--format", "json"), "traceprof.analysis/1"),
    ):
        outcome = in_process("analyze", *options, SAMPLE)
        assert said in outcome.out
        assert (outcome.code, outcome.err) == (EXIT_DONE, "")  # progress goes to a terminal only


@pytest.mark.parametrize(
    ("options", "of_idle", "of_sample"),
    [
        ((), EXIT_DONE, EXIT_DONE),
        (("--fail-on", "info"), EXIT_FINDINGS, EXIT_FINDINGS),
        (("--fail-on", "low"), EXIT_FINDINGS, EXIT_FINDINGS),
        (("--fail-on", "medium"), EXIT_FINDINGS, EXIT_DONE),
        (("--fail-on", "high"), EXIT_FINDINGS, EXIT_DONE),
        (("--fail-on", "info", "--skip", "gpu-idle"), EXIT_DONE, EXIT_FINDINGS),
        (("--fail-on", "info", "--only", "gpu-idle"), EXIT_FINDINGS, EXIT_FINDINGS),
    ],
)
def test_findings_can_fail_a_job(
    options: tuple[str, ...], of_idle: int, of_sample: int, idle: Path
) -> None:
    assert in_process("analyze", *options, idle).code == of_idle
    assert in_process("analyze", *options, SAMPLE).code == of_sample


def test_reports_that_were_left_out_can_fail_a_job(tmp_path: Path, idle: Path) -> None:
    (tmp_path / "empty.sqlite").touch()
    expected = printed("analyze", "--format", "json", tmp_path)
    strict = in_process("analyze", "--format", "json", "--strict", tmp_path)
    assert strict.code == EXIT_LEFT_OUT
    assert strict.out == expected  # the result of the others is written all the same
    # It holds also of findings that fail the job: they are not all there are.
    for options, report, code in (
        (("--fail-on", "info"), tmp_path, EXIT_LEFT_OUT),
        (("--fail-on", "info"), idle, EXIT_FINDINGS),
        ((), idle, EXIT_DONE),
        ((), tmp_path / "empty.sqlite", EXIT_ERROR),
    ):
        assert in_process("analyze", "--strict", *options, report).code == code


def test_steps_and_times(idle: Path) -> None:
    (measures,) = json_of("analyze", "--time-range", "0.1us:400ns", idle)["breakdown"]
    assert (measures["window_start_ns"], measures["window_ns"]) == (100, 300)
    assert measures["idle_ns"] == 150
    steps = json_of("analyze", "--steps", "2:4", SAMPLE)["steps"]
    assert [(step["rank"], step["step"]) for step in steps] == [(0, 2), (0, 3), (1, 2), (1, 3)]


def test_several_reports_are_one_run(tmp_path: Path, idle: Path) -> None:
    other = TraceBuilder().kernel(0, 10, device=3).write(tmp_path / "other.sqlite")
    ranks = json_of("analyze", idle, other)["ranks"]
    found = [(rank["rank"], rank["report"], rank["device"]) for rank in ranks]
    assert found == [(0, 0, 0), (1, 1, 3)]
    pattern = tmp_path / "*.sqlite"  # that the shell left alone
    assert len(json_of("analyze", pattern)["reports"]) == 2
    # A report named twice is one report.
    assert len(json_of("analyze", idle, pattern, idle)["reports"]) == 2


def test_a_folder_is_all_reports_directly_in_it(tmp_path: Path, idle: Path) -> None:
    TraceBuilder().kernel(0, 10, device=3).write(tmp_path / "other.sqlite")
    (tmp_path / "empty.sqlite").touch()
    outcome = in_process("analyze", "--format", "json", tmp_path, idle)
    result = outcome.document
    paths = [report["path"] for report in result["reports"]]
    assert paths == [str(tmp_path / "idle.sqlite"), str(tmp_path / "other.sqlite")]
    assert [report["path"] for report in result["lost_reports"]] == [str(tmp_path / "empty.sqlite")]
    assert "the file is empty" in outcome.err
    assert "1 kernel (" in printed("info", tmp_path)


@pytest.mark.parametrize("command", ["analyze", "info", "dashboard"])
def test_a_folder_without_a_readable_report_takes_one_line(tmp_path: Path, command: str) -> None:
    for name in ("a.sqlite", "b.sqlite"):
        (tmp_path / name).write_bytes(b"SQLite format 3\0")
    port = ("--port", "0") if command == "dashboard" else ()
    outcome = in_process(command, *port, tmp_path)
    assert "none of the 2 reports can be" in outcome.line
    assert (outcome.out, outcome.err.count("\n")) == ("", 1)


@pytest.mark.parametrize(
    "command", [[], ["export", "csv"], *([name] for name in cli.list_commands(Context(cli)))]
)
def test_every_command_has_help(command: list[str]) -> None:
    shown = printed(*command, "--help")
    assert "Usage: traceprof" in shown
    assert command in ([], ["export"]) or "xample: " in shown or shown.count("traceprof ") > 1
    assert "\\b" not in shown


def test_help_of_a_command_is_that_of_its_option() -> None:
    assert printed() == printed("--help")
    for name in ("runs", "whatif"):
        assert printed("help", name) == printed(name, "--help")


@pytest.mark.parametrize("command", ["analyze", "whatif", "compare", "dashboard", "export csv"])
def test_options_that_commands_share_are_explained_once(command: str) -> None:
    _, _, rest = printed(*command.split(), "--help").partition(
        "Shared options (see: traceprof help reports):"
    )
    names, _, _ = rest.lstrip().partition("\n\n")
    explained = printed("help", "reports")
    assert "--step-pattern REGEX" in names
    assert "around a" not in names
    assert all(name in explained for name in names.split())
    assert "its first group is the" in explained


def test_the_begin_of_an_id_will_do() -> None:
    assert printed("explain", "exposed-comm") == printed("explain", "exposed-communication")
    findings = [
        json_of("analyze", "--only", id_, SAMPLE)["findings"] for id_ in ("gpu-i", "gpu-idle")
    ]
    assert findings[0] == findings[1]
    assert {finding["id"] for finding in findings[0]} == {"gpu-idle"}


def test_explain() -> None:
    lines = printed("explain").splitlines()
    assert [line.split()[0] for line in lines] == [*FINDING_IDS]
    assert all(len(line.split()) > 4 for line in lines)
    for finding in FINDING_IDS:
        shown = printed("explain", finding)
        assert finding in shown
        assert "What to do" in shown


def test_info() -> None:
    shown = printed("info", SAMPLE)
    assert "480 kernels" in shown
    assert "6 training steps" in shown


@pytest.mark.long
@pytest.mark.cpu_export
def test_info_of_every_real_export(real_trace: Path) -> None:
    assert "exported by" in printed("info", real_trace)


def test_info_names_ranges_that_may_be_steps(tmp_path: Path) -> None:
    builder = TraceBuilder().nvtx("my epoch 1", 0, 90).kernel(10, 20)
    assert "'my epoch 1'" in printed("info", builder.write(tmp_path))


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
        *("traceprof.execution.many_reports", "multiprocessing"),
    ]
    code = (
        f"import sys\nfrom traceprof.cli.main import main\ntry: main({arguments!r})\n"
        "except SystemExit as end: assert not end.code\n"
        f"print('needless:', *({{*{[*absent, *never]!r}}} & set(sys.modules)))"
    )
    assert output_of(sys.executable, "-c", code).strip().rpartition("\n")[2] == "needless:"
