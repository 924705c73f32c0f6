"""Reports measured by processes of this machine, some of which are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from multiprocessing import active_children
from typing import TYPE_CHECKING

import pytest

from tests.support.cli import run
from tests.support.workers import alone, hooked_path, is_running, openers, renamed, until, written
from traceprof.analysis import Options, analyze_reports
from traceprof.cli.main import EXIT_DONE, EXIT_ERROR
from traceprof.errors import UsageError, WorkerError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def _deadly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", hooked_path(tmp_path))


class Count:
    """Whoever wants to know how many reports are done."""

    expected = done = 0

    def expect(self, number: int) -> None:
        self.expected += number

    def advance(self, number: int) -> None:
        self.done += number


def test_processes_find_what_one_finds(reports: list[Path], tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_bytes(b"SQLite format 3\0 and no more")
    paths = [reports[0], damaged, *reports[1:]]
    count = Count()
    found = analyze_reports(paths, jobs=2, progress=count)
    assert written(found) == alone(paths)
    assert [each.path for each in found.failed] == [damaged]
    assert (count.expected, count.done) == (5, 5)
    assert not active_children()


def test_real_runs_find_the_same(traces: Path) -> None:
    for name in ("rtx3090x9_3nodes_tree", "jacobi_mpi"):
        paths = sorted((traces / name).glob("*.sqlite"))
        assert written(analyze_reports(paths, jobs=3)) == alone(paths)


def test_a_mistake_in_the_options_ends_it_all(reports: list[Path]) -> None:
    with pytest.raises(UsageError, match="both steps and a time range"):
        analyze_reports(reports, Options(steps=(0, 1), time_range=(0, 1)), jobs=2)
    assert not active_children()


@pytest.mark.usefixtures("_deadly")
def test_a_report_whose_process_was_killed_is_tried_again(reports: list[Path]) -> None:
    reports[1] = renamed(reports[1], "once")
    found = written(analyze_reports(reports, jobs=2))
    (killed,) = openers(reports[1])
    assert killed != os.getpid()
    assert found == alone(reports)


@pytest.mark.usefixtures("_deadly")
def test_a_report_that_kills_every_process_is_left_out(reports: list[Path]) -> None:
    deadly = renamed(reports.pop(1), "always")
    found = analyze_reports([*reports[:2], deadly, *reports[2:]], jobs=2)
    assert len(openers(deadly)) == 2
    (lost,) = found.failed
    assert lost.path == deadly
    assert isinstance(lost.error, WorkerError)
    assert (
        written(found)[0].partition('"lost_reports"')[0]
        == (alone(reports)[0].partition('"lost_reports"')[0])
    )


@pytest.mark.usefixtures("_deadly")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left_when_the_first_one_ends(
    reports: list[Path], number: signal.Signals
) -> None:
    stuck = [renamed(report, "never-done") for report in reports]
    command = [sys.executable, "-m", "traceprof", "analyze", "--jobs", "2", *map(str, stuck)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as first:
        until(lambda: openers(stuck[0]) and openers(stuck[1]))
        first.send_signal(number)
        out, err = first.communicate(timeout=30)
    workers = openers(stuck[0]) | openers(stuck[1])
    assert first.pid not in workers
    assert not out
    if number == signal.SIGINT:
        assert (err, first.returncode) == (b"\n", 130)  # the line ends after the terminal's ^C
    until(lambda: not any(is_running(worker) for worker in workers))


def test_jobs_are_chosen_on_the_command_line(
    reports: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for jobs in ("1", "3"):
        assert run("analyze", "--jobs", jobs, "--format", "json", *reports) == EXIT_DONE
        found.append(capsys.readouterr())
    assert found[0] == found[1]
    assert not found[0].err
    assert run("analyze", "--jobs", "0", *reports) == EXIT_ERROR
    assert "--jobs" in capsys.readouterr().err
