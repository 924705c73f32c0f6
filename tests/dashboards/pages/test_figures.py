"""Charts of runs of any size, and pages whatever the names in them."""

import gzip
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from dashboards.address import Address
from dashboards.clock import Clock
from dashboards.pages import steps as step_figures
from dashboards.pages.registry import PAGES
from dashboards.pages.steps import color_range
from dashboards.server.app import _page, create_app
from dashboards.view import View
from dashboards.widgets.charts import envelope, shortened
from dashboards.widgets.components import Split
from dashboards.widgets.findings import DRAWING
from tests.support.builders import TraceBuilder
from tests.support.dashboard import charts, components, named, text
from tests.support.traces import GPU_SAMPLES, SAMPLE, analysis_of
from traceprof.analyses.breakdown import BreakdownResult, Measures, StepMeasures
from traceprof.analysis import Analysis
from traceprof.documents.analysis.records import document
from traceprof.intervals import even_limits
from traceprof.run.rank import WindowKind

SHAPES = {"svg", "style", "g", "rect", "line", "path", "text", "title"}  # of pictures


@pytest.fixture(scope="module", params=GPU_SAMPLES, ids=lambda path: path.stem)
def analysis(request: pytest.FixtureRequest) -> Iterator[Analysis]:
    with analysis_of(request.param) as opened:
        yield opened


def many_steps(num: int) -> BreakdownResult:
    def measures(length: int) -> Measures:
        return Measures(0, length, length - 3, 2, 0, 2, 0, 0, 1, 1, 1, 0)

    lengths = np.random.default_rng(0).integers(10, 99, num).tolist()
    lengths[num // 2] = 5000  # one slow step among many
    steps = tuple(StepMeasures(index, measures(length)) for index, length in enumerate(lengths))
    whole = measures(sum(lengths))
    return BreakdownResult(0, whole, steps, whole, WindowKind.WHOLE, None)


@pytest.mark.parametrize("num", [1, 299, 300, 301, 5000])
def test_many_steps_are_grouped_and_none_is_lost(num: int) -> None:
    result = many_steps(num)
    bars = step_figures.step_bars([result])
    assert len(bars.grid.position) == min(num, step_figures.MAX_BARS)
    sizes = bars.grid.last[0] - bars.grid.first[0] + 1
    total = (bars.parts_ns.sum(axis=0) * sizes).sum()
    assert total == pytest.approx(result.whole.window_ns)
    assert bars.longest_ns.max() == 5000
    assert bars.shortest_ns.min() == min(step.measures.window_ns for step in result.steps)


def test_numbers_that_come_again_are_drawn_in_order() -> None:
    result = many_steps(4)
    again = replace(result, steps=tuple(replace(step, number=7) for step in result.steps))
    grid = step_figures.step_grid([result, again])
    assert grid.position.tolist() == [0, 1, 2, 3]
    assert grid.longest_ns[0].tolist() == grid.longest_ns[1].tolist()


def test_a_rank_without_the_first_step_stands_under_the_same_steps() -> None:
    result = many_steps(5)
    grid = step_figures.step_grid([result, replace(result, steps=result.steps[1:])])
    assert np.isnan(grid.longest_ns[1, 0])
    assert grid.longest_ns[1, 1:].tolist() == grid.longest_ns[0, 1:].tolist()
    assert grid.first.tolist() == [[0, 1, 2, 3, 4], [-1, 0, 1, 2, 3]]
    assert grid.last.tolist() == grid.first.tolist()


def test_columns_of_many_steps_stand_at_the_steps_numbers() -> None:
    result = many_steps(1250)
    grid = step_figures.step_grid([result, replace(result, steps=result.steps[600:])])
    assert len(grid.position) == len(grid.label) == step_figures.MAX_BARS
    assert grid.position[0] < 5
    assert 1245 < grid.position[-1] < 1250
    slow = int(np.nanargmax(grid.longest_ns[0]))
    assert grid.first[0, slow] <= 625 <= grid.last[0, slow]
    assert abs(grid.position[slow] - 625) < 5
    assert grid.longest_ns[0, slow] == grid.longest_ns[1, slow] == 5000
    for row in (0, 1):  # each step of a rank is in one column
        taken = grid.first[row] >= 0
        assert (grid.first[row, taken][1:] == grid.last[row, taken][:-1] + 1).all()


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        ([400.0, *[4.3, 4.5] * 10, np.nan], 4.3, 4.8),  # one slow step takes no colour from others
        ([1.0, 2.0, 3.0], 1.0, 3.0),
        ([100.0, 100.001, 100.002], 100.0, 102.0),  # nor is noise a scale
        ([np.nan], 0.0, 1.0),
    ],
)
def test_colours_are_for_most_values(values: list[float], low: float, high: float) -> None:
    assert color_range(np.array(values)) == pytest.approx((low, high), abs=0.01)


