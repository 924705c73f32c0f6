"""The command and its server: where it listens, what it says, how it ends."""

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page

from dashboards.server import app, serving
from dashboards.server.app import assets_path, create_app
from dashboards.server.guard import is_loopback
from dashboards.server.serving import HOST, DashboardServer
from dashboards.server.state import AnalysisProgress
from tests.support.commands import run, unnoticed_signal
from tests.support.dashboard import running
from tests.support.selection import known, long_after
from tests.support.traces import SAMPLE, analysis_of
from tests.support.workers import MAX_WAIT_S, is_running, until
from traceprof.analysis import analyze
from traceprof.cli.analyze import command as analyze_command
from traceprof.cli.dashboard import command as dashboard_command
from traceprof.cli.main import EXIT_DONE, EXIT_ERROR
from traceprof.errors import UsageError
from traceprof.execution.options import num_jobs

pytestmark = pytest.mark.slow

EVERYWHERE = "0.0.0.0"  # noqa: S104  (what the token is for)


def get(url: str) -> tuple[int, str]:
    # It keeps the cookie that an address with a token brings.
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    try:
        with opener.open(url, timeout=MAX_WAIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def scripts(page: str) -> list[str]:
    """Return what a page loads."""
    return re.findall(r'(?:src|href)="([^"]*)"', page)


@pytest.mark.long
def test_it_takes_a_free_port_a_token_and_the_options_that_change_what_is_found(
    page: Page, tmp_path: Path
) -> None:
    options = ("--only", "gpu-idle,exposed-communication", "--skip", "gpu-idle")
    steps = ("--step-pattern", r"forward", "--flops-per-step", "4e12")
    notes = tmp_path / "notes.json"
    with running("--port", "0", *options, *steps, "--notes", str(notes)) as (_, url):
        assert re.fullmatch(rf"http://{re.escape(HOST)}:\d+/\?token=[\w-]{{32}}", url)
        bare = url.partition("?")[0]
        assert [get(bare)[0], get(f"{bare}progress")[0]] == [403, 403]
        page.goto(url)
        page.wait_for_selector("table.breakdown")
        cards = page.locator("[id^=finding-]").evaluate_all("all => all.map((each) => each.id)")
        assert cards == ["finding-exposed-communication"]
        page.goto(f"{bare}kernels")
        page.wait_for_selector("#page p:text('4e+12 FLOPs'):text('by --flops-per-step')")
        assert not notes.exists()
        assert page.request.post(f"{bare}notes", data={"href": "/", "text": "kept"}).ok
        assert "kept" in notes.read_text()
        page.goto("about:blank")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--only", "nothing"], "there is no finding 'nothing'"),
        (["--step-pattern", "("], "step pattern"),
        (["--communication-kernel", "("], "("),
        (["--link-peak", "pcie"], "pcie"),
        (["--flops-per-step", "0"], "flops_per_step"),
    ],
)
def test_a_wrong_option_is_said_before_anything_is_served(
    options: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("dashboard", "--port", "0", SAMPLE, *options) == EXIT_ERROR
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1
    assert complaint in err


def test_options_that_change_what_is_found_are_those_of_analyze() -> None:
    others = {
        "output_format", "output", "steps", "time_range", "jobs", "scheduler", "fail_on",
        "is_strict", "is_verbose", "shows_kernels", "store", "name", "labels", "savings",
    }  # fmt: skip
    of_analyze = {param.name for param in analyze_command.params} - others
    assert of_analyze == {param.name for param in dashboard_command.params} - {
        "host", "port", "opens", "has_token", "before", "notes_path", "watched",
    }  # fmt: skip


# While modules are imported by two threads, and while the report is read.
@pytest.mark.long
@pytest.mark.parametrize("when_s", [0.3, 0.0, 0.2, 0.4, 0.5])
def test_ctrl_c_ends_it_cleanly(when_s: float) -> None:
    with running("--port", "0") as (process, _):
        time.sleep(when_s)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=MAX_WAIT_S)
    assert process.returncode in {0, 130}
    assert "Traceback" not in errors
    assert errors.strip() == ""


