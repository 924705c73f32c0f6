"""Commands and programs, run in this process or in one of their own, and what must hold."""

import io
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.builders import ALL_REDUCE as NCCL
from tests.support.builders import TraceBuilder, global_pid, global_tid
from traceprof.cli.main import EXIT_DONE, EXIT_ERROR, EXIT_FINDINGS, _run, main
from traceprof.trace.nsight import schema


def run(*arguments: str | os.PathLike[str]) -> int:
    """Run a command with these arguments; return its exit code."""
    with pytest.raises(SystemExit) as exit_info:
        main([os.fspath(argument) for argument in arguments])
    assert isinstance(exit_info.value.code, int)
    return exit_info.value.code


# What could not be done, why, and what to do.
_LINE = re.compile(r"traceprof: (?P<what>cannot .+?): (?P<why>.+); (?P<remedy>.+)\n")
_USAGE = re.compile(r"traceprof: .+(?:; .+| \(see traceprof.* --help\))\n")

# Beside an answer: reports that were left out, and what could not be added.
_NOTE = re.compile(r"traceprof: (?:left out|no critical path|a trace with|.* no critical).*")

# What traceprof reads of tables that hold no events.
SMALL_TABLES = {
    schema.STRINGS: ("id", "value"),
    schema.EXPORT_METADATA[0]: ("name", "value"),
    schema.CAPTURE_METADATA: ("name", "value"),
    schema.PROCESSES: ("globalPid", "name"),
    schema.DIAGNOSTICS: ("text",),
    schema.GPU_INFO: ("id", "name", "smCount"),
    schema.GPU_INFO_2020: ("pid", "deviceId", "name"),
    schema.CUDA_DEVICES: ("gpuId", "cudaId", "pid"),
    schema.SESSION_START: ("utcTime", "utcEpochNs"),
    schema.ANALYSIS_DETAILS: ("duration",),
    schema.THREAD_NAMES: ("globalTid", "nameId"),
    schema.SYSTEM_ENVIRONMENT: ("name", "value"),
    schema.MPI_RANKS: ("globalTid", "rank"),
    schema.MEMCPY_KINDS: ("id", "label"),
}
EVENTS = {table.name: table for table in (*schema.GPU_OPERATIONS, schema.API_CALL, schema.NVTX)}


def everything() -> TraceBuilder:
    """Return an export with rows in every table that traceprof reads: 2 steps of 3 ranks."""
    builder = TraceBuilder()
    for pid, rank in ((1000, 0), (2000, 1)):
        for step in range(2):
            start = 1000 * step
            builder.nvtx(f"step {step}", start, start + 900, pid=pid, registered=bool(rank))
            builder.kernel(start, start + 300, pid=pid, device=rank)
            builder.kernel(start + 200, start + 500, NCCL, stream=20, pid=pid, device=rank)
            builder.memcpy(
                start + 500, start + 600, "PtoP", source=0, destination=1, pid=pid, device=rank
            )
            builder.memset(start + 600, start + 610, pid=pid, device=rank)
            builder.graph(start + 700, start + 800, pid=pid, device=rank)
        builder.gpu("NVIDIA H100 80GB HBM3", board=rank, device=rank, pid=pid)
        builder.thread_name(f"MPI Rank {rank}", pid=pid)
        builder.raw(schema.MPI_RANKS, globalTid=global_tid(pid), rank=rank)
        builder.raw(schema.PROCESSES, globalPid=global_pid(pid), pid=pid, name="python")
        builder.raw(schema.GPU_INFO_2020, pid=pid, deviceId=rank, name="NVIDIA H100 80GB HBM3")
    for step in range(2):  # of a rank without a GPU
        start = 1000 * step
        builder.label(f"step {step}", start, start + 900, pid=3000)
        builder.label("backward", start, start + 500, pid=3000)
        builder.label(
            "bucket index=0 bytes=4 last=1", start + 100, start + 300, in_flight=True, pid=3000
        )
        call = f"all_reduce bytes=4 dtype=float32 group=0 rank=2 size=3 seq={step}"
        builder.label(call, start + 110, start + 120, pid=3000)
        builder.label(call, start + 110, start + 290, in_flight=True, pid=3000)
    builder.threads("python", "[NSys]", pid=3000).machine(cores=8, end=2000)
    return (
        builder.raw(schema.CAPTURE_METADATA, name="PROCESS_0:COMMAND", value="python")
        .raw(schema.DIAGNOSTICS, text="Not all NVTX events might have been collected.")
        .raw(schema.SESSION_START, utcEpochNs=0, utcTime="1970-01-01 00:00:00")
        .raw(schema.SYSTEM_ENVIRONMENT, name="Hostname", value="node1")
    )


def alter(path: Path, *statements: str) -> Path:
    """Change an export in SQL, without a trace beside it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA synchronous = OFF")
        database.execute("PRAGMA journal_mode = MEMORY")
        for statement in statements:
            database.execute(statement)
    return path


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The JSON that it wrote."""
        assert self.code == EXIT_DONE, self.err
        document: dict[str, Any] = json.loads(self.out)
        return document

    @property
    def line(self) -> str:
        """The line by which it refused the file."""
        assert self.code == EXIT_ERROR, self.out
        return self.err


