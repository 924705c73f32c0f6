"""What is chosen holds on every page, is in the address, and changes only when it is changed."""

import re
import time
from contextlib import closing

import pytest
from playwright.sync_api import BrowserContext, Page, Route, expect

from dashboards import shell
from dashboards.address import Address, parse
from dashboards.pages.registry import PAGES
from dashboards.server.serving import DashboardServer
from dashboards.view import View
from tests.support.dashboard import Timeline, box_of, drag, query, text
from tests.support.traces import SAMPLE
from traceprof.analyses import breakdown, launch_queue
from traceprof.analysis import Analysis, Options, analyze


def go(page: Page, title: str) -> None:
    """Follow a link of the menu."""
    page.get_by_role("navigation").get_by_role("link", name=title, exact=True).click()
    expect(page.locator("#page h1")).to_have_text(title)


def test_a_time_range_is_measured_as_analyze_does(analysis: Analysis) -> None:
    (result, *_) = analysis.result.breakdown
    step = result.steps[2].measures
    start, end = step.window_start_ns, step.window_start_ns + 2 * step.window_ns
    view = View(analysis, Address(start_ns=start, end_ns=end))
    with closing(analyze(SAMPLE, options=Options(time_range=(start, end)))) as expected:
        for module in (breakdown, launch_queue):
            assert repr(view.of(module)) == repr(expected.of(module))
        assert view.kernels == expected.measured.kernels
    assert view.of(breakdown)[0].whole.window_ns == end - start
    whole = View(analysis, Address())
    assert whole.of(breakdown) == analysis.of(breakdown)
    assert whole.kernels == analysis.measured.kernels


def test_a_range_in_which_nothing_ran(analysis: Analysis) -> None:
    view = View(analysis, Address(start_ns=-100, end_ns=-50))
    assert view.of(breakdown) == ()
    assert view.kernels == ()
    for module in PAGES:
        module.layout(View(analysis, Address(module.PATH, start_ns=-100, end_ns=-50)))


def test_a_picture_names_the_steps_that_the_time_touches(analysis: Analysis) -> None:
    result = next(iter(analysis.of(breakdown)))
    begin, end = (result.steps[at].measures for at in (0, 1))
    at_end = begin.window_start_ns + begin.window_ns
    said = [
        shell.caption(View(analysis, Address(start_ns=low, end_ns=high)), "Steps").split(" · ")
        for low, high in (
            (begin.window_start_ns, at_end),
            (begin.window_start_ns, end.window_start_ns + 1),
            (None, None),
        )
    ]
    first, second = result.steps[0].number, result.steps[1].number
    assert said[0][-2] == f"step {first}"
    assert said[1][-2] == f"steps {first} to {second}"
    assert [len(parts) for parts in said] == [5, 5, 3]
    bar = text(shell.time(View(analysis, Address("/steps", start_ns=at_end))))
    assert f"{at_end / 1e9:.6f} s to the end × Choose the time in view findings are of all" in bar


def test_evidence_leaves_what_is_chosen_as_it_is(analysis: Analysis) -> None:
    address = parse("/timeline", "rank=1&start=5&end=9&scope=rank%3D0")
    view = View(analysis, address)
    assert view.numbers == {0}
    assert address.chosen == Address(rank=(0,))
    assert view.window(0, 1, 2) == (1, 2)


def test_a_time_range_holds_on_every_page_and_none_loads_plotly(
    page: Page, sample_url: str, analysis: Analysis
) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    step = analysis.result.breakdown[0].steps[1].measures
    chosen = {
        "rank": "1",
        "start": str(step.window_start_ns),
        "end": str(step.window_start_ns + step.window_ns),
    }
    page.goto(f"{sample_url}/launch-queue?{'&'.join(f'{k}={v}' for k, v in chosen.items())}")
    said = page.locator("#chosen-time")
    expect(said).to_contain_text(" to ")
    text = said.inner_text()
    for module in PAGES:
        page.get_by_role("navigation").get_by_role("link", name=module.TITLE, exact=True).click()
        page.wait_for_url(re.compile(re.escape(module.PATH) + r"\?"))
        expect(page.locator("#page h1")).to_have_text(module.TITLE)
        expect(said).to_have_text(text)
        assert {name: query(page)[name] for name in chosen} == chosen
        expect(page.locator("#choose-rank")).to_contain_text("rank 1")
        page.wait_for_load_state("networkidle")
    assert asked
    assert [url for url in asked if "plotly" in url or "graph" in url] == []


