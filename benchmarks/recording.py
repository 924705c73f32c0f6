"""What the flags of `nsys profile` cost: a training step's time under each, over that without.

    python benchmarks/recording.py [--steps 300] [--runs 3] [--only NAME]...

Runs `tests/support/programs/train.py` on 2 Gloo ranks, plain, with torch.profiler and under `nsys
profile` with more and more to record, alternating; prints the median step, its ratio to the plain
one's, and the size of the report for each step. Needs nsys, and no GPU: what tracing CUDA costs
cannot be measured here.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
PROGRAM = ROOT / "tests" / "support" / "programs" / "train.py"
LAUNCH = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
QUIET = ("--sample=none", "--cpuctxsw=none")
TORCH = "--with torch"
WAYS: dict[str, tuple[tuple[str, ...] | None, bool]] = {
    "plain": (None, False),
    "-m instrument, not recorded": (None, True),
    TORCH: (None, True),
    "--trace=nvtx, without instrument": (("--trace=nvtx", *QUIET), False),
    "--trace=nvtx": (("--trace=nvtx", *QUIET), True),
    "--trace=nvtx,osrt": (("--trace=nvtx,osrt", *QUIET), True),
    "--trace=nvtx --cpuctxsw=process-tree": (
        ("--trace=nvtx", "--sample=none", "--cpuctxsw=process-tree"),
        True,
    ),
    "--trace=nvtx --sample=process-tree": (("--trace=nvtx", "--sample=process-tree"), True),
    "--trace=nvtx --python-sampling=true": (
        ("--trace=nvtx", *QUIET, "--python-sampling=true"),
        True,
    ),
}


@click.command()
@click.option("--steps", default=300, show_default=True)
@click.option("--runs", default=3, show_default=True, help="Counted runs of each.")
@click.option("--only", multiple=True, type=click.Choice(list(WAYS)), help="Beside `plain`.")
def main(steps: int, runs: int, only: tuple[str, ...]) -> None:
    """Measure all ways alternately and print the table."""
    nsys = shutil.which("nsys")
    if nsys is None:
        raise click.ClickException("nsys is not on PATH")
    ways = {name: way for name, way in WAYS.items() if not only or name in {"plain", *only}}
    step_us: dict[str, list[float]] = {name: [] for name in ways}
    report_bytes: dict[str, float] = {}
    num_crashed: Counter[str] = Counter()
    for _, name in itertools.product(range(runs), ways):
        flags, is_named = ways[name]
        with tempfile.TemporaryDirectory() as folder:
            prefix = [] if flags is None else [nsys, "profile", *flags, "-o", f"{folder}/run"]
            module = ["-m", "instrument"] if is_named else []
            if name == TORCH:
                module += ["--with", "torch", "-o", folder]
            command = [*prefix, *LAUNCH, *module, str(PROGRAM)]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(
                [*command, "--steps", str(steps), "--truth", folder],
                cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode and "SIG" in done.stderr:  # a recorder may crash what it records
                num_crashed[name] += 1
                continue
            if done.returncode:
                raise click.ClickException(f"{name}: {done.stdout}{done.stderr}")
            step_us[name].append(_median_step_us(Path(folder) / "truth-0.json"))
            reports = [*Path(folder).glob("*.nsys-rep"), *Path(folder).glob("*.trace.json.gz")]
            if reports:
                report_bytes[name] = sum(path.stat().st_size for path in reports) / steps
    table = Table(
        "recorded with", "step µs (min-max)", "of plain", "report bytes a step", "crashed"
    )
    plain = statistics.median(step_us["plain"])
    for name, medians in step_us.items():
        if not medians:
            table.add_row(name, "", "", "", f"{num_crashed[name]} of {runs}")
            continue
        middle = statistics.median(medians)
        table.add_row(
            name,
            f"{middle:.0f} ({min(medians):.0f}-{max(medians):.0f})",
            f"{middle / plain:.2f}",
            f"{report_bytes[name]:.0f}" if name in report_bytes else "",
            f"{num_crashed[name]} of {runs}" if num_crashed[name] else "",
        )
    Console().print(table)


def _median_step_us(truth: Path) -> float:
    began: list[int] = json.loads(truth.read_text())["began_ns"]
    return statistics.median(b - a for a, b in itertools.pairwise(began)) / 1e3


if __name__ == "__main__":
    main()
