"""Rates over time, against every nanosecond, and the totals of the links' own analyses."""

from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import TraceBuilder
from tests.support.claims import A100
from tests.support.selection import long_after
from tests.support.traces import SAMPLE, analysis_of, ranks_of
from traceprof import intervals
from traceprof.analyses import links
from traceprof.analyses.links.link_counters import link_rates
from traceprof.analysis import analyze
from traceprof.run.opening import Window

times = st.integers(0, 30)
spans = st.lists(st.tuples(times, times).map(sorted), max_size=8)
limits = st.lists(times, min_size=2, max_size=6, unique=True).map(sorted)


@given(spans, limits)
def test_pieces_against_every_nanosecond(spans: list[list[int]], limits: list[int]) -> None:
    start, end = (np.array([span[side] for span in spans], np.int64) for side in (0, 1))
    which, piece, length = intervals.pieces(start, end, np.array(limits, np.int64))
    rows = zip(which.tolist(), piece.tolist(), length.tolist(), strict=True)
    found = {(index, j): took for index, j, took in rows}
    assert len(found) == len(which)
    for index, (a, b) in enumerate(spans):
        for j, (low, high) in enumerate(pairwise(limits)):
            inside = sum(low <= t < high for t in range(a, b))
            if a == b and low <= a < high:
                assert found.pop((index, j)) == 0
            elif inside:
                assert found.pop((index, j)) == inside
    assert found == {}


def test_bytes_of_copies_are_spread_over_their_time(tmp_path: Path) -> None:
    #   pieces     [0      100)[100     200)[200     300)
    #   copies        [50-------150)                  1000 bytes
    #                              [160-180)          600 bytes
    builder = TraceBuilder().memcpy(50, 150, bytes=1000).memcpy(160, 180, bytes=600).kernel(0, 300)
    with closing(analyze(builder.write(tmp_path))) as analysis:
        (rates,) = link_rates(
            analysis.run.ranks[0], Window(0, 300), np.array([0, 100, 200, 300], np.int64)
        )
    assert (rates.direction, rates.source, rates.unit) == ("h2d", "copies", "GB/s")
    assert (rates.peak, rates.is_peak_assumed) == (None, False)  # of a GPU without a name
    assert rates.mean.tolist() == pytest.approx([5, 11, 0])
    assert rates.most[:2].tolist() == pytest.approx([500 / 50, 1100 / 70])
    assert np.isnan(rates.most[2])


def test_the_path_between_two_gpus_is_not_assumed(tmp_path: Path) -> None:
    builder = TraceBuilder().gpu(A100).kernel(0, 300).memcpy(0, 100, bytes=1000)
    builder.memcpy(100, 200, "PtoP", bytes=1000, source=0, destination=1)
    with ranks_of(builder.write(tmp_path)) as (rank, *_):
        rates = link_rates(rank, rank.window, np.array([0, 300], np.int64))
    assert {one.direction: (one.link, one.is_peak_assumed) for one in rates} == {
        "h2d": ("pcie", True), "p2p": (None, False),
    }  # fmt: skip


def test_a_copy_without_length_counts_where_it_is(tmp_path: Path) -> None:
    path = TraceBuilder().memcpy(20, 20, bytes=40).kernel(0, 40).write(tmp_path)
    with closing(analyze(path)) as analysis:
        (rates,) = link_rates(analysis.run.ranks[0], Window(0, 40), np.array([0, 20, 40], np.int64))
    assert rates.mean.tolist() == [0, 2]


@pytest.mark.parametrize(
    "name", long_after(2, ["link-counters", "peer-copies", "ddp", "pageable-copy"])
)
def test_rates_add_up_to_what_the_links_carried(name: str) -> None:
    with analysis_of(SAMPLE.with_stem(name)) as analysis:
        for rank, result in zip(analysis.run.ranks, analysis.of(links), strict=True):
            window = rank.window
            edges = np.linspace(window.start_ns, window.end_ns, 98).astype(np.int64)
            found = link_rates(rank, window, edges)
            uses = (*result.copies.uses, *result.counters.uses)
            assert len(found) == len(uses)
            for rates in found:
                (use,) = (
                    link_use
                    for link_use in uses
                    if (
                        link_use.link,
                        link_use.direction,
                        link_use.peer,
                        link_use.source,
                        link_use.name,
                    )
                    == (rates.link, rates.direction, rates.peer, rates.source, rates.name)
                )
                assert rates.peak == use.peak_gb_per_s
                if rates.source == "copies":
                    carried = float((rates.mean * np.diff(edges)).sum())
                    assert carried == pytest.approx(use.bytes, rel=1e-9)
                else:
                    sampled = np.nan_to_num(rates.mean)
                    assert sampled.max() <= np.nanmax(rates.most) * (1 + 1e-9)
                    assert np.nanmax(rates.most) <= (rates.peak or np.inf) * 1.001
