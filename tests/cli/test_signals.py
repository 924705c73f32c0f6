"""Signals at random instants, over all commands: nothing is left, and the process ends as it says.

In half of the cases a report is a .nsys-rep: half of them are converted by the installed nsys, half
by a program that stands in for it and takes its time. `record` passes signals on: its tests are in
tests/recording.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from tests.support.recording import profile
from tests.support.traces import SAMPLE
from tests.support.workers import MAX_WAIT_S, until
from traceprof.cli.main import EXIT_DONE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")

_NUM, _PER_TEST = 300, 20
REPORT, OUT = "{report}", "{out}"
_COMMANDS = (
    ("analyze", REPORT),
    ("analyze", "--format", "json", "-o", OUT, REPORT),
    ("analyze", "--jobs", "2", REPORT, str(SAMPLE)),
    ("analyze", "--save", OUT, REPORT),
    ("info", REPORT),
    ("whatif", REPORT, "--format", "json", "-o", OUT),
    ("compare", REPORT, str(SAMPLE), "--format", "html", "-o", OUT),
    ("export", "csv", REPORT, "-o", OUT),
    ("export", "parquet", REPORT, "-o", OUT),
    ("export", "perfetto", REPORT, "-o", OUT),
    ("dashboard", "--port", "0", REPORT),
    ("doctor", "-o", OUT),
    ("explain", "gpu-idle"),
    ("runs", OUT),
)
_STAND_IN = f"""#!/bin/sh
case "$*" in
*--output=*) sleep 0.3; cp '{SAMPLE}' "${{3#--output=}}"; sleep 0.2;;
esac
"""
# What comes before is Python's own.
_PROGRAM = "from traceprof.__main__ import main; print(flush=True); main()"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, nsys: str) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "r.nsys-rep"
    profile(nsys, ["--trace=osrt", "--sample=none", "--cpuctxsw=none"], path, ["true"])
    return path


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, _NUM, _PER_TEST))
def test_at_random_instants(tmp_path: Path, recorded: Path, nsys: str, first: int) -> None:
    num_ended = 0
    for number in range(first, first + _PER_TEST):
        chosen = random.Random(f"signal {number}")
        command = _COMMANDS[number % len(_COMMANDS)]
        programs, report = Path(nsys).parent, SAMPLE
        if number // len(_COMMANDS) % 2:
            report = recorded
            if chosen.random() < 0.5:
                programs = tmp_path / "bin"
                programs.mkdir(exist_ok=True)
                (programs / "nsys").write_text(_STAND_IN)
                (programs / "nsys").chmod(0o755)
        usual_s, code = _usual(command, report, programs)
        delay_s = chosen.uniform(0, usual_s)
        how = chosen.choice((signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
        folder = tmp_path / str(number)
        num_ended += is_ended(folder, command, report, programs, how, delay_s, code)
    assert num_ended > _PER_TEST // 3


def is_ended(
    folder: Path, command: Sequence[str], report: Path, programs: Path, how: signal.Signals,
    delay_s: float, usual_code: int | None,
) -> bool:  # fmt: skip
    """Say whether the signal ended the command; nothing of it may be left.

    It may have ended before, with its usual code.
    """
    what = f"{command} {report.name} {programs} {how.name} after {delay_s:.3f} s"
    temporary, out = folder / "tmp", folder / "out"
    with started(folder, command, report, programs) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"\n"
        with suppress(subprocess.TimeoutExpired):
            process.wait(delay_s)
        process.send_signal(how)
        said = process.communicate(timeout=MAX_WAIT_S)[1].decode()
    assert "Traceback" not in said, f"{what}: {said}"
    assert process.returncode in {EXIT_DONE, usual_code, 128 + how, -how}, f"{what}: {said}"
    until(lambda: not working_in(temporary))
    assert not [*temporary.iterdir()], what
    assert not [*folder.glob(".*")], what
    if process.returncode != EXIT_DONE and out.is_dir():
        assert not [*out.glob(".*")], what
    return process.returncode not in {EXIT_DONE, usual_code}


def started(
    folder: Path, command: Sequence[str], report: Path, programs: Path
) -> subprocess.Popen[bytes]:
    (folder / "tmp").mkdir(parents=True)
    values = {REPORT: str(report), OUT: str(folder / "out")}
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, *(values.get(word, word) for word in command)],
        env={**os.environ, "TMPDIR": str(folder / "tmp"), "PATH": path},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@cache
def _usual(command: Sequence[str], report: Path, programs: Path) -> tuple[float, int | None]:
    """Return how long a command takes that no signal ends, in s, and its exit code."""
    if command[0] == "dashboard":
        return 3.0, None  # it serves until it is ended
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        process = started(Path(folder), command, report, programs)
        process.communicate(timeout=MAX_WAIT_S)
        return time.monotonic() - begin, process.returncode


def working_in(temporary: Path) -> list[int]:
    """Return the processes whose folder for temporary files is in this one."""
    processes = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.fsencode(f"TMPDIR={temporary}") in (process / "environ").read_bytes():
                processes.append(int(process.name))
    return processes
