"""Captures of Nsight Systems, which `nsys` converts: where it fails, lacks or cannot start."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.commands import attempt, nsys_on_path
from tests.support.recording import profile
from tests.support.selection import long_after, rows_long_after
from tests.support.traces import SAMPLE
from tests.support.workers import MAX_WAIT_S, is_running, until
from traceprof import open_trace
from traceprof.trace.nsight import conversion

pytestmark = pytest.mark.slow


REPORT = b"NVIDIA Tegra Profiler Report 2023@4@4@54-234436381190v0.\n and so on"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder for temporary files, which must be empty after each command."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(folder))
    return folder


@pytest.fixture
def report(tmp_path: Path) -> Path:
    folder = tmp_path / "reports"
    folder.mkdir()
    path = folder / "r.nsys-rep"
    path.write_bytes(REPORT)
    return path


# nsys export --type=sqlite --output=$target $report
EXPORTING = '#!/bin/sh\ntarget="${3#--output=}"; report="$4"; test -f "$report" || exit 9\n'


@pytest.mark.parametrize(
    ("script", "said"),
    rows_long_after(
        4,
        [
            ("echo 'Processing [1%]'; echo 'Bad.' >&2; exit 1", "nsys says: Bad; copy it again"),
            ("kill -9 $$", "nsys says: no reason given; copy it again"),
            ("seq 999 > $target", "reports/r.nsys-rep: file is not a database; "),
            (f"head -c 9999 '{SAMPLE}' > $target", "reports/r.nsys-rep: the file is cut short"),
            ("echo 'Bad'; exit 0", "nsys says: Bad; copy it again"),
            ("exit 1", "nsys says: no reason given; copy it again"),
            ("printf '' > $target", "reports/r.nsys-rep: the file is cut short: 0 bytes"),
        ],
    ),
)
def test_nsys_fails(
    report: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    nsys_on_path(temporary.parent, monkeypatch, EXPORTING + script)
    assert said in attempt(report).line
    assert not list(temporary.iterdir())


def test_nsys_is_missing(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    line = attempt(report.rename(report.with_name("my report.nsys-rep"))).line
    assert "`nsys` is not on PATH; where Nsight Systems is installed, run: nsys export" in line
    assert line.endswith("/my report.nsys-rep'\n")  # quoted: to be pasted


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("\x7fELF no program", "does not start (Exec format error); install"),
        ("#!/bin/sh\nexec sleep 600", "nsys failed: it did not end within 0 s; install"),
    ],
)
def test_nsys_does_not_start_or_end(
    report: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    nsys_on_path(temporary.parent, monkeypatch, script)
    monkeypatch.setattr("traceprof.trace.programs.MAX_ANSWER_S", 0.1)
    assert said in attempt(report).line
    assert not list(temporary.iterdir())


def test_no_folder_for_temporary_files(
    report: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nsys_on_path(temporary.parent, monkeypatch, EXPORTING)
    temporary.rmdir()
    assert "there is no folder for temporary files" in attempt(report).line


@pytest.mark.parametrize(
    "name", long_after(1, ["a\udcff'$(x)", "r.nsys-rep", "no suffix", "a\nb.sqlite", "-o"])
)
def test_nsys_exports(
    report: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    nsys_on_path(temporary.parent, monkeypatch, f"{EXPORTING} cp '{SAMPLE}' \"$target\"")
    document = attempt(report.rename(report.with_name(name))).document
    assert document["breakdown"] == attempt(SAMPLE).document["breakdown"]
    assert not list(temporary.iterdir())


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, nsys: str) -> bytes:
    """Record a report with the nsys that is installed."""
    path = tmp_path_factory.mktemp("recorded") / "r.nsys-rep"
    profile(nsys, ["--trace=osrt", "--sample=none", "--cpuctxsw=none"], path, ["true"])
    return path.read_bytes()


def test_a_recorded_report(report: Path, temporary: Path, recorded: bytes) -> None:
    report.write_bytes(recorded)
    document = attempt(report).document
    assert [each["path"] for each in document["reports"]] == [str(report)]
    assert "no GPU operation, so no rank; it holds" in document["notes"][0]["note"]
    assert not list(temporary.iterdir())


@pytest.mark.long
def test_a_damaged_report(report: Path, temporary: Path, recorded: bytes) -> None:
    for length in (64, 1000, len(recorded) // 2, len(recorded) - 1):
        report.write_bytes(recorded[:length])
        assert "nsys says: " in attempt(report).line
    report.write_bytes(recorded[:5000] + bytes(5000) + recorded[10_000:])
    attempt(report)
    assert not list(temporary.iterdir())


def planted_pipe(temporary: Path) -> None:
    (temporary / "traceprof-1-x").mkdir(mode=0o700)
    os.mkfifo(temporary / "traceprof-1-x" / "in-use")


def of_another_user(temporary: Path) -> None:
    planted_pipe(temporary)
    try:
        os.chown(temporary / "traceprof-1-x", 65534, -1)
    except PermissionError:
        pytest.skip("only root may give a folder away")


def planted_link(temporary: Path) -> None:
    (temporary / "elsewhere").mkdir()
    (temporary / "elsewhere" / "in-use").touch()
    (temporary / "traceprof-1-x").symlink_to(temporary / "elsewhere")


PLANTED: dict[str, tuple[Callable[[Path], object], int]] = {
    "a pipe": (planted_pipe, 0),
    "another user's": (of_another_user, 2),
    "a link": (planted_link, 3),
    "a link to nothing": (lambda at: (at / "traceprof-1-x").symlink_to(at / "nowhere"), 1),
    "a file": (lambda at: (at / "traceprof-1-x").touch(), 1),
}


@pytest.mark.parametrize("what", PLANTED)
def test_what_others_planted_in_the_temporary_folder_is_not_touched(
    report: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    plant, num_left = PLANTED[what]
    nsys_on_path(temporary.parent, monkeypatch, f"{EXPORTING}cp '{SAMPLE}' $target")
    plant(temporary)
    signal.alarm(60)  # a wait for ever ends this process
    open_trace(report).close()
    signal.alarm(0)
    assert len(list(temporary.rglob("*"))) == num_left


INTERRUPTED = """
import os, sys
from traceprof.cli.main import main
from traceprof.trace.nsight.export import NsightTrace
NsightTrace.operations = property(lambda trace: os.kill(os.getpid(), {number}))
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("arguments", [["analyze", "--jobs", "1"], ["info"]], ids=" ".join)
def test_an_interrupt_after_the_conversion_leaves_nothing(
    report: Path,
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    arguments: list[str],
) -> None:
    nsys_on_path(temporary.parent, monkeypatch, f"{EXPORTING}cp '{SAMPLE}' $target")
    program = [sys.executable, "-c", INTERRUPTED.format(number=int(number))]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run(
        [*program, *arguments, str(report)], env=environment, capture_output=True, check=False
    )
    assert done.returncode == 128 + number, done.stderr
    assert not list(temporary.iterdir())


