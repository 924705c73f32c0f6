"""What `traceprof analyze` costs the process that brings many reports together.

    python benchmarks/many.py reports [--reports 64] [--kernels 200000] [--jobs 2] [--runs 3]
    python benchmarks/many.py ranks [--ranks 1024] [--runs 3]

`reports`: every report is that of a machine with eight GPUs, simulated with a seed of its own (140
bytes a kernel; 64 reports take 1.8 GB in the folder for temporary files).

`ranks`: a simulated run of eight ranks on four machines, one of them late, is repeated with other
numbers of ranks and groups: one group of all, and one for each pair of ranks. Each rank has a
report of its own (270 kB); for each rank the driver's costs count beyond what eight ranks need.

Commands take turns. The driver is the process that reads no report itself where children measure
them; its CPU time and its peak are without theirs.
"""

from __future__ import annotations

import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import astuple, dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from sample_traces.simulator import simulate_ddp, simulate_run

GPUS, KERNELS_PER_STEP, FEWEST_REPORTS = 8, 1000, 8
SCENARIO, BLOCK = "straggler-upstream", 8
PAIRS = BLOCK // 2
FEWEST, FACTOR = 64, 4
LIMIT = 1.3
# What `traceprof analyze` does, and then what this very process needed, without its children.
DRIVER = """
import resource, sys
from traceprof.cli.main import main
try:
    main(sys.argv[1:])
finally:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss, file=sys.stderr)
"""


@dataclass(frozen=True)
class Cost:
    """What an analysis cost: wall time and the driver's CPU time in s, its peak in MB (1e6)."""

    wall_s: float
    cpu_s: float
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
    wall_s = time.perf_counter() - began
    cpu_s, peak = done.stderr.splitlines()[-1].split()
    return Cost(wall_s, float(cpu_s), int(peak) * 1024 / 1e6)


def median(costs: list[Cost]) -> Cost:
    """Return the medians of what runs cost."""
    return Cost(*map(statistics.median, zip(*map(astuple, costs), strict=True)))


def numbers(fewest: int, most: int, factor: int) -> list[int]:
    """Return the fewest, and so many times as many until all are used."""
    found = [min(fewest, most)]
    while found[-1] < most:
        found.append(min(factor * found[-1], most))
    return found


@click.group()
def main() -> None:
    """Measure the driver of many reports."""


@main.command()
@click.option("--reports", default=64, show_default=True, help="The most of them.")
@click.option("--kernels", default=200_000, show_default=True, help="Of each report.")
@click.option("--jobs", default=2, show_default=True, help="Processes, against one.")
@click.option("--runs", default=3, show_default=True, help="Counted runs of each.")
def reports(reports: int, kernels: int, jobs: int, runs: int) -> None:
    """Measure with one process and with several, from a few reports to all."""
    table = Table("reports", "processes", "wall s", "against 1", "driver's peak MB")
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"node_{seed}.sqlite" for seed in range(reports)]
        steps = max(kernels // GPUS // KERNELS_PER_STEP, 1)
        for seed, path in enumerate(paths):
            simulate_ddp(path, gpus=GPUS, steps=steps, kernels_per_step=KERNELS_PER_STEP, seed=seed)
        outputs = {num_jobs: Path(folder) / f"{num_jobs}.json" for num_jobs in (1, jobs)}
        for number in numbers(FEWEST_REPORTS, reports, 2):
            costs: dict[int, list[Cost]] = {num_jobs: [] for num_jobs in outputs}
            for _ in range(runs):
                for num_jobs, output in outputs.items():
                    costs[num_jobs].append(measure(paths[:number], num_jobs, output))
                if outputs[1].read_bytes() != outputs[jobs].read_bytes():
                    raise click.ClickException("one process and several found different things")
            alone = median(costs[1]).wall_s
            for num_jobs, of_jobs in costs.items():
                cost = median(of_jobs)
                times = f"{cost.wall_s:.2f}", f"{cost.wall_s / alone:.2f}"
                table.add_row(str(number), str(num_jobs), *times, f"{cost.peak_mb:.0f}")
    Console().print(table)


def repeated(report: Path, target: Path, block: int, num_ranks: int) -> Path:
    """Write a rank's report once more, as one of another eight ranks of a larger run."""
    shutil.copy(report, target)
    with closing(sqlite3.connect(target)) as connection, connection:
        texts = connection.execute("SELECT id, value FROM StringIds WHERE value GLOB '* group=*'")
        for number, text in texts.fetchall():
            group = int(text.partition(" group=")[2].partition(" ")[0])
            new = text.replace(" size=8 ", f" size={num_ranks} ")
            if group:
                new = text.replace(f" group={group} ", f" group={group + PAIRS * block} ")
            connection.execute("UPDATE StringIds SET value = ? WHERE id = ?", (new, number))
        connection.execute(
            "UPDATE TARGET_INFO_SYSTEM_ENV SET value = value || ? WHERE name = 'Hostname'",
            (f"-{block}",),
        )
    return target


def simulated(folder: Path, seed_reports: Path, num_ranks: int) -> list[Path]:
    """Write the reports of a run of so many ranks."""
    folder.mkdir()
    return [
        repeated(
            seed_reports / f"rank_{rank % BLOCK}.sqlite",
            folder / f"rank_{rank}.sqlite",
            rank // BLOCK,
            num_ranks,
        )
        for rank in range(num_ranks)
    ]


@main.command()
@click.option("--ranks", default=1024, show_default=True, help="The most of them.")
@click.option("--runs", default=3, show_default=True, help="Counted runs of each.")
def ranks(ranks: int, runs: int) -> None:
    """Measure with a few ranks and four times as many; say whether each rank costs the same."""
    table = Table("ranks", "driver's CPU s", "peak MB", "CPU ms a rank", "MB a rank", "against")
    with tempfile.TemporaryDirectory() as folder:
        seed_reports, output = Path(folder) / "seed", Path(folder) / "result.json"
        simulate_run(SCENARIO, seed_reports, per_rank=True)
        base = measure(simulated(Path(folder) / "base", seed_reports, BLOCK), 2, output)
        ratios, first = [1.0], (0.0, 0.0)
        for number in numbers(FEWEST, ranks, FACTOR):
            paths = simulated(Path(folder) / str(number), seed_reports, number)
            cost = median([measure(paths, 2, output) for _ in range(runs)])
            cpu_ms = 1e3 * (cost.cpu_s - base.cpu_s) / (number - BLOCK)
            peak_mb = (cost.peak_mb - base.peak_mb) / (number - BLOCK)
            first = first if any(first) else (cpu_ms, peak_mb)
            against = cpu_ms / first[0], peak_mb / first[1]
            ratios += against
            whole = f"{cost.cpu_s:.2f}", f"{cost.peak_mb:.0f}"
            of_rank = f"{cpu_ms:.2f}", f"{peak_mb:.3f}", f"{against[0]:.2f}, {against[1]:.2f}"
            table.add_row(str(number), *whole, *of_rank)
    Console().print(table)
    if max(ratios) > LIMIT:
        raise click.ClickException(f"not flat: more than {LIMIT} times as much for each rank")


if __name__ == "__main__":
    main()