def test_a_scale_of_one_value_has_two_ends() -> None:
    low, high = color_range(np.zeros(3))
    assert low < high


@pytest.mark.long
def test_a_grid_of_many_ranks_has_fewer_columns() -> None:
    one = many_steps(1250)
    results = [replace(one, rank=rank) for rank in range(512)]
    grid = step_figures.step_grid(results)
    assert grid.longest_ns.size <= 48_000
    assert np.nanmax(grid.longest_ns) == 5000
    hrefs = [f"/timeline?rank={rank}" for rank in range(512)]
    drawn = step_figures.heat(Split(results, []), grid, hrefs, Clock(0))
    assert len(gzip.compress(json.dumps(drawn).encode(), 4)) < 300_000


@pytest.fixture(scope="module")
def trees(analysis: Analysis) -> dict[str, Any]:
    """Return the layout of each page, by its title."""
    return {page.TITLE: page.layout(View(analysis, Address(page.PATH))) for page in PAGES}


def test_axes_have_units_and_heads_too(trees: dict[str, Any]) -> None:
    for page, tree in trees.items():
        assert named(tree, "Graph") == [], page  # they would load plotly
        for drawn in charts(tree):
            words = ("(", "step", "device", "rank")
            assert any(word in drawn["axis"] for word in words), (page, drawn["axis"])
            if drawn["kind"] in {"depth", "rates"}:
                assert all(row["unit"] for row in drawn["rows"]), page
        for grid in named(tree, "AgGrid"):
            for column in grid.columnDefs:
                if "valueFormatter" in column:
                    assert column["type"] == "rightAligned", (page, column)


def test_no_component_reads_text_as_markup(analysis: Analysis, trees: dict[str, Any]) -> None:
    browser = create_app(analysis).server.test_client()
    for page, tree in trees.items():
        kinds = {type(component).__name__ for component in components(tree)}
        assert not {"Markdown", "DangerouslySetInnerHTML", "Iframe"} & kinds, page
        for image in named(tree, "Img"):
            source = getattr(image, "src", None) or getattr(image, "data-src")
            kind, _, drawing = unquote(source).partition(",")
            if kind.startswith(f"{DRAWING}/"):
                reply = browser.get(kind)
                kind, drawing = f"data:{reply.mimetype}", reply.get_data(as_text=True)
            assert kind == "data:image/svg+xml"
            for element in ET.fromstring(drawing).iter():  # noqa: S314  (our own)
                assert element.tag.rpartition("}")[2] in SHAPES, page
                leading = [name for name in element.attrib if name[:2] == "on" or "href" in name]
                assert leading == []


def test_a_run_without_ranks_is_said_on_every_page(tmp_path: Path) -> None:
    with analysis_of(TraceBuilder().nvtx("step 0", 0, 9).write(tmp_path)) as analysis:
        shown = {page.TITLE: text(_page(View(analysis, Address(page.PATH)))) for page in PAGES}
    speechless = {title for title, said in shown.items() if "No report holds" not in said}
    assert speechless == {"Compare"}  # which says that there is nothing to compare with
    assert "--before" in shown["Compare"]


