"""The search by label and conditions: what is found, where, and in which columns."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dashboards.timeline.events import COMMUNICATION, COPY, OPERATION
from dashboards.timeline.search import COLUMNS, Query, hits, parsed
from dashboards.timeline.store import Timelines
from tests.support.builders import TraceBuilder
from tests.support.dashboard import Ask, asking
from tests.support.traces import SAMPLE, analysis_of
from traceprof.analysis import Analysis
from traceprof.communication.messages import messages
from traceprof.frames.open_run import open_run
from traceprof.intervals import even_limits
from traceprof.units import size_text


def searching(analysis: Analysis) -> Ask:
    ask = asking(analysis)
    first = {"at": 0, "direction": "next"}
    return lambda text, **given: ask("search", text=text, **first | given)


@pytest.mark.parametrize(
    ("written", "query"),
    [
        ("AllReduce", Query("AllReduce")),
        ("two  spaces", Query("two  spaces")),
        ("a rank:0,3 b", Query("a b", ranks=frozenset({0, 3}))),
        ("stream:7 > 1 ms", Query("", streams=frozenset({7}), longer_ns=1e6)),
        ("gemm >1.5us <20µs", Query("gemm", longer_ns=1500, shorter_ns=20_000)),
        ("kind:copy kind:api", Query("", kinds=frozenset({COPY, "host"}))),
        # What is no condition is a name.
        ("void f<1>", Query("void f<1>")),
        ("ns::rank:x kind:other", Query("ns::rank:x kind:other")),
        ("vector<4>s", Query("vector<4>s")),
    ],
)
def test_conditions_stand_anywhere_between_words(written: str, query: Query) -> None:
    assert parsed(written) == query


def test_the_word_on_a_bar_is_found() -> None:
    with analysis_of(SAMPLE.with_stem("training")) as analysis:
        search, said = searching(analysis), messages(analysis.run.ranks[0])
        ask = asking(analysis)
        shown = ask("rank", rank=0)
        row = next(one["row"] for one in shown["rows"] if one["kind"] == COMMUNICATION)
        begin = int(analysis.run.ranks[0].operations.kernels.start_ns[said.kernel[0]])
        tile = ask("tiles", rows=row, start=begin, end=begin + 50, columns=50)["rows"][row]
        operation = said.operations[int(said.operation[0])]
        alike = said.operation == said.operation[0]
        found = search(f"{operation} rank:0 kind:communication")
        assert found["count"] == alike.sum()
        assert found["next"]["id"] == f"0.{OPERATION}.{int(said.kernel[0])}"
        sized = said.bytes == said.bytes[0]
        size = size_text(int(said.bytes[0]))
        assert [*tile["labels"].values()] == [f"{operation} {size}"]
        for written in (
            f"{operation} {size}",
            f"bytes={said.bytes[0]}",
            f"{said.bytes[0]:,} bytes",
        ):
            found = search(f"{written} rank:0 kind:communication")["count"]
            assert found == sized.sum() < len(said)
        of_group = (said.group == said.group[0]).sum()
        group = said.groups[int(said.group[0])]
        assert search(f"group={group} kind:communication rank:0")["count"] == of_group


def test_conditions_are_counted_event_by_event(analysis: Analysis) -> None:
    search = searching(analysis)
    of_rank = analysis.run.ranks[1].operations.kernels
    length, stream = of_rank.ends(np.arange(len(of_rank))) - of_rank.start_ns, of_rank.stream
    limit = int(np.median(length))
    (first, *_) = np.unique(stream).tolist()
    expected = np.flatnonzero((length > limit) & (stream == first))
    copies = analysis.run.ranks[1].operations.copies
    expected_copies = (copies.stream == first) & (copies.packed_length.at(slice(None)) > limit)
    found = search(f"rank:1 stream:{first} > {limit} ns", rank="0,1")
    memsets = analysis.run.ranks[1].operations.memsets
    expected_sets = (memsets.stream == first) & (memsets.packed_length.at(slice(None)) > limit)
    assert found["count"] == len(expected) + expected_copies.sum() + expected_sets.sum()
    assert search(f"rank:1 stream:{first} kind:compute > {limit} ns")["count"] <= len(expected)
    assert search("kind:step rank:0")["count"] == len(analysis.result.breakdown[0].steps)
    assert search("kind:compute kind:mark stream:99999")["count"] == 0
    seen, at = [], {"direction": "next"}
    for _ in range(found["count"]):  # one after the other, none twice
        hit = search(f"rank:1 stream:{first} > {limit} ns", **at)["next"]
        seen.append(hit["id"])
        at["from"] = hit["id"]
    assert len(set(seen)) == found["count"]


@pytest.mark.parametrize("columns", [1, 7, 600])
@pytest.mark.parametrize("written", ["gemm", "kind:communication", "> 20 us", "cuda"])
def test_hits_are_marked_where_they_begin(analysis: Analysis, written: str, columns: int) -> None:
    store = Timelines.of(analysis)
    ranks = {number: store.events(number) for number in store.numbers}
    query = parsed(written)
    start, end = store.gpu(0).extent_ns or (0, 1)
    middle = (start + end) // 2
    begins = []
    for number in store.numbers:
        for track in store.whole(number).tracks:
            if track.samples is not None or track.kind == "marks":
                continue
            names = ranks[number][track.source]
            for place, index in enumerate(track.index.tolist()):
                length = int(track.row.length(place))
                is_named = query.text.lower() in names.name_of(index).lower()
                is_kind = not query.kinds or track.kind == COMMUNICATION
                if is_named and is_kind and (query.longer_ns is None or length > query.longer_ns):
                    begins.append(int(track.row.start_ns[place]))
    borders = even_limits(start, middle, columns)
    inside = np.array([begin for begin in begins if start <= begin < middle])
    expected = np.unique(np.searchsorted(borders, inside, side="right") - 1).tolist()
    assert hits(ranks, query, start, middle, columns) == expected


def test_a_kernel_of_several_shapes_is_counted_in_full(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for number, grid in enumerate([(1, 1, 1), (2, 1, 1), (2, 1, 1)]):
        trace.kernel(10 * number, 10 * number + 5, "gemm", grid=grid, launch=False)
    with analysis_of(trace.write(tmp_path)) as analysis:
        found = searching(analysis)("gemm")
    assert found["names"] == [{"label": "gemm", "count": found["count"]}]
    assert found["count"] == 3


def test_ranges_are_as_long_as_they_are_beside_stalls_of_the_host() -> None:
    with analysis_of(SAMPLE.with_stem("host-stall")) as analysis:
        rank = analysis.run.ranks[0]
        ranges = rank.trace.range_table(rank.process)
        length = ranges.end_ns - ranges.start_ns
        limit = int(np.median(length))
        found = searching(analysis)(f"kind:range > {limit} ns rank:0")
    assert found["count"] == (length > limit).sum() > 0


TRAINING = SAMPLE.with_stem("training")


@pytest.fixture(scope="module")
def listing() -> Iterator[Ask]:
    with analysis_of(TRAINING) as analysis:
        yield partial(asking(analysis), "matches", most=9000)


def test_a_list_says_of_each_match_what_the_tables_say(listing: Ask) -> None:
    expected: list[Any] = []
    with open_run(TRAINING) as run:
        for rank in (0, 1):
            kernels, copies = run.kernels(rank), run.copies(rank)
            sent = run.communication(rank).set_index("start_ns")["bytes"]
            kernels["bytes"] = sent.reindex(kernels["start_ns"]).to_numpy()
            columns = ["start_ns", "duration_ns", "bytes", "place"]
            for operations in (kernels[columns], copies[columns]):
                rows: Any = operations[operations["duration_ns"] > 2_000].to_numpy(object)
                expected += [(rank, *(None if pd.isna(at) else at for at in row)) for row in rows]
    listed = listing(text="kind:compute kind:communication kind:copy > 2 us", order="-duration")
    found = [
        (row["rank"], int(row["start"]), row["duration"], row["bytes"], row["place"])
        for row in listed["events"]
    ]
    assert listed["count"] == len(found) == len(expected) > 100
    assert all({row[column] for row in found} > {None} for column in (3, 4))
    calls = listing(text="kind:api", order="start")["events"]
    assert {call["bytes"] for call in calls} == {None}
    assert found == sorted(expected, key=lambda row: (-row[2], row[1]))


@pytest.mark.parametrize("column", COLUMNS)
def test_a_list_is_ordered_over_all_matches_and_unknown_values_come_last(
    listing: Ask, column: str
) -> None:
    query = "kind:communication kind:step kind:api a"
    (every,) = (listing(text=query, order="start")["events"],)

    def key(row: dict[str, Any]) -> Any:
        return int(row[column]) if column == "start" else row[column]

    known = [key(row) for row in every if row[column] is not None]
    assert len(set(known)) > 1
    for order, is_reversed in ((column, False), (f"-{column}", True)):
        rows = listing(text=query, order=order)["events"]
        assert [row["id"] for row in rows] != [row["id"] for row in every] or order == "start"
        values = [key(row) for row in rows if row[column] is not None]
        assert values == sorted(known, reverse=is_reversed)
        assert all(row[column] is None for row in rows[len(known) :])
        few = listing(text=query, order=order, most=7)
        assert few["events"] == rows[:7]
        assert few["count"] == len(rows)


def test_the_step_of_an_event_is_that_in_which_it_begins(listing: Ask) -> None:
    rows = listing(text="AllReduce rank:1", order="rank")["events"]
    assert len({row["step"] for row in rows}) > 3
    with analysis_of(TRAINING) as analysis:
        steps = [(step.number, step.measures) for step in analysis.result.breakdown[1].steps]
    for row in rows:
        since = {number: int(row["start"]) - of.window_start_ns for number, of in steps}
        within = [number for number, of in steps if 0 <= since[number] < of.window_ns]
        assert within == ([] if row["step"] is None else [row["step"]])
