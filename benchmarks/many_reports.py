"""Time and memory of `traceprof analyze` over many reports, by processes and by reports.

    python benchmarks/many_reports.py [--reports 64] [--kernels 200000] [--jobs 2] [--runs 3]

Every report is that of a machine with eight GPUs, simulated with a seed of its own (140 bytes a
kernel; 64 reports take 1.8 GB in the folder for temporary files). Commands take turns. The driver
is the process that reads no report itself where there are several; its peak is without theirs.
"""

from __future__ import annotations

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

from sample_traces.simulator.ddp import simulate_ddp

GPUS = 8
KERNELS_PER_STEP = 1000
FEWEST = 8
# What `traceprof analyze` does, and then the peak of this very process, without its children's.
DRIVER = """
import resource, sys
from traceprof.cli.main import main
try:
    main(sys.argv[1:])
finally:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


@dataclass(frozen=True)
class Cost:
    """What an analysis cost: wall time in seconds, the driver's peak in MB (1e6 bytes)."""

    wall_s: float
    peak_mb: float


def measure(reports: list[Path], jobs: int, output: Path) -> Cost:
    """Analyse reports to the end, into a file, and return what it cost."""
    command = [sys.executable, "-c", DRIVER, "analyze", "--format", "json", "-o", str(output)]
    began = time.perf_counter()
    done = subprocess.run(
        [*command, "--jobs", str(jobs), *map(str, reports)],
        capture_output=True,
        text=True,
        check=True,
    )
    wall = time.perf_counter() - began
    return Cost(wall, int(done.stderr) * 1024 / 1e6)


def simulated(folder: Path, number: int, kernels: int) -> list[Path]:
    """Write the reports."""
    paths = [folder / f"node_{seed}.sqlite" for seed in range(number)]
    steps = max(kernels // GPUS // KERNELS_PER_STEP, 1)
    for seed, path in enumerate(paths):
        simulate_ddp(path, gpus=GPUS, steps=steps, kernels_per_step=KERNELS_PER_STEP, seed=seed)
    return paths


def show(costs: dict[tuple[int, int], list[Cost]]) -> None:
    """Print medians, by reports and processes, and how they grow."""
    table = Table("reports", "processes", "wall s", "against 1", "driver's peak MB")
    medians = {
        key: Cost(
            statistics.median(run.wall_s for run in of_key),
            statistics.median(run.peak_mb for run in of_key),
        )
        for key, of_key in costs.items()
    }
    for (reports, jobs), cost in medians.items():
        alone = medians[reports, 1]
        table.add_row(
            str(reports),
            str(jobs),
            f"{cost.wall_s:.2f}",
            f"{cost.wall_s / alone.wall_s:.2f}",
            f"{cost.peak_mb:.0f}",
        )
    Console().print(table)


@click.command()
@click.option("--reports", default=64, show_default=True, help="The most of them.")
@click.option("--kernels", default=200_000, show_default=True, help="Of each report.")
@click.option("--jobs", default=2, show_default=True, help="Processes, against one.")
@click.option("--runs", default=3, show_default=True, help="Counted runs of each.")
def main(reports: int, kernels: int, jobs: int, runs: int) -> None:
    """Measure with a few reports and twice as many, until all are used."""
    numbers = [min(FEWEST, reports)]
    while numbers[-1] < reports:
        numbers.append(min(2 * numbers[-1], reports))
    with tempfile.TemporaryDirectory() as folder:
        paths = simulated(Path(folder), reports, kernels)
        outputs = {num_jobs: Path(folder) / f"{num_jobs}.json" for num_jobs in (1, jobs)}
        costs: dict[tuple[int, int], list[Cost]] = {}
        for number in numbers:
            for _ in range(runs):
                for num_jobs, output in outputs.items():
                    cost = measure(paths[:number], num_jobs, output)
                    costs.setdefault((number, num_jobs), []).append(cost)
                if outputs[1].read_bytes() != outputs[jobs].read_bytes():
                    raise click.ClickException("one process and several found different things")
    show(costs)


if __name__ == "__main__":
    main()
