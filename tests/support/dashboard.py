"""The dashboard: components, timelines, a server, and pages in a browser."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from dash.development.base_component import Component
from playwright.sync_api import FloatRect, Locator, Page

from dashboards.address import Address
from dashboards.clock import OWN
from dashboards.pages import timeline
from dashboards.server.app import create_app
from dashboards.server.serving import DashboardServer
from dashboards.timeline import store
from dashboards.timeline.events import gpu_events, host_events
from dashboards.timeline.tracks import RankTimeline, gpu_timeline, with_host
from dashboards.view import View
from tests.support.builders import TraceBuilder
from tests.support.traces import SAMPLE, analysis_of
from tests.support.workers import until
from traceprof.analyses.breakdown import StepMeasures
from traceprof.analysis import Analysis, analyze
from traceprof.errors import TraceFormatError
from traceprof.run.rank import Rank


def components(tree: Any) -> Iterator[Component]:
    """Yield all components of a tree, the outer first."""
    if isinstance(tree, (list, tuple)):
        for component in tree:
            yield from components(component)
    elif hasattr(tree, "to_plotly_json"):
        yield tree
        yield from components(getattr(tree, "children", None))


def text(tree: Any) -> str:
    if tree is None:
        return ""
    if isinstance(tree, (list, tuple)):
        return " ".join(filter(None, map(text, tree)))
    if hasattr(tree, "to_plotly_json"):
        return text(getattr(tree, "children", None))
    return str(tree)


def named(tree: Any, kind: str) -> list[Any]:
    return [component for component in components(tree) if type(component).__name__ == kind]


def charts(tree: Any) -> list[dict[str, Any]]:
    written = (getattr(component, "data-plots", None) for component in components(tree))
    return [json.loads(drawn) for drawn in written if drawn is not None]


Event = tuple[int, int, str]


def timeline_of(rank: Rank, steps: Sequence[StepMeasures] = ()) -> RankTimeline:
    """Return all rows of a rank, on the clock of its report."""
    events = gpu_events(rank, steps)
    return with_host(gpu_timeline(rank, steps, events), events | host_events(rank, OWN, None))


@contextmanager
def timelines(trace: TraceBuilder, folder: Path) -> Iterator[list[RankTimeline]]:
    with analysis_of(trace.write(folder)) as analysis:
        steps = {row.rank: row.steps for row in analysis.result.breakdown}
        yield [timeline_of(rank, steps.get(rank.rank, ())) for rank in analysis.run.ranks]


def damage_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what hosts did be damaged where the analysis did not look."""

    def damaged(*_: object) -> RankTimeline:
        raise TraceFormatError("cannot read t.sqlite", "ThreadNames.globalTid holds 'soon'", "")

    monkeypatch.setattr(store, "with_host", damaged)


def drawn(timeline: RankTimeline) -> list[tuple[str, str, str, list[Event]]]:
    """Return group, label, kind and events of each row."""
    return [
        (
            track.group,
            track.label,
            track.kind,
            [
                (start, end, timeline.events[track.source].name_of(index))
                for start, end, index in zip(
                    track.row.start_ns.tolist(),
                    track.row.end_ns.tolist(),
                    track.index.tolist(),
                    strict=True,
                )
            ],
        )
        for track in timeline.tracks
    ]


Serve = Callable[..., str]
"""Serves the run of some reports and returns its address."""
Ask = Callable[..., Any]
"""Asks for a route of the timeline with parameters, and returns what the server answers."""


def asking(analysis: Analysis) -> Ask:
    """Return a function that asks the server of an analysis until its answer is whole."""
    browser = create_app(analysis).server.test_client()

    def ask(route: str, **parameters: object) -> Any:
        answers: list[Any] = []

        def is_whole() -> bool:
            reply = browser.get(f"/timeline/{route}", query_string=parameters)
            assert reply.status_code == 200, reply.get_data()
            assert reply.mimetype == "application/json"  # names in it are no markup
            answers.append(json.loads(reply.get_data()))
            return bool(answers[-1].get("is_all", True)) and answers[-1].get("state") != "asked"

        until(is_whole)
        return answers[-1]

    return ask


@contextmanager
def serving(*paths: Path) -> Iterator[str]:
    """Serve a run's dashboard on a free port; yields its address without a slash at the end."""
    opened = analysis_of(*paths) if len(paths) == 1 else closing(analyze(*paths))
    with opened as analysis, DashboardServer(has_token=False) as server:
        server.show(analysis)
        yield server.url.removesuffix("/")


@contextmanager
def running(*arguments: str, report: Path = SAMPLE) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the command; yields the process and the address that it prints."""
    command = [sys.executable, "-m", "traceprof", "dashboard", str(report), *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def box_of(locator: Locator) -> FloatRect:
    box = locator.bounding_box()
    assert box is not None
    return box


def drag(page: Page, first: tuple[float, float], last: tuple[float, float]) -> None:
    page.mouse.move(*first)
    page.mouse.down()
    page.mouse.move(*last, steps=4)
    page.mouse.up()


IN_ROW = """([name, row, share]) => {
    const { chart } = document.getElementById(name);
    const box = chart.canvas.getBoundingClientRect();
    const { left, top, width, height } = chart.box(row);
    return [box.left + left + share * width, box.top + top + height / 2];
}"""
"""Where a share of the axis stands in the window, in the middle of a row of a chart."""


def query(page: Page) -> dict[str, str]:
    """Return the parameters of the page's address."""
    parts = parse_qs(urlsplit(page.url).query, keep_blank_values=True)
    return {name: values[0] for name, values in parts.items()}


