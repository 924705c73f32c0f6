"""What the server answers to the timeline, and to anybody who asks for something else."""

import json
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from werkzeug.test import TestResponse

from dashboards.server.app import create_app
from dashboards.timeline import store as timeline_store
from dashboards.timeline import tiles as timeline_tiles
from dashboards.timeline.store import Timelines
from tests.support.builders import TraceBuilder
from tests.support.dashboard import damage_host
from tests.support.selection import long_after
from tests.support.traces import SAMPLE, analysis_of
from traceprof.errors import TraceFormatError
from traceprof.trace.nsight import schema

Get = Callable[..., TestResponse]

UTC = 1_726_722_437_796_624_059


def client(path: Path) -> Iterator[Get]:
    with analysis_of(path) as analysis:
        browser = create_app(analysis).server.test_client()

        def get(route: str, **parameters: object) -> TestResponse:
            response: TestResponse = browser.get(f"/timeline/{route}", query_string=parameters)
            return response

        yield get


@pytest.fixture(scope="module")
def sample() -> Iterator[Get]:
    yield from client(SAMPLE)


def answer(response: TestResponse) -> Any:
    assert response.status_code == 200
    return json.loads(response.get_data())


@pytest.mark.parametrize("span", long_after(1, [5, 1, 20, 40]))
def test_names_are_there_down_to_single_nanoseconds(sample: Get, span: int) -> None:
    gpu = next(
        row["row"] for row in answer(sample("rank", rank=0))["rows"] if row["source"] == "op"
    )
    kernel = answer(sample("event", id="0.op.0"))
    middle = (int(kernel["start"]) + int(kernel["end"])) // 2
    shown = answer(sample("tiles", rows=gpu, start=middle, end=middle + span, columns=1000))
    tile = shown["rows"][gpu]
    assert tile["columns"] == span
    assert [tile["names"][str(name)] for name in tile["name"]] == [kernel["label"]]


def rows_of(get: Get, rank: int = 0) -> list[str]:
    return [row["row"] for row in answer(get("rank", rank=rank))["rows"]]


def events(tile: dict[str, Any]) -> int:
    return len(tile["event"]) + int(sum(tile["count"]))


@pytest.mark.parametrize("columns", long_after(2, [7, 800, 1, 8192]))
def test_a_view_of_everything_holds_every_event(sample: Get, columns: int) -> None:
    rank = answer(sample("rank", rank=0))
    view = {"start": rank["start"], "end": int(rank["end"]) + 1, "columns": columns}
    keys = ",".join(row["row"] for row in rank["rows"])
    shown = answer(sample("tiles", rows=keys, **view))["rows"]
    for row in rank["rows"]:
        assert events(shown[row["row"]]) == row["events"]


def test_times_are_exact_however_late_the_clock(tmp_path: Path) -> None:
    trace = TraceBuilder().kernel(UTC, UTC + 3, "a").kernel(UTC + 5, UTC + 900_001, "b")
    for get in client(trace.write(tmp_path)):
        rank = answer(get("rank", rank=0))
        assert (rank["start"], rank["end"]) == (str(UTC), str(UTC + 900_001))
        row = rank["rows"][0]["row"]
        shown = answer(get("tiles", rows=row, start=UTC, end=UTC + 10, columns=2000))["rows"][row]
        assert shown["columns"] == 10
        assert list(zip(shown["begin"], shown["length"], strict=True)) == [(0, 3), (5, 5)]
        event = answer(get("event", id=f"0.op.{shown['event'][1]}"))
        assert (event["start"], event["end"]) == (str(UTC + 5), str(UTC + 900_001))


@pytest.mark.long
def test_a_reply_stays_small_whatever_is_asked(tmp_path: Path) -> None:
    # Two hundred streams, each with a kernel of its own name in every pixel.
    rng = np.random.default_rng(5)
    trace = TraceBuilder()
    for stream in range(200):
        for start in range(0, 2000, 50):
            length = int(rng.integers(1, 50))
            name = f"{'é' * 150}{stream}_{start}"
            trace.kernel(start, start + length, name, stream=stream, launch=False)
    for get in client(trace.write(tmp_path)):
        rows = rows_of(get)
        response = get("tiles", rows=",".join(rows), start=0, end=2000, columns=2000)
        assert len(response.get_data()) < 300_000
        tiles = answer(response)["rows"]
        assert set(tiles) == set(rows)
        assert {events(tile) for tile in tiles.values()} == {40}
        assert all(1 <= tile["columns"] < 2000 for tile in tiles.values())


