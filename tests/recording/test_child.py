"""A command that is run to its end, and the signals that it gets."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.support.commands import unnoticed_signal
from traceprof.recording import record as child
from traceprof.recording.record import RunningCommand


@pytest.fixture(autouse=True)
def _others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no process ended, or waited for, that other tests have started."""
    running = child._running
    others = {*running()}
    monkeypatch.setattr(
        child, "_running", lambda *parent: [pid for pid in running(*parent) if pid not in others]
    )


@pytest.mark.slow
def test_a_signal_right_before_the_wait_is_passed_on(tmp_path: Path) -> None:
    program = (
        "import pathlib, signal, sys, time\n"
        "signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])\n"
        "pathlib.Path(sys.argv[1]).touch()\n"
        "time.sleep(20)\n"
    )
    ready = tmp_path / "ready"
    command = [sys.executable, "-c", program, str(ready)]
    with unnoticed_signal(signal.SIGTERM, ready.exists):
        with RunningCommand(under_nsys=False, say=print) as started:
            assert started.run(command, os.environ) == 128 + signal.SIGTERM
        assert started.ended_by == signal.SIGTERM


# Its child ignores what ends programs, and outlives it.
LAUNCHER = """
import os, pathlib, signal, subprocess, sys, time
rank = (
    "import signal, time, sys, pathlib, os\\n"
    "[signal.signal(n, signal.SIG_IGN) for n in (signal.SIGINT, signal.SIGHUP)]\\n"
    "pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))\\n"
    "time.sleep(60)\\n"
)
subprocess.Popen([sys.executable, "-c", rank, sys.argv[1]], start_new_session=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.01)
time.sleep(60 * int(sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [[signal.SIGINT], [signal.SIGHUP], []])
def test_no_rank_is_left_running(tmp_path: Path, numbers: list[signal.Signals]) -> None:
    file, said = tmp_path / "pid", list[str]()
    waits = int(bool(numbers))
    command = [sys.executable, "-c", f"{LAUNCHER}\nsys.exit({1 - waits})", str(file), str(waits)]

    def send() -> None:
        while not file.exists() or not file.read_text():
            time.sleep(0.01)
        for number in numbers:
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)

    before = signal.getsignal(signal.SIGTERM)
    with RunningCommand(under_nsys=False, say=said.append) as started:
        assert signal.getsignal(signal.SIGTERM) != before
        sender = threading.Thread(target=send)
        sender.start()
        assert started.run(command, os.environ) != 0
    sender.join()
    assert signal.getsignal(signal.SIGTERM) == before
    with pytest.raises(ProcessLookupError):
        os.kill(int(file.read_text()), 0)
    assert started.ended_by == (numbers[0] if numbers else None)
