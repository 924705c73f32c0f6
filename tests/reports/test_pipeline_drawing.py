"""The drawing of a pipeline shows what was measured."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.support.opened import analysis_of
from tests.support.traces import SAMPLE
from traceprof.analyses import pipeline_bubble
from traceprof.reports import html
from traceprof.reports.drawings import LABELS, WIDTH
from traceprof.reports.pipeline_drawing import CLASSES, pipeline_drawing

_SAMPLE = SAMPLE.with_stem("pipeline-bubble")


def test_a_step_shows_every_pass_and_what_lies_between() -> None:
    with analysis_of(_SAMPLE) as analysis:
        found = pipeline_bubble.run(analysis.result.measured)
        drawing = pipeline_drawing(found.pipelines[0], found.ranks)
    assert drawing is not None
    rows: dict[int, list[tuple[float, float]]] = {}
    for box in drawing.boxes:
        assert box.kind in CLASSES
        assert box.x >= LABELS
        assert box.x + box.width <= WIDTH + 0.2
        rows.setdefault(int(box.y), []).append((box.x, box.x + box.width))
    assert len(rows) == 2 * 4  # each stage as it ran, and ideally
    for spans in rows.values():
        spans.sort()
        assert all(low[1] <= high[0] + 0.3 for low, high in pairwise(spans))
    numbers = [box.text for box in drawing.boxes if box.kind == "forward"]
    assert numbers == [str(number) for number in range(8)] * 2 * 4


@pytest.mark.parametrize(("sample", "is_drawn"), [("pipeline-bubble", True), ("ddp", False)])
def test_the_page_draws_pipelines_only(sample: str, is_drawn: bool) -> None:
    with analysis_of(SAMPLE.with_stem(sample)) as analysis:
        assert ("<h2>Pipeline</h2>" in html.render(analysis.result)) == is_drawn
