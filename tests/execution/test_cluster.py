"""Reports measured by a cluster of processes, some of which are killed."""

import json
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import dask
import pytest
from distributed import CancelledError, Future, KilledWorker, LocalCluster, Security

from tests.support.commands import Outcome, in_process, printed
from tests.support.selection import long_after
from tests.support.traces import SAMPLE
from tests.support.workers import MAX_WAIT_S, alone, hooked_path, openers, renamed, until, written
from traceprof.analysis import analyze_reports
from traceprof.cli.main import EXIT_DONE, EXIT_ERROR
from traceprof.errors import MissingExtraError, TraceFileError, UsageError, WorkerError
from traceprof.run.summary import FailedReport


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
    if request.node.get_closest_marker("long"):
        cluster.scale(2)  # type: ignore[no-untyped-call]
    return cluster.scheduler_address


@pytest.mark.long
@pytest.mark.slow
def test_a_worker_that_is_killed_changes_nothing(scheduler: str, reports: list[Path]) -> None:
    reports[1] = renamed(reports[1], "once")
    found = written(analyze_reports(reports, scheduler=scheduler))
    assert len(openers(reports[1])) == 1
    assert found == alone(reports)


@pytest.mark.long
@pytest.mark.slow
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


KILLED = KilledWorker("measure", SimpleNamespace(address="tcp://127.0.0.1:1"), 1)  # type: ignore[arg-type]
NOT_THERE = TraceFileError("cannot read it", "there is no such file", "check the path")


