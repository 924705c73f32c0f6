"""Reports that end whoever opens them, so that tests know when a worker dies: `deadly_reports`."""

import faulthandler
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import pytest

from sample_traces.simulator import simulate_run
from traceprof.analyses.verdict.run_result import RunResult
from traceprof.analysis import analyze_reports
from traceprof.reports import json as json_report
from traceprof.reports import text as text_report

# No test waits so long; a busy machine keeps a program waiting for many seconds.
MAX_WAIT_S = 120

# Python runs this in every process that is started. Once means: the first one that opens it.
_HOOK = """
import os, signal, sys, time

def hook(event, arguments):
    if event != "open" or not isinstance(arguments[0], (str, os.PathLike)):
        return
    path = os.fspath(arguments[0])
    if not path.endswith(("-once.sqlite", "-always.sqlite", "-never-done.sqlite")):
        return
    try:
        os.mkdir(path + ".seen")
    except FileExistsError:
        if path.endswith("-once.sqlite"):
            return
    os.close(os.open(f"{path}.seen/{os.getpid()}", os.O_CREAT))
    if path.endswith("-never-done.sqlite"):
        for _ in range(3000):
            time.sleep(0.1)  # a signal right before a sleep is answered after it
    os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(hook)
"""


def hooked_path(folder: Path) -> str:
    """Return a PYTHONPATH by which deadly reports are deadly."""
    (folder / "sitecustomize.py").write_text(_HOOK)
    return os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])


def reports_of_run(folder: Path, *, is_labelled: bool = True) -> list[Path]:
    """Write a run of four machines, two ranks each, with a straggler."""
    truth = simulate_run("straggler-host", folder, seed=3, is_labelled=is_labelled)
    return [folder / report["file"] for report in json.loads(truth.read_text())["reports"]]


def renamed(report: Path, what: str) -> Path:
    """Return the report by a name that makes it deadly: `once`, `always` or `never-done`."""
    path = report.with_name(f"{report.stem}-{what}.sqlite")
    shutil.move(report, path)
    return path


def openers(report: Path) -> set[int]:
    """Return the processes that have opened a deadly report."""
    seen = report.with_name(f"{report.name}.seen")
    return {int(file.name) for file in seen.iterdir()} if seen.exists() else set()


def written(analysis: RunResult) -> tuple[str, str]:
    """Return the result as it is written for machines and for people."""
    return json_report.render(analysis), text_report.render(analysis)


def alone(paths: list[Path], **how: Any) -> tuple[str, str]:
    """Return the result of this process alone."""
    return written(analyze_reports(paths, **how))


def until(condition: Callable[[], object], seconds: float = MAX_WAIT_S) -> None:
    """Wait until something is so.

    Raises:
        TimeoutError: it never was.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.01)


def is_running(process: int) -> bool:
    """Say whether there is such a process, and it is not a zombie."""
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2]
    except FileNotFoundError:
        return False
    return state.split()[0] != "Z"


def child_pids() -> list[int]:
    """Return the processes that this one has started, and that have not ended."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
    return [int(pid) for pid in children.split()]


class Crashes:
    """Shows at the end the Python stacks of workers that crashed; pytest lets them go to stderr."""

    def __init__(self, run: str) -> None:
        """Take the id of the run, which all its processes know."""
        self._folder = Path(tempfile.gettempdir(), f"stacks-of-tests-{run}")
        self._file: TextIO | None = None

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Have a worker's stacks written where the first process finds them."""
        worker: dict[str, Any] = getattr(session.config, "workerinput", {})
        if worker:
            self._folder.mkdir(exist_ok=True)
            self._file = (self._folder / worker["workerid"]).open("w", encoding="utf-8")
            faulthandler.enable(self._file)

    def watch(self, limit_s: float) -> None:
        """End the process, with the stacks, if nobody calls this or cancels it within the limit."""
        file = self._file or sys.stderr
        faulthandler.dump_traceback_later(limit_s, exit=True, file=file)

    def pytest_unconfigure(self) -> None:
        if self._file is None:
            shutil.rmtree(self._folder, ignore_errors=True)
        else:
            faulthandler.disable()
            self._file.close()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for file in sorted(self._folder.glob("*")):
            if lines := file.read_text(encoding="utf-8", errors="replace").splitlines():
                terminalreporter.section(f"worker {file.name} crashed")
                shown = (line for line in lines if not _OF_PYTEST.search(line))
                terminalreporter.write_line("\n".join(shown))


_OF_PYTEST = re.compile(r"/(?:_pytest|execnet|pluggy|xdist)/")


class RowCount:
    """How many rows were expected and read so far."""

    def __init__(self) -> None:
        self.expected = self.read = 0

    def expect(self, number: int) -> None:
        self.expected += number

    def advance(self, number: int) -> None:
        self.read += number
