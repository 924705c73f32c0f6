"""Pages of findings in Markdown: meaning, measurement and advice."""

from __future__ import annotations

from importlib import resources
from string import Template

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
    return Template(_page(finding)).substitute(values)


def _page(finding: str) -> str:
    pages = resources.files("traceprof.analyses").joinpath("explanations")
    return pages.joinpath(f"{finding}.md").read_text(encoding="utf-8")