@pytest.mark.skipif(sys.platform == "win32", reason="it has no such terminals")
def test_on_a_terminal_the_address_stands_below_the_bar() -> None:
    terminal, of_command = os.openpty()
    command = [sys.executable, "-m", "traceprof", "dashboard", "--port", "0", str(SAMPLE)]
    with subprocess.Popen(
        command, stdout=of_command, stderr=of_command, env={**os.environ, "TERM": "xterm"}
    ) as process:
        try:
            shown = b""
            while not re.search(rb"token=[^\r]+\r", shown):
                shown += os.read(terminal, 1 << 16)
        finally:
            process.kill()
    os.close(terminal)
    os.close(of_command)
    bar, address = shown.rsplit(b"\x1b[2K", 1)  # which clears a line
    assert b"rows" in bar
    assert address.startswith(b"http://")


def test_ctrl_c_right_before_the_wait_is_answered() -> None:
    with DashboardServer(has_token=False) as server:
        late = threading.Timer(20, server._is_ending.set)
        late.start()
        with unnoticed_signal(signal.SIGINT), pytest.raises(KeyboardInterrupt):
            server.wait()
        assert not server._is_ending.is_set()
        late.cancel()
        late.join()


def test_connections_that_send_nothing_hold_nobody_up() -> None:
    with DashboardServer(has_token=False) as server, ExitStack() as stack:
        assert get(server.url)[0] == 200
        port = urlsplit(server.url).port
        before = {*threading.enumerate()}
        for number in range(200):
            slow = stack.enter_context(socket.create_connection((HOST, port), MAX_WAIT_S))
            # Of a request, of a body that is to come, and nothing at all.
            slow.sendall(
                (b"GET / HT", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n", b"")[number % 3]
            )
        assert get(server.url)[0] == 200
        assert {*threading.enumerate()} <= before


def test_long_replies_wait_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    body, files = bytes(4 << 20), []

    def answer(_: DashboardServer, __: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Length", str(len(body)))])
        return [body]

    def temporary_file(*_: Any, **__: Any) -> io.BytesIO:
        files.append(io.BytesIO())
        return files[-1]

    monkeypatch.setattr(DashboardServer, "_answer", answer)
    monkeypatch.setattr(tempfile, "TemporaryFile", temporary_file)
    with DashboardServer(has_token=False) as server:
        assert get(server.url) == (200, body.decode())
    assert files == []


@pytest.mark.long
def test_elsewhere_a_token_is_needed() -> None:
    with running("--port", "0", "--host", EVERYWHERE) as (process, url):
        token = known(re.search(r"\?token=([\w-]{32})\Z", url))
        port = known(re.search(r":(\d+)/", url))
        local = f"http://{HOST}:{port[1]}/"
        assert get(local)[0] == 403
        assert get(f"{local}assets/style.css")[0] == 403
        assert get(f"{local}?token={token[1]}")[0] == 200
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=MAX_WAIT_S)
    assert process.returncode in {0, 130}
    assert "can be reached from other machines" in errors
    assert token[1] not in errors


def test_a_taken_port_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with closing(socket.socket()) as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run("dashboard", "--port", str(port), SAMPLE) == EXIT_ERROR
    out, errors = capsys.readouterr()
    assert out == ""
    assert errors == (
        f"traceprof: cannot serve on {HOST}:{port}: Address already in use;"
        " choose another with --port, or --port 0 for any that is free\n"
    )


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid", "::ffff:0:0:1"])
def test_no_address_of_this_machine(host: str) -> None:
    with pytest.raises(UsageError, match="with --host"):
        DashboardServer(host, 0)


def test_a_bad_report_ends_it_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.sqlite"
    path.write_bytes(b"no database")
    assert run("dashboard", path, "--port", "0") == EXIT_ERROR
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert errors.startswith("traceprof: cannot")


@pytest.mark.parametrize("package", long_after(1, ["dash", "dash_ag_grid", "waitress"]))
def test_without_its_extra_the_command_names_it(package: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        f"from traceprof.cli.main import main; main(['dashboard', {str(SAMPLE)!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        f"traceprof: cannot start the dashboard: the package {package} is not installed;"
        " run pip install '.[dashboard]' in the folder of traceprof's source\n"
    )


def test_it_answers_before_the_analysis_is_there() -> None:
    with DashboardServer(has_token=False) as server:
        status, page = get(server.url)
        assert status == 200
        before = get(f"{server.url}_dash-layout")[1]
        dependencies = get(f"{server.url}_dash-dependencies")[1]
        with closing(analyze(SAMPLE, listener=server.progress)) as analysis:
            done, expected = server.progress.so_far()
            assert done == expected > 0
            assert not server.progress.wait(0)
            server.show(analysis)
            assert server.progress.wait(0)
            # What a browser has loaded of the one goes on with the other.
            assert scripts(get(server.url)[1]) == scripts(page)
            assert get(f"{server.url}_dash-dependencies")[1] == dependencies
            assert get(f"{server.url}_dash-layout")[1] != before


def test_its_two_applications_are_never_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    being_made: list[object] = []
    num_at_once = []

    def slowly(analysis: object, **options: Any) -> Any:
        being_made.append(analysis)
        num_at_once.append(len(being_made))
        time.sleep(0.2)
        being_made.remove(analysis)
        return create_app(None, **options)

    monkeypatch.setattr(app, "create_app", slowly)
    with analysis_of(SAMPLE) as analysis, DashboardServer(has_token=False) as server:
        server.show(analysis)
    assert num_at_once == [1, 1]


def test_scripts_are_served_from_the_first_request_on() -> None:
    """An open page of the one application asks the other for scripts, several at once."""
    path = "/" + next(
        url.partition("?")[0].lstrip("/")
        for url in re.findall(r'src="([^"]+)"', create_app(None).server.test_client().get("/").text)
        if "_dash-component-suites" in url
    )
    other = create_app(None)
    other._got_first_request["setup_server"] = True  # as for the second of two at once
    assert other.server.test_client().get(path).status_code == 200


def test_the_reports_stay_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    path.write_bytes(SAMPLE.read_bytes())
    with DashboardServer(has_token=False) as server, analysis_of(path) as analysis:
        server.show(analysis)
        get(server.url)
    assert path.read_bytes() == SAMPLE.read_bytes()
    assert [file.name for file in tmp_path.iterdir()] == ["t.sqlite"]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True),
        (EVERYWHERE, False), ("::", False), ("10.0.0.1", False), ("example.org", False),
        ("", False),
    ],
)  # fmt: skip
def test_what_is_loopback(host: str, *, expected: bool) -> None:
    assert is_loopback(host) == expected


