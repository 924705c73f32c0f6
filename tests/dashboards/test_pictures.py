"""Pictures of a page: the page as it stands, charts included, as SVG and PNG."""

import struct
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from playwright.sync_api import Page

from tests.support.dashboard import box_of


def saved(page: Page, kind: str, folder: Path) -> Path:
    with page.expect_download() as download:
        page.click(f"#save-{kind}")
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


@pytest.mark.slow
def test_a_page_is_saved_as_svg_and_png(page: Page, sample_url: str, tmp_path: Path) -> None:
    page.goto(f"{sample_url}/steps")
    page.wait_for_selector("#steps-bars canvas")
    page.wait_for_load_state("networkidle")
    svg = saved(page, "svg", tmp_path)
    assert svg.name == "steps.svg"
    tree = ET.parse(svg)  # noqa: S314  (our own)
    assert "Where each step's time went" in "".join(tree.getroot().itertext())
    images = [element.get("src", "") for element in tree.iter("{http://www.w3.org/1999/xhtml}img")]
    assert len(images) == page.locator("#page canvas").count() > 0
    assert all(image.startswith("data:image/png") for image in images)
    png = saved(page, "png", tmp_path)
    assert png.name == "steps.png"
    written = png.read_bytes()
    assert written.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", written[16:24])
    box = box_of(page.locator("#page"))
    assert (width, height) == pytest.approx((box["width"], box["height"]), abs=2)
    # The same with nothing on it would take some 8 kB.
    assert len(written) > 40_000
