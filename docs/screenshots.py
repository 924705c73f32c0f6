"""Take the README's pictures of the dashboard: a real browser on a sample trace.

python docs/screenshots.py [--folder docs]
"""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import click
from playwright.sync_api import Page, sync_playwright

from dashboards.server.serving import DashboardServer
from traceprof.analysis import analyze

ROOT = Path(__file__).parent.parent
REPORT = ROOT / "sample_traces" / "nccl-serialization.sqlite"
SIZE = {"width": 1280, "height": 720}


@click.command()
@click.option("--folder", type=click.Path(path_type=Path), default=ROOT / "docs")
def main(folder: Path) -> None:
    """Write dashboard-overview.png and dashboard-timeline.png."""
    with (
        closing(analyze(REPORT)) as analysis,
        DashboardServer() as server,
        sync_playwright() as playwright,
    ):
        server.show(analysis)
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport=SIZE, color_scheme="light")  # type: ignore[arg-type]
        page.goto(server.url)
        page.wait_for_selector("table.breakdown")
        take(page, folder / "dashboard-overview.png")
        page.locator("#finding-nccl-serialization .evidence a").first.click()
        page.wait_for_selector("#timeline[data-state=ready]")
        take(page, folder / "dashboard-timeline.png")
        browser.close()


def take(page: Page, path: Path) -> None:
    """Save what a page shows once it rests."""
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(500)
    page.screenshot(path=path)


if __name__ == "__main__":
    main()
