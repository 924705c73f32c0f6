"""Programs that record, and the records that instrument and nsys write of them."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
import pytest
import torch
from torch.overrides import TorchFunctionMode

import traceprof
from instrument.core import nvtx_ranges
from tests.support.commands import ended, output_of
from tests.support.programs.known_answers import DEVICE, STEPS
from tests.support.selection import missing, once
from traceprof.recording.record import NOT_IMPORTED


def functions_into(events: list[str]) -> nvtx_ranges.Functions:
    """Return functions of a tool that note `push …`, `pop`, `start …` and `end …`."""

    def start(text: str) -> str:
        events.append(f"start {text}")
        return text

    return nvtx_ranges.Functions(
        push=lambda text: events.append(f"push {text}"),
        pop=lambda: events.append("pop"),
        start=start,
        end=lambda handle: events.append(f"end {handle}"),
        attributes=lambda text, _: text,
    )


def record(replace: Callable[[Any, str, Any], None]) -> list[str]:
    """Record ranges by `functions_into`, as under a tool, from `enable` on.

    `replace` sets an attribute: `setattr`, or one that takes it back.
    """
    events: list[str] = []
    functions = functions_into(events)
    replace(nvtx_ranges, "is_recording", lambda: True)
    replace(nvtx_ranges, "prepare", str)
    replace(nvtx_ranges, "message", nvtx_ranges.joined)
    for name in ("push", "pop", "start", "end"):
        replace(nvtx_ranges, name, getattr(functions, name))
    return events


def pushed(events: list[str]) -> list[str]:
    """Return the labels of the push/pop ranges, in the order in which they opened."""
    return [event.removeprefix("push ") for event in events if event.startswith("push ")]


def compiled(program: Any, *inputs: Any, fullgraph: bool = False) -> tuple[Any, list[str]]:
    """Return the result and the operators of the graphs that a program becomes."""
    torch.compiler.reset()
    operators: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
        operators.extend(
            node.target.__name__ for node in graph.graph.nodes if node.op == "call_function"
        )
        operators.append("end of graph")
        return graph.forward

    run: Any = torch.compile(program, backend=backend, fullgraph=fullgraph)
    return run(*inputs), operators


class SeenCalls(TorchFunctionMode):
    """A mode of the user that notes which of PyTorch's functions are called."""

    def __init__(self) -> None:
        super().__init__()
        self.functions: list[Any] = []

    def __torch_function__(
        self, func: Any, types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.functions.append(func)
        return func(*args, **(kwargs or {}))


_FAULTS = ("Importation failed", "Connection to Agent lost", "Local Endpoint is not available")
"""What Nsight Systems 2023.4 prints in one recording of some hundred, on a busy machine: its
importer trips over a race of its own (at exit status 0), or it loses its own agent."""

_MAX_RECORDINGS = 4
_MAX_RECORDING_S = 300


def profile(
    nsys: str,
    options: Sequence[str],
    report: Path,
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Record a command into a report (a path without its ending); return how `nsys` ended.

    The recording is made again where nsys failed for a reason of its own.
    """
    line = [nsys, "profile", *options, "--force-overwrite=true", f"--output={report}", *command]
    for _ in range(_MAX_RECORDINGS):
        done = ended(*line, env=environment, timeout=_MAX_RECORDING_S)
        if not has_failed(done.stdout + done.stderr):
            break
    assert done.returncode == 0, done.stdout + done.stderr
    assert not has_failed(done.stdout + done.stderr)
    return done


def stats(nsys: str, path: Path) -> list[str]:
    """Return tables of kernels, calls, copies and ranges of an export, as CSV."""
    reports = ("cuda_gpu_kern_sum", "cuda_api_sum", "cuda_gpu_mem_time_sum", "nvtx_sum")
    command = [nsys, "stats", "--force-export=false", "--format", "csv"]
    printed = output_of(*command, "--report", ",".join(reports), path)
    _, *parts = printed.split("Processing [")
    assert len(parts) == len(reports), printed
    return parts


def has_failed(printed: str) -> bool:
    """Say whether, by what it printed, nsys failed for a reason of its own."""
    return any(fault in printed for fault in _FAULTS)


ROOT = Path(__file__).parents[2]
MAX_RECORDINGS = 3


class Recording:
    """A `traceprof record` that runs; one that fails for a reason of nsys is started again."""

    def __init__(
        self,
        folder: Path,
        tool: str,
        *command: str,
        options: tuple[str, ...] = (),
        temporary: Path | None = None,
    ) -> None:
        words = ["record", "-o", str(folder), "--with", tool, *options, "--", *command]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        if temporary is not None:  # where nsys leaves what it cannot move
            environment["TMPDIR"] = str(temporary)
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "traceprof", *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def end(self) -> tuple[int, str]:
        printed, _ = self.process.communicate(timeout=_MAX_RECORDING_S)
        return self.process.returncode, printed

    @property
    def names(self) -> set[str]:
        """The files that it left, without those about the machine and the page."""
        names = {path.name for path in self.folder.iterdir()}
        return {name for name in names if not name.startswith("doctor-")} - {"report.html"}


def recorded(
    folder: Path,
    tool: str,
    *command: str,
    options: tuple[str, ...] = (),
    temporary: Path | None = None,
) -> tuple[int, str]:
    """Record a command, and again where nsys fails for a reason of its own; return how it ended."""
    for _ in range(MAX_RECORDINGS):
        shutil.rmtree(folder, ignore_errors=True)
        code, printed = Recording(
            folder, tool, *command, options=options, temporary=temporary
        ).end()
        # A full disk fails the importer of nsys each time.
        is_lost = has_failed(printed) or NOT_IMPORTED in printed
        if "no space left" in printed.lower() or not is_lost:
            break
    return code, printed


Truth = dict[str, Any]


@dataclass
class Events:
    kernels: pd.DataFrame  # as `traceprof.open_run` gives them
    copies: pd.DataFrame  # the same
    ranges: pd.DataFrame  # the same

    def count(self, label: str) -> int:
        """Return how many ranges have this label, whatever its facts."""
        name = self.ranges["name"]
        return int(((name == label) | name.str.startswith(f"{label} ")).sum())

    def kernels_within(self, label: str) -> int:
        """Return how many kernels started while a range of this name was open."""
        num = 0
        starts = self.kernels["start_ns"].to_numpy()
        ranges = self.ranges.loc[self.ranges["name"] == label, ["start_ns", "end_ns"]]
        for start_ns, end_ns in ranges.to_numpy().tolist():
            num += int(((starts >= start_ns) & (starts < end_ns)).sum())
        return num


def check_training(events: Events, truth: Truth) -> None:
    """Every step has its parts, on the GPU where there is one."""
    for label in ("forward", "backward", "optimizer step"):
        assert events.count(label) >= truth["steps"], label
    assert (len(events.kernels) > 0) == (DEVICE == "cuda")


def check_ddp(events: Events, truth: Truth) -> None:
    """All gradients of every step are in buckets."""
    check_training(events, truth)
    ranges = events.ranges
    buckets = ranges[ranges["name"].str.startswith("bucket ")]
    sizes = buckets["name"].str.extract(r" bytes=(\d+)")[0].astype(int)
    assert sizes.sum() == STEPS * truth["gradient_bytes"]
    assert buckets["end_ns"].notna().all()


def check_graphs(events: Events, truth: Truth) -> None:
    """A replay has the kernels of an eager run."""
    eager, replayed = events.kernels_within("eager"), events.kernels_within("replay")
    assert eager > 0
    assert replayed == truth["replays"] * eager


def check_exchange(events: Events, truth: Truth) -> None:
    """Every send and receive is named with its size and peer."""
    name = events.ranges["name"]
    for label in ("isend dst=0", "irecv src=0"):
        chosen = name[name.str.startswith(f"{label} bytes={truth['bytes']} ")]
        assert len(chosen) >= truth["operations"], label


def check_copies(events: Events, truth: Truth) -> None:
    """Copies have their bytes, their direction, and their memory; labels say the same."""
    copies = events.copies[events.copies["bytes"] == truth["bytes"]]
    for memory, is_pinned in (("pageable", 0), ("pinned", 1)):
        for kind, column in (("h2d", "source_memory"), ("d2h", "destination_memory")):
            chosen = copies[(copies["kind"] == kind) & (copies[column] == memory)]
            assert len(chosen) == truth["copies"]
        label = f"to h2d bytes={truth['bytes']} pinned={is_pinned} non_blocking=1"
        assert (events.ranges["name"] == label).sum() == truth["copies"]


def check_device(_: Events, truth: Truth) -> None:
    """Labels of copies on the host have not made a context on a GPU."""
    assert not truth["was_initialized"]


CHECKS: dict[str, Callable[[Events, Truth], None]] = {
    "ddp": check_ddp, "fsdp2": check_training, "compiled": check_training, "graphs": check_graphs,
    "exchange": check_exchange, "copies": check_copies, "unset_device": check_device,
}  # fmt: skip


def record_and_check(name: str, tool: str, folder: Path) -> None:
    """Record a program with `nsys` or `torch`, and compare its report with what it did."""
    target, truth = folder / "report", folder / "truth.json"
    program = (sys.executable, "-m", "tests.support.programs.known_answers", name, str(truth))
    code, printed = recorded(target, tool, *program)
    assert code == 0, printed
    ending = "*.sqlite" if tool == "nsys" else "*.pt.trace.json.gz"
    with traceprof.open_run([*target.glob(ending)]) as run:
        events = Events(run.kernels(), run.copies(), run.ranges())
        CHECKS[name](events, json.loads(truth.read_text()))


class Program(Protocol):
    """Is one of the ranks; writes what it saw to `<rank>.json` in the folder."""

    __module__: str
    __name__: str

    def __call__(self, rank: int, store: str, folder: Path) -> None: ...


def run(program: Program, size: int, factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Run the program on this many ranks, once for all workers; return what each saw.

    Importing PyTorch takes longer than all else, so it is imported once: by the server that the
    ranks are forked from. FSDP and functional collectives use TorchDynamo.
    """

    def start(folder: Path) -> None:
        from torch.multiprocessing import start_processes  # type: ignore[attr-defined]  # noqa: PLC0415

        multiprocessing.set_forkserver_preload([program.__module__, "torch._dynamo"])
        arguments = (str(folder / "store"), folder)
        start_processes(program, arguments, nprocs=size, start_method="forkserver")  # type: ignore[no-untyped-call]

    folder = once(factory, f"{program.__module__}.{program.__name__}", start)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]


SOURCE = Path(__file__).with_name("tool.c")


def build_tool(folder: Path) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        missing("a C compiler is not installed", "cc")
    library = folder / "tool.so"
    command = [compiler, "-shared", "-fPIC", "-w", "-O1", str(SOURCE), "-o", str(library)]
    subprocess.run(command, check=True)
    return library
