"""From command to first useful paint: the overview, with its numbers, in a browser that is open.

python benchmarks/dashboard_start.py REPORT [--repeat N]
"""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from playwright.sync_api import sync_playwright


def main() -> None:
    """Measure, and print the median and the spread."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        seconds = []
        for _ in range(options.repeat):
            context = browser.new_context()  # with a cold cache
            page = context.new_page()
            page.goto("about:blank")
            began = time.perf_counter()
            command = [sys.executable, "-m", "traceprof", "dashboard", str(options.report)]
            with subprocess.Popen(
                [*command, "--port", "0"], stdout=subprocess.PIPE, text=True
            ) as done:
                url = done.stdout.readline().strip() if done.stdout else ""
                page.goto(url)
                page.wait_for_selector("table.breakdown", timeout=20_000)
                seconds.append(time.perf_counter() - began)
                done.terminate()
            context.close()
        browser.close()
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(
        f"{options.report.name}: first useful paint after {statistics.median(seconds):.2f} s"
        f" (of {options.repeat}: {min(seconds):.2f} to {max(seconds):.2f} s)"
    )
    print(f"largest process: {peak:.0f} MiB")


if __name__ == "__main__":
    main()
