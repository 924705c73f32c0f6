"""The report as one HTML file that needs nothing else: for a browser, for paper, to be forwarded.

Templates write it, and escape all that comes from a report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined

from traceprof.analyses.breakdown import judged_kind
from traceprof.analyses.steps.step_means import judged_steps
from traceprof.errors import one_line
from traceprof.findings import by_id, worst_of
from traceprof.reports import drawings
from traceprof.reports.blocks import Paragraph, Table, blocks, table
from traceprof.reports.drawings import (
    PipelineDrawing,
    StepChart,
    Timeline,
    pipeline_drawings,
    step_chart,
    timeline,
)
from traceprof.reports.findings_text import (
    claim_lines,
    evidence_text,
    gap_lines,
    lines_below,
    no_finding,
)
from traceprof.reports.headline_text import headline_lines
from traceprof.reports.text import communication_sections, header_lines, note_lines
from traceprof.reports.time_text import Bar, below_the_table, parts_table, steps_table
from traceprof.reports.tracks import Moment, Scene, drawn_evidence
from traceprof.structs import Record
from traceprof.units import ranks_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceprof.analyses.verdict.run_result import RunResult
    from traceprof.findings import Finding

MAX_DRAWN_BYTES = 500_000
"""Of drawings of evidence, all together: what costs most is drawn first."""
_MAX_LINES = 60  # about the data; a large run has one for each report
_MAX_TITLE = 80


class SeenEvidence(Record, frozen=True):
    """A piece of evidence."""

    text: str  # when, and what
    drawing: Timeline | None  # what ran then; None if that is unknown, or too much was drawn before


class FindingCard(Record, frozen=True):
    """A finding as it is shown: what it claims of several ranks."""

    id: str  # the finding's
    severity: str  # the highest
    ranks: str  # which have it
    claim: Sequence[str]  # sentences
    evidence: Sequence[SeenEvidence]  # of the rank that it costs most
    advice: Sequence[str]  # the most promising first


class Section(Record, frozen=True):
    """A part of the page: a heading, and what stands below."""

    heading: str
    content: Sequence[Paragraph | Table]


def render(
    analysis: RunResult,
    *,
    shows_kernels: bool = False,
    scenes: Mapping[Moment, Scene] | None = None,
) -> str:
    """Return the report as a self-contained HTML page.

    Args:
        analysis: what was found out.
        shows_kernels: whether there is a table of kernels in it.
        scenes: what ran where the evidence is, as far as it is to be drawn.
    """
    title, *reports = header_lines(analysis)
    names = [one_line(report.path.name) for report in analysis.run.reports[:1]]
    page = {
        "title": f"traceprof: {', '.join(names)}"[:_MAX_TITLE],
        "version": title,
        "reports": reports,
        "notes": _limited(note_lines(analysis)),
        "gaps": _limited(gap_lines(analysis.not_applicable)),
        "parts": drawings.PARTS,
        "drawn": drawings,
        "has_ranks": bool(analysis.breakdown),
    }
    if analysis.breakdown:
        page |= _of_ranks(analysis, scenes or {}, shows_kernels=shows_kernels)
    return environment().get_template("analysis.html.jinja").render(page)


def pipeline_svg(drawing: PipelineDrawing) -> str:
    """Return a drawing of a pipeline as an SVG file."""
    template = environment().get_template("pipeline.svg.jinja")
    return template.render(drawing=drawing, drawn=drawings)


def environment() -> Environment:
    """Return what fills in templates: all text is escaped, and a wrong name is an error."""
    environment = Environment(
        loader=PackageLoader("traceprof.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests["table"] = lambda block: isinstance(block, Table)
    environment.tests["bar"] = lambda cell: isinstance(cell, Bar)
    return environment


def _of_ranks(
    analysis: RunResult, scenes: Mapping[Moment, Scene], *, shows_kernels: bool
) -> dict[str, object]:
    """Return what the page has where at least one rank was measured."""
    kind = judged_kind(analysis.breakdown)
    steps = steps_table(analysis)
    sections = communication_sections(analysis, shows_kernels=shows_kernels)
    chart, chart_rank = _step_chart(analysis)
    return {
        "kind": str(kind),
        "headline": [one_line(line) for line in headline_lines(analysis)],
        "ranks": table(parts_table(analysis)),
        "below": _limited([one_line(line) for line in below_the_table(analysis)]),
        "steps": [] if steps is None else [*blocks([steps])],
        "chart": chart,
        "pipelines": pipeline_drawings(analysis.measured),
        "chart_rank": chart_rank,
        "sections": [Section(heading, [*blocks(content)]) for heading, content in sections],
        "cards": _cards(analysis, by_id(analysis.findings), scenes),
        "no_finding": no_finding(kind),
        "below_findings": lines_below(analysis, kind),
    }


def _step_chart(analysis: RunResult) -> tuple[StepChart | None, int | None]:
    """Return the steps of the rank whose step takes longest, and its number."""
    headline = analysis.headline
    result = analysis.breakdown[0] if headline is None else headline.breakdown
    steps = judged_steps(result)
    return (step_chart(steps), result.rank) if steps else (None, None)


def _cards(
    analysis: RunResult, groups: Sequence[list[Finding]], scenes: Mapping[Moment, Scene]
) -> list[FindingCard]:
    cards, num_bytes = [], 0
    for group in groups:
        worst = worst_of(group)
        evidence = []
        for item in drawn_evidence(worst):
            scene = scenes.get(Moment(worst.rank, item.start_ns, item.end_ns))
            drawing = None
            if scene is not None and scene.rows:
                drawing = timeline(scene)
                num_bytes += sum(len(path) for row in drawing.rows for _, path in row.shapes)
                drawing = drawing if num_bytes <= MAX_DRAWN_BYTES else None
            evidence.append(SeenEvidence(evidence_text(item), drawing))
        cards.append(
            FindingCard(
                id=worst.id,
                severity=str(worst.severity),
                ranks=ranks_text([finding.rank for finding in group]),
                claim=claim_lines(analysis, group),
                evidence=evidence,
                advice=[one_line(advice) for advice in worst.advice],
            )
        )
    return cards


def _limited(lines: Sequence[object]) -> list[object]:
    """Return the first lines: a page of a thousand reports stays one that somebody reads."""
    return [*lines[:_MAX_LINES]]
