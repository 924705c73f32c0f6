"""Pages of 64 ranks in a browser: none is over two screens high, and links open what is folded."""

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from dashboards.address import TIMELINE
from dashboards.pages import kernels, launch_queue, links, nccl, overlap, overview, ranks, steps
from sample_traces.simulator import simulate_ddp
from tests.support.dashboard import Serve, Timeline

PAGES = (overview, steps, kernels, overlap, nccl, launch_queue, links, ranks)
HEIGHT = 720  # pixels, of the smaller screen
IS_DRAWN = """() => !document.querySelector('#page .loading')
    && [...document.querySelectorAll('#page .table')].every((table) =>
        table.closest('details') || table.querySelector('.ag-row, .ag-overlay'))"""


@pytest.fixture(scope="module")
def url(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("many") / "ddp.sqlite"
    simulate_ddp(path, gpus=64, steps=12, kernels_per_step=60, seed=3)
    return serve(path)


@pytest.mark.long
def test_no_page_of_many_ranks_is_over_two_screens_high(page: Page, url: str) -> None:
    page.set_viewport_size({"width": 1280, "height": HEIGHT})
    heights = {}
    for module in PAGES:
        page.goto(f"{url}{module.PATH}")
        page.wait_for_selector(f"#page h1:text-is('{module.TITLE}')")
        page.wait_for_function(IS_DRAWN)
        page.wait_for_load_state("networkidle")
        heights[module.PATH] = page.evaluate("document.documentElement.scrollHeight")
    assert {path: height for path, height in heights.items() if height > 2 * HEIGHT} == {}
    assert min(heights.values()) > HEIGHT  # each is drawn


@pytest.mark.long
def test_a_finding_of_many_ranks_unfolds(page: Page, url: str) -> None:
    page.goto(url)
    card = page.locator(".finding:not([open])").first
    evidence = page.locator(f"#{card.get_attribute('id')} .evidence").first
    expect(evidence).to_be_hidden()
    card.locator("summary").first.click()
    expect(evidence).to_be_visible()


@pytest.mark.long
def test_queues_without_stalls_are_not_said_to_have_some(page: Page, url: str) -> None:
    page.goto(f"{url}{launch_queue.PATH}")
    expect(page.locator("#page")).to_contain_text("the 8 ranks with the deepest queues")


@pytest.mark.long
def test_the_row_of_all_ranks_leads_to_the_late_one_of_many(page: Page, url: str) -> None:
    timeline = Timeline(page, f"{url}{TIMELINE}")
    timeline.wait_for("t.layout.spreads.length === 12")
    shown = "t.layout.spreads.findLast(({late}) => late?.rank > 20)"
    late = timeline.ask(f"{shown}.late.rank")
    timeline.ask(f"t.together.showLate({shown})")
    timeline.wait()
    on_top = timeline.ask(
        "t.rows.filter(({pinned, track}) => pinned && track).map((r) => r.number)"
    )
    assert len(on_top) == 12
    assert late in on_top


@pytest.mark.long
@pytest.mark.parametrize(("height", "num_opened"), [(HEIGHT, 1), (1080, 3)])
def test_the_timeline_opens_as_many_of_the_worst_ranks_as_fit(
    page: Page, url: str, height: int, num_opened: int
) -> None:
    page.set_viewport_size({"width": 1280, "height": height})
    timeline = Timeline(page, f"{url}{TIMELINE}")
    timeline.wait_for(f"t.opened.size === {num_opened} && !t.place.numRestoring")
    opened = timeline.ask("[...t.opened]")
    assert opened == timeline.ask("t.numbers")[:num_opened]
    threads = timeline.ask(
        "t.rows.filter(({label}) => label.startsWith('thread')).map((r) => r.number)"
    )
    assert {*threads} == {opened[0]}  # of the others, what the GPUs did
