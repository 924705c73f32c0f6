"""What is said of one event, of many in a block, and of those whose names match."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dashboards.timeline.detail import describe, summarize
from dashboards.timeline.events import Events
from dashboards.timeline.search import Place, Query, after, place_of, search
from dashboards.timeline.tracks import RankTimeline
from tests.support.builders import TraceBuilder, record, wait
from tests.support.dashboard import drawn, timelines
from tests.support.selection import known
from traceprof.kernel_names import function_name
from traceprof.trace.nsight import schema

SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "void cutlass::Kernel<cutlass_80_gemm>(cutlass_80_gemm::Params)"


def event_of(timeline: RankTimeline, source: str, index: int) -> dict[str, Any]:
    event = known(describe(timeline, source, index))
    return {**event, "facts": dict(event["facts"])}


@pytest.fixture
def timeline(tmp_path: Path) -> Iterator[RankTimeline]:
    trace = (
        TraceBuilder()
        .nvtx("step 0", 0, 500)
        .nvtx("forward", 2, 450)
        .nvtx("elsewhere", 0, 999, tid=7)
        .kernel(100, 300, GEMM, grid=(8, 4, 1), block=(256, 1, 1), launch=(10, 25))
        .memcpy(310, 330, "HtoD", bytes=4000, launch=(30, 36), pageable=True, stream=9)
        .memset(340, 341, bytes=64, launch=False)
        .kernel(400, 405, "a", correlation=77, launch=(390, 395))
        .kernel(406, 410, "b", correlation=77, launch=False)
        .nvtx("still open", 420, None)
    )
    with timelines(trace, tmp_path) as (event,):
        yield event


def test_an_operation_whose_call_is_not_in_the_capture(timeline: RankTimeline) -> None:
    event = event_of(timeline, "op", 4)
    assert event["name"] == "memset"
    assert event["facts"]["size"] == "64 B, 64 GB/s"
    assert event["facts"]["launched by"] == "a call that the capture does not hold"
    assert event["links"] == []


def test_a_call_that_launched_two(timeline: RankTimeline) -> None:
    (call,) = event_of(timeline, "op", 2)["links"]
    event = event_of(timeline, "call", int(call["id"].split(".")[2]))
    assert event["facts"]["launched"] == "2 operations"
    assert [link["label"] for link in event["links"]] == ["a", "b"]


def test_ranges(timeline: RankTimeline) -> None:
    by_name = {
        timeline.events["range"].name_of(index): event_of(timeline, "range", index)
        for index in range(len(timeline.events["range"]))
    }
    assert by_name["forward"]["facts"] == {"thread": "1000", "inside": "step 0"}
    assert by_name["still open"]["facts"] == {
        "thread": "1000",
        "end": "still open when the capture stopped",
        "inside": "step 0 > forward",
    }
    assert by_name["elsewhere"]["facts"] == {"thread": "7"}


@pytest.mark.parametrize("event", [("op", 6), ("op", 10**9), ("call", 99), ("range", 99)])
def test_there_is_no_such_event(timeline: RankTimeline, event: tuple[str, int]) -> None:
    assert describe(timeline, *event) is None


def test_without_api_calls(tmp_path: Path) -> None:
    with timelines(TraceBuilder().kernel(0, 10, launch=False), tmp_path) as (timeline,):
        launched_by = event_of(timeline, "op", 0)["facts"]["launched by"]
        assert launched_by == "not known: the report holds no API calls"


def test_an_unknown_message_is_said_to_be_unknown(tmp_path: Path) -> None:
    with timelines(TraceBuilder().kernel(0, 10, SEND), tmp_path) as (timeline,):
        facts = event_of(timeline, "op", 0)["facts"]
        assert facts["operation"] == "SendRecv"
        assert facts["message"].startswith("not known")


def test_what_a_block_stands_for(timeline: RankTimeline) -> None:
    compute = next(track for track in timeline.tracks if track.kind == "compute")
    assert summarize(timeline, compute, 299, 407) == {
        "count": 3,
        "num_names": 3,
        "names": [
            {
                "name": "cutlass_80_gemm · cutlass::Kernel",
                "count": 1,
                "total": "200",
                "longest": "200",
            },
            {"name": "a", "count": 1, "total": "5", "longest": "5"},
            {"name": "b", "count": 1, "total": "4", "longest": "4"},
        ],
    }
    assert summarize(timeline, compute, 300, 401)["id"] == "0.op.1"
    assert summarize(timeline, compute, 301, 302) == {"count": 0, "num_names": 0, "names": []}


def events_of(*ranks: RankTimeline) -> dict[int, dict[str, Events]]:
    """Return what is searched."""
    return {timeline.rank.rank: timeline.events for timeline in ranks}


def walk(ranks: list[RankTimeline], text: str, *, backwards: bool = False) -> list[str]:
    """Return the ids of the matches in the order in which the search goes through them."""
    event: list[str] = []
    at = Place(-(10**6))
    while True:
        following = search(events_of(*ranks), Query(text), at, backwards=backwards)["next"]
        if following is None or following["id"] in event:
            return event
        assert following["number"] == len(event) + 1 or backwards
        event.append(following["id"])
        rank, source, index = following["id"].split(".")
        place = known(place_of(events_of(*ranks), int(rank), source, int(index)))
        at = place if backwards else after(place)


NAMES = ("alpha", "Beta", "ALPHABET", "gamma<alpha>(int)", "(anonymous namespace)::delta")


@settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 9),
            st.integers(0, 4),
            st.sampled_from(NAMES),
            st.sampled_from([0, 1]),
            st.sampled_from([7, 20]),
        ),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from(["alpha", "a", "BETA", "delta", "unnamed", "zeta"]),
)
def test_the_search_goes_through_all_that_match(
    tmp_path_factory: pytest.TempPathFactory,
    events: list[tuple[int, int, str, int, int]],
    text: str,
) -> None:
    trace = TraceBuilder()
    for start, length, name, device, stream in events:
        trace.kernel(start, start + length, name, device=device, stream=stream, launch=False)
    with timelines(trace, tmp_path_factory.mktemp("search")) as ranks:
        expected = sorted(
            (start, timeline.rank.rank, int(timeline.tracks[row].index[place]))
            for timeline in ranks
            for row, (_, _, _, in_row) in enumerate(drawn(timeline))
            for place, (start, _, name) in enumerate(in_row)
            if text.lower() in f"{name} {function_name(name)}".lower()
        )
        ids = [f"{rank}.op.{index}" for _, rank, index in expected]
        assert walk(ranks, text) == ids
        # Backwards from before the first one, it goes round to the last.
        assert walk(ranks, text, backwards=True) == ids[::-1]
        summary = search(events_of(*ranks), Query(text), Place(0))
        assert summary["count"] == len(ids)
        assert sum(name["count"] for name in summary["names"]) == len(ids)


def test_the_search_finds_ranges_calls_and_steps(timeline: RankTimeline) -> None:
    assert search(events_of(timeline), Query("STEP"), Place(0))["names"] == [
        {"label": "step 0", "count": 2}
    ]
    summary = search(events_of(timeline), Query("launch"), Place(11))
    assert summary["next"] is not None
    assert (summary["next"]["start"], summary["count"]) == ("390", 2)


def test_a_name_with_a_line_break_is_one_name(tmp_path: Path) -> None:
    trace = TraceBuilder().kernel(0, 1).nvtx("two\nlines", 0, 9).nvtx("other", 10, 11)
    with timelines(trace, tmp_path) as ranks:
        # The range, and the kernel's place in it.
        assert search(events_of(*ranks), Query("two\nlines"), Place(0))["count"] == 2
        assert search(events_of(*ranks), Query("lines\nother"), Place(0))["count"] == 0


def test_too_many_names_are_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dashboards.timeline.search._MAX_COUNTED", 2)
    trace = TraceBuilder().kernel(0, 1, "k")
    for index in range(3):
        trace.nvtx(f"op_id = {index}", index, index + 1, event_type=schema.NVTX_PUSH_POP)
    with timelines(trace, tmp_path) as ranks:
        event = search(events_of(*ranks), Query("op_id"), Place(0))
        # The ranges, and the place of the kernel.
        assert (event["count"], event["num_names"], event["names"]) == (4, 4, [])


def test_an_operation_leads_to_what_waited_for_it(tmp_path: Path) -> None:
    trace = (
        TraceBuilder()
        .kernel(100, 200, "backward", launch=(10, 11))
        .kernel(210, 260, "next backward", launch=(20, 21))
        .kernel(205, 400, SEND, stream=20, launch=(30, 31))
        .kernel(410, 450, "optimizer", launch=(40, 41))
    )
    record(trace, 1, 7, 12)
    wait(trace, 1, 20, 14)
    record(trace, 2, 20, 32)
    wait(trace, 2, 7, 34)
    with timelines(trace, tmp_path) as (timeline,):
        names = [timeline.events["op"].name_of(index) for index in range(4)]

        def links(name: str) -> list[tuple[str, str]]:
            event = event_of(timeline, "op", names.index(name))
            return [
                (link["relation"], link["name"])
                for link in event["links"]
                if link["relation"] != "launched by"
            ]

        assert links("backward") == [("awaited by", SEND)]
        assert links(SEND) == [("waited for", "backward"), ("awaited by", "optimizer")]
        assert links("optimizer") == [("waited for", SEND)]
        assert links("next backward") == []
