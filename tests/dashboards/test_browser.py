"""Every page in a real browser: the numbers that the JSON has, addresses, themes, keyboard, names.

`page` fails its test on any console error and on any request to another host.
"""

import csv
import re
from pathlib import Path
from statistics import mean
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
import pytest
from playwright.sync_api import Page, expect

from dashboards.pages.registry import PAGES
from dashboards.server.serving import DashboardServer
from tests.support.builders import TraceBuilder
from tests.support.dashboard import IN_ROW, Serve, drag, loaded, query
from tests.support.selection import long_after
from tests.support.traces import SAMPLE, analysis_of
from tests.support.two_phases import LONGER, SHORTER, program
from traceprof.documents.analysis import records

# What has too little contrast for WCAG 2.2, AA: texts under 4.5, edges of marks under 3.
FAINT = """() => {
    const parts = (color) => [...color.match(/[\\d.]+/g).map(Number), 1].slice(0, 4);
    const over = ([r, g, b, a], under) => [r, g, b].map((c, i) => c * a + under[i] * (1 - a));
    const light = (color) => color.map((c) => c / 255)
        .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    const ground = (element) => element === null ? [255, 255, 255]
        : over(parts(getComputedStyle(element).backgroundColor), ground(element.parentElement));
    const contrast = (color, under) => {
        const [dark, bright] = [over(parts(color), under), under].map(light).sort((a, b) => a - b);
        return (bright + 0.05) / (dark + 0.05);
    };
    const isSeen = (element) => element.checkVisibility({ visibilityProperty: true });
    const faint = [];
    for (const details of document.querySelectorAll("details")) details.open = true;
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    let count = 0;
    while (texts.nextNode()) {
        const { data, parentElement: element } = texts.currentNode;
        if (!data.trim() || element.matches(".glyph") || !isSeen(element)) continue;
        count += 1;
        const found = contrast(getComputedStyle(element).color, ground(element));
        if (found < 4.5) faint.push([data, found]);
    }
    for (const mark of [...document.querySelectorAll(".swatch, .bar, .gain")].filter(isSeen)) {
        const found = contrast(getComputedStyle(mark).outlineColor, ground(mark.parentElement));
        if (found < 3) faint.push([mark.className, found]);
    }
    return [count, faint];
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("module", long_after(1, PAGES), ids=lambda module: module.TITLE)
def test_contrast(
    page: Page, sample_url: str, module: Any, theme: Literal["light", "dark"]
) -> None:
    page.emulate_media(color_scheme=theme)
    shown(page, f"{sample_url}{module.PATH}")
    page.wait_for_load_state("networkidle")
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    count, faint = page.evaluate(FAINT)
    page.emulate_media(color_scheme="light")
    assert count > 20
    assert faint == []


# Texts on canvases that have too little contrast with what they are written on: under 4.5.
WATCHED = """() => {
    const light = (color) => color.map((c) => c / 255)
        .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    const parts = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    const write = CanvasRenderingContext2D.prototype.fillText;
    window.written = [];
    CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...rest) {
        const { width, actualBoundingBoxLeft: left } = this.measureText(text);
        const hidden = this.getTransform();
        const surface = parts(getComputedStyle(document.documentElement)
            .getPropertyValue("--surface").trim());
        const [own, found] = [light(parts(this.fillStyle)), []];
        for (const share of [0.1, 0.5, 0.9]) {
            const at = hidden.transformPoint({ x: x - left + share * width, y });
            const [r, g, b, a] = this.getImageData(Math.round(at.x), Math.round(at.y), 1, 1).data;
            const under = light([r, g, b].map((c, i) => c * a / 255 + surface[i] * (1 - a / 255)));
            found.push((Math.max(own, under) + 0.05) / (Math.min(own, under) + 0.05));
        }
        window.written.push([text, Math.min(...found)]);
        return write.call(this, text, x, y, ...rest);
    };
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    "path", long_after(1, ["timeline", "steps", "nccl", "launch-queue", "ranks"])
)
def test_contrast_on_canvases(
    own_page: Page, serve: Serve, path: str, theme: Literal["light", "dark"]
) -> None:
    own_page.emulate_media(color_scheme=theme)
    own_page.add_init_script(f"({WATCHED})()")
    shown(own_page, f"{serve(SAMPLE)}/{path}")
    own_page.locator("#page canvas").first.wait_for()
    own_page.wait_for_load_state("networkidle")
    written = own_page.evaluate("window.written")
    assert len({text for text, _ in written}) > 3
    assert {text for text, contrast in written if contrast < 4.5} == set()


