"""The range around the steps that are recorded: opened once, closed when the last rank is done."""

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from instrument import nsight_capture
from instrument.core import nvtx_ranges
from instrument.nsight_capture import NsightCapture, _session_file
from tests.support.recording import functions_into
from tests.support.workers import until

# Another rank: takes its part of the lock, and lets go when a line comes.
OTHER = """
import fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.lockf(file, fcntl.LOCK_SH)
print("holds", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Record the calls of a tool."""
    calls: list[str] = []
    monkeypatch.setattr(nvtx_ranges, "connect", lambda _: functions_into(calls))
    monkeypatch.setattr(nsight_capture, "_session_file", lambda: tmp_path / "session")
    return calls


def test_it_stays_open_until_the_last_rank_is_done(ranges: list[str], tmp_path: Path) -> None:
    capture = NsightCapture()
    capture.prepare()
    with subprocess.Popen(
        [sys.executable, "-c", OTHER, str(tmp_path / "session")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "holds\n"
        capture.begin()
        capture.end()
        assert ranges == ["start steps"]
        other.stdin.write("\n")
        other.stdin.flush()
        until(lambda: ranges[-1] == "end steps")
    for thread in threading.enumerate():
        if thread.name == "traceprof capture":
            thread.join()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_job_left_does_not_count(ranges: list[str], tmp_path: Path) -> None:
    for name in ("session", "session-opens", "session-open"):
        (tmp_path / name).touch()
    capture = NsightCapture()
    capture.prepare()
    capture.end()
    until(lambda: ranges[-1] == "end steps")
    assert ranges == ["start steps", "end steps"]


def test_a_rank_that_never_began_ends_nothing(ranges: list[str]) -> None:
    NsightCapture().end()
    assert ranges == []


def test_the_session_lies_where_only_this_user_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(tmp_path))
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    runtime, ours = tmp_path / "run", tmp_path / f"traceprof-capture-{os.geteuid()}"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", os.fspath(runtime))
    assert _session_file() == runtime / "traceprof-capture-1"
    runtime.chmod(0o777)
    assert _session_file() == ours / "traceprof-capture-1"
    monkeypatch.setenv("XDG_RUNTIME_DIR", os.fspath(tmp_path / "missing"))
    assert _session_file() == ours / "traceprof-capture-1"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert _session_file() == ours / "traceprof-capture-1"
    assert ours.stat().st_mode & 0o777 == 0o700
    ours.rmdir()
    ours.symlink_to(runtime)  # by somebody else
    with pytest.raises(PermissionError, match="another user can write to it"):
        _session_file()
