"""A server for any analysis, and pages of Debian's Chromium that reach nothing but it.

A page fails its test where it logs an error or asks another host for anything.
"""

import json
import shutil
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize

from dashboards import questions
from dashboards.server.serving import HOST
from sample_traces.simulator import simulate_ddp, simulate_run
from tests.support.dashboard import Serve, serving
from tests.support.selection import missing, once
from tests.support.traces import SAMPLE, analysis_of
from traceprof.analysis import FINDING_IDS, Analysis, Options, analyze

MAX_WAIT_MS = 120_000  # on a busy machine the browser's own 5 s are too few
WINDOW: ViewportSize = {"width": 1280, "height": 800}
# The first is the same browser without windows, which costs a tenth less.
_CHROMIUM = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


@pytest.fixture(autouse=True)
def answers_of_one_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what a test answers itself forgotten after it: analyses of samples are shared."""
    monkeypatch.setattr(questions, "_of_run", OrderedDict())


@pytest.fixture(scope="session")
def analysis() -> Iterator[Analysis]:
    """Return the analysis of the sample trace, which no test may change."""
    with analysis_of(SAMPLE) as made:
        yield made


@pytest.fixture(scope="session")
def straggling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Analysis, int]]:
    """Return eight ranks on four machines, whose clocks differ by up to 0.6 s, and the late one."""

    def simulate(folder: Path) -> None:
        simulate_run("straggler-slow-kernels", folder / "run", seed=1)

    folder = once(tmp_path_factory, "straggling", simulate) / "run"
    (truth,) = folder.glob("*truth.json")
    late: int = json.loads(truth.read_text())["straggler"]["rank"]
    with closing(analyze(*sorted(folder.glob("*.sqlite")))) as made:
        yield made, late


@pytest.fixture(scope="session")
def four_machines(straggling: tuple[Analysis, int]) -> Analysis:
    return straggling[0]


@pytest.fixture(scope="session")
def twenty_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Analysis]:
    """Return twenty ranks with two kinds of findings: pages draw some and sum up the others."""
    path = tmp_path_factory.mktemp("twenty-ranks") / "ddp.sqlite"
    simulate_ddp(path, gpus=20, steps=4, kernels_per_step=20, seed=3)
    others = sorted({*FINDING_IDS} - {"exposed-communication", "straggler"})
    with closing(analyze(path, options=Options(skip=others))) as made:
        yield made


@pytest.fixture
def of_sample(request: pytest.FixtureRequest) -> Iterator[Analysis]:
    """Return the analysis of a sample, or what the fixture of this name gives."""
    path = SAMPLE.with_stem(request.param)
    if not path.exists():
        yield request.getfixturevalue(request.param)
        return
    with analysis_of(path) as opened:
        yield opened


@pytest.fixture(scope="session")
def serve() -> Iterator[Serve]:
    """Return a function that serves a run, once for all tests, and returns its address."""
    served: dict[tuple[Path, ...], str] = {}
    with ExitStack() as servers:

        def serve_once(*paths: Path) -> str:
            if paths not in served:
                served[paths] = servers.enter_context(serving(*paths))
            return served[paths]

        yield serve_once


@pytest.fixture(scope="session")
def sample_url(serve: Serve) -> str:
    """Return the address of the dashboard of the sample trace."""
    return serve(SAMPLE)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Return the system's Chromium, without a network; where CI lacks it, that is a failure."""
    try:
        from playwright.sync_api import expect, sync_playwright  # noqa: PLC0415  (it may be missing)
    except ModuleNotFoundError:
        missing("the package playwright is not installed")
    executable = next(filter(None, map(shutil.which, _CHROMIUM)), None)
    if executable is None:
        missing("no Chromium is on PATH", "chromium")
    expect.set_options(timeout=MAX_WAIT_MS)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=executable,
            args=["--no-sandbox", f"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE {HOST}"],
        )
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """Return what all pages share: a window of 1280 × 800 and a cache of our own scripts."""
    shared = browser.new_context(viewport=WINDOW)
    shared.set_default_timeout(MAX_WAIT_MS)
    yield shared
    shared.close()


class _Blank(BaseHTTPRequestHandler):
    """Answers with an empty page."""

    def do_GET(self) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="session")
def blank() -> Iterator[str]:
    """Return the address of an empty page of the host that all pages are of.

    From `about:blank` Chromium goes on in another process, which compiles all scripts anew.
    """
    with ThreadingHTTPServer((HOST, 0), _Blank) as server:
        Thread(target=server.serve_forever).start()
        yield f"http://{HOST}:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="session")
def tabs() -> list[Page]:
    """Return the pages that are open and empty: a new one would compile all scripts anew."""
    return []


@pytest.fixture
def page(context: BrowserContext, tabs: list[Page], blank: str) -> Iterator[Page]:
    opened: Any = tabs.pop() if tabs else context.new_page()
    seen: dict[str, list[Any]] = {"console": [], "pageerror": [], "request": []}
    # Playwright gives each listener an attribute, which a method of a list cannot have.
    listeners = {event: partial(several.append) for event, several in seen.items()}
    for event, listener in listeners.items():
        opened.on(event, listener)
    yield opened
    for event, listener in listeners.items():
        opened.remove_listener(event, listener)
    assert seen["pageerror"] == []
    assert [one.text for one in seen["console"] if one.type in {"error", "warning"}] == []
    ours = (f"http://{HOST}:", "data:", "blob:")
    assert [one.url for one in seen["request"] if not one.url.startswith(ours)] == []
    opened.set_viewport_size(WINDOW)
    opened.mouse.move(0, 0)
    opened.goto(blank)
    tabs.append(opened)


@pytest.fixture
def own_page(browser: Browser) -> Iterator[Page]:
    """Return an empty page that shares nothing with others, whose console may hold an error."""
    context = browser.new_context()
    context.set_default_timeout(MAX_WAIT_MS)
    yield context.new_page()
    context.close()
