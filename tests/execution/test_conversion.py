"""A capture is exported to a temporary folder, of which nothing stays, however the program ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.selection import long_after
from tests.support.workers import MAX_WAIT_S, is_running, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="children are made on Linux only")


@pytest.mark.slow
@pytest.mark.parametrize(
    "to_all", long_after(1, [False, True]), ids=["to-the-first-process", "to-all-processes"]
)
@pytest.mark.parametrize("num_reports", [1, 2])
def test_a_conversion_that_is_terminated_leaves_nothing(
    tmp_path: Path, num_reports: int, *, to_all: bool
) -> None:
    programs, temporary, started = (tmp_path / name for name in ("bin", "tmp", "started"))
    for folder in (programs, temporary, started):
        folder.mkdir()
    nsys = programs / "nsys"
    nsys.write_text(f'#!/bin/sh\ntouch "{started}/$$"\nexec sleep 600\n')
    nsys.chmod(0o755)
    reports = [tmp_path / f"{number}.nsys-rep" for number in range(num_reports)]
    for report in reports:
        report.write_bytes(b"NVIDIA Tegra Profiler Report")
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    with subprocess.Popen(
        [sys.executable, "-m", "traceprof", "analyze", "--jobs", "2", *map(str, reports)],
        env={**os.environ, "PATH": path, "TMPDIR": str(temporary)},
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
def test_what_a_killed_process_left_the_next_one_removes(tmp_path: Path) -> None:
    programs, temporary, started = (tmp_path / name for name in ("bin", "tmp", "started"))
    for folder in (programs, temporary, started):
        folder.mkdir()
    nsys = programs / "nsys"
    report = tmp_path / "r.nsys-rep"
    report.write_bytes(b"NVIDIA Tegra Profiler Report")
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    command = [sys.executable, "-m", "traceprof", "info", str(report)]
    environment = {**os.environ, "PATH": path, "TMPDIR": str(temporary)}

    def converting() -> subprocess.Popen[bytes]:
        known = len(list(started.iterdir()))
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        until(lambda: len(list(started.iterdir())) > known)
        return process

    nsys.write_text(f'#!/bin/sh\ntouch "{started}/$$"\nexec sleep 600\n')
    nsys.chmod(0o755)
    users = temporary / f"traceprof-{os.geteuid()}"
    users.mkdir()
    (users / "1-else").mkdir()  # not by this program: nothing is locked there
    alive, killed = converting(), converting()
    killed.kill()
    killed.wait()
    assert len(list(users.iterdir())) == 3
    nsys.write_text("#!/bin/sh\nexit 1\n")
    subprocess.run(command, env=environment, stderr=subprocess.DEVNULL, check=False)
    names = {folder.name.rpartition("-")[0] for folder in users.iterdir()}
    assert names == {"1", str(alive.pid)}
    alive.terminate()
    alive.wait()
    assert [folder.name for folder in users.iterdir()] == ["1-else"]
