"""Compare: the comparison of `traceprof compare`, made beside the page, and a step of each side."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from dashboards.address import Address
from dashboards.asking.compare import Compared, CompareQuestion, compared_with, strips
from dashboards.asking.questions import Asked
from dashboards.pages import compare
from dashboards.server.serving import DashboardServer
from tests.support.timeline_page import Timeline
from tests.support.traces import SAMPLE
from tests.support.trees import named, text
from traceprof.analysis import Options, analyze
from traceprof.compare.ask import compare as compare_sides
from traceprof.reports.comparison.sections import verdict
from traceprof.units import duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

    from traceprof.analysis import Analysis

BEFORE, AFTER = SAMPLE, SAMPLE.with_stem("overlap-slowdown")
QUESTION = CompareQuestion((str(BEFORE),), Options())


@pytest.fixture(scope="module")
def analysis() -> Iterator[Analysis]:
    with closing(analyze(AFTER)) as made:
        yield made


@pytest.fixture(scope="module")
def compared(analysis: Analysis) -> Compared:
    return compared_with(analysis, QUESTION)


def test_it_is_what_compare_says(compared: Compared) -> None:
    expected = compare_sides(BEFORE, AFTER)
    assert compared.comparison.step == expected.step
    assert compared.comparison.parts == expected.parts
    shown = text(compare.answers(Asked(compared, is_over=True)))
    assert verdict(expected) in shown
    for part in expected.part_changes:
        assert f"{part.part} {duration(part.before_ns)} {duration(part.after_ns)}" in shown
    (grid,) = named(compare.answers(Asked(compared, is_over=True)), "AgGrid")
    assert [row["change"] for row in grid.rowData] == [
        kernel.change_ns / 1e3 for kernel in expected.kernels
    ]


def test_strips_cover_what_the_breakdown_says(analysis: Analysis, compared: Compared) -> None:
    drawn = compared.after
    assert drawn is not None
    assert drawn == strips(analysis)
    (result,) = (one for one in analysis.result.breakdown if one.rank == drawn.rank)
    (step,) = (one.measures for one in result.steps if one.number == drawn.step)
    assert drawn.length_ns == step.window_ns
    assert drawn.start_ns == step.window_start_ns
    piece = step.window_ns / len(drawn.shares["compute_ns"])
    assert sum(drawn.shares["compute_ns"]) * piece == pytest.approx(step.compute_ns, rel=1e-2)
    assert sum(drawn.shares["exposed_communication_ns"]) * piece == pytest.approx(
        step.communication_ns, rel=1e-2
    )
    picture = compare.drawing(drawn, 2 * drawn.length_ns)
    (image,) = named(picture, "Img")
    assert image.src.startswith("data:image/svg+xml;base64,")
    assert compared.before is not None


def test_without_another_side_it_says_how(analysis: Analysis) -> None:
    shown = text(compare.layout(analysis, Address("/compare")))
    assert "--before" in shown


def test_a_side_that_cannot_be_read_is_said(page: Page, analysis: Analysis) -> None:
    with DashboardServer(has_token=False) as server:
        server.show(analysis, compared=CompareQuestion(("/nowhere.sqlite",), Options()))
        page.goto(f"{server.url}compare")
        expect(page.get_by_role("heading", name="No comparison")).to_be_visible()
        expect(page.locator("#page")).to_contain_text("/nowhere.sqlite")
        page.goto("about:blank")


def test_in_the_browser(page: Page, analysis: Analysis, compared: Compared) -> None:
    with DashboardServer(has_token=False) as server:
        server.show(analysis, ask=lambda _: compared, compared=QUESTION)
        page.goto(f"{server.url}compare")
        expect(page.locator("#page .headline")).to_contain_text(verdict(compared.comparison))
        expect(page.locator(".strips img")).to_have_count(2)
        expect(page.locator(".strips.axis")).to_contain_text("0 ns")
        expect(page.locator("#page .ag-center-cols-container .ag-row").first).to_be_visible()
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 1280
        page.get_by_role("link", name="on the timeline").click()
        page.wait_for_url("**/timeline?*")
        timeline = Timeline(page, page.url)
        drawn = compared.after
        assert drawn is not None
        assert timeline.ask("Number(t.data.toTime(t.view.start))") == drawn.start_ns
        assert timeline.view[1] == drawn.length_ns
        page.goto("about:blank")
