"""Pages of 64 ranks: none is more than two screens high."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dashboards.pages.registry import PAGES
from tests.support.serving import serving
from traceprof.simulate import simulate_ddp

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

HEIGHT = 720  # of the smaller screen


@pytest.mark.long
def test_no_page_of_many_ranks_is_over_two_screens_high(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "ddp.sqlite"
    simulate_ddp(path, gpus=64, steps=12, kernels_per_step=60, seed=3)
    page.set_viewport_size({"width": 1280, "height": HEIGHT})
    heights = {}
    with serving(path) as url:
        for module in PAGES:
            page.goto(f"{url}{module.PATH}")
            page.wait_for_selector(f"#page h1:text-is('{module.TITLE}')", state="attached")
            page.wait_for_function(
                "() => !document.querySelector('#page .loading')"
                " && [...document.querySelectorAll('#page .table')].every((table) =>"
                " table.closest('details') || table.querySelector('.ag-row, .ag-overlay'))"
            )
            heights[module.PATH] = page.evaluate("document.documentElement.scrollHeight")
        page.goto("about:blank")
    assert {path: height for path, height in heights.items() if height > 2 * HEIGHT} == {}
