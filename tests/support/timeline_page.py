"""The timeline of a page in a browser, for the tests of what it shows and does."""

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Page

from dashboards.address import Address
from dashboards.pages import timeline
from tests.support.trees import named
from traceprof.analysis import Analysis

FIND = "const t = document.getElementById('timeline')?.timeline;"


def attributes_of(analysis: Analysis, address: Address) -> dict[str, str]:
    """Return the attributes of the element that becomes the timeline."""
    tree = timeline.layout(analysis, address)
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
