"""What is said where the address of a scheduler is wrong, and connections by TLS."""

import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import dask
import pytest
from distributed import LocalCluster, Security

from tests.support.commands import run
from tests.support.selection import long_after
from tests.support.traces import SAMPLE
from traceprof.analysis import analyze_reports
from traceprof.cli.main import EXIT_DONE, EXIT_ERROR
from traceprof.errors import UsageError

pytestmark = pytest.mark.slow

_LIMIT_S = 60  # Dask itself would wait for ever, for some of them


def silent(connection: socket.socket) -> None:
    while connection.recv(1 << 16):
        pass


def http(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


def http_at_once(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


def random_bytes(connection: socket.socket) -> None:
    connection.sendall(os.urandom(4096))


def three_exbibytes(connection: socket.socket) -> None:
    connection.sendall((3 << 60).to_bytes(8, "little") + bytes(100))


def dripping(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"\1")
        time.sleep(0.2)


def closing(connection: socket.socket) -> None:
    del connection


@contextmanager
def server(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """Answer all connections in a way; yield the port."""
    ended = threading.Event()

    def serve(connection: socket.socket) -> None:
        with suppress(OSError), connection:
            answer(connection)

    def accept() -> None:
        while not ended.is_set():
            with suppress(OSError):
                threading.Thread(target=serve, args=listening.accept()[:1], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.1)
        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield listening.getsockname()[1]
        finally:
            ended.set()
            accepting.join()


@pytest.mark.parametrize("address", long_after(1, ["tcp://127.0.0.1:1", "nonsense://x", "tcp://"]))
def test_where_no_scheduler_is(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traceprof.execution.scheduler.CONNECT_S", 0.5)
    with pytest.raises(UsageError, match=f"cannot use the scheduler {address}"):
        analyze_reports([SAMPLE], scheduler=address)


@pytest.mark.parametrize(
    "answer",
    long_after(2, [silent, http, http_at_once, random_bytes, three_exbibytes, dripping, closing]),
)
def test_what_answers_is_no_scheduler(
    answer: Callable[[socket.socket], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("traceprof.execution.scheduler.CONNECT_S", 1)
    began = time.monotonic()
    with server(answer) as port:
        address = f"tcp://127.0.0.1:{port}"
        assert run("analyze", "--scheduler", address, str(SAMPLE)) == EXIT_ERROR
    assert time.monotonic() - began < _LIMIT_S
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"traceprof: cannot use the scheduler {address}: the server at ")
    assert err.count("\n") == 1


@pytest.mark.long
def test_a_worker_is_no_scheduler(capsys: pytest.CaptureFixture[str]) -> None:
    with LocalCluster(  # type: ignore[no-untyped-call]
        n_workers=1, processes=True, dashboard_address=":0"
    ) as cluster:
        (worker,) = cluster.workers.values()
        assert run("analyze", "--scheduler", worker.worker_address, str(SAMPLE)) == EXIT_ERROR
    err = capsys.readouterr().err
    assert "at this address belongs to Dask, but is not a scheduler; start one with" in err
    assert err.count("\n") == 1


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


def test_tls(
    encrypted: str, certificates: dict[str, dict[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert encrypted.startswith("tls://")
    assert run("analyze", "--format", "json", str(SAMPLE)) == EXIT_DONE
    expected = capsys.readouterr().out
    with dask.config.set(certificates["ours"]):
        arguments = ["--format", "json", "--scheduler", encrypted, str(SAMPLE)]
        assert run("analyze", *arguments) == EXIT_DONE
    assert capsys.readouterr() == (expected, "")


@pytest.mark.long
def test_tls_with_wrong_settings(
    encrypted: str,
    certificates: dict[str, dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("traceprof.execution.scheduler.CONNECT_S", _LIMIT_S)

    def why(address: str, settings: dict[str, object]) -> str:
        with dask.config.set(settings), pytest.raises(UsageError) as raised:
            analyze_reports([SAMPLE], scheduler=address)
        return raised.value.why

    no_settings: dict[str, object] = dict.fromkeys(certificates["ours"])
    other: dict[str, object] = {**certificates["other"]}
    assert why(encrypted, no_settings) == "Dask's configuration names no certificates"
    assert why(encrypted, other) == "TLS fails (CERTIFICATE_VERIFY_FAILED)"
    missing = {**other, "distributed.comm.tls.client.cert": str(tmp_path / "missing.pem")}
    assert why(encrypted, missing).startswith("the certificates that Dask's configuration names")
    demanded = {**other, "distributed.comm.require-encryption": True}
    assert "demands encryption" in why("tcp://127.0.0.1:1", demanded)
    with server(random_bytes) as port:
        assert why(f"tls://127.0.0.1:{port}", other).startswith("TLS fails (")
    monkeypatch.setattr("traceprof.execution.scheduler.CONNECT_S", 1)
    with server(silent) as port:
        began = time.monotonic()
        assert why(f"tls://127.0.0.1:{port}", other).startswith("the server at ")
        assert time.monotonic() - began < _LIMIT_S