@pytest.fixture
def arriving(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return what arrives of the first reports in place of their measurements."""
    instead: list[object] = []
    result = Future.result

    def fetched(future: Future[object]) -> object:
        if not instead:
            return result(future)
        arrived = instead.pop()
        if isinstance(arrived, Exception):
            raise arrived
        return arrived

    monkeypatch.setattr(Future, "result", fetched)
    return instead


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arrived", "why"),
    [
        (KILLED, "the workers that analysed it died, the last one at tcp://127.0.0.1:1"),
        (FailedReport(SAMPLE, NOT_THERE), "it is here, but on a worker there is no such file"),
        (FailedReport(SAMPLE, WorkerError("a", "it is odd", "b")), "it is odd"),
    ],
)
def test_a_report_that_a_worker_cannot_analyse(
    scheduler: str, reports: list[Path], arriving: list[object], arrived: object, why: str
) -> None:
    arriving.append(arrived)
    found = analyze_reports(reports[:2], scheduler=scheduler)
    (lost,) = found.failed
    assert lost.path in reports[:2]
    assert lost.error.why == why
    (other,) = {*reports[:2]} - {lost.path}
    assert found.breakdown == analyze_reports([other]).breakdown


@pytest.mark.slow
def test_what_is_lost_with_the_workers_that_did_it_is_tried_once_more(
    scheduler: str, reports: list[Path], arriving: list[object]
) -> None:
    arriving += [KILLED, KILLED]  # after two reports are measured, before they are sent here
    found = analyze_reports(reports[:2], scheduler=scheduler)
    assert not arriving
    assert written(found) == alone(reports[:2])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "why"),
    [(CancelledError(), "the connection is lost"), (ImportError("no numpy"), "no numpy")],
)
def test_what_ends_the_work_of_a_cluster(
    scheduler: str, reports: list[Path], arriving: list[object], error: Exception, why: str
) -> None:
    arriving.append(error)
    with pytest.raises(WorkerError, match=f": {why}; "):
        analyze_reports(reports, scheduler=scheduler)


@pytest.mark.slow
def test_reports_that_cannot_be_read_are_named_as_locally(
    scheduler: str, reports: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = reports[0].parent
    monkeypatch.chdir(folder)  # where the workers are not
    (folder / "empty.sqlite").touch()
    (folder / "damaged.sqlite").write_bytes(b"SQLite format 3\0 and no more")
    (folder / "text.sqlite").write_text("not a report")
    named = [reports[0].name, "empty.sqlite", "damaged.sqlite", "text.sqlite", "missing.sqlite"]
    expected = in_process("analyze", "--format", "json", *named)
    assert expected.err.count("\n") == len(named) - 1
    found = in_process("analyze", "--format", "json", "--scheduler", scheduler, *named)
    assert found == expected


@pytest.mark.slow
def test_a_cluster_without_workers(reports: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traceprof.execution.many_reports.WORKERS_S", 0.2)
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
@pytest.mark.slow
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


def http(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


def three_exbibytes(connection: socket.socket) -> None:
    connection.sendall((3 << 60).to_bytes(8, "little") + bytes(100))


def closing(connection: socket.socket) -> None:
    del connection


def silent(connection: socket.socket) -> None:
    while connection.recv(1 << 16):
        pass


@contextmanager
def server(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """Answer all connections in a way; yield the port."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:  # closed
                return
            with suppress(OSError), connection:
                answer(connection)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("address", long_after(1, ["tcp://127.0.0.1:1", "nonsense://x", "tcp://"]))
def test_where_no_scheduler_is(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traceprof.execution.many_reports.CONNECT_S", 0.5)
    with pytest.raises(UsageError, match=f"cannot use the scheduler {address}"):
        analyze_reports([SAMPLE], scheduler=address)


@pytest.mark.slow
@pytest.mark.parametrize("answer", long_after(1, [silent, three_exbibytes, http, closing]))
def test_what_answers_is_no_scheduler(
    answer: Callable[[socket.socket], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traceprof.execution.many_reports.CONNECT_S", 1)
    with server(answer) as port:
        address = f"tcp://127.0.0.1:{port}"
        outcome = in_process("analyze", "--scheduler", address, SAMPLE)
    begin = f"traceprof: cannot use the scheduler {address}: no scheduler of Dask "
    assert outcome.line.startswith(begin)
    assert (outcome.out, outcome.err.count("\n")) == ("", 1)


def test_a_client_that_connects_too_late_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, is_closed = threading.Event(), threading.Event()

    def client(*_: object, **__: object) -> object:
        goes_on.wait(MAX_WAIT_S)
        return SimpleNamespace(close=is_closed.set)

    monkeypatch.setattr("distributed.Client", client)
    monkeypatch.setattr("traceprof.execution.many_reports.CONNECT_S", 0.1)
    with pytest.raises(UsageError, match="the server says nothing that Dask understands"):
        analyze_reports([SAMPLE], scheduler="tcp://127.0.0.1:1")
    goes_on.set()
    assert is_closed.wait(MAX_WAIT_S)


@pytest.mark.long
@pytest.mark.slow
def test_a_worker_is_no_scheduler(cluster: LocalCluster) -> None:
    worker, *_ = cluster.workers.values()
    outcome = in_process("analyze", "--scheduler", worker.worker_address, SAMPLE)
    assert "no scheduler of Dask answers there" in outcome.line
    assert outcome.err.count("\n") == 1


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Return Dask's settings for two clusters, each with a certificate of its own."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not on PATH")
    folder = tmp_path_factory.mktemp("certificates")
    settings = {}
    for name in ("ours", "other"):
        certificate, key = folder / f"{name}.pem", folder / f"{name}-key.pem"
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        command = ["openssl", "req", "-x509", *curve, "-nodes", "-days", "2"]
        files = ["-keyout", str(key), "-out", str(certificate)]
        subprocess.run([*command, "-subj", f"/CN={name}", *files], check=True, capture_output=True)
        settings[name] = {
            "distributed.comm.tls.ca-file": str(certificate),
            **{
                f"distributed.comm.tls.{role}.{what}": str(path)
                for role in ("client", "scheduler", "worker")
                for what, path in (("cert", certificate), ("key", key))
            },
        }
    return settings


@pytest.fixture(scope="module")
def encrypted(certificates: dict[str, dict[str, str]]) -> Iterator[str]:
    """Yield the address of a cluster that talks by TLS only."""
    with dask.config.set({**certificates["ours"], "distributed.comm.require-encryption": True}):
        security = Security()  # type: ignore[no-untyped-call]
        with LocalCluster(  # type: ignore[no-untyped-call]
            n_workers=1, processes=False, protocol="tls", dashboard_address=":0", security=security
        ) as cluster:
            yield cluster.scheduler_address


@pytest.mark.long
@pytest.mark.slow
def test_tls(encrypted: str, certificates: dict[str, dict[str, str]]) -> None:
    assert encrypted.startswith("tls://")
    with dask.config.set(certificates["ours"]):
        outcome = in_process("analyze", "--format", "json", "--scheduler", encrypted, SAMPLE)
    assert outcome == Outcome(EXIT_DONE, printed("analyze", "--format", "json", SAMPLE), "")


@pytest.mark.long
@pytest.mark.slow
def test_tls_with_wrong_settings(
    encrypted: str,
    certificates: dict[str, dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("traceprof.execution.many_reports.CONNECT_S", 2)
    no_settings: dict[str, object] = dict.fromkeys(certificates["ours"])
    other: dict[str, object] = {**certificates["other"]}
    missing = {**other, "distributed.comm.tls.client.cert": str(tmp_path / "missing.pem")}
    for settings in (no_settings, other, missing):
        with dask.config.set(settings), pytest.raises(UsageError, match="no scheduler of Dask"):
            analyze_reports([SAMPLE], scheduler=encrypted)
