"""Reports that end whoever opens them, so that tests know when a worker dies: `deadly_reports`."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