def test_what_one_row_does_not_need_is_for_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline_tiles, "MAX_BYTES", 20_000)
    trace = TraceBuilder()
    for start in range(0, 4000, 4):
        trace.kernel(start, start + 3, launch=False)
    for stream in range(10, 20):
        trace.kernel(0, 4000, stream=stream, launch=False)
    for get in client(trace.write(tmp_path)):
        keys = ",".join(rows_of(get))
        response = get("tiles", rows=keys, start=0, end=4000, columns=4000)
        assert len(response.get_data()) <= 20_000
        tiles = answer(response)["rows"]
        columns = {
            row["label"]: tiles[row["row"]]["columns"]
            for row in answer(get("rank", rank=0))["rows"]
            if row["row"] in tiles and row["source"] == "op"
        }
        (crowded, *others) = columns.values()
        assert others == [4000] * 10
        assert crowded == 500


def test_overlapping_events_are_merged_where_they_are_too_many(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for start in range(3000):
        trace.kernel(start, start + 5000, launch=False)
    for get in client(trace.write(tmp_path)):
        row = rows_of(get)[-1]  # below the steps that its periods are
        reply = answer(get("tiles", rows=row, start=0, end=8000, columns=100))["rows"][row]
        assert reply["event"] == []
        assert events(reply) == 3000
        assert reply["share"] == [1000] * 99 + [reply["share"][-1]]


def test_all_of_one_name_come_one_after_the_other_and_then_the_first(sample: Get) -> None:
    (row, *_) = [row["row"] for row in answer(sample("rank", rank=0))["rows"]
                 if row["label"].endswith("communication")]  # fmt: skip
    events = answer(sample("events", rows=row, start=0, end=1 << 60))["events"]
    name = answer(sample("event", id=events[0]["id"]))["name"]
    expected = [event["id"] for event in events
                if answer(sample("event", id=event["id"]))["name"] == name]  # fmt: skip
    assert len(expected) > 5
    for direction, ids in (("next", expected), ("previous", expected[::-1])):
        seen = [ids[0]]
        for _ in ids:
            seen.append(answer(sample("namesake", id=seen[-1], direction=direction))["id"])
        assert seen == [*ids, ids[0]]


def test_a_search_answers_with_what_is_read_and_is_whole_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_read = threading.Event()
    read = Timelines.events

    def read_later(self: Timelines, number: int) -> Any:
        assert may_read.wait(60)
        return read(self, number)

    monkeypatch.setattr(timeline_store, "MAX_WAIT_S", 0.01)
    monkeypatch.setattr(Timelines, "events", read_later)
    question = {"rank": 0, "text": "e", "at": 0, "direction": "next"}
    for get in client(SAMPLE):
        first = answer(get("search", **question))
        assert not first["is_all"]
        assert first["next"]["id"].split(".")[1] in {"op", "step"}
        may_read.set()
        monkeypatch.setattr(timeline_store, "MAX_WAIT_S", 60)
        whole = answer(get("search", **question))
        assert whole["is_all"]
        assert whole["count"] > first["count"]


def test_a_search_says_where_events_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Timelines, number: int) -> Any:
        raise TraceFormatError("cannot read the ranges", f"rank {number}", "export it again")

    monkeypatch.setattr(timeline_store, "MAX_WAIT_S", 60)
    monkeypatch.setattr(Timelines, "events", fail)
    for get in client(SAMPLE):
        reply = get("search", rank=0, text="e", at=0, direction="next")
        assert reply.status_code == 500
        assert "cannot read the ranges" in reply.get_json()["error"]


