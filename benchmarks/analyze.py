"""What `traceprof analyze` costs, with all findings, against what else reads exports.

    python benchmarks/analyze.py [--runs 3] [--medium M.sqlite] [--large L.sqlite | --skip-large]
                                 [--other OTHER.sqlite]

Without exports it simulates them in a temporary folder: 2 million kernels (M, 290 MB) and
10 million (L, 1.4 GB). Whole processes are measured. The commands take turns on M, and on an export
of another make that is as large; targets are those of the worse of the two. On L it is traceprof
alone. What is not installed (`nsys`, `sqlite3`, connectorx with pyarrow) is left out.

Ratios are of CPU time, which other programs on the machine change less than wall time.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from sample_traces.simulator.ddp import simulate_ddp
from traceprof.trace.nsight import schema

GPUS, KERNELS_PER_STEP = 8, 1000
STEPS = {"M": 250, "L": 1250}
REPORTS = "cuda_gpu_kern_sum,cuda_api_sum,cuda_gpu_mem_time_sum,nvtx_sum"
_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
OURS, NSYS, LIBRARY, SCAN = "traceprof", "nsys stats, 4 reports", "on connectorx", "sqlite3 scan"
OTHER = ", other make"
LARGE = f"{OURS}, L"
INFO, SMALL = "traceprof info", "traceprof analyze, a small report"
_SAMPLE = Path(__file__).parents[1] / "sample_traces" / "ddp.sqlite"


@dataclass(frozen=True)
class Cost:
    """What one process and its children cost: seconds, and MB (1e6 bytes) of the largest one."""

    wall_s: float
    cpu_s: float
    peak_mb: float


def measure(command: list[str]) -> Cost:
    """Run a command to its end and return what it cost, by the kernel's own account."""
    # Bytecode is kept, as it is of installed packages, whatever is usual where this runs.
    environment = {name: value for name, value in os.environ.items() if name != _NO_BYTECODE}
    start = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise click.ClickException(f"{' '.join(command)} exited with {process.returncode}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6)


def commands(export: Path) -> dict[str, list[str]]:
    """Return the commands to compare, as far as they are installed."""
    installed = {
        OURS: [sys.executable, "-m", "traceprof", "analyze", "--format", "json", str(export)],
        INFO: [sys.executable, "-m", "traceprof", "info", str(export)],
    }
    if shutil.which("nsys"):
        installed[NSYS] = [
            *("nsys", "stats", "--force-export=false", "--report", REPORTS),
            *("--format", "csv", str(export)),
        ]
    if find_spec("connectorx") and find_spec("pyarrow"):
        script = Path(__file__).with_name("on_connectorx.py")
        installed[LIBRARY] = [sys.executable, str(script), str(export)]
    if shutil.which("sqlite3"):
        tables = (schema.KERNEL.name, schema.API_CALL.name, schema.NVTX.name)
        scan = "".join(f"SELECT sum(start), count(*) FROM {table};" for table in tables)  # noqa: S608
        installed[SCAN] = ["sqlite3", "-readonly", str(export), scan]
    return installed


@click.command()
@click.option("--runs", default=3, show_default=True, help="Counted runs of each command on M.")
@click.option("--medium", type=click.Path(exists=True, path_type=Path), help="M, if it is there.")
@click.option("--large", type=click.Path(exists=True, path_type=Path), help="L, if it is there.")
@click.option("--skip-large", is_flag=True, help="Measure M only.")
@click.option("--other", type=click.Path(exists=True, path_type=Path), help="M of another make.")
def main(
    runs: int, medium: Path | None, large: Path | None, skip_large: bool, other: Path | None
) -> None:
    """Print what each command costs, and how traceprof keeps its targets."""
    with ExitStack() as stack:
        on_m = commands(medium or simulated("M", stack))
        if other is not None:
            on_m |= {f"{name}{OTHER}": command for name, command in commands(other).items()}
        costs = in_turn(on_m, runs)
        if not skip_large:
            l_export = large or simulated("L", stack)
            costs |= in_turn({LARGE: commands(l_export)[OURS]}, runs)
    small = {
        "import traceprof": [sys.executable, "-c", "import traceprof"],
        "traceprof --help": [sys.executable, "-m", "traceprof", "--help"],
        SMALL: [sys.executable, "-m", "traceprof", "analyze", str(_SAMPLE), "-o", os.devnull],
    }
    costs |= in_turn(small, runs)
    show(costs)
    targets(costs)


def simulated(name: str, stack: ExitStack) -> Path:
    """Write one of the two exports to a folder that goes away with the stack."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    began = time.perf_counter()
    export = folder / f"{name}.sqlite"
    seed = 1 + list(STEPS).index(name)
    simulate_ddp(export, gpus=GPUS, steps=STEPS[name], kernels_per_step=KERNELS_PER_STEP, seed=seed)
    size, took = export.stat().st_size / 1e6, time.perf_counter() - began
    print(f"{name}: {millions(name):g} million kernels, {size:.0f} MB, written in {took:.1f} s")
    return export


def millions(name: str) -> float:
    """Return how many million kernels an export has."""
    return GPUS * STEPS[name] * KERNELS_PER_STEP / 1e6


def in_turn(compared: dict[str, list[str]], runs: int) -> dict[str, list[Cost]]:
    """Run each command so many times, one after the other, and once before to fill the caches."""
    for command in compared.values():
        measure(command)
    costs: dict[str, list[Cost]] = {name: [] for name in compared}
    for _ in range(runs):
        for name, command in compared.items():
            costs[name].append(measure(command))
    return costs


def show(costs: dict[str, list[Cost]]) -> None:
    """Print medians and ranges."""
    table = Table("command", "wall s (min-max)", "CPU s", "peak MB")
    for name, runs in costs.items():
        walls = [run.wall_s for run in runs]
        table.add_row(
            name,
            f"{statistics.median(walls):.2f} ({min(walls):.2f}-{max(walls):.2f})",
            f"{statistics.median(run.cpu_s for run in runs):.2f}",
            f"{statistics.median(run.peak_mb for run in runs):.0f}",
        )
    Console().print(table)


def targets(costs: dict[str, list[Cost]]) -> None:
    """Print each target and what was measured, of the worse make: ratios of runs in turn."""

    def ratios(name: str, to: str) -> float | None:
        """Return the ratio of CPU times; None where one of the two was not measured."""
        of_makes = [
            statistics.median(
                one.cpu_s / two.cpu_s
                for one, two in zip(costs[f"{name}{make}"], costs[f"{to}{make}"], strict=True)
            )
            for make in ("", OTHER)
            if f"{name}{make}" in costs and f"{to}{make}" in costs
        ]
        return max(of_makes, default=None)

    def peak(name: str) -> float | None:
        runs = [*costs.get(name, []), *costs.get(f"{name}{OTHER}", [])]
        return max((run.peak_mb for run in runs), default=None)

    def cpu(name: str) -> float:
        return statistics.median(run.cpu_s for run in costs[name])

    wanted = {
        f"CPU / {NSYS}": (ratios(OURS, NSYS), 0.15),
        f"CPU / the same {LIBRARY}": (ratios(OURS, LIBRARY), 0.5),
        f"CPU / {SCAN}": (ratios(OURS, SCAN), 6.0),
        "peak MB on M": (peak(OURS), 150.0),
        "peak MB on L": (peak(LARGE), 450.0),
        "CPU of traceprof info / of analyze, M": (ratios(INFO, OURS), 0.1),
        "CPU of L / of M": (cpu(LARGE) / cpu(OURS) if LARGE in costs else None, 4.5),
        "import traceprof, CPU s": (cpu("import traceprof"), 0.15),
        "traceprof --help, CPU s": (cpu("traceprof --help"), 0.08),
        f"{SMALL}, CPU s": (cpu(SMALL), 0.30),
    }
    table = Table("target", "at most", "measured", "")
    for name, (measured, most) in wanted.items():
        if measured is not None:
            table.add_row(
                name, f"{most:g}", f"{measured:.3g}", "" if measured <= most else "MISSED"
            )
    Console().print(table)


if __name__ == "__main__":
    main()
