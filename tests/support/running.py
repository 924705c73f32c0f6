"""Runs the command, in this process or in one of its own."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from tests.support.attempts import Outcome
from tests.support.builders import TraceBuilder
from tests.support.nccl import ALL_REDUCE as NCCL
from traceprof.cli.main import _run


def export(folder: Path) -> Path:
    return TraceBuilder().kernel(0, 100).kernel(50, 150, NCCL, stream=20).write(folder)


def fifo(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


def in_process(*arguments: str | Path) -> Outcome:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = _run([os.fspath(argument) for argument in arguments])
    return Outcome(code, out.getvalue(), err.getvalue())


def run(*reports: Path) -> Outcome:
    return process(sys.executable, "-m", "traceprof", "analyze", "--format", "json", *reports)


def process(*command: str | Path) -> Outcome:
    done = subprocess.run(command, capture_output=True, check=False, timeout=120)
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())
