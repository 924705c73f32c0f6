"""Records the programs, analyses the reports, and compares both with what the programs did."""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

import traceprof
from tests.support.nsys import has_failed
from tests.support.processes import ended
from tests.support.programs.known_answers import DEVICE, STEPS

ROOT = Path(__file__).parents[2]
_MAX_RECORDINGS = 3
_MAX_S = 600
Truth = dict[str, Any]


@dataclass
class Events:
    """The events of a report.

    Attributes:
        kernels: as `traceprof.open_run` gives them.
        copies: the same.
        ranges: the same.
        figures: what is to be read in the table.
    """

    kernels: pd.DataFrame
    copies: pd.DataFrame
    ranges: pd.DataFrame
    figures: dict[str, Any] = field(default_factory=dict)

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
    events.figures |= {"steps": events.count("optimizer step"), "kernels": len(events.kernels)}
    assert (len(events.kernels) > 0) == (DEVICE == "cuda")


def check_ddp(events: Events, truth: Truth) -> None:
    """All gradients of every step are in buckets."""
    check_training(events, truth)
    ranges = events.ranges
    buckets = ranges[ranges["name"].str.startswith("bucket ")]
    sizes = buckets["name"].str.extract(r" bytes=(\d+)")[0].astype(int)
    events.figures |= {"buckets": len(buckets)}
    assert sizes.sum() == STEPS * truth["gradient_bytes"]
    assert buckets["end_ns"].notna().all()


def check_graphs(events: Events, truth: Truth) -> None:
    """A replay has the kernels of an eager run."""
    eager, replayed = events.kernels_within("eager"), events.kernels_within("replay")
    events.figures |= {"kernels of a run": eager, "of all replays": replayed}
    assert eager > 0
    assert replayed == truth["replays"] * eager


def check_exchange(events: Events, truth: Truth) -> None:
    """Every send and receive is named with its size and peer."""
    name = events.ranges["name"]
    for label in ("isend dst=0", "irecv src=0"):
        chosen = name[name.str.startswith(f"{label} bytes={truth['bytes']} ")]
        assert len(chosen) >= truth["operations"], label
    events.figures |= {
        "SendRecv kernels": int((events.kernels["operation"] == "SendRecv").sum()),
        "d2d copies": int((events.copies["kind"] == "d2d").sum()),
    }


def check_copies(events: Events, truth: Truth) -> None:
    """Copies have their bytes, their direction, and their memory; labels say the same."""
    copies = events.copies[events.copies["bytes"] == truth["bytes"]]
    for memory, is_pinned in (("pageable", 0), ("pinned", 1)):
        for kind, column in (("h2d", "source_memory"), ("d2h", "destination_memory")):
            chosen = copies[(copies["kind"] == kind) & (copies[column] == memory)]
            events.figures[f"{kind} {memory}"] = len(chosen)
            assert len(chosen) == truth["copies"]
        label = f"to h2d bytes={truth['bytes']} pinned={is_pinned} non_blocking=1"
        assert (events.ranges["name"] == label).sum() == truth["copies"]


def check_device(_: Events, truth: Truth) -> None:
    """Labels of copies on the host have not made a context on a GPU."""
    assert not truth["was_initialized"]


def check_callbacks(events: Events, truth: Truth) -> None:
    """The figures are what is asked for."""
    events.figures |= truth


CHECKS: dict[str, Callable[[Events, Truth], None]] = {
    "ddp": check_ddp, "fsdp2": check_training, "compiled": check_training, "graphs": check_graphs,
    "exchange": check_exchange, "copies": check_copies, "unset_device": check_device,
    "callbacks": check_callbacks,
}  # fmt: skip


def record_and_check(name: str, tool: str, folder: Path) -> dict[str, Any]:
    """Record a program, and compare its report with what it did.

    Args:
        name: of the program.
        tool: `nsys` or `torch`.
        folder: for all files.

    Returns:
        Figures for the table.
    """
    for attempt in range(_MAX_RECORDINGS):
        target, truth = folder / f"{name}-{tool}-{attempt}", folder / f"{name}-{tool}.json"
        program = (sys.executable, "-m", "tests.support.programs.known_answers", name, str(truth))
        record = (sys.executable, "-m", "traceprof", "record", "--with", tool, "-o", str(target))
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = ended(*record, "--", *program, cwd=ROOT, env=environ, timeout=_MAX_S)
        if not has_failed(done.stdout + done.stderr):
            break
    assert done.returncode == 0, done.stdout + done.stderr
    ending = "*.sqlite" if tool == "nsys" else "*.pt.trace.json.gz"
    with traceprof.open_run([*target.glob(ending)]) as run:
        events = Events(run.kernels(), run.copies(), run.ranges())
        CHECKS[name](events, json.loads(truth.read_text()))
    return events.figures


def table(names: list[str], tools: list[str]) -> str:
    """Record programs with each tool; return a table in Markdown of what came out."""
    lines = ["| program | recorded with | answers | figures |", "|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            for tool in tools:
                try:
                    figures = record_and_check(name, tool, Path(folder))
                    answer = "as known"
                except AssertionError as error:
                    figures, answer = {}, f"differ: {str(error).strip().splitlines()[:1]}"
                shown = ", ".join(f"{key} {value}" for key, value in figures.items())
                lines.append(f"| {name} | {tool} | {answer} | {shown} |")
    return "\n".join(lines)
