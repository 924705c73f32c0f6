"""The critical path on the timeline: it is that of the replay, and stands where it ran."""

import re
import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from dashboards.timeline import across_ranks as drawing
from dashboards.timeline.across_ranks import drawn_path as drawn
from dashboards.timeline.across_ranks import step_at
from dashboards.timeline.store import Timelines, TimelineSource
from tests.support.builders import TraceBuilder
from tests.support.dashboard import Timeline, asking
from tests.support.selection import known
from tests.support.traces import analysis_of
from tests.support.workers import until
from traceprof.analysis import Analysis
from traceprof.replay.critical_path import step_path

STEP = 2


def answer(analysis: Analysis, **parameters: object) -> Any:
    """Return what the server answers once it has worked it out."""
    ask, replies = asking(analysis), list[Any]()

    def is_answered() -> bool:
        replies.append(ask("path", **parameters))
        return bool(replies[-1]["state"] != "asked")

    until(is_answered)
    return replies[-1]


def test_it_is_the_path_of_the_replay(analysis: Analysis) -> None:
    expected = known(step_path(analysis, STEP))
    said = answer(analysis, step=STEP)
    parts = [(part["rank"], part["kind"], int(part["start"])) for part in said["parts"]]
    assert parts == [(part.rank, part.kind, part.start_ns) for part in expected.parts]
    assert sum(part["length"] for part in said["parts"]) == int(said["length"])
    assert sum(map(int, said["kinds"].values())) == expected.length_ns
    assert said["num_parts"] == len(expected.parts)


def test_every_operation_of_it_stands_in_the_row_where_it_ran(analysis: Analysis) -> None:
    said = answer(analysis, step=STEP)
    store = Timelines(TimelineSource.of(analysis))
    operations = [part for part in said["parts"] if part["kind"] not in {"host", "delay"}]
    assert len(operations) > 20
    for part in operations:
        rank, number = map(int, part["row"].split("."))
        starts = store.gpu(rank).tracks[number].row.start_ns
        assert int(part["start"]) in starts
    assert all(part["row"] is None for part in said["parts"] if part["kind"] in {"host", "delay"})


def test_of_very_many_parts_the_longest_are_drawn(
    analysis: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = known(step_path(analysis, STEP))
    monkeypatch.setattr(drawing, "MAX_PARTS", 5)
    said = drawn(Timelines(TimelineSource.of(analysis)), path)
    lengths = sorted((part.end_ns - part.start_ns for part in path.parts), reverse=True)
    assert sorted((part["length"] for part in said["parts"]), reverse=True) == lengths[:5]
    assert said["num_parts"] == len(path.parts)


def test_the_step_at_a_time_is_asked_for(analysis: Analysis) -> None:
    (first, *_) = analysis.result.breakdown
    for step in first.steps:
        start, length = step.measures.window_start_ns, step.measures.window_ns
        for at in (start, start + length - 1):
            assert step_at(first.steps, at) == step.number
    assert step_at(first.steps, 0) == first.steps[0].number
    assert step_at(first.steps, 1 << 60) == first.steps[-1].number
    assert step_at((), 5) is None
    middle = first.steps[STEP].measures.window_start_ns + 1000
    assert answer(analysis, rank=0, at=middle)["step"] == str(STEP)


def test_where_it_cannot_be_known_that_is_said(tmp_path: Path) -> None:
    with analysis_of(TraceBuilder().kernel(0, 100, launch=False).write(tmp_path)) as without_calls:
        said = answer(without_calls, rank=0, at=0)
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
    said = answer(analysis, step=STEP)
    part = next(part for part in said["parts"] if part["row"] is not None)
    timeline = Timeline(page, f"{sample_url}/timeline")
    listed = f"t.data.listed(['{part['row']}'], 0, 1e12)"
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
    page.get_by_role("button", name="what the end of the step waited for").click()
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
