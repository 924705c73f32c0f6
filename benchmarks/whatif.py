"""What `traceprof whatif`, and savings in `traceprof analyze`, cost over the analysis itself.

    python -m benchmarks.whatif [--runs 3] [--medium M.sqlite]

Without an export it simulates M: 2 million kernels. The commands take turns.
"""

from __future__ import annotations

import statistics
import sys
from contextlib import ExitStack
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.analyze import in_turn, simulated

ANALYZE, SAVINGS, WHATIF = "analyze --no-savings", "analyze --savings", "whatif"
MAX_CPU, MAX_MEMORY = 3.0, 2.0  # of `whatif`, over the analysis without savings


@click.command()
@click.option("--runs", default=3, show_default=True, help="Counted runs of each command.")
@click.option("--medium", type=click.Path(exists=True, path_type=Path), help="M, if it is there.")
def main(runs: int, medium: Path | None) -> None:
    """Print what each command costs, and of what the analysis does."""
    program = [sys.executable, "-m", "traceprof"]
    with ExitStack() as stack:
        export = str(medium or simulated("M", stack))
        commands = {
            name: [*program, *name.split(), "--format", "json", export]
            for name in (ANALYZE, SAVINGS, WHATIF)
        }
        costs = in_turn(commands, runs)
    table = Table("command", "CPU s", "peak MB", "of analyze: CPU", "memory", "")
    for name, of_command in costs.items():
        cpu, memory = (
            statistics.median(
                getattr(one, value) / getattr(other, value)
                for one, other in zip(of_command, costs[ANALYZE], strict=True)
            )
            for value in ("cpu_s", "peak_mb")
        )
        table.add_row(
            name,
            f"{statistics.median(one.cpu_s for one in of_command):.2f}",
            f"{statistics.median(one.peak_mb for one in of_command):.0f}",
            f"{cpu:.2f}",
            f"{memory:.2f}",
            "MISSED" if cpu > MAX_CPU or memory > MAX_MEMORY else "",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
