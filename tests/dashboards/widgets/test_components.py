"""Pieces of pages."""

from dashboards.widgets.components import missing
from tests.support.dashboard import named, text
from traceprof.findings import NotApplicable


def test_what_is_missing_on_many_ranks_is_said_once() -> None:
    gaps = [
        NotApplicable("overlap-slowdown", f"of {40 + rank} kernels, {rank} are alike", "more", rank)
        for rank in range(64)
        if rank != 5
    ]
    gaps.append(NotApplicable("link-saturated", "no GPU metrics", "sample them", None))
    cards = missing(gaps)
    entries = named(cards, "Li")
    assert [" ".join(text(entry).split()) for entry in entries] == [
        "overlap-slowdown on ranks 0-4, 6-63 rank 0: of 40 kernels, 0 are alike → more",
        "link-saturated no GPU metrics → sample them",
    ]
    assert missing([]) == []


def test_reasons_of_other_words_are_said_apart() -> None:
    gaps = [
        NotApplicable("gpu-idle", "no calls", "record them", 0),
        NotApplicable("gpu-idle", "no threads", "record them", 1),
    ]
    assert len(named(missing(gaps), "Li")) == 2
