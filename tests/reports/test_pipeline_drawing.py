"""The drawing of a pipeline shows what was measured."""

from contextlib import closing
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import pytest

from dashboards.address import Address
from dashboards.pages import ranks
from tests.support.dashboard import named
from tests.support.traces import SAMPLE, analysis_of
from traceprof.analyses import pipeline_bubble
from traceprof.analysis import analyze
from traceprof.ranks.passes import BACKWARD, FORWARD
from traceprof.reports import html
from traceprof.reports.drawings import CLASSES, LABELS, WIDTH, pipeline_drawing, pipeline_drawings

PASSES = {"forward": FORWARD, "backward": BACKWARD}
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
    assert len(rows) == 2 * 3  # each stage as it ran, and ideally
    for spans in rows.values():
        spans.sort()
        assert all(low[1] <= high[0] + 0.3 for low, high in pairwise(spans))
    numbers = [box.text for box in drawing.boxes if box.kind == "forward"]
    assert numbers == [str(number) for number in range(4)] * 2 * 3


@pytest.mark.parametrize(("sample", "is_drawn"), [("pipeline-bubble", True), ("ddp", False)])
def test_the_page_draws_pipelines_only(sample: str, is_drawn: bool) -> None:
    with analysis_of(SAMPLE.with_stem(sample)) as analysis:
        assert ("<h2>Pipeline</h2>" in html.render(analysis.result)) == is_drawn


def test_a_production_job_is_drawn(traces: Path) -> None:
    """Two pipelines of four stages side by side, without event records or ranges of its own."""
    with closing(analyze(traces / "kineto" / "bytedance_st")) as analysis:
        found = pipeline_bubble.run(analysis.result.measured).pipelines
        drawings = pipeline_drawings(analysis.measured)
        pictures = named(ranks.layout(analysis, Address()), "Img")
        assert html.render(analysis.result).count("As it ran") == len(found)
    assert len(found) == len(drawings) == len(pictures) == 2
    assert all("in step 8" in drawing.caption for drawing in drawings)
    for pipeline, drawing in zip(found, drawings, strict=True):
        assert [stage.member % 2 for stage in pipeline.stages] == [pipeline.stages[0].member] * 4
        times = 2  # as it ran, and ideally
        for kind in ("forward", "backward"):
            of_step = [
                int(((stage.kind == PASSES[kind]) & (stage.step == 8)).sum())
                for stage in pipeline.stages
            ]
            drawn = [box for box in drawing.boxes if box.kind == kind]
            assert len(drawn) == times * sum(of_step) > 0
        assert {"warm_up", "imbalance"} <= {box.kind for box in drawing.boxes}


@pytest.mark.parametrize(("sample", "is_drawn"), [("pipeline-bubble", True), ("training", False)])
def test_the_dashboard_shows_the_same_drawing(sample: str, is_drawn: bool) -> None:
    with analysis_of(SAMPLE.with_stem(sample)) as analysis:
        page = ranks.layout(analysis, Address())
        of_one = ranks.layout(analysis, Address(rank=(1,)))
        drawings = pipeline_drawings(analysis.measured)
    sources = [image.src for image in named(page, "Img")]
    assert sources == [image.src for image in named(of_one, "Img")]
    assert len(sources) == len(drawings) == is_drawn
    for source, drawing in zip(sources, drawings, strict=True):
        svg = ET.fromstring(unquote(source.partition(",")[2]))  # noqa: S314  (our own)
        boxes = [
            (box.get("class"), float(box.get("x", "")), float(box.get("width", "")))
            for box in svg.iter("{http://www.w3.org/2000/svg}rect")
        ]
        assert boxes == [
            *((box.kind, box.x, box.width) for box in drawing.boxes),
            *((kind, x, 10) for kind, x, _ in drawing.legend),
        ]


def test_parts_of_waits_fill_each_gap_up_to_the_next_pass() -> None:
    with analysis_of(_SAMPLE) as analysis:
        stages = pipeline_bubble.run(analysis.measured).pipelines[0].stages
    for stage in stages:
        expected = []
        for end, parts in zip(stage.gap_end_ns.tolist(), stage.parts_ns.tolist(), strict=True):
            start = end - sum(parts)
            for part, length in enumerate(parts):
                if length:
                    expected.append((start, start + length, part))
                    start += length
        assert [*zip(*(column.tolist() for column in stage.waits), strict=True)] == expected
