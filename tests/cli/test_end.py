"""How the process of a command ends."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support.commands import ended
from tests.support.selection import long_after
from tests.support.traces import SAMPLE
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
    done = ended(sys.executable, "-c", _PROGRAM, timeout=MAX_WAIT_S)
    assert (done.returncode, done.stdout) == (EXIT_ERROR, "at the end\n")
    assert "no-such-finding" in done.stderr


# Imports of `traceprof`, click and numpy come before and after the command has begun.
_SIGNAL = """
import os, sys
from traceprof.__main__ import main
name, number = sys.argv[1], int(sys.argv[2])
class Finder:
    def find_spec(imported, *_):
        if imported == name:
            os.kill(os.getpid(), number)
sys.meta_path.insert(0, Finder)
sys.argv[:3] = ["traceprof"]
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("traceprof.cli.main", signal.SIGINT),
        ("click", signal.SIGINT),
        ("numpy", signal.SIGINT),
        ("numpy", signal.SIGHUP),
    ],
)
def test_a_signal_ends_the_command_without_a_traceback(
    name: str, number: signal.Signals, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", _SIGNAL, name, str(number.value), "analyze", str(SAMPLE)]
    done = ended(*command, "--format", "json", "-o", tmp_path / "out", timeout=MAX_WAIT_S)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (128 + number, "", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("ending", long_after(1, ["csv", "perfetto"]))
def test_sighup_leaves_nothing_beside_the_output(ending: str, tmp_path: Path) -> None:
    # While the output is written, when something lies beside it.
    program = f"""
import os, signal
from pathlib import Path
from traceprof.cli import main, output
from traceprof.reports import table_files
from traceprof.reports.perfetto import trace
def write(*_, **__):
    assert any(Path({os.fspath(tmp_path)!r}).iterdir())
    os.kill(os.getpid(), signal.SIGHUP)
table_files.write = trace.write = write
main.main(["export", {ending!r}, {os.fspath(SAMPLE)!r}, "-o", {os.fspath(tmp_path / "out")!r}])
"""
    done = ended(sys.executable, "-c", program, timeout=MAX_WAIT_S)
    assert (done.returncode, done.stderr) == (128 + signal.SIGHUP, "")
    assert list(tmp_path.iterdir()) == []


_IGNORED = """
import os, sys, weakref
from traceprof.cli import options
from traceprof.cli.main import main
class Owner:
    pass
def read(*_):
    owner = Owner()
    reference = weakref.ref(owner, lambda _: os.kill(os.getpid(), int(sys.argv[1])))
    del owner
    while True:
        pass
options.expand = read
main(["analyze", "x"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", long_after(1, [signal.SIGINT, signal.SIGTERM]))
def test_a_signal_is_not_lost_where_python_ignores_errors(number: signal.Signals) -> None:
    done = ended(sys.executable, "-c", _IGNORED, str(number.value), timeout=MAX_WAIT_S)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (128 + number, "", "")
