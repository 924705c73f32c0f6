"""The timeline's tools in a real browser: areas, events, collectives, rows, all by keyboard too."""

import re
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from dashboards.address import Address
from dashboards.pages import timeline as timeline_page
from tests.support.builders import TraceBuilder
from tests.support.dashboard import Serve, Timeline, attributes_of, drag
from tests.support.selection import known
from tests.support.traces import SAMPLE, analysis_of
from traceprof.analysis import analyze

UTC = 1_726_722_437_796_624_059


def test_times_of_the_clock_are_counted_from_the_run(tmp_path: Path) -> None:
    trace = TraceBuilder().kernel(UTC + 5, UTC + 9).api("early", UTC, UTC + 1)
    with analysis_of(trace.write(tmp_path)) as analysis:
        page = attributes_of(analysis, Address(timeline_page.PATH))
        assert page["base"] == str(UTC + 5)
        assert page["time"] == "time since the first GPU operation"


def test_the_axis_says_whose_time_it_is(tmp_path: Path) -> None:
    paths = []
    for rank in range(2):
        trace = TraceBuilder().kernel(0, 100 + rank).nvtx(f"MPI Rank {rank}", 0, 5)
        paths.append(trace.write(tmp_path / f"{rank}.sqlite"))
    for reports, said in ((paths[:1], "time in the report"), (paths, "time in 0.sqlite")):
        with closing(analyze(*reports)) as analysis:
            assert said in attributes_of(analysis, Address(timeline_page.PATH))["time"]


@pytest.fixture
def timeline(page: Page, sample_url: str) -> Timeline:
    return Timeline(page, f"{sample_url}/timeline?rank=0")


def place(timeline: Timeline, x: int, row: str) -> tuple[float, float]:
    """Return where in the window a row stands, so many pixels from the canvas' left."""
    left, top = timeline.ask(
        "(() => { const box = t.panel.canvas.getBoundingClientRect();"
        f" const row = t.rows.find(({{label}}) => label === '{row}');"
        " return [box.left, box.top + row.top + row.height / 2]; })()"
    )
    return left + x, top


@pytest.mark.long
def test_an_area_says_what_ran_there_by_name(timeline: Timeline) -> None:
    first, last = (place(timeline, x, "stream 7 · compute") for x in (500, 800))
    timeline.page.keyboard.down("Shift")
    drag(timeline.page, first, (last[0], last[1] + 40))
    timeline.page.keyboard.up("Shift")
    names = timeline.page.get_by_role("table", name="what ran, by name")
    expect(names).to_contain_text("gemm")
    rows = timeline.page.get_by_role("table", name="rows")
    expect(rows).to_contain_text("stream 7 · compute")
    expect(rows).not_to_contain_text("CUDA API")
    area = timeline.ask("[t.areas.area.start, t.areas.area.end, t.timeAt(500), t.timeAt(800)]")
    assert area[:2] == pytest.approx(area[2:], rel=1e-9)
    before = timeline.view
    timeline.page.get_by_role("button", name="zoom to this area").click()
    timeline.wait()
    assert timeline.view == pytest.approx((area[0], area[1] - area[0]), rel=1e-6)
    timeline.press("b")
    assert timeline.view == pytest.approx(before)
    # It is kept until it is let go.
    assert timeline.ask("t.areas.area !== null")
    timeline.press("Escape")
    assert timeline.ask("t.areas.area") is None


@pytest.mark.long
def test_statistics_and_events_of_the_view_by_key(timeline: Timeline) -> None:
    timeline.press("t")
    names = timeline.page.get_by_role("table", name="what ran, by name")
    expect(names).to_contain_text("cudaLaunchKernel")
    timeline.press("Escape", "e")
    events = timeline.page.get_by_role("table", name="events")
    expect(events.locator("tbody tr").first).to_be_visible()
    events.get_by_role("button").first.click()
    timeline.wait_for("t.selected !== null")


