"""Reports measured by processes of this machine, some of which are killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.commands import in_process, unnoticed_signal
from tests.support.selection import long_after
from tests.support.workers import (
    MAX_WAIT_S,
    RowCount,
    alone,
    child_pids,
    hooked_path,
    is_running,
    openers,
    renamed,
    until,
    written,
)
from traceprof.analyses.measurements import RankMeasurements, Wanted
from traceprof.analysis import Options, analyze_reports
from traceprof.errors import UsageError, WorkerError
from traceprof.execution import many_reports, measuring, workers
from traceprof.execution.measuring import Task
from traceprof.run.rank import Rank, Window
from traceprof.run.summary import FailedReport


@pytest.mark.usefixtures("can_fork")
def test_processes_find_what_one_finds(reports: list[Path], tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_bytes(b"SQLite format 3\0 and no more")
    paths = [reports[0], damaged, reports[1]]
    count, before = RowCount(), child_pids()
    result = analyze_reports(paths, jobs=2, listener=count)
    assert written(result) == alone(paths)
    assert [failed.path for failed in result.failed] == [damaged]
    assert (count.expected, count.read) == (3, 3)
    assert child_pids() == before


@pytest.mark.long
@pytest.mark.usefixtures("can_fork")
def test_real_runs_find_the_same(traces: Path) -> None:
    for name in ("rtx3090x9_3nodes_tree", "jacobi_mpi"):
        paths = sorted((traces / name).glob("*.sqlite"))
        assert written(analyze_reports(paths, jobs=3)) == alone(paths)


@pytest.mark.long
@pytest.mark.usefixtures("can_fork")
def test_processes_that_are_left_over_share_ranks(
    reports: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    noted, measure = tmp_path / "noted", measuring.measure_rank

    def note(rank: Rank, window: Window, wanted: Wanted | None = None) -> RankMeasurements:
        with noted.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return measure(rank, window, wanted)

    monkeypatch.setattr(workers, "MIN_OPERATIONS_OF_A_PROCESS", 1)
    monkeypatch.setattr(measuring, "measure_rank", note)
    expected = alone(reports[:2], jobs=1)
    assert {*noted.read_text().split()} == {str(os.getpid())}
    for jobs, num_processes in ((2, 2), (4, 4)):
        noted.unlink()
        assert written(analyze_reports(reports[:2], jobs=jobs)) == expected
        pids = noted.read_text().split()
        assert len(pids) == 4  # two reports of two ranks
        assert len({*pids}) == num_processes
        assert str(os.getpid()) not in pids


@pytest.mark.usefixtures("can_fork")
def test_a_mistake_in_the_options_ends_it_all(reports: list[Path]) -> None:
    before = child_pids()
    with pytest.raises(UsageError, match="both steps and a time range"):
        analyze_reports(reports, Options(steps=(0, 1), time_range=(0, 1)), jobs=2)
    assert child_pids() == before


@pytest.mark.usefixtures("can_fork")
@pytest.mark.parametrize("num_deaths", [1, 2])
def test_a_report_that_ends_its_process_is_tried_again_and_then_left_out(
    reports: list[Path], num_deaths: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadly, deaths, measure = reports[1], tmp_path / "deaths", measuring.measure_file
    deaths.mkdir()

    def die(task: Task, num_processes: int) -> many_reports.Measured:
        if task.path == deadly and len([*deaths.iterdir()]) < num_deaths:
            (deaths / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return measure(task, num_processes)

    monkeypatch.setattr(many_reports, "measure_file", die)
    found = analyze_reports(reports, jobs=2)
    assert len([*deaths.iterdir()]) == num_deaths
    assert not (deaths / str(os.getpid())).exists()
    assert [lost.path for lost in found.failed] == [deadly] * (num_deaths - 1)
    if num_deaths == 1:
        assert written(found) == alone(reports)
    else:
        assert "was killed, and so was the next one" in str(found.failed[0].error)
        assert found.findings == analyze_reports([reports[0], *reports[2:]], jobs=1).findings


@pytest.mark.slow
@pytest.mark.parametrize("number", long_after(1, [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]))
def test_no_process_is_left_when_the_first_one_ends(
    reports: list[Path], number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", hooked_path(tmp_path))
    stuck = [renamed(report, "never-done") for report in reports]
    command = [sys.executable, "-m", "traceprof", "analyze", "--jobs", "2", *map(str, stuck)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as first:
        until(lambda: openers(stuck[0]) and openers(stuck[1]))
        first.send_signal(number)
        out, err = first.communicate(timeout=MAX_WAIT_S)
    workers = openers(stuck[0]) | openers(stuck[1])
    assert first.pid not in workers
    assert not out
    if number == signal.SIGTERM:
        assert (err, first.returncode) == (b"", 143)
    if number == signal.SIGINT:
        assert (err, first.returncode) == (b"\n", 130)  # the line ends after the terminal's ^C
    until(lambda: not any(is_running(worker) for worker in workers))


@pytest.mark.skipif(sys.platform != "linux", reason="no workers elsewhere")
def test_a_signal_right_before_the_wait_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_over = tmp_path / "over"

    def measure(*_: object) -> None:
        time.sleep(20)
        is_over.touch()

    monkeypatch.setattr(many_reports, "measure_file", measure)
    path = Path("never read")
    work = many_reports.measured_in_processes([Task(path, path, Options())], 1)
    with unnoticed_signal(signal.SIGINT), pytest.raises(KeyboardInterrupt):
        next(work)
    assert not is_over.exists()


@pytest.fixture
def _names_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have reports not be read, but named by the process that would."""

    def failed(*_: object) -> FailedReport:
        return FailedReport(Path(str(os.getpid())), WorkerError("not read", "a test", "nothing"))

    monkeypatch.setattr(many_reports, "measure_file", failed)


@pytest.mark.usefixtures("can_fork", "_names_of_processes")
def test_a_process_measures_one_report_after_the_other() -> None:
    path = Path("never read")
    tasks = [Task(path, path, Options())] * 6
    measured = [*many_reports.measured_in_processes(tasks, 2)]
    assert sorted(index for index, _ in measured) == [0, 1, 2, 3, 4, 5]
    processes = {str(report.path) for _, report in measured if isinstance(report, FailedReport)}
    assert 1 <= len(processes) <= 2
    assert str(os.getpid()) not in processes


@pytest.mark.usefixtures("can_fork", "_names_of_processes")
@pytest.mark.parametrize(
    ("jobs", "num_reports", "num_bytes", "is_here"),
    [
        (None, 2, 20, True),
        (None, 2, 50, False),  # 100 bytes together
        (1, 2, 50, True),
        (2, 2, 20, False),
        (2, 1, 100, True),
    ],
)
def test_processes_are_for_large_reports_or_for_who_asks(
    jobs: int | None,
    num_reports: int,
    num_bytes: int,
    is_here: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(many_reports, "_MIN_BYTES", 100)
    monkeypatch.setattr(many_reports, "num_jobs", lambda asked: asked or 2)
    paths = [tmp_path / str(number) for number in range(num_reports)]
    for path in paths:
        path.write_bytes(bytes(num_bytes))
    measured = many_reports.measure_reports(paths, Options(), jobs, None, None)
    processes = {str(one.path) for one in measured if isinstance(one, FailedReport)}
    assert (processes == {str(os.getpid())}) == is_here


def test_no_jobs_are_a_mistake() -> None:
    assert "--jobs" in in_process("analyze", "--jobs", "0", "never read").line
