"""The search by label and conditions: what is found, where, and in which columns."""

from pathlib import Path

import numpy as np
import pytest

from dashboards.timeline.events import COMMUNICATION, COPY
from dashboards.timeline.search import Query, hits, parsed
from dashboards.timeline.store import Timelines
from tests.support.builders import TraceBuilder
from tests.support.dashboard import Ask, asking
from tests.support.traces import analysis_of
from traceprof.analysis import Analysis
from traceprof.intervals import even_limits


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
