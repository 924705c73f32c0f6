"""Time, size and memory of the dashboard on ten million kernels, in a browser and over HTTP.

    python benchmarks/pages.py [--export FILE] [--visits 5]

Simulates `ddp --gpus 8 --steps 1250 --kernels-per-step 1000 --seed 1` where no export is given
(1.5 GB, about a minute, kept in the temporary folder for the next time) and analyses it. Visits the
pages of steps and links in Chromium, by a click in the menu, until their charts are drawn; opens
the timeline for the first time; moves one rank's timeline while another user opens the others;
searches in all ranks; and asks how much memory all ranks' timelines take, the analysis included.
"""

from __future__ import annotations

import gc
import json
import logging
import resource
import shutil
import statistics
import tempfile
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import click
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.table import Table
from werkzeug.serving import make_server

from dashboards.server.app import create_app
from sample_traces.simulator.ddp import simulate_ddp
from traceprof.analysis import analyze

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

    from traceprof.analysis import Analysis

CHARTS = {"Steps": "#steps-bars canvas", "Links": "#link-rates canvas"}
MAX_VISIT_S, MAX_REPLY_BYTES, MAX_TIMELINE_S = 0.5, 300_000, 2.0
MAX_PAN_MS, MAX_SEARCH_S, MAX_MEMORY = 150, 0.5, 2.0
SEARCHES = ("nccl", "gemm", "e", "not there")


@contextmanager
def serving(analysis: Analysis) -> Iterator[str]:
    """Serve the dashboard of an analysis; yields the address."""
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # not a line for each request
    server = make_server("127.0.0.1", 0, create_app(analysis).server, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()


def ask(address: str, route: str, **parameters: object) -> tuple[Any, float, int]:
    """Return the JSON of a reply of the timeline, the seconds it took and its bytes."""
    url = f"{address}/timeline/{route}?{urlencode(parameters)}"
    began = time.perf_counter()
    with urlopen(Request(url)) as response:  # noqa: S310  (our own server)
        body = response.read()
    return json.loads(body), time.perf_counter() - began, len(body)


def visit(page: Page, title: str) -> tuple[float, int]:
    """Go to a page by the menu; return the seconds until its chart is drawn, and what was sent."""
    page.get_by_role("link", name="Overview").click()
    page.locator("table.breakdown").wait_for()
    sizes: list[int] = []

    def note(request: Any) -> None:  # noqa: ANN401  (playwright's types have no stubs)
        if request.resource_type != "script":  # which the browser keeps
            sizes.append(request.sizes()["responseBodySize"])

    page.on("requestfinished", note)
    began = time.perf_counter()
    page.get_by_role("link", name=title, exact=True).click()
    page.locator(CHARTS[title]).first.wait_for()
    # Until the browser has painted what it drew.
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    took = time.perf_counter() - began
    page.wait_for_load_state("networkidle")
    return took, max(sizes, default=0)


def first_timeline(page: Page, address: str) -> float:
    """Return the seconds from asking for the timeline until the GPU's rows are drawn."""
    began = time.perf_counter()
    page.goto(f"{address}/timeline?rank=0")
    page.wait_for_function(
        """() => {
            const t = document.getElementById("timeline")?.timeline;
            return t?.view && t.rows.some(({ track }) => track?.source === "op"
                && t.data.tiles.get(track.row));
        }"""
    )
    return time.perf_counter() - began


def pans_while_others_open(address: str, ranks: list[int], num: int = 60) -> list[float]:
    """Return what moving the first rank's timeline takes, ms, while the others are opened."""
    reply, *_ = ask(address, "rank", rank=ranks[0], part="host")
    rows = ",".join(row["row"] for row in reply["rows"])
    start, end = int(reply["start"]), int(reply["end"])

    def open_others() -> None:
        for rank in ranks[1:]:
            ask(address, "rank", rank=rank, part="gpu")
            ask(address, "rank", rank=rank, part="host")

    other = threading.Thread(target=open_others)
    other.start()
    took: list[float] = []
    while other.is_alive() or len(took) < num:
        span = (end - start) // 1000
        first = start + (len(took) % 900) * span
        _, seconds, _ = ask(
            address, "tiles", rows=rows, start=first, end=first + span, columns=1800
        )
        took.append(1000 * seconds)
    other.join()
    return took


def peak_mb() -> float:
    """Return the most memory that this process has held, MB (1e6 bytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


@click.command()
@click.option(
    "--export", type=click.Path(exists=True, path_type=Path), help="Instead of simulating."
)
@click.option("--visits", default=5, show_default=True, help="Of each page.")
def main(export: Path | None, visits: int) -> None:
    """Measure what the dashboard takes."""
    if export is None:
        export = Path(tempfile.gettempdir()) / "traceprof-ddp-10m-1.sqlite"
        if not export.exists():
            simulate_ddp(export, gpus=8, steps=1250, kernels_per_step=1000, seed=1)
    table = Table("what", "asked", "median", "longest", "target")
    with closing(analyze(export)) as analysis:
        analysed_mb = peak_mb()
        ranks = [rank.rank for rank in analysis.run.ranks]
        gc.collect()
        with serving(analysis) as address:
            measure_pages(table, address, visits)
            pans = pans_while_others_open(address, ranks)
            add(table, "a movement while others open ranks (ms)", pans, MAX_PAN_MS)
            searches = []
            for text in SEARCHES * 3:
                asked = {"text": text, "at": 0, "direction": "next"}
                searches.append(ask(address, "search", **asked)[1])
            add(table, "a search in all ranks (s)", searches, MAX_SEARCH_S)
        opened_mb = peak_mb()
    memory = opened_mb / analysed_mb
    add(table, f"memory, of {analysed_mb:.0f} MB for the analysis", [memory], MAX_MEMORY)
    Console().print(table)


def measure_pages(table: Table, address: str, visits: int) -> None:
    """Visit pages in Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1600, "height": 900})
        timelines = [first_timeline(page, address)]
        add(table, "first timeline, the page included (s)", timelines, MAX_TIMELINE_S)
        page.goto(address)
        for title in CHARTS:
            taken = [visit(page, title) for _ in range(visits)]
            add(table, f"a visit to {title} (s)", [took for took, _ in taken], MAX_VISIT_S)
            sizes = [float(size) for _, size in taken]
            add(table, "its largest reply, compressed (bytes)", sizes, MAX_REPLY_BYTES)
        browser.close()


def add(table: Table, what: str, values: list[float], limit: float) -> None:
    """Add a row of what was measured."""
    median = statistics.median(values)
    table.add_row(what, str(len(values)), f"{median:.4g}", f"{max(values):.4g}", f"{limit:g}")


if __name__ == "__main__":
    main()