@pytest.mark.long
def test_real_reports_have_every_page(real_trace: Path) -> None:
    with analysis_of(real_trace) as analysis:
        for page in PAGES:
            tree = page.layout(View(analysis, Address(page.PATH)))
            assert text(tree) or named(tree, "Div"), page.TITLE
            for drawn in charts(tree):
                assert len(json.dumps(drawn)) < 3_000_000, page.TITLE


def test_long_names_lose_their_middle() -> None:
    assert shortened("a" * 99, 11) == "aaaaa…aaaaa"
    assert shortened("<script>") == "<script>"


def test_the_late_rank_is_the_dark_row() -> None:
    with analysis_of(SAMPLE.with_stem("uneven-clock")) as analysis:
        layout = step_figures.layout(View(analysis, Address("/steps")))
    (drawn,) = (drawn for drawn in charts(layout) if drawn["kind"] == "heat")
    late = msgspec.to_builtins(document(analysis.result))
    (straggler,) = (found for found in late["findings"] if found["id"] == "straggler")
    values = np.array([row["length_ns"] for row in drawn["rows"]], float)
    assert [row["title"] for row in drawn["rows"]] == [f"rank {rank}" for rank in range(3)]
    assert values[:2].tolist() == np.zeros((2, 8)).tolist()
    # The others were there, by their own starts of the operation.
    row, compared = straggler["rank"], analysis.ranks
    (waits,) = compared.waits
    start = waits.start_ns[:, [compared.ranks.index(rank) for rank in (0, 1, 2)]]
    lateness = start[:, row] - np.median(np.delete(start, row, axis=1), axis=1)
    steps = [step for step in late["steps"] if step["rank"] == row]
    for column, step in enumerate(steps):
        inside = (start[:, row] >= step["start_ns"]) & (start[:, row] < step["end_ns"])
        assert values[row, column] == pytest.approx(lateness[inside].max(), abs=1)
        at = start[:, row][inside][lateness[inside].argmax()]
        assert drawn["rows"][row]["start_ns"][column] < at < drawn["rows"][row]["end_ns"][column]


series = st.lists(st.tuples(st.integers(0, 60), st.integers(-5, 9)), min_size=1, max_size=30).map(
    lambda pairs: sorted(dict(pairs).items())
)


@given(series, st.integers(0, 50), st.integers(1, 40), st.integers(1, 12))
def test_an_envelope_has_every_extreme(
    points: list[tuple[int, int]], start: int, length: int, num: int
) -> None:
    times, values = (np.array(column, np.int64) for column in zip(*points, strict=True))
    end = start + length

    def at(time: int) -> int:
        before = [value for when, value in points if when <= time]
        return before[-1] if before else points[0][1]

    drawn = envelope(times, values, start, end, num)
    limits = [*drawn.start_ns.tolist(), end]
    if drawn.most is drawn.least:  # each piece has one value
        for index, value in enumerate(drawn.least.tolist()):
            assert drawn.most[index] == value
            assert {at(t) for t in range(max(limits[index], start), limits[index + 1])} <= {value}
        return
    assert len(drawn.start_ns) <= num
    assert limits[0] == start
    for index, (low, high) in enumerate(pairwise(limits)):
        held = {at(t) for t in range(low, high)}
        assert drawn.least[index] == min(held)
        assert drawn.most[index] == max(held)


@given(st.integers(-50, 50), st.integers(1, 100), st.integers(1, 30))
@example(-(1 << 61), 1 << 62, 8191)
def test_even_limits_cut_a_window_into_even_pieces(start: int, length: int, num: int) -> None:
    limits = even_limits(start, start + length, num)
    assert (limits[0], limits[-1]) == (start, start + length)
    assert len(limits) == min(num, length) + 1
    pieces = np.diff(limits)
    assert pieces.min() >= 1
    assert pieces.max() - pieces.min() <= 1
