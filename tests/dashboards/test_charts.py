"""Charts in a real browser: their data, the notes beside the pointer, and the links they follow."""

import json
import struct
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree as ET

import msgspec
import pytest
import resvg_py
from playwright.sync_api import Locator, Page, expect

from tests.support.dashboard import IN_ROW, Serve, box_of, drag
from tests.support.traces import SAMPLE, analysis_of
from traceprof.documents.analysis.records import document
from traceprof.version import __version__


@pytest.fixture(scope="module")
def steps() -> list[dict[str, Any]]:
    """Return the steps of the sample's first rank."""
    with analysis_of(SAMPLE) as analysis:
        every: list[dict[str, Any]] = msgspec.to_builtins(document(analysis.result))["steps"]
    return [step for step in every if step["rank"] == 0]


def open_page(page: Page, url: str, chart: str) -> None:
    page.goto(url)
    page.locator(f"#{chart} canvas").first.wait_for()


def times(page: Page) -> tuple[str, str]:
    query = parse_qs(urlsplit(page.url).query)
    return query["start"][0], query["end"][0]


def test_a_click_on_a_step_leads_to_it(
    page: Page, sample_url: str, steps: list[dict[str, Any]]
) -> None:
    open_page(page, f"{sample_url}/steps?rank=0", "steps-bars")
    x, y = page.evaluate(IN_ROW, ["steps-bars", 0, 0.5 / len(steps)])
    page.mouse.move(x, y)
    note = page.locator("#steps-bars .pointer-note")
    expect(note).to_contain_text("rank 0, step 0")
    expect(note).to_contain_text("compute:")
    page.mouse.click(x, y)
    page.locator("#timeline").wait_for()
    assert times(page) == (str(steps[0]["start_ns"]), str(steps[0]["end_ns"]))


def walk(page: Page, chart: str, *keys: tuple[str, str]) -> None:
    """Press keys; a chart says after each where it is. Then open the timeline there."""
    said = page.locator(f"#{chart} [role=status]")
    for key, place in keys:
        page.keyboard.press(key)
        expect(said).to_contain_text(place)
    page.keyboard.press("Enter")
    page.locator("#timeline").wait_for()


@pytest.mark.long
def test_a_part_that_is_left_out(page: Page, sample_url: str) -> None:
    open_page(page, f"{sample_url}/steps?rank=0", "steps-bars")
    button = page.locator("#steps-bars").get_by_role("button", name="compute")
    expect(button).to_have_attribute("aria-pressed", "true")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "false")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")


@pytest.mark.long
def test_a_drag_that_leaves_the_chart_chooses_steps_and_opens_none(
    page: Page, sample_url: str, steps: list[dict[str, Any]]
) -> None:
    open_page(page, f"{sample_url}/steps?rank=0", "steps-bars")
    middle, outside, left = (
        page.evaluate(IN_ROW, ["steps-bars", 0, share]) for share in (0.5, 1.03, 0.1)
    )
    drag(page, middle, outside)
    page.mouse.move(*left)
    expect(page.locator("#steps-bars .pointer-note")).to_contain_text(f"step {len(steps) // 2}")
    walk(page, "steps-bars", ("ArrowRight", "rank 0, step 0"))
    assert times(page) == (str(steps[0]["start_ns"]), str(steps[0]["end_ns"]))


@pytest.mark.long
def test_a_slow_step_says_why_and_leads_to_it(page: Page, serve: Serve) -> None:
    open_page(page, f"{serve(SAMPLE.with_stem('launch-queue-stall'))}/steps", "steps-bars")
    note = page.locator("#steps-bars .pointer-note")
    for nudge in range(100):  # until the chart listens and lies where it stays
        x, y = page.evaluate(IN_ROW, ["steps-bars", 0, 0.25])
        page.mouse.move(x, y + nudge % 2)
        if note.is_visible():
            break
        page.wait_for_timeout(100)
    expect(note).to_contain_text("more than usual: more compute")
    page.mouse.click(x, y)
    page.locator("#timeline").wait_for()
    clicked = times(page)
    page.go_back()
    page.locator(".ag-cell[col-id=number] a").first.click()
    page.locator("#timeline").wait_for()
    assert times(page) == clicked


@pytest.mark.long
def test_the_heat_map_leads_to_steps_by_mouse_and_key(
    page: Page, sample_url: str, steps: list[dict[str, Any]]
) -> None:
    open_page(page, f"{sample_url}/steps", "steps-heat")
    canvas = page.locator("#steps-heat canvas")
    canvas.focus()
    first, second = "rank 0, step 0", "rank 1, step 0"
    walk(page, "steps-heat", ("ArrowRight", first), ("ArrowDown", second), ("ArrowUp", first))
    assert times(page) == (str(steps[0]["start_ns"]), str(steps[0]["end_ns"]))


