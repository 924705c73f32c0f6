"""Pages of findings in Markdown: meaning, measurement and advice."""

from __future__ import annotations

from importlib import resources
from string import Template

from traceprof.analyses.measurements import MEASUREMENTS
from traceprof.analyses.registry import ANALYSES, FINDINGS
from traceprof.findings import bullets, severities_text


def explanation(finding: str) -> str:
    """Return the Markdown page of a finding: metrics, limits and advice are the analysis's."""
    (analysis,) = (analysis for analysis in ANALYSES if finding in analysis.findings)
    declared = FINDINGS[finding].metrics.declared().items()
    metrics = bullets(f"`{name}`: {metric.meaning}." for name, metric in declared)
    values = {"metrics": metrics, "severities": severities_text(), **analysis.page}
    pages = resources.files("traceprof.analyses").joinpath("explanations")
    page = Template(pages.joinpath(f"{finding}.md").read_text(encoding="utf-8"))
    return f"{page.substitute(values)}\n\n{needs(finding)}\n"


def needs(finding: str) -> str:
    """Return what a finding needs of a report, and what is measured for it, as a paragraph."""
    (analysis,) = (analysis for analysis in ANALYSES if finding in analysis.findings)
    names = [part.name.lower().replace("_", " ") for part in analysis.requires]
    parts = [name.replace("api", "API").replace("gpu", "GPU") for name in names]
    reads = [
        MEASUREMENTS[name].meaning if name in MEASUREMENTS else f"`{name}`"
        for name in analysis.reads
    ]
    of_report = ", ".join(parts) or "operations of a GPU, or ranges of ranks"
    sentence = f" It is measured with {'; '.join(reads)}." if reads else ""
    return f"**What it needs** of a report: {of_report}.{sentence}"