@pytest.mark.parametrize("module", long_after(2, PAGES), ids=lambda module: module.TITLE)
def test_a_narrow_window_has_no_horizontal_bar(page: Page, sample_url: str, module: Any) -> None:
    page.set_viewport_size({"width": 640, "height": 400})  # 1280 × 800 at 200 %
    shown(page, f"{sample_url}{module.PATH}")
    expect(page.locator("#page .loading")).to_have_count(0)
    page.wait_for_load_state("networkidle")
    for width in (640, 800):
        page.set_viewport_size({"width": width, "height": 400})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_gains_of_another_phase_fit(page: Page, serve: Serve, tmp_path: Path) -> None:
    shown(page, serve(program(LONGER, SHORTER).write(tmp_path)))
    expect(page.get_by_text("of 100 µs, second phase", exact=True)).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


HOSTILE = (
    "<script>window.evil=1</script>",
    "<img src=x onerror=window.evil=1>",
    "<b>bold</b>&lt;i&gt;%{x}{y}",
)


def shown(page: Page, url: str) -> Page:
    """Go to a view and wait until it is there."""
    page.goto(url)
    page.wait_for_selector("#page h1, #timeline")
    return page


def document(name: str) -> dict[str, Any]:
    """Return the analysis of a sample trace as JSON."""
    with analysis_of(SAMPLE.with_stem(name)) as analysis:
        plain: dict[str, Any] = msgspec.to_builtins(records.document(analysis.result))
        return plain


def cells(page: Page, selector: str) -> list[list[str]]:
    """Return the texts of a table's body, row by row."""
    rows: list[list[str]] = page.eval_on_selector_all(
        f"{selector} tbody tr", "rows => rows.map(r => [...r.cells].map(c => c.innerText))"
    )
    return rows


# Rows come first and are filled then.
_IS_DRAWN = """selector => {
    const rows = document.querySelectorAll(`${selector} .ag-center-cols-container .ag-row`);
    const counts = new Set([...rows].map(row => row.querySelectorAll(".ag-cell").length));
    return counts.size === 1 && !counts.has(0);
}"""


def grid(page: Page, name: str) -> list[dict[str, str]]:
    """Return the texts of an AG Grid's rows by column, once it is drawn."""
    selector = f'[id=\'{{"name":"{name}","part":"table"}}\']'
    page.wait_for_function(_IS_DRAWN, arg=selector)
    rows: list[dict[str, str]] = page.eval_on_selector_all(
        f"{selector} .ag-center-cols-container .ag-row",
        """rows => rows
            .sort((a, b) => a.getAttribute("row-index") - b.getAttribute("row-index"))
            .map(row => Object.fromEntries([...row.querySelectorAll(".ag-cell")]
                .map(cell => [cell.getAttribute("col-id"), cell.innerText])))""",
    )
    return rows


IS_DRAWN = """card => [...card.querySelectorAll(":scope > .columns figure img")].every(
    image => image.complete && image.naturalWidth)"""


def test_evidence_is_drawn_once_its_card_unfolds(page: Page, sample_url: str) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    shown(page, sample_url)
    first, second = (page.locator(".finding").nth(place) for place in (0, 1))
    page.wait_for_function(IS_DRAWN, arg=first.element_handle())
    assert len([url for url in asked if "/drawing/" in url]) == 1
    second.locator("summary").first.click()
    page.wait_for_function(IS_DRAWN, arg=second.element_handle())
    assert len([url for url in asked if "/drawing/" in url]) == 2


