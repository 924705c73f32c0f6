"""The analysis and the comparison as text, in a terminal or plain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace
from rich.console import Group
from rich.text import Text

from traceprof.reports.analysis_sections import analysis_sections
from traceprof.reports.blocks import MAX_NAME, Paragraph, Section
from traceprof.reports.comparison_sections import comparison_sections
from traceprof.reports.detail import WHOLE, Detail, fitting
from traceprof.reports.terminal import PLAIN_WIDTH, OneLine, height, plain, renderable
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

    Without `is_verbose` it has at most `MAX_LINES`, not counting the table of kernels. Plain text
    is 110 columns wide.
    """
    width = PLAIN_WIDTH if console is None else console.width

    def num_lines(level: Detail, left_out: str) -> int:
        added = 2 if left_out else 0
        return height(analysis_sections(analysis, level).in_order, width) + added

    detail, left_out = (WHOLE, "") if is_verbose else fitting(analysis, num_lines)
    drawn = report(analysis, replace(detail, shows_kernels=shows_kernels), left_out)
    if console is None:
        return plain(drawn, width)
    console.print(drawn)
    return ""


def report(analysis: RunResult, detail: Detail = WHOLE, left_out: str = "") -> RenderableType:
    """Return the report for a rich console."""
    sections = analysis_sections(analysis, detail).in_order
    if not left_out:
        return renderable(sections)
    added = OneLine(Text(f"--verbose adds: {left_out}", "bright_black"))
    return Group(renderable(sections), Text(""), added)


def render_comparison(comparison: Comparison) -> str:
    """Return the comparison as plain text that ends in a newline."""
    return plain(comparison_report(comparison))


def comparison_report(comparison: Comparison) -> RenderableType:
    """Return the comparison for a rich console."""
    title = Section("", (Paragraph(f"traceprof {__version__}", "title"),))
    return renderable([title, *comparison_sections(comparison)], max_cell=MAX_NAME)