FIND = "const t = document.getElementById('timeline')?.timeline;"


def attributes_of(analysis: Analysis, address: Address) -> dict[str, str]:
    """Return the attributes of the element that becomes the timeline."""
    tree = timeline.layout(View(analysis, address))
    (element,) = (
        element for element in named(tree, "Div") if getattr(element, "id", "") == "timeline"
    )
    props = element.to_plotly_json()["props"]
    return {key.removeprefix("data-"): str(value) for key, value in props.items()}


class Timeline:
    """The timeline of a page, as a reader sees and uses it."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        page.goto(url)
        self.wait()

    def wait(self) -> None:
        """Wait until all rows in sight are drawn."""
        self.page.wait_for_function(
            """() => {
                const t = document.getElementById("timeline")?.timeline;
                if (!t?.view || !t.rows || t.root.dataset.state !== "ready") return false;
                const { start, span } = t.view;
                const isDrawn = ({ track, top, height }) => {
                    const tile = track && t.data.tiles.get(track.row);
                    const isInSight = top <= t.painter.height && top + height >= 0;
                    return !track || !isInSight || (tile && tile.viewSpan === span
                        && tile.start <= start && tile.start + tile.span >= start + span);
                };
                const isQuiet = !t.data.loading.size && !t.data.inFlight && !t.frameAsked;
                return isQuiet && t.rows.every(isDrawn);
            }"""
        )

    def wait_for_frames(self) -> None:
        """Wait until what is to be drawn is on the screen."""
        self.page.evaluate(
            "() => new Promise((resolve) =>"
            " requestAnimationFrame(() => requestAnimationFrame(resolve)))"
        )

    def ask(self, code: str) -> Any:
        """Return the value of an expression on the timeline `t`."""
        return self.page.evaluate(f"() => {{ {FIND} return {code}; }}")

    def wait_for(self, condition: str) -> None:
        """Wait until a condition on the timeline `t` holds."""
        self.page.wait_for_function(f"() => {{ {FIND} return {condition}; }}")

    @property
    def view(self) -> tuple[float, float]:
        """The start and the length of what is shown, ns."""
        start, span = self.ask("[t.view.start, t.view.span]")
        return start, span

    @property
    def labels(self) -> list[str]:
        """What stands before the rows."""
        labels: list[str] = self.ask("t.rows.map((row) => row.label)")
        return labels

    @property
    def address(self) -> dict[str, str]:
        """The parameters in the address, once they are settled."""
        self.wait_for("!t.place.noting")
        query = parse_qs(urlsplit(self.page.evaluate("location.href")).query)
        return {key: values[0] for key, values in query.items()}

    def wait_for_address(self, name: str, value: str | None) -> None:
        """Wait until a parameter in the address is this, or is not there."""
        expected = json.dumps(value)
        self.wait_for(f"new URL(location.href).searchParams.get({name!r}) === {expected}")

    @property
    def panel(self) -> str:
        """What is said of the selection, thin spaces as spaces."""
        text = self.page.locator(".timeline-detail").inner_text()
        return text.replace("\u2009", " ")

    def place(self, event: str) -> tuple[float, float]:
        """Return where on the page the middle of an event is that the view shows."""
        x, y = self.page.evaluate(
            """async (id) => {
                const t = document.getElementById("timeline")?.timeline;
                const event = await t.data.event(id);
                const row = t.layout.rowOf(event.row);
                const box = t.panel.canvas.getBoundingClientRect();
                const middle = t.painter.x(event.begin + event.length / 2);
                return [box.left + middle, box.top + row.top + row.height / 2];
            }""",
            event,
        )
        return x, y

    def press(self, *keys: str) -> None:
        """Press keys one after the other."""
        for key in keys:
            self.page.keyboard.press(key)
        self.wait()

    def color(self, x: float, y: float) -> tuple[int, int, int]:
        """Return the colour that is drawn at a place of the page."""
        red, green, blue = self.page.evaluate(
            """([x, y]) => {
                const canvas = document.getElementById("timeline").timeline.panel.canvas;
                const box = canvas.getBoundingClientRect();
                const ratio = window.devicePixelRatio;
                const copy = document.createElement("canvas").getContext("2d");
                copy.drawImage(canvas, (box.left - x) * ratio, (box.top - y) * ratio);
                return [...copy.getImageData(0, 0, 1, 1).data.slice(0, 3)];
            }""",
            [x, y],
        )
        return red, green, blue


def loaded(page: Page, url: str) -> dict[str, int]:
    """Go to a page, and return the bytes that came for each address that it asked for."""
    asked: dict[str, str] = {}
    sizes: dict[str, int] = {}
    network = page.context.new_cdp_session(page)
    network.on(
        "Network.requestWillBeSent",
        lambda sent: asked.update({sent["requestId"]: sent["request"]["url"]}),
    )
    network.on(
        "Network.loadingFinished",
        lambda done: sizes.update({done["requestId"]: int(done["encodedDataLength"])}),
    )
    network.send("Network.enable")
    page.goto(url)
    page.wait_for_selector("#page h1, #timeline")
    page.wait_for_load_state("networkidle")
    network.detach()
    return {
        f"{address} ({request})": sizes.get(request, 0)
        for request, address in asked.items()
        if not address.startswith(("data:", "blob:"))
    }
