"""How the process of a command ends."""

import subprocess
import sys

import pytest

from tests.support.workers import MAX_WAIT_S
from traceprof.cli.main import EXIT_ERROR

_PROGRAM = """
import atexit, sys, threading, time
from traceprof.cli.main import main
threading.Thread(target=time.sleep, args=(600,)).start()
atexit.register(print, "at the end")
sys.argv = ["traceprof", "explain", "no-such-finding"]
main()
"""


@pytest.mark.slow
def test_threads_that_still_work_are_not_waited_for() -> None:
    # Python would wait for this one, and abort one of the dashboard that is in C++ code.
    command = [sys.executable, "-c", _PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=MAX_WAIT_S)
    assert (done.returncode, done.stdout) == (EXIT_ERROR, "at the end\n")
    assert "no-such-finding" in done.stderr
