"""From command to the overview in a browser that is open: its first numbers, and all of it.

    python benchmarks/dashboard_start.py [--export FILE] [--runs 5]

Simulates `ddp --gpus 8 --steps 250 --kernels-per-step 1000 --seed 1` where no export is given (289
MB, kept in the temporary folder for the next time). Runs `traceprof analyze` and `traceprof
dashboard` in turn; the browser's cache is empty each time.
"""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
from playwright.sync_api import sync_playwright

from sample_traces.simulator.ddp import simulate_ddp

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@click.command()
@click.option("--export", type=click.Path(exists=True, path_type=Path))
@click.option("--runs", type=click.IntRange(1), default=5, show_default=True)
def main(export: Path | None, runs: int) -> None:
    """Measure, and print medians and spreads."""
    report = export or _simulated()
    analyzed: list[tuple[float, float]] = []
    first: list[tuple[float, float]] = []
    painted: list[tuple[float, float]] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for _ in range(runs):
            analyzed.append(_analyze(report))
            until_first, whole, peak = _paint(report, browser)
            first.append((until_first, peak))
            painted.append((whole, peak))
        browser.close()
    for name, measured in (
        ("traceprof analyze, to its end", analyzed),
        ("dashboard, where the time of the first ranks went", first),
        ("dashboard, with steps and findings", painted),
    ):
        seconds, peaks = zip(*measured, strict=True)
        click.echo(
            f"{name}: {statistics.median(seconds):.2f} s"
            f" ({min(seconds):.2f}-{max(seconds):.2f}), {statistics.median(peaks):.0f} MB"
        )


def _simulated() -> Path:
    path = Path(tempfile.gettempdir()) / "traceprof-2-million-kernels.sqlite"
    if not path.exists():
        simulate_ddp(path, gpus=8, steps=250, kernels_per_step=1000, seed=1)
    return path


def _analyze(report: Path) -> tuple[float, float]:
    """Return wall seconds and peak MB of the analysis as a command of its own."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "traceprof", "analyze", "--format", "json", str(report)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        peak = _peak_mb(process)
    return time.perf_counter() - began, peak


def _paint(report: Path, browser: Browser) -> tuple[float, float, float]:
    """Return seconds from the command to first numbers and to all, and the server's peak MB."""
    context = browser.new_context()
    page = context.new_page()
    began = time.perf_counter()
    command = [sys.executable, "-m", "traceprof", "dashboard", "--port", "0", str(report)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        url = process.stdout.readline().strip() if process.stdout else ""
        page.goto(url)
        page.wait_for_selector("table.breakdown", timeout=60_000)
        first = time.perf_counter() - began
        page.wait_for_selector("#waiting", state="hidden", timeout=60_000)
        whole = time.perf_counter() - began
        context.close()
        process.send_signal(signal.SIGINT)
        peak = _peak_mb(process)
    return first, whole, peak


def _peak_mb(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> float:
    """Wait for a process; return the most memory that it had, in 1e6 bytes."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_maxrss * 1024 / 1e6


if __name__ == "__main__":
    main()
