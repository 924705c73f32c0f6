"""The page Overlap where there is nothing to compare."""

from pathlib import Path

from dashboards.address import Address
from dashboards.pages import overlap
from tests.support.builders import TraceBuilder
from tests.support.nccl import ALL_REDUCE
from tests.support.opened import analysis_of
from tests.support.trees import text


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