def test_a_search_lists_what_it_finds(timeline: Timeline) -> None:
    page = timeline.page
    page.keyboard.press("l")  # of nothing: it says what it needs
    expect(page.locator(".explained")).to_contain_text("write a name")
    timeline.press("/")
    page.keyboard.type("AllReduce kind:communication > 100 us")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="all matches in a list").click()
    timeline.wait_for("t.search.listed?.is_all")
    table = page.get_by_role("table", name="what is found")
    head = table.get_by_role("columnheader", name="sort by duration")
    expect(head).to_have_attribute("aria-sort", "descending")
    lengths = timeline.ask("t.search.listed.events.map(({duration}) => duration)")
    assert lengths == sorted(lengths, reverse=True)
    assert min(lengths) > 100_000
    # A click shows the event, and the list stays, with a mark where one is.
    table.locator("tbody button").nth(2).click()
    timeline.wait_for("t.selected?.id === t.search.listed.events[2].id")
    expect(table.locator("button[aria-current]")).to_have_count(1)
    start, span = timeline.view
    begin = timeline.ask("t.selected.begin")
    assert start <= begin < start + span
    table.get_by_role("button", name="sort by start").click()
    timeline.wait_for_address("list", "start")
    starts = timeline.ask("t.search.listed.events.map(({start}) => Number(start))")
    assert starts == sorted(starts)
    with page.expect_download() as saving:
        page.get_by_role("button", name="save the list as CSV").click()
    rows = Path(saving.value.path()).read_text("utf-8").splitlines()
    assert rows[0] == "name,duration (ns),rank,step,size (bytes),start (ns),place,id"
    assert len(rows) == 1 + len(starts)
    # The address shows it again, and Escape puts it away.
    again = Timeline(page, page.url)
    expect(head).to_have_attribute("aria-sort", "none")
    again.press("Escape")
    expect(table).to_have_count(0)
    again.wait_for_address("list", None)


@pytest.mark.long
def test_the_next_event_of_a_row_by_key(timeline: Timeline) -> None:
    timeline.page.keyboard.press(".")
    timeline.wait_for("t.selected !== null")
    first = timeline.ask("[t.selected.id, t.selected.row, t.selected.begin]")
    timeline.page.keyboard.press(".")
    timeline.wait_for(f"t.selected.id !== '{first[0]}'")
    second = timeline.ask("[t.selected.row, t.selected.begin]")
    assert second[0] == first[1]
    assert second[1] > first[2]
    timeline.page.keyboard.press(",")
    timeline.wait_for(f"t.selected.id === '{first[0]}'")


ORDER = "t.rows.filter(({track}) => track?.source === 'op').map(({label}) => label)"


@pytest.mark.long
def test_rows_are_moved_by_key_and_mouse_and_a_link_shows_the_same(timeline: Timeline) -> None:
    first, second, third, *_ = before = timeline.ask(ORDER)
    timeline.page.mouse.move(*place(timeline, 600, first))
    timeline.wait_for("t.pointer.row !== null")
    timeline.press("]")
    assert timeline.ask(ORDER)[:3] == [second, first, third]
    expect(timeline.page.get_by_role("status").filter(has_text="moved down")).to_have_count(1)
    drag(timeline.page, place(timeline, 60, third), place(timeline, 60, second))
    timeline.wait()
    moved = timeline.ask(ORDER)
    assert moved[:3] == [third, second, first]
    timeline.page.mouse.move(*place(timeline, 600, "CUDA API"))
    timeline.press("h")
    timeline.page.mouse.move(*place(timeline, 600, "NVTX"))
    timeline.press("i")
    timeline.wait_for(
        "['moved', 'hidden', 'pinned'].every((name) =>"
        " new URLSearchParams(location.search).has(name))"
    )
    (hidden,) = timeline.ask("[...t.layout.arrangement.hidden]")
    again = Timeline(timeline.page, timeline.page.url)
    assert again.ask(ORDER) == moved
    assert again.labels[0].endswith("NVTX")
    assert not again.ask(f"t.rows.some(({{track}}) => track?.row === '{hidden}')")
    assert sorted(moved) == sorted(before)
    timeline.page.get_by_role("button", name="show the 1 hidden rows").click()
    again.wait()
    assert again.ask(f"t.rows.some(({{track}}) => track?.row === '{hidden}')")
    timeline.page.mouse.move(*place(again, 600, again.labels[0]))
    again.press("i")
    assert not again.ask("t.rows.some(({pinned}) => pinned)")


@pytest.mark.long
def test_a_folded_rank_shows_a_strip_of_what_it_did(page: Page, sample_url: str) -> None:
    timeline = Timeline(page, f"{sample_url}/timeline")
    timeline.wait_for("t.data.strips.get(1)?.span === t.view.span")
    shares = timeline.ask("t.data.strips.get(1).shares")
    assert {"compute", "communication"} <= set(shares)
    assert max(shares["compute"]) > 500
    # It is said, too, to who does not see it.
    described = page.get_by_role("list", name="folded ranks")
    expect(described).to_have_text(re.compile(r"rank 1 .*compute \d+ %"))
    # What is drawn is the green of compute.
    left, top = timeline.ask(
        "(() => { const box = t.panel.canvas.getBoundingClientRect();"
        " const row = t.rows.find((row) => row.type === 'rank' && row.folded);"
        " const { shares, start, span } = t.data.strips.get(1);"
        " const at = shares.compute.findIndex((share) => share > 900);"
        " const x = t.painter.x(start + (at + 0.5) * span / shares.compute.length);"
        " return [box.left + x, box.top + row.top + 8]; })()"
    )
    red, green, blue = timeline.color(left, top)
    assert green > red + 60
    assert green > blue


