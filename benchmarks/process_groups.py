"""What a small all-reduce over Gloo costs while 1 to 4 process groups make them at once.

    python benchmarks/process_groups.py [--pairs 4] [--runs 3]

Records `gloo_pairs.py` with nsys, which must be on PATH, and prints what the program's own clock
says of an operation beside what `traceprof analyze` reads from the recording: medians over the
recordings, and their range.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from traceprof.analysis import analyze

if TYPE_CHECKING:
    from collections.abc import Sequence


def record(pairs: int, report: Path) -> list[dict[str, Any]]:
    """Run the program under nsys, and return what its clocks say, by rank.

    Args:
        pairs: how many pairs of ranks.
        report: the .nsys-rep to write.
    """
    clocks = report.with_suffix(".json")
    done = subprocess.run(
        [
            *("nsys", "profile", "--trace=nvtx", "--sample=none", "--cpuctxsw=none"),
            *("--force-overwrite=true", f"--output={report}"),
            *(sys.executable, str(Path(__file__).with_name("gloo_pairs.py"))),
            *(str(pairs), str(clocks)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or not report.exists():
        raise click.ClickException(f"nsys profile failed: {done.stderr or done.stdout}")
    ranks: list[dict[str, Any]] = json.loads(clocks.read_text())
    return ranks


@click.command()
@click.option("--pairs", default=4, show_default=True, help="The most pairs to record.")
@click.option("--runs", default=3, show_default=True, help="Recordings of each number of pairs.")
def main(pairs: int, runs: int) -> None:
    """Print the cost of an operation, by the program's clock and by the recording."""
    numbers = range(1, pairs + 1)
    rows: dict[int, list[tuple[float, ...]]] = {number: [] for number in numbers}
    with tempfile.TemporaryDirectory() as folder:
        reports = []
        for run in range(runs):
            for number in numbers:
                report = Path(folder) / f"{number}-pairs-{run}.nsys-rep"
                ranks = record(number, report)
                reports.append(report)
                rows[number].append((*_of_clocks(ranks), *_of_trace(report)))
        analysis = analyze(*reports)
        findings, missing = analysis.findings, analysis.not_applicable
        analysis.close()
    _show(rows)
    for finding in findings:
        print(f"{finding.severity} {finding.id}: {finding.title}")
    for gap in missing:
        print(f"{gap.id}: {gap.reason}")


def _of_clocks(ranks: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Return mean and median µs of an operation by the ranks' own clocks, over all ranks."""
    inside = [length_ns for clock in ranks for length_ns in clock["inside_ns"]]
    return statistics.mean(inside) / 1000, statistics.median(inside) / 1000


def _of_trace(report: Path) -> tuple[float, float]:
    """Return the same from the recording."""
    analysis = analyze(report)
    analysis.close()
    uses = [use for result in analysis.result.collectives for use in result.uses]
    if not uses:
        raise click.ClickException("; ".join(note for _, note in analysis.notes))
    mean = sum(use.total_ns for use in uses) / sum(use.count for use in uses)
    return mean / 1000, statistics.median(use.median_ns for use in uses) / 1000


def _show(rows: dict[int, list[tuple[float, ...]]]) -> None:
    table = Table(
        "pairs", "clock: mean µs", "trace: mean µs", "clock: median µs", "trace: median µs"
    )
    for number, runs in rows.items():
        clock_mean, clock_median, trace_mean, trace_median = zip(*runs, strict=True)
        columns = (clock_mean, trace_mean, clock_median, trace_median)
        table.add_row(str(number), *(_span(column) for column in columns))
    Console().print(table)


def _span(runs: Sequence[float]) -> str:
    return f"{statistics.median(runs):.0f} ({min(runs):.0f}-{max(runs):.0f})"


if __name__ == "__main__":
    main()
