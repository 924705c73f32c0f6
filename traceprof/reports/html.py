"""Reports as one HTML file that needs nothing else: for a browser, for paper, to be forwarded.

Templates write it, and escape all that comes from a report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jinja2 import Environment, PackageLoader, StrictUndefined

from traceprof.analyses.steps import judged_steps
from traceprof.analyses.verdict.run_result import RunResult
from traceprof.documents.comparison import Comparison, Parts
from traceprof.errors import one_line
from traceprof.reports import drawings
from traceprof.reports.analysis_sections import analysis_sections
from traceprof.reports.blocks import PARTS, Bar, Claim, Gap, TableBlock, paragraph
from traceprof.reports.comparison_sections import comparison_sections
from traceprof.reports.tracks import MAX_DRAWN, Moment, Scene
from traceprof.structs import Record
from traceprof.units import duration
from traceprof.version import __version__

MAX_DRAWN_BYTES = 500_000
"""Of drawings of evidence, all together: what costs most is drawn first."""
_MAX_LINES = 60  # about the data; a large run has one for each report
_MAX_TITLE = 80
_ROW = 34  # of the drawing of a comparison, pixels


class DrawnStep(Record, frozen=True):
    """A mean step as a row of the drawing."""

    name: str  # of the side
    y: int  # its top
    text: str  # how long it is
    end: float  # where it ends, in pixels
    parts: tuple[tuple[str, float, float], ...]  # the class, place and width of each


class FindingCard(Record, frozen=True):
    """A claim, with its evidence drawn."""

    claim: Claim
    # None: not known, or too much was drawn
    evidence: tuple[tuple[str, drawings.Timeline | None], ...]


def render(
    analysis: RunResult,
    *,
    shows_kernels: bool = False,
    scenes: Mapping[Moment, Scene] | None = None,
) -> str:
    """Return the report as a self-contained HTML page."""
    report = analysis_sections(analysis, shows_kernels=shows_kernels)
    names = [one_line(report.path.name) for report in analysis.run.reports[:1]]
    findings = () if report.findings is None else report.findings.blocks
    chart, chart_rank = _step_chart(analysis) if report.steps else (None, None)
    page = {
        "title": f"traceprof: {', '.join(names)}"[:_MAX_TITLE],
        "report": report,
        "chart": chart,
        "chart_rank": chart_rank,
        "pipelines": drawings.pipeline_drawings(analysis.measured) if analysis.breakdown else [],
        "cards": _cards((block for block in findings if isinstance(block, Claim)), scenes or {}),
        "below_findings": [block for block in findings if not isinstance(block, Claim)],
        "max_lines": _MAX_LINES,
    }
    return environment().get_template("analysis.html.jinja").render(page)


def render_comparison(comparison: Comparison) -> str:
    """Return the comparison as a self-contained HTML page."""
    longest = max(comparison.mean_before.mean_step_ns, comparison.mean_after.mean_step_ns, 1)
    head, *sections = comparison_sections(comparison)
    names = f"{comparison.before.name} → {comparison.after.name}"
    page = {
        "title": one_line(f"traceprof: {names}", _MAX_TITLE),
        "version": f"traceprof {__version__}",
        "verdict": comparison.headline,
        "lines": [block for block in head.blocks if block != paragraph(comparison.headline)],
        "steps": [
            _drawn("before", 0, comparison.mean_before, longest),
            _drawn("after", _ROW, comparison.mean_after, longest),
        ],
        "height": 2 * _ROW,
        "sections": sections,
    }
    return environment().get_template("comparison.html.jinja").render(page)


def svg(drawing: drawings.PipelineDrawing | drawings.Timeline) -> str:
    """Return a drawing as an SVG file, light or dark as the page that shows it."""
    name = "timeline" if isinstance(drawing, drawings.Timeline) else "pipeline"
    return environment().get_template("drawing.svg.jinja").render(drawing=drawing, name=name)


def environment() -> Environment:
    """Return what fills in templates: all text is escaped, and a wrong name is an error."""
    environment = Environment(
        loader=PackageLoader("traceprof.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests["table"] = lambda block: isinstance(block, TableBlock)
    environment.tests["gap"] = lambda block: isinstance(block, Gap)
    environment.tests["bar"] = lambda cell: isinstance(cell, Bar)
    environment.globals |= {"drawn": drawings, "parts": PARTS}
    return environment


def _step_chart(analysis: RunResult) -> tuple[drawings.StepChart | None, int | None]:
    headline = analysis.headline
    result = analysis.breakdown[0] if headline is None else headline.breakdown
    steps = judged_steps(result)
    return (drawings.step_chart(steps), result.rank) if steps else (None, None)


def _cards(claims: Iterable[Claim], scenes: Mapping[Moment, Scene]) -> list[FindingCard]:
    cards, num_bytes = [], 0
    for claim in claims:
        evidence = []
        for item in claim.evidence[:MAX_DRAWN]:
            scene = scenes.get(Moment(claim.rank, item.start_ns, item.end_ns))
            drawing = None
            if scene is not None and scene.rows:
                drawing = drawings.timeline(scene)
                num_bytes += sum(len(path) for row in drawing.rows for _, path in row.shapes)
                drawing = drawing if num_bytes <= MAX_DRAWN_BYTES else None
            evidence.append((item.text, drawing))
        cards.append(FindingCard(claim, tuple(evidence)))
    return cards


def _drawn(name: str, y: int, mean: Parts, longest_ns: int) -> DrawnStep:
    scale = (drawings.WIDTH - 2 * drawings.LABELS) / longest_ns
    x, parts = float(drawings.LABELS), []
    for part in PARTS:
        width = scale * getattr(mean, part)
        parts.append((part, round(x, 1), round(width, 1)))
        x += width
    return DrawnStep(name, y, duration(mean.mean_step_ns), round(x, 1), tuple(parts))
