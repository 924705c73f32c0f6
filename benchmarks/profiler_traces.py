"""Time and memory of `traceprof analyze` on a trace of torch.profiler, against reading its JSON.

    python benchmarks/profiler_traces.py [--mb 200] [--runs 3] [--hta PYTHON]

The trace is that of one rank, written by the simulator's `ddp`: with operators and flows as
Kineto writes them. Against it: `orjson.loads` of the file, in a process that does nothing else, and
HolisticTraceAnalysis' loading with its temporal breakdown. That needs an environment of its own:

    python -m venv hta && hta/bin/pip install HolisticTraceAnalysis 'pandas<3'

whose Python is given with --hta. Commands take turns. Times are CPU times, of the process and of
those that it starts: on a machine that does other things they tell more than wall times.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

KERNELS_PER_STEP = 1000
MB_PER_STEP = 1.03  # of one rank
ORJSON = "import sys, orjson; orjson.loads(open(sys.argv[1], 'rb').read())"
HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="")
print(analysis.get_temporal_breakdown(visualize=False))
"""
# What is asked for: CPU time of analyze over that of the other.
TARGETS = {"orjson.loads": 1.0, "HolisticTraceAnalysis": 0.15}
ANALYZE = "traceprof analyze"


@dataclass(frozen=True)
class Cost:
    """What a command cost: CPU and wall time in seconds, the peak in MB (1e6 bytes)."""

    cpu_s: float
    wall_s: float
    peak_mb: float


def measure(command: list[str]) -> Cost:
    """Run a command to its end; return what it cost."""
    began = time.perf_counter()
    with Path(os.devnull).open("wb") as nowhere:
        actions = [(os.POSIX_SPAWN_DUP2, nowhere.fileno(), number) for number in (1, 2)]
        process = os.posix_spawnp(command[0], command, os.environ, file_actions=actions)
        _, status, usage = os.wait4(process, 0)
    if status:
        raise click.ClickException(f"{' '.join(command)} ended with {status}")
    wall = time.perf_counter() - began
    return Cost(usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss * 1024 / 1e6)


def simulated(folder: Path, mb: int) -> Path:
    """Write the trace, in a process of its own: the peak of one counts for those it starts."""
    options = {
        "--gpus": 2,
        "--steps": round(mb / MB_PER_STEP),
        "--kernels-per-step": KERNELS_PER_STEP,
        "-o": folder / "trace.json",
    }
    words = [str(word) for option in options.items() for word in option]
    command = [sys.executable, "-m", "sample_traces.simulator", "ddp", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder / "trace-rank0.json"


@click.command()
@click.option("--mb", default=200, show_default=True, help="About the size of the trace.")
@click.option("--runs", default=3, show_default=True, help="Counted runs of each.")
@click.option("--hta", default=None, help="Python of an environment with HolisticTraceAnalysis.")
def main(mb: int, runs: int, hta: str | None) -> None:
    """Measure, and print medians and what was asked for."""
    with tempfile.TemporaryDirectory() as folder:
        trace = simulated(Path(folder), mb)
        commands = {
            ANALYZE: [sys.executable, "-m", "traceprof", "analyze", str(trace)],
            "orjson.loads": [sys.executable, "-c", ORJSON, str(trace)],
            **({"HolisticTraceAnalysis": [hta, "-c", HTA, str(trace)]} if hta else {}),
        }
        costs = defaultdict[str, list[Cost]](list)
        for _ in range(runs):
            for name, command in commands.items():
                costs[name].append(measure(command))
        size = trace.stat().st_size / 1e6
    show(costs, size)


def show(costs: dict[str, list[Cost]], size_mb: float) -> None:
    """Print medians, ratios and targets."""
    table = Table("command", "CPU s", "wall s", "peak MB", "analyze ÷ it, CPU", "at most")
    medians = {
        name: [statistics.median(values) for values in zip(*map(_numbers, runs), strict=True)]
        for name, runs in costs.items()
    }
    for name, (cpu, wall, peak) in medians.items():
        ratio = "" if name == ANALYZE else f"{medians[ANALYZE][0] / cpu:.2f}"
        limit = str(TARGETS.get(name, ""))
        table.add_row(name, f"{cpu:.2f}", f"{wall:.2f}", f"{peak:.0f}", ratio, limit)
    Console().print(table)
    print(f"the trace has {size_mb:.0f} MB: analyze's peak must be below")


def _numbers(cost: Cost) -> tuple[float, float, float]:
    return cost.cpu_s, cost.wall_s, cost.peak_mb


if __name__ == "__main__":
    main()
