"""Time, size and memory of the dashboard on ten million kernels, in a browser and over HTTP.

    python benchmarks/dashboard.py [--export FILE] [--views 300] [--columns 2400] [--visits 5]

Simulates `ddp --gpus 8 --steps 1250 --kernels-per-step 1000 --seed 2` where no export is given
(1.5 GB, about a minute, kept in the temporary folder for the next time), analyses it, serves it on
the loopback address, and asks for views of rank after rank: the whole run, zooms at
random places down to some nanoseconds, and movements to the side, of all the rows of a rank, as a
browser does (the columns are those of a screen 1600 pixels wide and its margins). Then it searches,
and asks for single events; moves one rank's timeline while another user opens the others; and
visits the pages of steps and links in Chromium, by a click in the menu, until their charts are
drawn.
"""

from __future__ import annotations

import json
import logging
import random
import resource
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import click
from playwright.sync_api import Page, sync_playwright
from rich.console import Console
from rich.table import Table
from werkzeug.serving import make_server

from dashboards.server.app import create_app
from sample_traces.simulator.ddp import simulate_ddp
from traceprof.analysis import Analysis, analyze

GPU_KINDS = ("compute", "communication", "copy")
MAX_MS, MAX_BYTES = 150, 300_000
CHARTS = {"Steps": "#steps-bars canvas", "Links": "#link-rates canvas"}


@dataclass
class Replies:
    """What replies of one kind took, ms, and their sizes in bytes."""

    ms: list[float] = field(default_factory=list)
    size: list[int] = field(default_factory=list)


class Client:
    """Asks a server, and notes what it took by kind of question."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.replies: dict[str, Replies] = {}

    def ask(self, kind: str, route: str, **parameters: object) -> Any:  # noqa: ANN401
        """Return the JSON of a reply."""
        url = f"{self._address}/timeline/{route}?{urlencode(parameters)}"
        began = time.perf_counter()
        with urlopen(url) as response:  # noqa: S310  (our own server)
            body = response.read()
        replies = self.replies.setdefault(kind, Replies())
        replies.ms.append((time.perf_counter() - began) * 1000)
        replies.size.append(len(body))
        return json.loads(body)


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


def pan_while_others_open(browser: Client, ranks: list[int], num: int = 60) -> None:
    """Move the first rank's timeline while the others are opened."""
    reply = browser.ask("rows of a rank", "rank", rank=ranks[0], part="host")
    rows = ",".join(row["row"] for row in reply["rows"])
    start, end = int(reply["start"]), int(reply["end"])

    def open_others() -> None:
        for rank in ranks[1:]:
            browser.ask("rows of a rank", "rank", rank=rank, part="gpu")
            browser.ask("rows of a rank", "rank", rank=rank, part="host")

    other = threading.Thread(target=open_others)
    other.start()
    moved = 0
    while other.is_alive() or moved < num:
        span = (end - start) // 1000
        first = start + (moved % 900) * span
        at = {"start": first, "end": first + span, "columns": 1800}
        browser.ask("a movement while others open ranks", "tiles", rows=rows, **at)
        moved += 1
    other.join()


def look_at(browser: Client, rank: int, views: int, columns: int, rng: random.Random) -> None:
    """Ask for so many views of a rank, for matches and for events."""
    reply = browser.ask("rows of a rank, first time", "rank", rank=rank)
    rows = ",".join(lane["row"] for lane in reply["rows"])
    on_gpu = [lane["row"] for lane in reply["rows"] if lane["kind"] in GPU_KINDS]
    start, end = int(reply["start"]), int(reply["end"])

    def view(kind: str, first: int, span: int) -> Any:  # noqa: ANN401
        return browser.ask(
            kind, "tiles", rows=rows, start=first, end=first + span, columns=columns
        )["rows"]

    view("view: whole run", start, end - start)
    for _ in range(views):
        # Spans from the whole run down to 20 ns, each power of ten as often as any other.
        span = max(20, round((end - start) / 10 ** rng.uniform(0, 10)))
        first = rng.randint(start, max(start, end - span))
        shown = view("view: zoom", first, span)
        for step in (0.3, 0.6):
            view("view: pan", first + round(step * span), span)
        for row in on_gpu:
            for index in shown[row]["event"][:1]:
                browser.ask("one event", "event", id=f"{rank}.op.{index}")
    for text in ("nccl", "gemm", "e", "not there"):
        at = rng.randint(start, end)
        browser.ask("search", "search", rank=rank, text=text, at=at, direction="next")


@click.command()
@click.option(
    "--export", type=click.Path(exists=True, path_type=Path), help="Instead of simulating."
)
@click.option("--views", default=300, show_default=True, help="Zooms over all ranks.")
@click.option("--columns", default=2400, show_default=True)
@click.option("--visits", default=5, show_default=True, help="Of each page, in Chromium.")
def main(export: Path | None, views: int, columns: int, visits: int) -> None:
    """Measure what the dashboard takes."""
    if export is None:
        export = Path(tempfile.gettempdir()) / "traceprof-ddp-10m.sqlite"
        if not export.exists():
            simulate_ddp(export, gpus=8, steps=1250, kernels_per_step=1000, seed=2)
    began = time.perf_counter()
    with closing(analyze(export)) as analysis:
        analysed_mb = peak_mb()
        print(f"analysed in {time.perf_counter() - began:.1f} s, peak {analysed_mb:.0f} MB")
        rng = random.Random(1)  # noqa: S311  (the same views each time)
        with serving(analysis) as address:
            browser = Client(address)
            ranks = [one.rank for one in analysis.run.ranks]
            for rank in ranks:
                look_at(browser, rank, -(-views // len(ranks)), columns, rng)
            pan_while_others_open(browser, ranks)
            if visits:
                visit_pages(address, visits)
    show(browser.replies)
    print(
        f"peak with the timelines of {len(ranks)} ranks: {peak_mb():.0f} MB,"
        f" {peak_mb() / analysed_mb:.2f} times that of the analysis"
    )


def peak_mb() -> float:
    """Return the most memory that this process has held, MB (1e6 bytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def visit_pages(address: str, visits: int) -> None:
    """Visit pages in Chromium, and print what that took."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1600, "height": 900})
        print(f"first timeline, the page included: {first_timeline(page, address):.2f} s")
        page.goto(address)
        for title in CHARTS:
            seconds, sizes = zip(*(visit(page, title) for _ in range(visits)), strict=True)
            print(
                f"a visit to {title}: {statistics.median(seconds):.2f} s, at most"
                f" {max(seconds):.2f}, largest reply {max(sizes)} bytes"
            )
        browser.close()


def show(replies: dict[str, Replies]) -> None:
    """Print what each kind of reply took."""
    table = Table("reply", "asked", "median ms", "95 % below", "longest", "largest kB")
    views = Replies()
    for kind, measured in replies.items():
        if kind.startswith("view"):
            views.ms += measured.ms
            views.size += measured.size
    for kind, measured in {**replies, "all views": views}.items():
        table.add_row(
            kind,
            str(len(measured.ms)),
            f"{statistics.median(measured.ms):.1f}",
            f"{sorted(measured.ms)[int(0.95 * (len(measured.ms) - 1))]:.1f}",
            f"{max(measured.ms):.1f}",
            f"{max(measured.size) / 1000:.0f}",
        )
    Console().print(table)
    print(
        f"views: median {statistics.median(views.ms):.1f} ms of {MAX_MS} ms allowed,"
        f" largest {max(views.size)} bytes of {MAX_BYTES} allowed"
    )


if __name__ == "__main__":
    main()