def test_progress_is_passed_on() -> None:
    first = AnalysisProgress()
    second = AnalysisProgress(also=first)
    second.expect(10)
    second.advance(4)
    second.expect(-1)
    assert first.so_far() == second.so_far() == (4, 9)


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="no workers elsewhere")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nobody_is_left_when_it_ends_while_it_analyses(number: signal.Signals) -> None:
    program = """
import os, sys, time
from traceprof.cli.main import main
from traceprof.execution import measuring, workers
def slowly(*_):
    os.write(1, b"%d\\n" % os.getpid())
    for _ in range(3000):
        time.sleep(0.1)  # a signal right before a sleep is answered after it
measuring.measure_rank = slowly
workers.MIN_OPERATIONS_OF_A_PROCESS = 1
sys.argv[0] = "traceprof"
main(["dashboard", "--port", "0", "--no-token", sys.argv[1]])
"""
    command = [sys.executable, "-c", program, str(SAMPLE)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        # The first child may be there before the address is.
        said = [known(process.stdout).readline().strip() for _ in range(1 + min(2, num_jobs(None)))]
        children = [int(line) for line in said if line.isdigit()]
        (url,) = (line for line in said if not line.isdigit())
        assert process.pid not in children
        assert not json.loads(get(f"{url}progress")[1])["is_over"]
        process.send_signal(number)
        _, errors = process.communicate(timeout=MAX_WAIT_S)
    until(lambda: not any(map(is_running, children)))
    codes = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}
    assert process.returncode == codes[number]
    assert errors.strip() == ""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="no workers elsewhere")
