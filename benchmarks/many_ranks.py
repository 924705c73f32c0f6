"""What a run of many ranks costs the process that brings their reports together, for each rank.

    python benchmarks/many_ranks.py [--ranks 1024] [--runs 3]

A simulated run of eight ranks on four machines, one of them late, is repeated with other numbers of
ranks and groups: one group of all, and one for each pair of ranks. Each rank has a report of its
own (270 kB), and children measure them. The driver's CPU time and its peak are without theirs; for
each rank they count beyond what eight ranks need.
"""

from __future__ import annotations

import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from sample_traces.simulator import simulate_run

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
    """What the driver needed: CPU time in seconds, peak in MB (1e6 bytes)."""

    cpu_s: float
    peak_mb: float


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


def measure(reports: list[Path]) -> Cost:
    """Analyse reports to the end, into a file, and return what the driver needed."""
    command = [sys.executable, "-c", DRIVER, "analyze", "--jobs", "2", "--format", "json"]
    output = reports[0].with_name("result.json")
    done = subprocess.run(
        [*command, "-o", str(output), *map(str, reports)],
        capture_output=True,
        text=True,
        check=True,
    )
    cpu_s, peak = done.stderr.splitlines()[-1].split()
    return Cost(float(cpu_s), int(peak) * 1024 / 1e6)


def show(costs: dict[int, list[Cost]], base: Cost) -> bool:
    """Print medians and what each rank beyond eight adds; say whether that is flat.

    Args:
        costs: by the number of ranks.
        base: of eight ranks: what the program itself needs, most of all.
    """
    table = Table("ranks", "driver's CPU s", "peak MB", "CPU ms a rank", "MB a rank", "against")
    medians = {
        num_ranks: Cost(
            statistics.median(cost.cpu_s for cost in of_number),
            statistics.median(cost.peak_mb for cost in of_number),
        )
        for num_ranks, of_number in costs.items()
    }
    first: tuple[float, float] | None = None
    is_flat = True
    for num_ranks, cost in medians.items():
        cpu_ms = 1e3 * (cost.cpu_s - base.cpu_s) / (num_ranks - BLOCK)
        peak_mb = (cost.peak_mb - base.peak_mb) / (num_ranks - BLOCK)
        first = first or (cpu_ms, peak_mb)
        ratios = cpu_ms / first[0], peak_mb / first[1]
        is_flat = is_flat and max(ratios) <= LIMIT
        table.add_row(
            str(num_ranks),
            f"{cost.cpu_s:.2f}",
            f"{cost.peak_mb:.0f}",
            f"{cpu_ms:.2f}",
            f"{peak_mb:.3f}",
            f"{ratios[0]:.2f}, {ratios[1]:.2f}",
        )
    Console().print(table)
    return is_flat


@click.command()
@click.option("--ranks", default=1024, show_default=True, help="The most of them.")
@click.option("--runs", default=3, show_default=True, help="Counted runs of each.")
def main(ranks: int, runs: int) -> None:
    """Measure with a few ranks and four times as many, until all are used."""
    numbers = [min(FEWEST, ranks)]
    while numbers[-1] < ranks:
        numbers.append(min(FACTOR * numbers[-1], ranks))
    with tempfile.TemporaryDirectory() as folder:
        seed_reports = Path(folder) / "seed"
        simulate_run(SCENARIO, seed_reports, per_rank=True)
        reports = {
            number: simulated(Path(folder) / str(number), seed_reports, number)
            for number in [BLOCK, *numbers]
        }
        base = measure(reports[BLOCK])
        costs: dict[int, list[Cost]] = {number: [] for number in numbers}
        for _ in range(runs):
            for number in numbers:
                costs[number].append(measure(reports[number]))
    if not show(costs, base):
        raise click.ClickException(f"not flat: more than {LIMIT} times as much for each rank")


if __name__ == "__main__":
    main()
