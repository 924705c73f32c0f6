"""The critical path on the timeline: it is that of the replay, and stands where it ran."""

import re
import time
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from dashboards.timeline import across_ranks as drawing
from dashboards.timeline.across_ranks import drawn_path as drawn
from dashboards.timeline.across_ranks import steps_within
from dashboards.timeline.store import Timelines
from tests.support.builders import TraceBuilder
from tests.support.dashboard import Timeline, asking
from tests.support.selection import known
from tests.support.traces import analysis_of
from traceprof.analysis import Analysis
from traceprof.replay.critical_path import step_path

STEP = 2


def test_of_very_many_parts_the_longest_are_drawn(
    analysis: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = known(step_path(analysis, STEP))
    monkeypatch.setattr(drawing, "MAX_PARTS", 5)
    said = drawn(Timelines.of(analysis), path)
    lengths = sorted((part.end_ns - part.start_ns for part in path.parts), reverse=True)
    assert sorted((part["length"] for part in said["parts"]), reverse=True) == lengths[:5]
    assert said["num_parts"] == len(path.parts)


def test_the_steps_in_a_time_are_asked_for(
    analysis: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first, *_) = analysis.result.breakdown
    for step in first.steps:
        start, length = step.measures.window_start_ns, step.measures.window_ns
        for at in (start, start + length - 1):
            assert steps_within(first.steps, at, at + 1) == (step.number, step.number)
    begin, end = first.steps[0].measures.window_start_ns, first.steps[-1].measures.window_start_ns
    assert steps_within(first.steps, begin, end) == (0, first.steps[-2].number)
    assert steps_within(first.steps, 0, 1) == (0, 0)
    last = first.steps[-1].number
    assert steps_within(first.steps, 1 << 60, (1 << 60) + 1) == (last, last)
    assert steps_within((), 5, 6) is None
    monkeypatch.setattr(drawing, "MAX_STEPS", 2)  # of more, the one in the middle
    middle = steps_within(first.steps, begin, end)
    assert middle == (known(middle)[0],) * 2
    assert 0 < known(middle)[0] < last


def test_steps_have_one_path_that_goes_through_all_of_them(analysis: Analysis) -> None:
    (first, *_) = analysis.result.breakdown
    chosen = [step.measures for step in first.steps if STEP <= step.number <= STEP + 2]
    start, end = chosen[0].window_start_ns, chosen[-1].window_start_ns + chosen[-1].window_ns
    ask = asking(analysis)
    said = ask("path", rank=0, start=start, end=end)
    assert said["step"] == f"{STEP}-{STEP + 2}"
    assert ask("path", step=said["step"]) == said
    # It has no gaps, and is as long as the steps are together on the rank that ends last.
    ends = [int(part["start"]) + part["length"] for part in said["parts"]]
    assert [int(part["start"]) for part in said["parts"]][1:] == ends[:-1]
    lengths = {
        result.rank: sum(
            step.measures.window_ns for step in result.steps if STEP <= step.number <= STEP + 2
        )
        for result in analysis.result.breakdown
    }
    assert int(said["length"]) == pytest.approx(lengths[said["rank"]], rel=0.01)
    alone = [ask("path", step=STEP + place) for place in range(3)]
    assert int(said["length"]) == pytest.approx(sum(int(one["length"]) for one in alone), rel=0.02)


def test_where_it_cannot_be_known_that_is_said(tmp_path: Path) -> None:
    with analysis_of(TraceBuilder().kernel(0, 100, launch=False).write(tmp_path)) as without_calls:
        said = asking(without_calls)("path", rank=0, start=0, end=1)
    assert said["state"] == "unknown"
    assert "API calls" in said["why"]


def slowly(route: Route) -> None:
    """Answer later than a view that does not move is noted in the address."""
    time.sleep(0.6)
    route.continue_()


@pytest.mark.long
def test_a_link_shows_all_that_it_says_also_where_the_server_is_slow(
    page: Page, sample_url: str, analysis: Analysis
) -> None:
    said = asking(analysis)("path", step=STEP)
    part = next(part for part in said["parts"] if part["row"] is not None)
    timeline = Timeline(page, f"{sample_url}/timeline")
    listed = f"t.data.answer('events', {{rows: '{part['row']}', start: 0, end: 1e12}})"
    event = timeline.ask(f"{listed}.then(({{ events }}) => events[0].id)")
    page.route(re.compile("/timeline/event"), slowly)
    link = f"{sample_url}/timeline?path={STEP}&select={event}"
    again = Timeline(page, link)
    again.wait_for("t.path.shown !== null && t.selected !== null")
    page.unroute(re.compile("/timeline/event"))
    assert {"path": str(STEP), "select": event}.items() <= again.address.items()


@pytest.mark.long
def test_it_is_drawn_on_demand_and_a_link_shows_it_again(page: Page, sample_url: str) -> None:
    timeline = Timeline(page, f"{sample_url}/timeline")
    page.get_by_role("button", name="what the end of the steps in view waited for").click()
    heading = page.get_by_role("heading", name="Critical path of step")
    heading.wait_for()
    assert timeline.labels[0] == "critical path"
    parts = page.get_by_role("table", name="parts")
    parts.get_by_role("button", name="at::native").first.click()
    timeline.wait_for("t.selected !== null")
    timeline.wait_for("new URLSearchParams(location.search).has('path')")
    timeline.wait_for("new URLSearchParams(location.search).has('select')")
    timeline.wait()
    # What is selected is underlined in the row where it ran.
    left, bottom = timeline.ask(
        "(() => { const box = t.panel.canvas.getBoundingClientRect();"
        " const row = t.layout.rowOf(t.selected.row);"
        " const x = t.painter.x(t.selected.begin + t.selected.length / 2);"
        " return [box.left + x, box.top + row.top + row.height - 3]; })()"
    )
    red, green, _ = timeline.color(left, bottom)
    assert red > green + 60
    again = Timeline(page, page.url)
    again.wait_for("t.path.shown !== null")
    again.press("Escape")
    assert "critical path" not in again.labels
    again.wait_for("!new URLSearchParams(location.search).has('path')")
    again.page.keyboard.press("k")
    expect(heading).to_be_visible()
