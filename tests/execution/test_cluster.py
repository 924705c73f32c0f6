"""Reports measured by a cluster of processes, some of which are killed."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import dask
import pytest
from distributed import Future, KilledWorker, LocalCluster

from tests.support.commands import run
from tests.support.workers import MAX_WAIT_S, alone, hooked_path, openers, renamed, until, written
from traceprof.analysis import Options, analyze_reports
from traceprof.cli.main import EXIT_DONE, EXIT_ERROR
from traceprof.errors import MissingExtraError, UsageError, WorkerError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Yield a cluster of one process, to which some reports are deadly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", hooked_path(tmp_path_factory.mktemp("hook")))
        # A report is tried twice, as it is without a cluster.
        with (
            dask.config.set({"distributed.scheduler.allowed-failures": 1}),
            LocalCluster(  # type: ignore[no-untyped-call]
                n_workers=1, threads_per_worker=1, processes=True, dashboard_address=":0"
            ) as cluster,
        ):
            yield cluster


@pytest.fixture
def scheduler(cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    """Return the address of the cluster, which has two processes in long tests."""
    if request.node.get_closest_marker("long"):
        cluster.scale(2)  # type: ignore[no-untyped-call]
    return cluster.scheduler_address


@pytest.mark.long
def test_a_cluster_finds_what_one_process_finds(
    scheduler: str,
    reports: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(reports[0].parent)
    named = [report.name for report in reports[:2]]  # the workers are in another folder
    assert run("analyze", "--format", "json", *named) == EXIT_DONE
    expected = capsys.readouterr().out
    assert run("analyze", "--format", "json", "--scheduler", scheduler, *named) == EXIT_DONE
    assert capsys.readouterr() == (expected, "")


@pytest.mark.long
def test_a_worker_that_is_killed_changes_nothing(scheduler: str, reports: list[Path]) -> None:
    reports[1] = renamed(reports[1], "once")
    found = written(analyze_reports(reports, scheduler=scheduler))
    assert len(openers(reports[1])) == 1
    assert found == alone(reports)


@pytest.mark.long
def test_a_report_that_kills_its_workers_is_left_out(scheduler: str, reports: list[Path]) -> None:
    deadly = renamed(reports.pop(1), "always")
    found = analyze_reports([deadly, *reports], scheduler=scheduler)
    # Twice, and twice again by itself where the scheduler suspected another report, too; less
    # often where a worker was lost on a busy machine.
    assert 1 <= len(openers(deadly)) <= 4
    (lost,) = found.failed
    assert lost.path == deadly
    assert isinstance(lost.error, WorkerError)
    assert found.findings == analyze_reports(reports).findings


@pytest.mark.long
def test_what_is_lost_with_the_workers_that_did_it_is_tried_once_more(
    scheduler: str, reports: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # They die after two reports are measured, before they are sent here.
    result = Future.result
    where = SimpleNamespace(address="tcp://127.0.0.1:1")
    lost = iter([KilledWorker("measure_file", where, 1)] * 2)  # type: ignore[arg-type]

    def fetched(future: Future[object]) -> object:
        for error in lost:
            raise error
        return result(future)

    monkeypatch.setattr(Future, "result", fetched)
    found = analyze_reports(reports, scheduler=scheduler)
    assert next(lost, None) is None
    monkeypatch.undo()
    assert written(found) == alone(reports)


@pytest.mark.long
def test_reports_that_cannot_be_read_are_left_out(
    scheduler: str, reports: list[Path], tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_bytes(b"SQLite format 3\0 and no more")
    missing = tmp_path / "missing.sqlite"
    found = analyze_reports([*reports, damaged, missing], scheduler=scheduler)
    assert [report.path for report in found.failed] == [damaged, missing]
    assert written(found) == alone([*reports, damaged, missing])


def test_reports_that_cannot_be_read_are_named_as_locally(
    scheduler: str,
    reports: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = reports[0].parent
    monkeypatch.chdir(folder)  # where the workers are not
    (folder / "empty.sqlite").touch()
    (folder / "damaged.sqlite").write_bytes(b"SQLite format 3\0 and no more")
    (folder / "text.sqlite").write_text("not a report")
    named = [reports[0].name, "empty.sqlite", "damaged.sqlite", "text.sqlite", "missing.sqlite"]
    assert run("analyze", "--format", "json", *named) == EXIT_DONE
    expected = capsys.readouterr()
    assert expected.err.count("\n") == len(named) - 1
    assert run("analyze", "--format", "json", "--scheduler", scheduler, *named) == EXIT_DONE
    assert capsys.readouterr() == expected


def test_a_mistake_in_the_options_ends_it_all(scheduler: str, reports: list[Path]) -> None:
    with pytest.raises(UsageError, match="both steps and a time range"):
        analyze_reports(reports, Options(steps=(0, 1), time_range=(0, 1)), scheduler=scheduler)


def test_a_cluster_without_workers(reports: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traceprof.execution.scheduler.WORKERS_S", 0.2)
    with (
        LocalCluster(  # type: ignore[no-untyped-call]
            n_workers=0, processes=True, dashboard_address=":0"
        ) as cluster,
        pytest.raises(WorkerError, match="it has no workers"),
    ):
        analyze_reports(reports, scheduler=cluster.scheduler_address)


def started(
    processes: ExitStack, *command: str, stderr: int = subprocess.DEVNULL
) -> subprocess.Popen[str]:
    """Start a process that is killed at the end, whatever a test comes to."""
    process = subprocess.Popen(command, stderr=stderr, text=True)

    def end() -> None:
        process.kill()
        process.communicate()

    processes.callback(end)
    return process


@pytest.mark.long
def test_a_scheduler_that_goes_away(
    reports: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", hooked_path(tmp_path))
    stuck = renamed(reports[0], "never-done")
    dask_command = [sys.executable, "-m", "dask"]
    options = ["--host", "127.0.0.1", "--port", "0", "--dashboard-address", ":0", "--no-show"]
    where = tmp_path / "scheduler.json"
    with ExitStack() as processes:
        scheduler = started(
            processes, *dask_command, "scheduler", *options, "--scheduler-file", str(where)
        )
        until(lambda: where.exists() and where.read_text().endswith("}"))
        worker = ["worker", "--scheduler-file", str(where), "--no-dashboard", "--no-nanny"]
        started(processes, *dask_command, *worker)
        address = json.loads(where.read_text())["address"]
        command = ["-m", "traceprof", "analyze", "--scheduler", address, str(stuck)]
        driver = started(processes, sys.executable, *command, stderr=subprocess.PIPE)
        until(lambda: openers(stuck))
        scheduler.kill()
        _, err = driver.communicate(timeout=MAX_WAIT_S)
    assert driver.returncode == EXIT_ERROR
    assert err.startswith(f"traceprof: cannot go on with the scheduler {address}: ")
    assert err.count("\n") == 1


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[distributed\]'"):
        analyze_reports([Path("never read")], scheduler="tcp://127.0.0.1:1")