def test_it_goes_on_when_what_analyses_is_killed() -> None:
    program = """
import os, signal, sys
from traceprof.cli.main import main
from traceprof.execution import measuring
first, measure = os.getpid(), measuring.measure_rank
def in_first(*arguments):
    if os.getpid() != first:
        os.kill(os.getpid(), signal.SIGKILL)
    print("here", flush=True)
    return measure(*arguments)
measuring.measure_rank = in_first
main(["dashboard", "--port", "0", "--no-token", sys.argv[1]])
"""
    command = [sys.executable, "-c", program, str(SAMPLE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert process.stdout.readline() == "here\n"
            while not json.loads(get(f"{url}progress")[1])["is_over"]:
                pass
            assert get(url)[0] == 200
        finally:
            process.send_signal(signal.SIGINT)
    assert process.returncode == EXIT_DONE


def files_without_a_name() -> set[str]:
    """Return the files without a name that this process has open."""
    names = set()
    for file in list(Path("/proc/self/fd").iterdir()):
        with suppress(FileNotFoundError):  # closed by another thread meanwhile
            names.add(str(file.readlink()))
    return {name for name in names if name.endswith(" (deleted)")}


def test_an_answer_that_nobody_takes_leaves_no_file_open() -> None:
    script = "/_dash-component-suites/dash_ag_grid/async-enterprise.js"
    with analysis_of(SAMPLE) as analysis, ExitStack() as stack:
        before = files_without_a_name()
        with DashboardServer(has_token=False) as server:
            server.show(analysis)
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(60)
            port = urlsplit(server.url).port
            client.connect((HOST, port))
            client.sendall(f"GET {script} HTTP/1.1\r\nHost: {HOST}:{port}\r\n\r\n".encode())
            assert client.recv(12) == b"HTTP/1.1 200"
            assert files_without_a_name() == before
        assert files_without_a_name() == before


def test_only_who_has_shown_the_token_may_be_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_MAX_UNKNOWN_SILENCE_S", 0.3)
    with DashboardServer() as server, ExitStack() as stack:
        address = urlsplit(server.url)
        silent, refused, known = (stack.enter_context(socket.socket()) for _ in range(3))
        for client, path in ((silent, ""), (refused, "/"), (known, f"/?{address.query}")):
            client.settimeout(MAX_WAIT_S)
            client.connect((HOST, address.port))
            if path:
                client.sendall(f"GET {path} HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
        assert refused.recv(12) == b"HTTP/1.1 403"
        answer = b""
        while not answer.endswith(b"click the link.\n"):
            answer += known.recv(4096)
        assert answer.startswith(b"HTTP/1.1 302")
        for client in (silent, refused):
            while client.recv(4096):
                pass  # until the server closes it
        known.sendall(f"GET /progress HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
        assert known.recv(8) == b"HTTP/1.1"


@pytest.mark.parametrize("accepted", ["gzip, deflate", "gzip, deflate, br, zstd"])
def test_programs_and_data_are_compressed(accepted: str) -> None:
    """Browsers take the better encodings from this machine or over HTTPS only."""
    with analysis_of(SAMPLE) as analysis:
        client = create_app(analysis).server.test_client()
        for path in (f"/{assets_path()}/style.css", "/timeline/rank?rank=0"):
            with client.get(path) as reply:
                plain = reply.get_data()
            with client.get(path, headers={"Accept-Encoding": accepted}) as reply:
                assert "Content-Encoding" in reply.headers
                assert "Accept-Encoding" in reply.headers["Vary"]
                assert len(reply.get_data()) < len(plain) / 2
