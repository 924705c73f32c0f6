"""Time and memory of `traceprof analyze` against `nsys stats`, whole processes, in one run.

    python benchmarks/analyze.py [--gpus 8] [--steps 250] [--kernels-per-step 1000] [--runs 3]

Writes the simulated export to a temporary folder (about 150 bytes a kernel), runs both commands in
turn, and prints medians and the ratio. Without `nsys` on PATH only traceprof is measured.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from traceprof.simulate.ddp import simulate_ddp

REPORTS = "cuda_gpu_kern_sum,cuda_api_sum,cuda_gpu_mem_time_sum,nvtx_sum"


@dataclass(frozen=True)
class Cost:
    """What one process cost: wall time in seconds, peak resident memory in MB (1e6 bytes)."""

    wall_s: float
    peak_mb: float


def measure(command: list[str]) -> Cost:
    """Run a command to its end and return what it cost, by the kernel's own account."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise click.ClickException(f"{' '.join(command)} exited with {process.returncode}")
    return Cost(wall, usage.ru_maxrss * 1024 / 1e6)


@click.command()
@click.option("--gpus", default=8, show_default=True)
@click.option("--steps", default=250, show_default=True)
@click.option("--kernels-per-step", default=1000, show_default=True)
@click.option("--runs", default=3, show_default=True, help="Counted runs of each command.")
def main(gpus: int, steps: int, kernels_per_step: int, runs: int) -> None:
    """Measure on `simulate ddp` with these arguments."""
    kernels = gpus * steps * kernels_per_step
    with tempfile.TemporaryDirectory() as folder:
        export = Path(folder) / "ddp.sqlite"
        began = time.perf_counter()
        simulate_ddp(export, gpus=gpus, steps=steps, kernels_per_step=kernels_per_step, seed=1)
        print(
            f"{kernels} kernels, {export.stat().st_size / 1e6:.0f} MB,"
            f" written in {time.perf_counter() - began:.1f} s"
        )
        commands = {
            "traceprof analyze": [
                *(sys.executable, "-m", "traceprof", "analyze", "--format", "json", str(export))
            ]
        }
        if shutil.which("nsys"):
            commands["nsys stats, 4 reports"] = [
                *("nsys", "stats", "--force-export=false", "--report", REPORTS),
                *("--format", "csv", str(export)),
            ]
        costs: dict[str, list[Cost]] = {name: [] for name in commands}
        for command in commands.values():
            measure(command)  # fills the page cache for both
        for _ in range(runs):
            for name, command in commands.items():
                costs[name].append(measure(command))
    show(costs, kernels)


def show(costs: dict[str, list[Cost]], kernels: int) -> None:
    """Print medians, ranges, and the ratio of each run's pair."""
    table = Table("command", "wall s (min-max)", "peak MB")
    for name, runs in costs.items():
        walls = [run.wall_s for run in runs]
        table.add_row(
            name,
            f"{statistics.median(walls):.2f} ({min(walls):.2f}-{max(walls):.2f})",
            f"{statistics.median(run.peak_mb for run in runs):.0f}",
        )
    Console().print(table)
    ours, *others = costs.values()
    budget = 60 + 250 * kernels / 1e6
    print(f"memory: {max(run.peak_mb for run in ours):.0f} MB of {budget:.0f} MB allowed")
    for other in others:
        ratios = [a.wall_s / b.wall_s for a, b in zip(ours, other, strict=True)]
        print(f"wall: {statistics.median(ratios):.3f} of nsys stats (0.35 allowed)")


if __name__ == "__main__":
    main()