@pytest.mark.long
def test_a_time_range_is_let_go_of_and_comes_back(page: Page, sample_url: str) -> None:
    page.goto(f"{sample_url}/steps?start=1000000&end=900000000")
    expect(page.locator("#chosen-time")).to_contain_text("0.001000 s to 0.900000 s")
    page.get_by_role("button", name="show all of the time").click()
    expect(page.locator("#chosen-time")).to_have_text("all of the time")
    assert query(page) == {}
    page.go_back()
    expect(page.locator("#chosen-time")).to_contain_text("0.001000 s to")
    page.go_forward()
    expect(page.locator("#chosen-time")).to_have_text("all of the time")


@pytest.mark.long
def test_following_evidence_chooses_nothing(page: Page, sample_url: str) -> None:
    page.goto(sample_url)
    page.locator(".finding .evidence a").first.click()
    expect(page.locator("#timeline[data-state=ready]")).to_be_visible()
    assert {"rank", "start", "end", "finding"} <= {*query(page)}
    expect(page.locator("#chosen-time")).to_have_text("all of the time")
    go(page, "Steps")
    assert query(page) == {}
    page.go_back()
    expect(page.locator("#timeline[data-state=ready]")).to_be_visible()
    # The time in view can be chosen.
    page.get_by_role("button", name="Choose the time in view").click()
    expect(page.locator("#chosen-time")).to_contain_text(" to ")
    shown = query(page)
    go(page, "Launch queue")
    assert query(page) == {"start": shown["start"], "end": shown["end"]}


@pytest.mark.long
def test_dragging_the_axis_of_the_timeline_chooses_that_time(page: Page, sample_url: str) -> None:
    timeline = Timeline(page, f"{sample_url}/timeline?rank=0")
    canvas = box_of(page.locator("#timeline canvas"))
    expected = timeline.ask("[500, 700].map((x) => String(t.data.toTime(t.timeAt(x))))")
    drag(page, (canvas["x"] + 700, canvas["y"] + 15), (canvas["x"] + 500, canvas["y"] + 20))
    expect(page.locator("#chosen-time")).to_contain_text(" to ")
    # The scope is shown before the timeline of the new page takes the place of the old one.
    shown = "[t.view.start, t.view.start + t.view.span].map((time) => String(Math.round(time)))"
    timeline.wait_for(f"t?.view && {shown}.join() === '{','.join(expected)}'")
    go(page, "Launch queue")
    assert query(page) == {"rank": "0", "start": expected[0], "end": expected[1]}
    page.go_back()
    page.go_back()
    expect(page.locator("#chosen-time")).to_have_text("all of the time")


ANSWERS = re.compile("_dash-update-component")


def slowly(route: Route) -> None:
    """Let the server answer after what the timeline still had to note is noted."""
    time.sleep(0.6)
    route.continue_()


@pytest.mark.long
def test_what_a_timeline_still_had_to_note_changes_no_address_of_the_next_page(
    page: Page, sample_url: str
) -> None:
    timeline = Timeline(page, f"{sample_url}/timeline?rank=0")
    places = "[0.25, 0.5].map((part) => Math.round(t.view.start + t.view.span * part))"
    start, end = timeline.ask(f"{places}.map((place) => String(t.data.toTime(place)))")
    page.route(ANSWERS, slowly)
    timeline.ask(f"t.note() ?? t.place.choose(...{places})")
    expect(page.locator("#chosen-time")).to_contain_text(" to ")
    timeline.wait_for(f"t?.view && String(t.data.toTime(Math.round(t.view.start))) === '{start}'")
    timeline.wait()
    # The same time once more leads nowhere, and what moves after it is noted.
    timeline.ask("t.place.choose(t.view.start, t.view.start + t.view.span)")
    timeline.press("d")
    assert timeline.address["start"] != start
    timeline.ask("t.note() ?? document.querySelector('nav a[href^=\"/steps\"]').click()")
    expect(page.locator("#page h1")).to_have_text("Steps")
    page.unroute(ANSWERS)
    assert query(page) == {"rank": "0", "start": start, "end": end}


@pytest.mark.long
def test_a_link_is_copied_with_its_token(context: BrowserContext, analysis: Analysis) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    with DashboardServer() as server:
        server.show(analysis)
        page.goto(server.url)
        expect(page.locator("#page h1")).to_have_text("Overview")
        assert "token" not in page.url
        go(page, "Steps")
        page.get_by_role("button", name="Copy link").click()
        expect(page.locator("#copy-link")).to_have_text("Copied")
        link = page.evaluate("() => navigator.clipboard.readText()")
        assert link.startswith(f"{page.url}?token=")
        context.clear_cookies()
        page.goto(link)
        expect(page.locator("#page h1")).to_have_text("Steps")
        assert "token" not in page.url
        page.close()
    context.clear_cookies()
