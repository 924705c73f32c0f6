"""The HTML report: one small file that needs nothing, escaped, with the evidence drawn."""

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from tests.support.builders import TraceBuilder
from tests.support.commands import run
from tests.support.selection import long_after
from tests.support.traces import analysis_of
from traceprof.analysis import Options
from traceprof.reports import drawings, html
from traceprof.reports.drawings import step_chart, timeline
from traceprof.reports.tracks import EventKind, Moment, Scene, Track, scenes

SAMPLES = Path(__file__).parents[2] / "sample_traces"
MAX_BYTES = 1_000_000
HOSTILE = "<script>alert(1)</script>\"'&{{ 7 * 7 }}"
_OPEN = {"meta", "rect", "path", "line", "br", "img", "link"}


class _Page(HTMLParser):
    """Checks that elements are closed in order, and collects what there is."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href", "style"}]
        if tag not in _OPEN:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in _OPEN:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("name", long_after(2, ["training", "gloo", "healthy", "link-counters"]))
def test_a_page_is_one_file_that_needs_nothing(name: str, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    assert run("analyze", "--format", "html", "-o", path, SAMPLES / f"{name}.sqlite") == 0
    written = path.read_text(encoding="utf-8")
    page = _Page(written)
    assert page.tags.count("title") == 1
    assert "svg" in page.tags
    assert not {"script", "link", "img", "iframe", "object"} & {*page.tags}
    assert page.addresses == []
    assert "url(" not in written
    assert "@import" not in written
    assert len(written.encode()) < MAX_BYTES
    assert re.search(r"(A step|The \w+) takes [\d.]+ m?s", page.text)


def test_evidence_is_drawn_where_it_is() -> None:
    with analysis_of(SAMPLES / "nccl-serialization.sqlite") as analysis:
        made = scenes(analysis.result, Options())
        found = analysis.result.findings
        ranks = {rank.rank: rank for rank in analysis.run.ranks}
        for place, scene in made.items():
            assert scene.start_ns < place.start_ns <= place.end_ns < scene.end_ns
            kernels = ranks[place.rank].operations.kernels
            inside = (kernels.start_ns < scene.end_ns) & (kernels.end_ns > scene.start_ns)
            shown = np.concatenate([row.start_ns for row in scene.rows if not row.is_host])
            copies = ranks[place.rank].operations.copies
            beside = (copies.start_ns < scene.end_ns) & (copies.end_ns > scene.start_ns)
            assert sorted(shown) == sorted([*kernels.start_ns[inside], *copies.start_ns[beside]])
    worst = next(finding for finding in found if finding.id == "nccl-serialization")
    first = worst.evidence[0]
    assert Moment(worst.rank, first.start_ns, first.end_ns) in made
    page = html.render(analysis.result, scenes=made)
    assert page.count('class="band"') == len(made) == 4
    assert 'class="band"' not in html.render(analysis.result)


def test_of_a_report_that_is_gone_the_findings_stand(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    path.write_bytes((SAMPLES / "nccl-serialization.sqlite").read_bytes())
    with analysis_of(path) as analysis:
        pass
    path.unlink()
    made = scenes(analysis.result, Options())
    assert made == {}
    assert "nccl-serialization" in html.render(analysis.result, scenes=made)


def test_drawings_stop_where_the_page_would_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "MAX_DRAWN_BYTES", 2000)
    with analysis_of(SAMPLES / "training.sqlite") as analysis:
        made = scenes(analysis.result, Options())
        page = html.render(analysis.result, scenes=made)
    assert 1 <= page.count('class="band"') < len(made)


def test_text_of_reports_is_never_markup(tmp_path: Path) -> None:
    builder = TraceBuilder().gpu(f"GPU {HOSTILE}").machine(host=HOSTILE, start_utc=10**18)
    for step in range(4):
        start = step * 1_000_000
        builder.nvtx(f"step {step}", start, start + 900_000)
        builder.nvtx(HOSTILE, start, start + 900_000)
        builder.kernel(start + 1000, start + 300_000, f"gemm {HOSTILE}")
        builder.kernel(start + 300_000, start + 800_000, "ncclDevKernel_AllReduce", stream=20)
    with analysis_of(builder.write(tmp_path / "<b>t.sqlite")) as analysis:
        made = scenes(analysis.result, Options())
        page = html.render(analysis.result, scenes=made, shows_kernels=True)
    read = _Page(page)
    assert not {"script", "b>t"} & {*read.tags}
    assert "{{ 7 * 7 }}" in read.text
    assert "<b>t.sqlite" in read.text


def _track(*spans: tuple[int, int]) -> Track:
    start, end = np.array(spans, np.int64).T
    none = np.zeros(len(start), np.int32)
    categories = np.full(len(start), EventKind.COMPUTE, np.int8)
    return Track(
        "stream 7", 7, False, False, start, end, none, ["gemm"], categories, none - 1, none - 1
    )


def _spans(path: str) -> list[tuple[float, float]]:
    return [
        (float(left), float(left) + float(width))
        for left, width in re.findall(r"M([\d.]+) [\d.]+h([\d.]+)", path)
    ]


def test_shapes_lie_where_events_do() -> None:
    scene = Scene(Moment(0, 300, 700), 0, 1000, (_track((-50, 100), (400, 400), (500, 2000)),))
    drawn = timeline(scene)
    scale = (drawings.WIDTH - drawings.LABELS) / 1000
    assert drawn.left == pytest.approx(drawings.LABELS + 300 * scale, abs=0.1)
    assert drawn.width == pytest.approx(400 * scale, abs=0.1)
    expected = [(0, 100), (400, 400), (500, 1000)]
    spans = _spans(dict(drawn.rows[0].shapes)["compute"])
    for (left, right), (start, end) in zip(spans, expected, strict=True):
        assert left == pytest.approx(drawings.LABELS + start * scale, abs=1)
        assert right == pytest.approx(drawings.LABELS + end * scale, abs=1)


def test_evidence_without_length_can_be_seen() -> None:
    assert timeline(Scene(Moment(0, 50, 50), 0, 100, (_track((0, 10)),))).width >= 1


@pytest.mark.parametrize(
    ("number", "columns", "per_column"), [(1, 1, 1), (160, 160, 1), (161, 81, 2)]
)
def test_steps_are_columns_of_their_parts(number: int, columns: int, per_column: int) -> None:
    with analysis_of(SAMPLES / "training.sqlite") as analysis:
        step = analysis.result.breakdown[0].steps[0]
    chart = step_chart([replace(step, number=index) for index in range(number)])
    assert chart.steps_per_column == per_column
    heights = {}
    for part, path in chart.shapes:
        shapes = re.findall(r"M[\d.]+ ([\d.]+)h[\d.]+V([\d.]+)", path)
        assert len(shapes) in {0, columns}
        heights[part] = sum(float(bottom) - float(top) for top, bottom in shapes) / columns
    for part, height in heights.items():
        share = step.measures.fraction(part)
        assert height / drawings.CHART_HEIGHT == pytest.approx(share, abs=0.01)
