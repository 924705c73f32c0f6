"""Time and size of the timeline's replies on ten million kernels, over a script of views.

    python benchmarks/dashboard.py [--export FILE] [--views 300] [--columns 2400]

Simulates `ddp --gpus 8 --steps 1250 --kernels-per-step 1000 --seed 2` where no export is given
(1.5 GB, about a minute, kept in the temporary folder for the next time), analyses it, serves its
timeline on the loopback address, and asks for views of rank after rank: the whole run, zooms at
random places down to some nanoseconds, and movements to the side, of all the rows of a rank, as a
browser does (the columns are those of a screen 1600 pixels wide and its margins). Then it searches,
and asks for single events.
"""

from __future__ import annotations

import json
import logging
import random
import resource
import statistics
import tempfile
import threading
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from urllib.request import urlopen

import click
from flask import Flask
from rich.console import Console
from rich.table import Table
from werkzeug.serving import make_server

from dashboards.timeline import server as timeline_server
from sample_traces.simulator.ddp import simulate_ddp
from traceprof.analysis import analyze

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceprof.analysis import Analysis

GPU_KINDS = ("compute", "communication", "copy")
MAX_MS, MAX_BYTES = 150, 300_000


@dataclass
class Replies:
    """What replies of one kind took, ms, and their sizes in bytes."""

    ms: list[float] = field(default_factory=list)
    size: list[int] = field(default_factory=list)


class Browser:
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
    """Serve the timeline of an analysis; yields the address."""
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # not a line for each request
    app = Flask("benchmark")
    timeline_server.register(app, analysis)
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()


def look_at(browser: Browser, rank: int, views: int, columns: int, rng: random.Random) -> None:
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
def main(export: Path | None, views: int, columns: int) -> None:
    """Measure the timeline's replies."""
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
            browser = Browser(address)
            ranks = [one.rank for one in analysis.run.ranks]
            for rank in ranks:
                look_at(browser, rank, -(-views // len(ranks)), columns, rng)
    show(browser.replies)
    print(f"peak with the timelines of {len(ranks)} ranks: {peak_mb():.0f} MB")


def peak_mb() -> float:
    """Return the most memory that this process has held, MB (1e6 bytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


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