def test_the_overview_loads_nothing_that_draws_other_pages(own_page: Page, sample_url: str) -> None:
    first = loaded(own_page, sample_url)
    assert 20 < len(first) <= 50
    assert sum(first.values()) < 800_000
    drawn_elsewhere = ("/charts/", "timeline/timeline", "dash_ag_grid")
    assert [url for url in first if any(part in url for part in drawn_elsewhere)] == []
    asked: list[str] = []
    own_page.on("request", lambda request: asked.append(request.url))
    own_page.get_by_role("link", name="Steps", exact=True).click()
    expect(own_page.locator("#steps-bars canvas").first).to_be_visible()
    grid(own_page, "steps")
    assert [url for url in asked if "timeline/timeline" in url] == []
    assert len([url for url in asked if "dash_ag_grid.v" in url]) == 1


@pytest.mark.parametrize("path", long_after(1, ["nccl", "steps", "kernels", "ranks", "what-if"]))
def test_other_pages_take_few_requests(own_page: Page, sample_url: str, path: str) -> None:
    assert 20 < len(loaded(own_page, f"{sample_url}/{path}")) <= 50


NUM_ROWS = "name => document.getElementById(name).chart.rows.length"


def test_steps(page: Page, sample_url: str) -> None:
    expected = document("ddp")
    shown(page, f"{sample_url}/steps")
    page.wait_for_selector("#steps-bars canvas")
    for row, rank in zip(grid(page, "steps"), (0, 1), strict=True):
        of_rank = [step for step in expected["steps"] if step["rank"] == rank]
        steps = [step for step in of_rank if step["left_out"] is None]
        assert 1 < len(steps) < len(of_rank)
        slowest = max(of_rank, key=lambda step: step["window_ns"])
        assert (row["rank"], row["num_steps"]) == (str(rank), str(len(steps)))
        assert row["window_ns"] == f"{mean(step['window_ns'] for step in steps) / 1e6:.3f}"
        assert row["slowest_ns"] == f"{slowest['window_ns'] / 1e6:.3f}"
        assert row["number"] == str(slowest["step"])
    assert page.evaluate(NUM_ROWS, "steps-bars") == 2


@pytest.mark.long
def test_one_table_of_two_is_saved(page: Page, serve: Serve, tmp_path: Path) -> None:
    shown(page, f"{serve(SAMPLE.with_stem('overlap-slowdown'))}/nccl")
    grid(page, "nccl-waits")
    files: list[str] = []
    page.on("download", lambda download: files.append(download.suggested_filename))
    for _ in range(2):  # a second file of the first time would come before that of the second time
        with page.expect_download() as download:
            page.get_by_role("button", name="Save as CSV").click()
        download.value.save_as(tmp_path / "nccl.csv")
    assert files == ["nccl.csv", "nccl.csv"]
    saved = csv.DictReader((tmp_path / "nccl.csv").read_text("utf-8-sig").splitlines())
    uses = document("overlap-slowdown")["collectives"]
    assert [row["bytes"] for row in saved] == [str(use["bytes"]) for use in uses]
    assert max(use["bytes"] for use in uses) > 999  # which is shown with a separator


FORMULAS = ("=1+1", "+1+1", "-2*3", "@SUM(A1)")