@pytest.mark.parametrize(
    "script", [f"head -c 9999 '{SAMPLE}' > $target", "echo 'Bad' >&2; exit 1"], ids=["cut", "fails"]
)
def test_a_full_disk_is_named(
    report: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    nsys_on_path(temporary.parent, monkeypatch, EXPORTING + script)
    usage = shutil.disk_usage(temporary)._replace(free=4096)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    line = attempt(report).line
    assert f"no space is left for its export in {temporary}" in line
    assert line.endswith("name another folder in the environment variable TMPDIR\n")
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("code", [0, 1])
def test_a_full_disk_that_only_nsys_names(
    report: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    # It leaves an empty export, so that there is room again, and may end as if all was well.
    said = f"printf '' > $target; echo '[tag_message*] = database or disk is full'; exit {code}"
    nsys_on_path(temporary.parent, monkeypatch, EXPORTING + said)
    assert f"no space is left for its export in {temporary}" in attempt(report).line


@pytest.mark.parametrize("why", ["nsys says: Bad", os.strerror(errno.ENOSPC)])
def test_why_sizes_of_messages_could_not_be_exported_is_a_note(
    report: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    script = f"case $2 in --type=json) echo Bad >&2; exit 1;; esac; cp '{SAMPLE}' $target"
    nsys_on_path(temporary.parent, monkeypatch, EXPORTING + script)

    def lacks_payloads(_: object) -> bool:
        if "Bad" not in why:
            raise OSError(errno.ENOSPC, why)
        return True

    monkeypatch.setattr(conversion, "lacks_payloads", lacks_payloads)
    with closing(open_trace(report)) as trace:
        (note,) = [note for note in trace.notes if "sizes of NCCL" in note]
        assert why in note


@pytest.fixture
def waiting(tmp_path: Path, temporary: Path) -> tuple[Path, Path, dict[str, str]]:
    """Make an nsys that never ends; return it, a folder where each notes its start, and PATH."""
    programs, started = tmp_path / "bin", tmp_path / "started"
    for folder in (programs, started):
        folder.mkdir()
    nsys = programs / "nsys"
    nsys.write_text(f'#!/bin/sh\ntouch "{started}/$$"\nexec sleep 600\n')
    nsys.chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return nsys, started, {**os.environ, "PATH": path, "TMPDIR": str(temporary)}


@pytest.mark.parametrize(
    "to_all", long_after(1, [False, True]), ids=["to-the-first-process", "to-all-processes"]
)
@pytest.mark.parametrize("num_reports", [1, 2])
def test_a_conversion_that_is_terminated_leaves_nothing(
    tmp_path: Path,
    temporary: Path,
    waiting: tuple[Path, Path, dict[str, str]],
    num_reports: int,
    *,
    to_all: bool,
) -> None:
    _, started, environment = waiting
    reports = [tmp_path / f"{number}.nsys-rep" for number in range(num_reports)]
    for report in reports:
        report.write_bytes(REPORT)
    with subprocess.Popen(
        [sys.executable, "-m", "traceprof", "analyze", "--jobs", "2", *map(str, reports)],
        env=environment,
        start_new_session=True,
    ) as process:
        until(lambda: len(list(started.iterdir())) == num_reports)
        if to_all:
            os.killpg(process.pid, signal.SIGTERM)
        else:
            process.terminate()
        assert process.wait(MAX_WAIT_S) == 143
    assert list(temporary.iterdir()) == []
    until(lambda: not any(is_running(int(pid.name)) for pid in started.iterdir()))


@pytest.mark.long
def test_what_a_killed_process_left_the_next_one_removes(
    report: Path, temporary: Path, waiting: tuple[Path, Path, dict[str, str]]
) -> None:
    nsys, started, environment = waiting
    command = [sys.executable, "-m", "traceprof", "info", str(report)]

    def converting() -> subprocess.Popen[bytes]:
        known = len(list(started.iterdir()))
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        until(lambda: len(list(started.iterdir())) > known)
        return process

    (temporary / "traceprof-1-else").mkdir()  # not by this program: nothing is locked there
    alive, killed = converting(), converting()
    killed.kill()
    killed.wait()
    assert len(list(temporary.iterdir())) == 3
    nsys.write_text("#!/bin/sh\nexit 1\n")
    subprocess.run(command, env=environment, stderr=subprocess.DEVNULL, check=False)
    assert {folder.name.split("-")[1] for folder in temporary.iterdir()} == {"1", str(alive.pid)}
    alive.terminate()
    alive.wait()
    assert [folder.name for folder in temporary.iterdir()] == ["traceprof-1-else"]