VIEW = {"rows": "0.0", "start": 0, "end": 10, "columns": 10}
SEARCH = {"rank": 0, "text": "a", "at": 0, "direction": "next"}
EVIL_NUMBERS = ("", " 1", "1_0", "٣", "1e3", "0x10", "nan", "-", "+1", "1" * 40, "../../etc/passwd")
REFUSED: list[tuple[str, dict[str, Any]]] = [
    *(("rank", {"rank": value}) for value in (*EVIL_NUMBERS, "-1", "0,1")),
    *(("tiles", {**VIEW, key: number}) for key in VIEW for number in EVIL_NUMBERS),
    *(("tiles", {**VIEW, "columns": value}) for value in (0, -5, 8193)),
    *(("tiles", {**VIEW, "rows": value}) for value in ("0", "0.", ".0", "0.0.0", "0.0,", "0.-1")),
    ("tiles", {**VIEW, "rows": ",".join(["0.0"] * 257)}),
    ("tiles", {**VIEW, "rows": "0." + "0" * 10_000}),
    ("tiles", {**VIEW, "start": 10}),
    ("tiles", {**VIEW, "start": 11}),
    ("tiles", {**VIEW, "end": 1 << 62}),
    ("tiles", {**VIEW, "start": -(1 << 62)}),
    ("tiles", {**VIEW, "start": ["0", "1"]}),
    *(("tiles", {other: VIEW[other] for other in VIEW if other != key}) for key in VIEW),
    *(("event", {"id": value}) for value in ("", "0.op", "0.op.-1", "0.file.1", "0.op.1.2")),
    ("event", {"id": f"0.op.{1 << 31}"}),
    ("event", {}),
    ("block", {"row": "0.0", "start": 0}),
    ("block", {"row": "../x", "start": 0, "end": 1}),
    ("path", {}),
    *(("path", {"step": value}) for value in EVIL_NUMBERS),
    ("path", {"rank": 0}),
    ("path", {"rank": "x", "start": 0, "end": 1}),
    *((way, {"id": "0.op", "direction": "next"}) for way in ("namesake", "neighbour")),
    *((way, {"id": "0.op.0", "direction": "up"}) for way in ("namesake", "neighbour")),
    ("search", {**SEARCH, "text": ""}),
    ("search", {**SEARCH, "text": "x" * 4001}),
    ("search", {**SEARCH, "direction": "up"}),
    ("search", {**SEARCH, "from": "0.op"}),
    ("search", {**SEARCH, "rank": ",".join(["0"] * 1025)}),
    ("search", {key: SEARCH[key] for key in ("rank", "text", "at")}),
]
MISSING: list[tuple[str, dict[str, Any]]] = [
    ("rank", {"rank": 99}),
    ("tiles", {**VIEW, "rows": "0.99"}),
    ("tiles", {**VIEW, "rows": "99.0"}),
    ("event", {"id": "99.op.0"}),
    ("event", {"id": "0.op.999999"}),
    ("event", {"id": "0.range.999999"}),
    ("block", {"row": "0.99", "start": 0, "end": 1}),
    ("path", {"rank": 99, "start": 0, "end": 1}),
    *(
        (way, {"id": event, "direction": "next"})
        for way in ("namesake", "neighbour")
        for event in ("99.op.0", "0.op.999999")
    ),
    *(("collective", {"id": event}) for event in ("0.op.0", "0.call.0", "0.op.999999")),
    ("search", {**SEARCH, "rank": "0,99"}),
    ("search", {**SEARCH, "from": "0.op.999999"}),
    ("search", {**SEARCH, "from": "1.op.0"}),
]


def test_what_cannot_be_answered_is_refused_and_logged(
    sample: Get, caplog: pytest.LogCaptureFixture
) -> None:
    for status, cases in ((400, REFUSED), (404, MISSING)):
        for route, parameters in cases:
            caplog.clear()
            with caplog.at_level(logging.WARNING):
                response = sample(route, **parameters)
            assert response.status_code == status, (route, parameters)
            (line,) = [record.getMessage() for record in caplog.records]
            assert f"/timeline/{route}" in line
            assert line.isprintable()
    # The process goes on.
    assert sample("rank", rank=0).status_code == 200


def test_the_extremes_that_are_allowed(sample: Get) -> None:
    limit = (1 << 62) - 1
    reply = answer(sample("tiles", rows="0.0", start=-limit, end=limit, columns=8192))
    assert events(reply["rows"]["0.0"]) == 6
    reply = answer(sample("tiles", rows="0.0", start=limit - 1, end=limit, columns=1))
    assert events(reply["rows"]["0.0"]) == 0


def test_a_report_that_is_damaged_where_the_analysis_did_not_look(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage_host(monkeypatch)
    for get in client(TraceBuilder().kernel(0, 10).write(tmp_path)):
        with caplog.at_level(logging.ERROR):
            response = get("rank", rank=0)
        assert response.status_code == 500
        assert "'soon'" in json.loads(response.get_data())["error"]
        assert any("'soon'" in record.getMessage() for record in caplog.records)


def test_ranks_not_asked_for_lately_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    with analysis_of(SAMPLE) as analysis:
        kept = Timelines.of(analysis)
        first = kept.whole(0)
        assert kept.whole(0) is first
        monkeypatch.setattr(timeline_store, "_MAX_BYTES", first.nbytes)
        second = kept.whole(1)
        assert kept.whole(1) is second
        assert kept.whole(0) is not first


def test_ranks_of_one_report_have_names_of_their_own(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for rank, name in enumerate(("first", "second")):
        pid = 1000 + rank
        trace.kernel(0, 10, pid=pid, device=rank).nvtx(name, 0, 20, pid=pid)
        trace.nvtx(f"{name} mark", 5, None, pid=pid, event_type=schema.NVTX_MARK)
    with analysis_of(trace.write(tmp_path)) as analysis:
        kept = Timelines.of(analysis)
        for rank, name in enumerate(("first", "second")):
            events = kept.whole(rank).events
            assert events["range"].name_of(0) == name
            assert events["mark"].name_of(0) == f"{name} mark"
