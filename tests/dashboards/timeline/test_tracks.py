"""Marks on the timeline: moments that the program named."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from dashboards.timeline.events import OPERATOR, OPERATORS
from dashboards.timeline.store import Timelines
from tests.support.dashboard import Ask, Serve, Timeline, asking
from tests.support.traces import SAMPLE, analysis_of

MARKS = SAMPLE.with_stem("marks")
TRUTH = json.loads(MARKS.with_suffix(".truth.json").read_text())["marks"]
OF_RANK_0 = [mark for mark in TRUTH if mark["rank"] == 0]


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    with analysis_of(MARKS) as analysis:
        yield asking(analysis)


@pytest.fixture(scope="module")
def row(ask: Ask) -> dict[str, Any]:
    (row,) = (row for row in ask("rank", rank=0)["rows"] if row["source"] == "mark")
    return dict(row)


@pytest.mark.parametrize("columns", [1, 10, 100, 1000, 8000])
def test_each_is_shown_alone_or_counted(ask: Any, row: dict[str, Any], columns: int) -> None:
    times = [mark["time_ns"] for mark in OF_RANK_0]
    start, end = times[0], times[-1] + 1
    tile = ask("tiles", rows=row["row"], start=start, end=end, columns=columns)["rows"][row["row"]]
    assert tile["columns"] == -(-columns // 10)
    assert len(tile["event"]) + sum(tile["count"]) == len(times)
    assert [start + begin for begin in tile["begin"]] == [times[event] for event in tile["event"]]
    assert set(tile["length"]) <= {0}
    assert set(tile["share"]) <= {0}


def test_a_name_is_sent_where_it_has_room(ask: Any, row: dict[str, Any]) -> None:
    # In one thousand columns of 10 ns: the second follows the first after 50 ns.
    first, second = (mark["time_ns"] for mark in OF_RANK_0[2:4])
    view = {"start": first - 100, "end": second + 100, "columns": 1000}
    tile = ask("tiles", rows=row["row"], **view)["rows"][row["row"]]
    said = [tile["names"].get(str(name)) for name in tile["name"]]
    assert said == ["loss is read 0", None]


@pytest.fixture
def timeline(page: Page, serve: Serve) -> Timeline:
    return Timeline(page, f"{serve(MARKS)}/timeline?rank=0")


@pytest.mark.long
def test_a_mark_is_a_yellow_diamond_with_its_name_in_the_tooltip(timeline: Timeline) -> None:
    timeline.ask(f"t.setView({{start: {OF_RANK_0[2]['time_ns']} - 5e4, span: 1e5}})")
    timeline.wait()
    timeline.wait_for_frames()
    x, y = timeline.place("0.mark.2")
    red, green, blue = timeline.color(x, y)
    assert min(red, green) > 200
    assert blue < 120
    timeline.page.mouse.move(x + 4, y)
    tooltip = timeline.page.locator(".pointer-note")
    expect(tooltip).to_contain_text("loss is read 0")
    expect(tooltip).to_contain_text("mark · thread 4242")
    timeline.page.mouse.click(x + 4, y)
    expect(timeline.page.locator(".timeline-detail h2")).to_have_text("loss is read 0")
    assert "a mark of the program" in timeline.panel
    assert timeline.page.locator(".timeline-bar .legend").get_by_text("marks").is_visible()


@pytest.mark.long
def test_by_key_from_one_to_the_next(timeline: Timeline) -> None:
    timeline.press("w", "w")  # of the whole run, no other moment can be in the middle
    _, span = timeline.view
    timeline.page.keyboard.press("/")
    timeline.page.keyboard.type("loss is read 3")
    timeline.page.keyboard.press("Enter")
    detail = timeline.page.locator(".timeline-detail")  # a live region, which is read out
    expect(detail.locator("h2")).to_have_text("loss is read 3")
    timeline.page.keyboard.press("Escape")
    timeline.press(".")
    expect(detail.locator("h2")).to_have_text("batch is there")
    timeline.press(",")
    expect(detail.locator("h2")).to_have_text("loss is read 3")
    timeline.press("f")
    start, now = timeline.view
    assert now == span  # a moment is no piece of time to zoom to
    assert start + now / 2 == next(
        mark["time_ns"] for mark in OF_RANK_0 if mark["name"] == "loss is read 3"
    )


@pytest.mark.long
def test_marks_that_lie_near_are_told_together(timeline: Timeline) -> None:
    times = [mark["time_ns"] for mark in OF_RANK_0]
    places = timeline.ask(
        "(() => { const row = t.rows.find((row) => row.track?.kind === 'marks');"
        " const tile = t.data.tiles.get(row.track.row); const unit = tile.span / tile.columns;"
        " const box = t.panel.canvas.getBoundingClientRect();"
        " return tile.column.map((column) => [box.left + t.painter.x(tile.start + (column + .5)"
        " * unit), box.top + row.top + row.height / 2]); })()"
    )
    assert 0 < len(places) < len(times)
    timeline.page.mouse.click(*places[-1])
    expect(timeline.page.locator(".timeline-detail h2")).to_have_text("2 events")
    assert "covered" not in timeline.panel
    assert "loss is read 5" in timeline.panel


@pytest.mark.traces
def test_real_marks_are_found(traces: Path) -> None:
    report = traces / "rtx3090x6_2nodes_ring" / "report_0.sqlite"
    with closing(sqlite3.connect(f"file:{report}?mode=ro", uri=True)) as database:
        query = (
            "SELECT count(*) FROM NVTX_EVENTS WHERE eventType IN (34, 59, 60)"
            " AND text LIKE '%ncclNetIrecv%'"
        )
        ((expected,),) = database.execute(query)
        ((marks,),) = database.execute(f"{query} AND eventType = 34")
    with analysis_of(report) as analysis:
        search = {"text": "ncclNetIrecv", "at": 0, "direction": "next"}
        matches = asking(analysis)("search", rank=0, **search)
    assert matches["count"] == expected > marks > 0


def test_the_launching_code_of_a_kernel_and_the_rows_of_operators(traces: Path) -> None:
    path = traces / "kineto/h100_timesformer.json.gz"
    if not path.exists():
        pytest.skip("TRACEPROF_TRACES has no h100_timesformer")
    with analysis_of(path) as analysis:
        (launched,) = analysis.measured.launched
        rank = analysis.run.ranks[0]
        kernels = rank.operations.kernels
        names = [rank.kernel_names[id_] for id_ in kernels.name_of_signature.tolist()]
        of_kernel = [names[number] for number in kernels.packed_signature.values.tolist()]
        once = [name for name in launched.by_name if of_kernel.count(name) == 1]
        assert once
        for name in once:  # a name that ran once was launched by what launched most of its time
            event = asking(analysis)("event", id=f"{rank.rank}.op.{of_kernel.index(name)}")
            facts, expected = dict(event["facts"]), launched.of(name)
            assert facts.get("operator") == expected.operator
            assert facts.get("module") == expected.module
            assert facts.get("source") == expected.source
        store = Timelines.of(analysis)
        rows = [track for track in store.whole(rank.rank).tracks if track.kind == OPERATORS]
        assert rows
        assert all(track.is_folded and track.source == OPERATOR for track in rows)
        operators = rank.trace.operators(rank.process)
        assert operators is not None
        index = np.sort(np.concatenate([track.index for track in rows]))
        assert index.tolist() == list(range(len(operators)))
        first = asking(analysis)("event", id=f"{rank.rank}.{OPERATOR}.0")
        assert int(first["start"]) == int(operators.start_ns[0])
        assert first["name"] == operators.names[int(operators.packed_name.values[0])]
