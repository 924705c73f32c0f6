"""A command that is run to its end, and the signals that it gets."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support.signals import unnoticed_signal
from traceprof.recording.child import run_to_end


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
        assert run_to_end(command, os.environ, under_nsys=False) == (128 + signal.SIGTERM, True)