def attempt(path: Path, command: str = "analyze", *, is_changed: bool = False) -> Outcome:
    """Do the same as `tried` with a command, `analyze` or `info`, on a file."""
    arguments = ["analyze", "--format", "json"] if command == "analyze" else [command]
    return tried(path, [*arguments, os.fspath(path)], is_changed=is_changed)


def tried(
    path: Path, arguments: Sequence[str], *, is_changed: bool = False, may_be_misused: bool = False
) -> Outcome:
    """Run a command on a file; check that it answers or refuses, and leaves no trace.

    Args:
        path: of the file.
        arguments: of the command.
        is_changed: whether somebody else changes the file meanwhile.
        may_be_misused: whether the fault may be one of the options.
    """
    before = None if is_changed else folder_of(path)
    outcome = in_process(*arguments)
    is_json = [*arguments[:3]] == ["analyze", "--format", "json"]
    assert_contract(outcome, is_json=is_json, line=_USAGE if may_be_misused else _LINE)
    assert before is None or folder_of(path) == before
    return outcome


def assert_contract(
    outcome: Outcome, *, is_json: bool = True, line: re.Pattern[str] = _LINE
) -> None:
    """Assert that there is an answer, or exactly one line that says what, why and what to do."""
    if outcome.code in {EXIT_DONE, EXIT_FINDINGS}:
        assert all(_NOTE.fullmatch(line) for line in outcome.err.splitlines()), outcome.err
        if is_json and outcome.out:
            assert json.loads(outcome.out)["schema"] == "traceprof.analysis/1"
        return
    assert outcome.code == EXIT_ERROR
    assert outcome.out == ""
    assert outcome.err.count("\n") == 1
    assert line.fullmatch(outcome.err), outcome.err
    assert outcome.err.rstrip("\n").isprintable()


def folder_of(path: Path) -> Mapping[str, tuple[int, int, bytes | None]]:
    """Return everything in the file's folder: mode, time of change, and content."""
    if not path.parent.is_dir() or path.parent.samefile("/dev"):
        return {}
    files = {}
    for file in path.parent.iterdir():
        status = file.lstat()
        content = file.read_bytes() if file.is_file() else None
        files[os.fspath(file)] = (status.st_mode, status.st_mtime_ns, content)
    return files


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


def printed(*arguments: str | Path) -> str:
    """Return what a command prints, which must end well."""
    outcome = in_process(*arguments)
    assert outcome.code == EXIT_DONE, outcome.err
    return outcome.out


def json_of(*arguments: str | Path) -> dict[str, Any]:
    """Return the JSON of a command that must end well."""
    return in_process(*arguments, "--format", "json").document


def analyzed_apart(*reports: Path) -> Outcome:
    return outcome_of(sys.executable, "-m", "traceprof", "analyze", "--format", "json", *reports)


def outcome_of(*command: str | Path) -> Outcome:
    done = subprocess.run(command, capture_output=True, check=False, timeout=120)
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())


def ended(*command: str | Path, **how: Any) -> subprocess.CompletedProcess[str]:
    """Return how a program ended, and what it printed; `how` is for `subprocess.run`."""
    return subprocess.run(command, capture_output=True, text=True, check=False, **how)


def output_of(*command: str | Path, **how: Any) -> str:
    """Return what a program printed, which must end well."""
    done = ended(*command, **how)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


_UNTIL_WAIT_S = 0.5  # how long this thread may take to the wait; after it nothing more is tested


@contextmanager
def unnoticed_signal(
    number: signal.Signals, is_due: Callable[[], object] = lambda: True
) -> Iterator[None]:
    """Send this process a signal that its main thread blocks, so that another one takes it."""
    is_over = threading.Event()

    def send() -> None:
        while not is_due() and not is_over.wait(0.01):
            pass
        if not is_over.wait(_UNTIL_WAIT_S):
            os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()  # before the signal is blocked, which a thread inherits
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    try:
        yield
    finally:
        is_over.set()
        sender.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def nsys_on_path(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a program that is called nsys first on PATH."""
    program = folder / "bin" / "nsys"
    program.parent.mkdir()
    program.write_text(script)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


def script_of(name: str) -> ModuleType:
    """Return a script of docs/ as a module, which is not run."""
    path = Path(__file__).parents[2] / "docs" / f"{name}.py"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(page: str, language: str) -> list[str]:
    """Return the blocks of code of a page of Markdown that are in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def shows(page: str, printed: str) -> bool:
    """Tell whether a page shows an output, of which lines `…` stand for any number of lines."""
    parts = re.split("^…\n", page, flags=re.MULTILINE)
    return re.fullmatch("(?:.*\n)*?".join(map(re.escape, parts)), printed) is not None