@pytest.mark.long
def test_a_piece_of_time_is_chosen_on_the_rates(page: Page, serve: Serve) -> None:
    open_page(page, f"{serve(SAMPLE.with_stem('link-counters'))}/links?rank=0", "link-rates")
    x, y = page.evaluate(IN_ROW, ["link-rates", 1, 0.25])
    right, _ = page.evaluate(IN_ROW, ["link-rates", 1, 0.75])
    page.mouse.move(x, y)
    expect(page.locator("#link-rates .pointer-note")).to_contain_text("mean over time")
    drawn = json.loads(page.locator("#link-rates").get_attribute("data-plots") or "")
    page.mouse.down()
    page.mouse.move(right, y, steps=4)
    page.mouse.up()
    page.wait_for_url("**start=**")
    start, end = map(int, times(page))
    row = drawn["rows"][1]
    assert (end - start) / (row["end"] - row["start"]) == pytest.approx(0.5, abs=0.02)
    page.get_by_text("double-click for the whole").wait_for()
    page.locator("#link-rates canvas").wait_for()
    page.mouse.dblclick(*page.evaluate(IN_ROW, ["link-rates", 1, 0.5]))
    page.wait_for_url(lambda url: "start=" not in url)


def over(page: Page, chart: str, x: float, y: float) -> Locator:
    """Move the pointer to a share of a canvas, and return the note beside it."""
    box = box_of(page.locator(f"#{chart} canvas"))
    page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
    return page.locator(f"#{chart} .pointer-note")


@pytest.mark.long
def test_a_kernel_that_runs_longer_leads_to_its_longest_run(page: Page, serve: Serve) -> None:
    url = serve(SAMPLE.with_stem("overlap-slowdown"))
    open_page(page, f"{url}/overlap", "overlap-kernels")
    chart = page.locator("#overlap-kernels")
    drawn = json.loads(chart.get_attribute("data-plots") or "")
    expect(chart.locator(".legend")).to_have_text("○alone●beside communication")
    chart.locator("canvas").focus()
    said = chart.locator("[role=status]")
    page.keyboard.press("ArrowDown")
    expect(said).to_contain_text(drawn["rows"][0]["name"])
    expect(said).to_contain_text("µs on average")
    page.keyboard.press("ArrowRight")
    expect(said).to_contain_text("beside communication")
    page.keyboard.press("Enter")
    page.locator("#timeline").wait_for()
    query = parse_qs(urlsplit(drawn["rows"][0]["href"]).query)
    assert times(page) == (query["start"][0], query["end"][0])


@pytest.mark.long
def test_charts_take_the_theme_and_the_width(page: Page, sample_url: str) -> None:
    open_page(page, f"{sample_url}/steps", "steps-bars")
    width = "() => document.querySelector('#steps-bars canvas').clientWidth"
    before = page.evaluate(width)
    page.set_viewport_size({"width": 1600, "height": 800})
    page.wait_for_function(f"before => ({width})() > before + 200", arg=before)
    for _ in range(2):  # and back, since the browser keeps it
        page.locator("#theme").click()
        expect(page.locator("#steps-bars canvas")).to_be_visible()


SVG = "{http://www.w3.org/2000/svg}"
SHAPES = {"svg", "title", "rect", "line", "text", "path", "g", "clipPath"}

# How far a picture, and a part of another one, are apart, of 1: in the mean over some 8 pixels
# and colours.
DISTANCE = """async ([one, other, box = []]) => {
    const points = [];
    for (const [hex, cut] of [[one, []], [other, box]]) {
        const bytes = Uint8Array.from(hex.match(/../g), (pair) => parseInt(pair, 16));
        const image = await createImageBitmap(new Blob([bytes], { type: "image/png" }), ...cut);
        const canvas = new OffscreenCanvas(160, 100);
        const context = canvas.getContext("2d");
        context.drawImage(image, 0, 0, canvas.width, canvas.height);
        points.push(context.getImageData(0, 0, canvas.width, canvas.height).data);
    }
    const [shown, saved] = points;
    const sum = shown.reduce((total, value, at) => total + Math.abs(value - saved[at]), 0);
    return sum / shown.length / 255;
}"""


def opened_elsewhere(svg: Path) -> bytes:
    """Return what another program than a browser draws of a picture, as PNG."""
    return bytes(resvg_py.svg_to_bytes(svg_path=str(svg)))


def saved(page: Page, kind: str, folder: Path) -> Path:
    with page.expect_download() as download:
        page.click(f"#save-{kind}")
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


