"""A comparison as Markdown: a comment at a pull request, the summary of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.reports.comparison.sections import sections, verdict
from traceprof.reports.markdown import details, escaped, table_lines
from traceprof.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traceprof.documents.comparison import Comparison
    from traceprof.reports.comparison.sections import Section

_OPEN = ("", "Gates", "Where it comes from", "Findings, per step")  # the rest is folded in


def render(comparison: Comparison) -> str:
    """Return the comparison as Markdown: what matters first, the rest folded in."""
    lines = [f"### {escaped(verdict(comparison))}", ""]
    for section in sections(comparison):
        content = [*_lines(section, without=verdict(comparison))]
        if section.title in _OPEN:
            heading = [f"#### {escaped(section.title)}", ""] if section.title else []
            lines += [*heading, *content]
        elif content:
            lines += details(section.title, content)
    lines.append(f"<sub>traceprof {__version__}</sub>")
    return "\n".join(lines) + "\n"


def _lines(section: Section, *, without: str) -> Iterator[str]:
    """Yield a section's lines; what is said already is left out."""
    lines = [line for line in section.lines if line != without]
    yield from (f"* {escaped(line)}" for line in lines)
    if lines:
        yield ""
    if section.table is not None:
        yield from table_lines(section.table)
        yield ""
    yield from (f"{escaped(line)}\n" for line in section.after)
