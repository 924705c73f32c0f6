"""What traceprof's commands cost, against each other and against what else reads recordings.

    python benchmarks/analyze.py [--runs 3] [--medium M.sqlite] [--large L.sqlite | --skip-large]
                                 [--other OTHER.sqlite] [--hta PYTHON]

Without exports it simulates them in a temporary folder: 2 million kernels (M, 290 MB) and
10 million (L, 1.4 GB). Whole processes are measured. The commands take turns on M, and on an export
of another make that is as large; targets are those of the worse of the two. On L it is traceprof
alone. A trace of torch.profiler of one rank (200 MB) is measured against `orjson.loads`, and
against HolisticTraceAnalysis' loading with its temporal breakdown, which needs an environment of
its own:

    python -m venv hta && hta/bin/pip install HolisticTraceAnalysis 'pandas<3'

What is not installed (`nsys`, `sqlite3`, `orjson`) is left out.
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
OURS, NSYS, SCAN = "traceprof", "nsys stats, 4 reports", "sqlite3 scan"
WITHOUT_SAVINGS, WHATIF = "traceprof, no savings", "traceprof whatif"
INFO, PERFETTO = "traceprof info", "traceprof export perfetto"
SMALL = "traceprof analyze, a small report"
OTHER = ", other make"
LARGE = f"{OURS}, L"
PROFILER, ORJSON, HTA = "traceprof, torch.profiler", "orjson.loads", "HolisticTraceAnalysis"
_SAMPLE = Path(__file__).parents[1] / "sample_traces" / "ddp.sqlite"
_PROFILER_STEPS = 195  # about 200 MB of one rank
_LOADS = "import sys, orjson; orjson.loads(open(sys.argv[1], 'rb').read())"
_BREAKDOWN = """
import sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="")
print(analysis.get_temporal_breakdown(visualize=False))
"""


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


def ours(*arguments: str | Path) -> list[str]:
    """Return a command of traceprof."""
    return [sys.executable, "-m", "traceprof", *map(str, arguments)]


def commands(export: Path, folder: Path) -> dict[str, list[str]]:
    """Return the commands to compare that are installed."""
    installed = {
        OURS: ours("analyze", "--format", "json", export),
        WITHOUT_SAVINGS: ours("analyze", "--no-savings", "--format", "json", export),
        WHATIF: ours("whatif", "--format", "json", export),
        PERFETTO: ours("export", "perfetto", export, "-o", folder / "run.pftrace"),
        INFO: ours("info", export),
    }
    if shutil.which("nsys"):
        installed[NSYS] = [
            *("nsys", "stats", "--force-export=false", "--report", REPORTS),
            *("--format", "csv", str(export)),
        ]
    if shutil.which("sqlite3"):
        tables = (schema.KERNEL.name, schema.API_CALL.name, schema.NVTX.name)
        scan = "".join(f"SELECT sum(start), count(*) FROM {table};" for table in tables)  # noqa: S608
        installed[SCAN] = ["sqlite3", "-readonly", str(export), scan]
    return installed


def of_profiler(folder: Path, hta: str | None) -> dict[str, list[str]]:
    """Return the commands to compare on a trace of torch.profiler, which this writes."""
    simulate = [sys.executable, "-m", "sample_traces.simulator", "ddp", "--gpus", "2"]
    options = ("--steps", str(_PROFILER_STEPS), "--kernels-per-step", str(KERNELS_PER_STEP))
    # In a process of its own: the peak of one counts for those that it starts.
    subprocess.run([*simulate, *options, "-o", str(folder / "trace.json")], check=True)
    trace = str(folder / "trace-rank0.json")
    return {
        PROFILER: ours("analyze", "--format", "json", trace),
        **({ORJSON: [sys.executable, "-c", _LOADS, trace]} if find_spec("orjson") else {}),
        **({HTA: [hta, "-c", _BREAKDOWN, trace]} if hta else {}),
    }


@click.command()
@click.option("--runs", default=3, show_default=True, help="Counted runs of each command on M.")
@click.option("--medium", type=click.Path(exists=True, path_type=Path), help="M, if it is there.")
@click.option("--large", type=click.Path(exists=True, path_type=Path), help="L, if it is there.")
@click.option("--skip-large", is_flag=True, help="Measure M only.")
@click.option("--other", type=click.Path(exists=True, path_type=Path), help="M of another make.")
@click.option("--hta", default=None, help="Python of an environment with HolisticTraceAnalysis.")
def main(
    runs: int,
    medium: Path | None,
    large: Path | None,
    skip_large: bool,
    other: Path | None,
    hta: str | None,
) -> None:
    """Print what each command costs, and how traceprof keeps its targets."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        on_m = commands(medium or simulated("M", stack), folder)
        if other is not None:
            on_m |= {f"{name}{OTHER}": one for name, one in commands(other, folder).items()}
        costs = in_turn(on_m | of_profiler(folder, hta), runs)
        if not skip_large:
            l_export = large or simulated("L", stack)
            costs |= in_turn({LARGE: commands(l_export, folder)[OURS]}, runs)
    small = {
        "import traceprof": [sys.executable, "-c", "import traceprof"],
        "traceprof --help": ours("--help"),
        SMALL: ours("analyze", _SAMPLE, "-o", os.devnull),
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
    millions = GPUS * STEPS[name] * KERNELS_PER_STEP / 1e6
    print(f"{name}: {millions:g} million kernels, {size:.0f} MB, written in {took:.1f} s")
    return export


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
    """Print each target and what was measured, of the worse make: ratios of alternating runs."""

    def ratios(name: str, to: str, field: str = "cpu_s") -> float | None:
        """Return the ratio of CPU times; None where one of the two was not measured."""
        of_makes = [
            statistics.median(
                getattr(one, field) / getattr(two, field)
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
        f"CPU / {NSYS}": (ratios(OURS, NSYS), 0.48),
        "CPU of whatif / of analyze without savings": (ratios(WHATIF, WITHOUT_SAVINGS), 2.0),
        "the same of memory": (ratios(WHATIF, WITHOUT_SAVINGS, "peak_mb"), 1.4),
        "CPU of export perfetto / of analyze": (ratios(PERFETTO, OURS), 2.0),
        "peak MB of export perfetto": (peak(PERFETTO), 250.0),
        "CPU of info / of analyze": (ratios(INFO, OURS), 0.2),
        f"CPU of a trace of torch.profiler / {ORJSON}": (ratios(PROFILER, ORJSON), 1.1),
        f"the same / {HTA}": (ratios(PROFILER, HTA), 0.15),
        "peak MB on L": (peak(LARGE), 605.0),
        "CPU of L / of M": (cpu(LARGE) / cpu(OURS) if LARGE in costs else None, 5.0),
        "traceprof --help, CPU s": (cpu("traceprof --help"), 0.08),
        f"{SMALL}, CPU s": (cpu(SMALL), 0.39),
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
