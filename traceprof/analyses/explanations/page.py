"""Pages of findings in Markdown: meaning, measurement and advice."""

from __future__ import annotations

from importlib import resources
from string import Template

from traceprof.analyses.measurements.of_rank import MEASUREMENTS
from traceprof.analyses.registry import ANALYSES, FINDINGS
from traceprof.findings import bullets, severities_text


def explanation(finding: str) -> str:
    """Return the page of a finding, in Markdown.

    Its metrics, limits and advice are those of the analysis.

    Args:
        finding: one of the registry's `FINDING_IDS`.
    """
    (analysis,) = (analysis for analysis in ANALYSES if finding in analysis.findings)
    declared = FINDINGS[finding].metrics.declared().items()
    metrics = bullets(f"`{name}`: {metric.meaning}." for name, metric in declared)
    values = {"metrics": metrics, "severities": severities_text(), **analysis.page}
    return f"{Template(_page(finding)).substitute(values)}\n{needs(finding)}\n"


def needs(finding: str) -> str:
    """Return what a finding needs of a report, and what is measured for it, as a paragraph."""
    (analysis,) = (analysis for analysis in ANALYSES if finding in analysis.findings)
    parts = [
        part.name.lower().replace("_", " ").replace("api", "API") for part in analysis.requires
    ]
    measured = [MEASUREMENTS[name].meaning for name in analysis.reads if name in MEASUREMENTS]
    others = [f"`{name}`" for name in analysis.reads if name not in MEASUREMENTS]
    sentences = [f"Of a report: {', '.join(parts) or 'operations of a GPU or ranges of ranks'}."]
    if measured or others:
        sentences.append(
            f"What `--only {finding}` measures, too: {'; '.join([*measured, *others])}."
        )
    return f"**What it needs.** {' '.join(sentences)}"


def _page(finding: str) -> str:
    pages = resources.files("traceprof.analyses").joinpath("explanations")
    return pages.joinpath(f"{finding}.md").read_text(encoding="utf-8")