@pytest.mark.slow
def test_a_page_is_saved_as_svg_and_png(page: Page, sample_url: str, tmp_path: Path) -> None:
    page.goto(f"{sample_url}/steps?rank=1&start=1501000000&end=1512000000")
    page.wait_for_selector("#steps-bars canvas")
    page.wait_for_load_state("networkidle")
    svg = saved(page, "svg", tmp_path)
    assert svg.name == "steps.svg"
    tree = ET.parse(svg)  # noqa: S314  (our own)
    written_text = "".join(tree.getroot().itertext())
    assert "Where each step's time went" in written_text
    said = f"Steps of {SAMPLE.name} · rank 1 · 1.501000 s to 1.512000 s · steps 0 to 3"
    assert f"{said} · traceprof {__version__} · {page.url}" in written_text
    assert {element.tag.removeprefix(SVG) for element in tree.iter()} == SHAPES
    png = saved(page, "png", tmp_path)
    assert png.name == "steps.png"
    written = png.read_bytes()
    assert written.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", written[16:24])
    box = box_of(page.locator("#page"))
    assert width == pytest.approx(2 * box["width"], abs=2)
    assert 2 * box["height"] < height < 2 * (box["height"] + 60)  # the caption
    # The same with nothing on it would take some 8 kB.
    assert len(written) > 40_000
    assert page.evaluate(DISTANCE, [written.hex(), opened_elsewhere(svg).hex()]) < 0.04


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "drawn"),
    [
        ("timeline", ["stream 20 · communication", "cudaStreamSynchronize", "backward"]),
        pytest.param("steps", ["≥ 224 µs", "step", "ms"], marks=pytest.mark.long),
        pytest.param("launch-queue", ["launches", "time (s)"], marks=pytest.mark.long),
        pytest.param("links", ["GB/s"], marks=pytest.mark.long),
        pytest.param("nccl", ["time in kernels, waiting included (ms)"], marks=pytest.mark.long),
    ],
)
def test_charts_and_the_timeline_are_saved_as_drawings(
    page: Page, sample_url: str, tmp_path: Path, path: str, drawn: list[str]
) -> None:
    page.goto(f"{sample_url}/{path}")
    page.wait_for_selector("#timeline[data-state=ready] canvas, #page [data-plots] canvas")
    page.wait_for_load_state("networkidle")
    canvases = page.locator("#page canvas").all()
    on_page = [(box_of(canvas), canvas.screenshot().hex()) for canvas in canvases]
    svg = saved(page, "svg", tmp_path)
    tree = ET.parse(svg)  # noqa: S314  (our own)
    assert not list(tree.iter(f"{SVG}image"))
    assert len(list(tree.iter(f"{SVG}svg"))) == 1 + len(on_page) > 1
    assert {*drawn} <= {text.text for text in tree.iter(f"{SVG}text")}
    elsewhere, whole = opened_elsewhere(svg).hex(), box_of(page.locator("#page"))
    for box, pixels in on_page:
        cut = [box["x"] - whole["x"], box["y"] - whole["y"], box["width"], box["height"]]
        assert page.evaluate(DISTANCE, [pixels, elsewhere, cut]) < 0.015


@pytest.mark.long
@pytest.mark.parametrize("path", ["nccl", "timeline", "steps"])
def test_what_is_drawn_twice_is_saved_once(
    page: Page, sample_url: str, tmp_path: Path, path: str
) -> None:
    page.goto(f"{sample_url}/{path}")
    page.wait_for_selector("#timeline[data-state=ready] canvas, #page [data-plots] canvas")
    page.wait_for_load_state("networkidle")
    once = saved(page, "svg", tmp_path).read_text()
    page.evaluate(
        """() => {
            const redraw = "traceprof:redraw";
            const again = () => requestAnimationFrame(() => dispatchEvent(new Event(redraw)));
            addEventListener(redraw, again, { once: true });
        }"""
    )
    assert saved(page, "svg", tmp_path).read_text().count("<text") == once.count("<text")


@pytest.mark.slow
def test_of_a_choice_the_text_is_saved(page: Page, sample_url: str, tmp_path: Path) -> None:
    page.goto(sample_url)
    page.wait_for_selector("table.breakdown")
    page.evaluate(
        """() => {
            const choice = document.createElement("select");
            choice.add(new Option("rank 7 · GPU 7", "7"));
            document.querySelector("#page .page").prepend(choice);
        }"""
    )
    assert ">rank 7 · GPU 7<" in saved(page, "svg", tmp_path).read_text()


@pytest.mark.slow
def test_a_print_is_of_the_page_with_its_caption(page: Page, sample_url: str) -> None:
    page.goto(sample_url)
    caption, bar = page.locator("#page .caption"), page.locator(".shell > .head")
    expect(bar).to_be_visible()
    expect(caption).to_be_hidden()
    page.emulate_media(media="print")
    expect(caption).to_contain_text(f"traceprof {__version__}")
    expect(caption).to_be_visible()
    expect(bar).to_be_hidden()
    page.emulate_media(media="screen")


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_a_drawing_of_evidence_has_its_colours_in_other_programs(
    page: Page, sample_url: str, tmp_path: Path, theme: Literal["light", "dark"]
) -> None:
    page.emulate_media(color_scheme=theme)
    page.goto(sample_url)
    page.wait_for_function("() => document.querySelector('.finding img')?.naturalWidth > 0")
    page.wait_for_load_state("networkidle")
    svg, png = saved(page, "svg", tmp_path), saved(page, "png", tmp_path)
    page.emulate_media(color_scheme="light")
    written = svg.read_text()
    assert "data:image/svg+xml," in written
    assert "var(" not in unquote(written)
    distance = page.evaluate(DISTANCE, [png.read_bytes().hex(), opened_elsewhere(svg).hex()])
    assert distance < 0.04