def test_a_collective_on_all_ranks(page: Page, sample_url: str) -> None:
    timeline = Timeline(page, f"{sample_url}/timeline")
    page.keyboard.press("c")  # of nothing: it says what it needs
    expect(page.locator(".explained")).to_contain_text("select one first")
    row = timeline.ask("t.rows.find(({label}) => label.endsWith('communication')).track.row")
    events = timeline.ask(f"t.data.answer('events', {{...t.areas.inSight(), rows: '{row}'}})")
    kernel = events["events"][1]["id"]
    timeline.ask(f"t.select('{kernel}', {{go: true}})")
    timeline.wait_for("t.selected !== null")
    page.get_by_role("button", name="show this collective on all of its ranks").wait_for()
    page.keyboard.press("c")
    timeline.wait_for("t.together.shown !== null")
    ranks = page.get_by_role("table", name="its ranks")
    expect(ranks.locator("tbody tr")).to_have_count(2)
    timeline.wait()
    # Its rows stand below each other, in sight at once.
    on_top = "t.rows.filter((row) => row.pinned && row.track).map((row) => row.label)"
    assert timeline.ask(on_top) == [f"rank {rank} · stream 20 · communication" for rank in (0, 1)]
    timeline.press("Escape")
    assert timeline.ask("t.together.shown") is None
    assert timeline.ask(on_top) == []
    assert timeline.ask("[...t.opened]") == [0, 1]


def test_a_row_of_all_ranks_says_who_came_late_and_leads_there(page: Page, serve: Serve) -> None:
    timeline = Timeline(page, f"{serve(SAMPLE.with_stem('training'))}/timeline")
    timeline.wait_for("t.layout.spreads.length > 0")
    timeline.wait()
    assert timeline.labels[0].startswith("all ranks · to ")
    latest = "t.layout.spreads.toSorted((a, b) => b.late.length - a.late.length)[0]"
    left, top = timeline.ask(
        "(() => { const box = t.panel.canvas.getBoundingClientRect(); const [row] = t.rows;"
        f" const {{begin, stop}} = {latest};"
        " return [box.left + t.painter.x((begin + stop) / 2), box.top + row.top + 20]; })()"
    )
    page.mouse.move(left, top)
    tooltip = page.locator(".pointer-note")
    expect(tooltip).to_contain_text("step 1")
    expect(tooltip).to_contain_text("rank 0 came 9.51 ms after the median of the others")
    page.mouse.click(left, top)
    timeline.wait_for(f"t.together.shown?.last === 0 && t.selected?.id === {latest}.late.id")
    expect(page.get_by_role("table", name="its ranks").locator("tbody tr")).to_have_count(2)
    # One rank alone has no such row.
    alone = Timeline(page, f"{serve(SAMPLE.with_stem('training'))}/timeline?rank=0")
    assert not alone.ask("t.rows.some(({spreads}) => spreads)")


@pytest.mark.long
def test_evidence_says_what_to_do_and_leads_back_to_its_card(page: Page, sample_url: str) -> None:
    page.goto(sample_url)
    card = page.locator("#finding-gpu-idle")
    card.locator("summary").first.click()
    card.locator(".evidence a").first.click()
    page.wait_for_url("**/timeline?*")
    timeline = Timeline(page, page.url)
    advice = page.get_by_role("list", name="what to do")
    expect(advice.locator("li")).not_to_have_count(0)
    shown = "t.chosenEvidence.evidence"
    first = timeline.ask(shown)
    timeline.press(".")
    timeline.wait_for(f"{shown} !== {first}")
    timeline.press(",")
    timeline.wait_for(f"{shown} === {first}")
    # The panel is as high as the reader makes it.
    panel, edge = page.locator(".timeline-detail"), page.get_by_role("separator")
    before = panel.bounding_box()
    edge.press("ArrowUp")
    after = panel.bounding_box()
    assert known(after)["height"] == pytest.approx(known(before)["height"] + 24, abs=1)
    page.get_by_role("button", name="show gpu-idle on the overview").click()
    expect(card).to_be_in_viewport()
    page.evaluate("sessionStorage.clear()")