@pytest.mark.long
def test_names_are_no_formulas_in_csv(page: Page, serve: Serve, tmp_path: Path) -> None:
    names = [f"{name}.sqlite" for name in (*FORMULAS, "1=1")]
    for place, name in enumerate(names):
        TraceBuilder().kernel(0, 10**10 + place).write(tmp_path / name)
    shown(page, f"{serve(*(tmp_path / name for name in names))}/ranks")
    rows = grid(page, "ranks")
    heads: dict[str, str] = page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll(".ag-header-cell")]
            .map(head => [head.getAttribute("col-id"),
                head.innerText.replace(/\\s+/g, " ").trim()]))"""
    )
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as CSV").click()
    download.value.save_as(tmp_path / "ranks.csv")
    saved = list(csv.DictReader((tmp_path / "ranks.csv").read_text("utf-8-sig").splitlines()))
    assert [row["report"] for row in saved] == [*(f"'{name}" for name in names[:-1]), names[-1]]
    # Numbers are those shown, without separators; what is not known is empty.
    for row, drawn in zip(saved, rows, strict=True):
        assert len(drawn) >= 7
        for column, text in drawn.items():
            value = row[heads[column]]
            if re.fullmatch(r"[0-9.,]+", text):
                assert float(value) == pytest.approx(float(text.replace(",", "")), abs=0.05)
            elif column != "report":
                assert value == ("" if text == "–" else text)  # noqa: RUF001
    assert saved[0]["training (ms)"] == "10000"
    assert "step (ms)" in saved[0]  # a column without values is in the file, not in the table
    assert "step (ms)" not in heads.values()


@pytest.mark.long
def test_ranks_are_chosen_for_every_page_and_kept(page: Page, sample_url: str) -> None:
    shown(page, sample_url)
    page.locator("#choose-rank").click()
    page.get_by_text(re.compile("^rank 1 ·")).click()
    # Functions: the pages' policy lets no text be evaluated again, where it has to wait.
    page.wait_for_function("() => location.search === '?rank=1'")
    one_row = "() => document.querySelectorAll('table.breakdown tbody tr').length === 1"
    page.wait_for_function(one_row)
    page.keyboard.press("Escape")
    page.get_by_role("link", name="Steps").click()
    page.wait_for_selector("h1:has-text('Steps')")
    assert urlsplit(page.url).query == "rank=1"
    page.reload()
    page.wait_for_selector("h1:has-text('Steps')")
    assert [row["rank"] for row in grid(page, "steps")] == ["1"]
    expect(page.locator("#choose-rank")).to_contain_text("rank 1")
    expect(page).to_have_title("Steps · traceprof")


@pytest.mark.long
def test_reports_are_chosen(page: Page, serve: Serve) -> None:
    url = serve(SAMPLE, SAMPLE.with_stem("healthy"))
    shown(page, f"{url}?report=1")
    assert {row[2] for row in cells(page, "table.breakdown")} == {"healthy.sqlite"}
    expect(page.locator("#choose-report")).to_be_visible()
    shown(page, f"{url}?report=1&rank=0")
    assert "None of the ranks chosen" in page.inner_text("#page")


def test_zooming_is_in_the_address(page: Page, sample_url: str) -> None:
    shown(page, f"{sample_url}/launch-queue?rank=0")
    page.locator("#queue-depth canvas").wait_for()
    first, last = (page.evaluate(IN_ROW, ["queue-depth", 0, share]) for share in (0.25, 0.75))
    drag(page, first, last)
    page.wait_for_function("() => location.search.includes('start=')")
    asked = query(page)
    whole = document("ddp")["breakdown"][0]
    taken = (int(asked["end"]) - int(asked["start"])) / whole["window_ns"]
    assert taken == pytest.approx(0.5, abs=0.02)
    assert asked["rank"] == "0"
    page.wait_for_selector("text=double-click for the whole")


@pytest.mark.parametrize(
    "path", long_after(0, ["/nowhere", "/?rank=99", "/steps?rank=x", "/links?start=5&end=4"])
)
def test_what_cannot_be_shown_says_why(page: Page, sample_url: str, path: str) -> None:
    shown(page, f"{sample_url}{path}")
    assert page.inner_text("h1") == "There is no such view"
    page.get_by_role("link", name="Go to the overview").click()
    page.wait_for_selector("table.breakdown")


def test_light_and_dark(own_page: Page, sample_url: str) -> None:
    own_page.emulate_media(color_scheme="dark")
    page = shown(own_page, sample_url)
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    page.wait_for_function("() => document.documentElement.dataset.theme === 'light'")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    page.reload()
    page.wait_for_function("() => document.documentElement.dataset.theme === 'light'")


def test_the_keyboard_reaches_everything_and_shows_where_it_is(page: Page, sample_url: str) -> None:
    shown(page, sample_url)
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                "(e => [e.innerText, e.id, getComputedStyle(e).outlineStyle, e.tagName])"
                "(document.activeElement)"
            )
        )
    # After the last element the page itself has the focus, and then the first one again.
    reached = [tuple(shown) for *shown, tag in reached if tag != "BODY"]
    texts = [text for text, *_ in reached]
    assert texts[0] == "Skip to the page"
    assert [module.TITLE for module in PAGES] == texts[1 : 1 + len(PAGES)]
    assert "theme" in [name for _, name, _ in reached]
    assert any(text.startswith("at ") for text in texts)
    assert all(outline != "none" for _, name, outline in reached if not name.startswith("choose"))


_BROKEN_HEADS = """heads => heads.filter(head => {
    const context = document.createElement("canvas").getContext("2d");
    context.font = getComputedStyle(head).font;
    const widths = head.innerText.split(/\\s+/).map(word => context.measureText(word).width);
    const tooHigh = head.clientHeight > head.closest(".ag-header-cell").clientHeight;
    return tooHigh || Math.max(...widths) + 2 > head.parentElement.clientWidth;
}).map(head => head.innerText)"""


_ALL_FIT = """() => [...document.querySelectorAll(".ag-center-cols-viewport")]
    .every(grid => grid.scrollWidth <= grid.clientWidth + 1)"""


@pytest.mark.parametrize(
    "path", long_after(1, ["kernels", "nccl", "ranks", "overlap", "launch-queue", "links"])
)
def test_heads_of_tables_break_between_words_only(page: Page, sample_url: str, path: str) -> None:
    shown(page, f"{sample_url}/{path}")
    page.wait_for_selector(".ag-header-cell-text")
    assert page.eval_on_selector_all(".ag-header-cell-text", _BROKEN_HEADS) == []
    # All columns are in the window once the grid has moved them to their places.
    page.wait_for_function(_ALL_FIT)


@pytest.fixture(scope="module")
def hostile_url(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the dashboard of a run whose every name is an attack."""
    folder = tmp_path_factory.mktemp("hostile")
    script, image, entities = HOSTILE
    trace = TraceBuilder().gpu(f"{image}{'G' * 5000}")
    for step in range(4):
        start = 10_000 * step
        trace.nvtx(f"step {step}", start, start + 9_000).nvtx(image, start, start + 50)
        trace.kernel(start + 100, start + 1_100 + step, script, launch=(start, start + 10))
        trace.kernel(start + 2_000, start + 2_900, image, launch=(start + 20, start + 30))
        trace.kernel(start + 3_000, start + 3_900, entities, launch=(start + 40, start + 50))
        name = f"ncclDevKernel_AllReduce_{script}"
        trace.kernel(start + 3_000, start + 4_000, name, stream=9, launch=(start + 60, start + 70))
    return serve(trace.write(folder / "<img src=x onerror=window.evil=1>.sqlite"))


