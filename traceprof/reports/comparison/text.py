"""A comparison as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.errors import one_line
from traceprof.reports.comparison.sections import sections
from traceprof.reports.drawing import Escaped, Heading, Table, Text, name_text, plain
from traceprof.version import __version__

if TYPE_CHECKING:
    from traceprof.documents.comparison import Comparison
    from traceprof.reports import blocks
    from traceprof.reports.drawing import Drawing


def render(comparison: Comparison) -> str:
    """Return the comparison as plain text that ends in a newline."""
    return plain(report(comparison))


def report(comparison: Comparison) -> Drawing:
    """Return the comparison for a rich console."""
    parts: list[Drawing] = [Text(f"traceprof {__version__}", "bold")]
    for section in sections(comparison):
        if section.title:
            parts.append(Heading(section.title))
        parts += [Text(one_line(line)) for line in section.lines]
        if section.table is not None:
            parts.append(_table(section.table))
        parts += [Text(one_line(line)) for line in section.after]
    return Escaped(*parts)


def _table(content: blocks.Table) -> Drawing:
    pairs = zip(content.headings, content.is_left, strict=True)
    drawn = Table(*content.headings, left=[heading for heading, is_left in pairs if is_left])
    for row in content.rows:
        drawn.add_row(*(name_text(str(cell)) for cell in row))
    return drawn
