"""The analysis and the comparison as text, in a terminal or plain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.reports.analysis_sections import analysis_sections, kernel_sections, short_sections
from traceprof.reports.blocks import MAX_NAME, Paragraph, Section
from traceprof.reports.comparison_sections import comparison_sections
from traceprof.reports.terminal import plain, renderable
from traceprof.version import __version__

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from traceprof.analyses.verdict.run_result import RunResult
    from traceprof.documents.comparison import Comparison


def render(
    analysis: RunResult,
    console: Console | None = None,
    *,
    shows_kernels: bool = False,
    is_verbose: bool = False,
) -> str:
    """Return the report as plain text; with a console, print it there instead.

    Without `is_verbose` it is the verdict, and what it is based on: what is read in a minute. Plain
    text is 110 columns wide.
    """
    sections = short_sections(analysis)
    if is_verbose:
        sections = analysis_sections(analysis, shows_kernels=shows_kernels).in_order
    elif shows_kernels:
        sections[-1:] = [*kernel_sections(analysis), sections[-1]]
    drawn = renderable(sections)
    if console is None:
        return plain(drawn)
    console.print(drawn)
    return ""


def render_comparison(comparison: Comparison) -> str:
    """Return the comparison as plain text that ends in a newline."""
    return plain(comparison_report(comparison))


def comparison_report(comparison: Comparison) -> RenderableType:
    """Return the comparison for a rich console."""
    title = Section("", (Paragraph(f"traceprof {__version__}", "title"),))
    return renderable([title, *comparison_sections(comparison)], max_cell=MAX_NAME)
