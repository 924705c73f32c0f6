"""The page Overlap: the kernels that cost most first, and where there is nothing to compare."""

from pathlib import Path

import pytest

from dashboards.address import Address
from dashboards.pages import overlap
from tests.support.builders import ALL_REDUCE, TraceBuilder
from tests.support.dashboard import named, text
from tests.support.traces import SAMPLE, analysis_of
from traceprof.analyses import overlap_slowdown


def page(trace: TraceBuilder, path: Path) -> str:
    with analysis_of(trace.write(path)) as analysis:
        return text(overlap.layout(analysis, Address()))


def test_without_overlap_no_steps_are_asked_for(tmp_path: Path) -> None:
    """That more steps would show more is said only of kernels that ran beside communication."""
    alone = TraceBuilder().kernel(0, 1000).kernel(1000, 2000, ALL_REDUCE, stream=20)
    beside = TraceBuilder().kernel(0, 1000).kernel(500, 2000, ALL_REDUCE, stream=20)
    said = page(alone, tmp_path / "a.sqlite"), page(beside, tmp_path / "b.sqlite")
    assert ["No kernel ran beside communication." in one for one in said] == [True, False]
    assert ["record more steps" in one for one in said] == [False, True]


def test_the_kernels_that_cost_most_come_first_whatever_their_rank() -> None:
    with analysis_of(SAMPLE.with_stem("overlap-slowdown")) as analysis:
        found = analysis.result.of(overlap_slowdown)
        shown = named(overlap.layout(analysis, Address()), "AgGrid")[-1].rowData
    costs = sorted((one.excess_ns for rank in found for one in rank.signatures), reverse=True)
    assert [row["excess_ns"] for row in shown] == pytest.approx(costs)
    assert len({row["rank"] for row in shown}) == len(found) > 1
