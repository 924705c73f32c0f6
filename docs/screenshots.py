"""Take pictures of the dashboard in a real browser.

python docs/screenshots.py                              the README's, of a sample trace
python docs/screenshots.py --tour FOLDER [REPORT...]    every page: two widths, light and dark
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from playwright.sync_api import sync_playwright

from dashboards.pages.registry import PAGES
from dashboards.questions import CompareQuestion
from dashboards.server.serving import DashboardServer
from traceprof.analysis import analyze
from traceprof.cli.options import expand
from traceprof.execution.options import Options

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parent.parent
REPORT = ROOT / "sample_traces" / "training.sqlite"
THEMES = ("light", "dark")
SIZES = {1280: 720, 1920: 1080}
_MAX_ANSWER_S = 300


@click.command()
@click.option("--folder", type=click.Path(path_type=Path), default=ROOT / "docs")
@click.option("--tour", type=click.Path(path_type=Path), help="Pictures of every page, into here.")
@click.option("--only", help="Of the tour, pages whose path begins so, such as /steps.")
@click.option("--before", multiple=True, help="What the page Compare holds the reports against.")
@click.argument("reports", nargs=-1)
def main(
    folder: Path,
    tour: Path | None,
    only: str | None,
    before: tuple[str, ...],
    reports: tuple[str, ...],
) -> None:
    """Write dashboard-overview.png and dashboard-timeline.png, or a tour."""
    paths = expand(reports or [str(REPORT)])
    with closing(analyze(*paths)) as analysis, DashboardServer() as server, chromium() as browser:
        server.show(analysis, compared=CompareQuestion(before, Options()) if before else None)
        if tour is None:
            _take_for_readme(browser, server.url, folder)
        else:
            _take_tour(browser, server.url, tour, only)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the system's Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium-headless-shell") or shutil.which("chromium"),
            args=["--no-sandbox"],
        )
        yield browser
        browser.close()


def _take_for_readme(browser: Browser, url: str, folder: Path) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 720}, color_scheme="light")
    page.goto(url)
    page.wait_for_selector("table.breakdown")
    _take(page, folder / "dashboard-overview.png")
    card = page.locator("#finding-nccl-serialization")
    card.evaluate("card => { card.open = true; }")
    card.locator(".evidence a").first.click()
    page.wait_for_selector("#timeline[data-state=ready]")
    _take(page, folder / "dashboard-timeline.png")


def _take_tour(browser: Browser, url: str, folder: Path, only: str | None) -> None:
    """Take every page, from its top to its end: `steps-1280-dark.png`."""
    folder.mkdir(parents=True, exist_ok=True)
    for width, height in SIZES.items():
        context = browser.new_context(viewport={"width": width, "height": height})
        page = context.new_page()
        page.goto(url)  # with the token
        page.wait_for_selector("#page h1")
        for module in PAGES:
            if only is not None and not module.PATH.startswith(only):
                continue
            page.get_by_role("navigation").get_by_role("link", name=module.TITLE).click()
            page.wait_for_selector(f"#page h1:text-is('{module.TITLE}')")
            name = re.sub(r"\W+", "-", module.TITLE.lower())
            for theme in THEMES:
                if page.evaluate("() => document.documentElement.dataset.theme") != theme:
                    page.click("#theme")
                _take(page, folder / f"{name}-{width}-{theme}.png", is_whole=True)
        context.close()


def _take(page: Page, path: Path, *, is_whole: bool = False) -> None:
    """Save what a page shows once it rests."""
    page.wait_for_function(
        "() => !document.querySelector('#page .loading')"
        " && [...document.querySelectorAll('#page .table')].every((table) =>"
        " table.querySelector('.ag-row, .ag-overlay'))",
        timeout=_MAX_ANSWER_S * 1000,
    )
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(500)
    page.screenshot(path=path, full_page=is_whole)
    print(path)


if __name__ == "__main__":
    main()