@pytest.mark.parametrize("module", long_after(1, PAGES), ids=lambda module: module.TITLE)
def test_names_are_never_markup_and_fit(page: Page, hostile_url: str, module: Any) -> None:
    shown(page, f"{hostile_url}{module.PATH}")
    page.wait_for_load_state("networkidle")
    assert page.evaluate("window.evil") is None
    ours = "[src^='/drawing/'], [data-src^='/drawing/']"  # evidence, drawn by the server
    assert page.locator(f"#page img:not({ours})").count() == 0
    assert page.locator("#page script").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    assert "G" * 200 not in page.content()  # laying out such a name takes the browser its time


@pytest.mark.long
def test_progress_gives_way_to_the_overview(page: Page) -> None:
    with DashboardServer(has_token=False) as server:
        page.goto(f"{server.url}?rank=1")
        page.wait_for_selector(".loading progress")
        server.progress.expect(200)
        server.progress.advance(50)
        page.wait_for_selector("text=50 of 200 rows")
        page.evaluate("window.isStillTheSame = true")
        server.progress.advance(150)
        page.wait_for_selector("text=Looking for findings")
        with analysis_of(SAMPLE) as analysis:
            server.show(analysis)
            page.wait_for_selector("table.breakdown")
            assert page.evaluate("window.isStillTheSame") is True
            expect(page.locator(".loading")).to_be_hidden()
            assert [row[0] for row in cells(page, "table.breakdown")] == ["rank 1"]
            page.goto("about:blank")


@pytest.mark.long
def test_a_page_that_fails_takes_nothing_along(
    page: Page, sample_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr("dashboards.pages.steps.layout", fail)
    shown(page, f"{sample_url}/steps")
    assert "internal error" in page.inner_text("#page")
    assert "planted" not in page.inner_text("#page")
    page.get_by_role("link", name="Overview").click()
    page.wait_for_selector("table.breakdown")
    assert "cannot draw /steps" in caplog.text
