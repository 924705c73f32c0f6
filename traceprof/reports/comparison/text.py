"""A comparison as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from traceprof.errors import one_line
from traceprof.reports.comparison.sections import sections
from traceprof.reports.plain_text import plain
from traceprof.reports.tables import Escaped, name_text, new_table
from traceprof.version import __version__

if TYPE_CHECKING:
    from rich.console import RenderableType

    from traceprof.documents.comparison import Comparison
    from traceprof.reports.blocks import Table


def render(comparison: Comparison) -> str:
    """Return the comparison as plain text that ends in a newline."""
    return plain(report(comparison))


def report(comparison: Comparison) -> RenderableType:
    """Return the comparison for a rich console."""
    parts: list[RenderableType] = [Text(f"traceprof {__version__}", "bold")]
    for section in sections(comparison):
        if section.title:
            title = Text(section.title, "bold")
            rule = Rule(title, align="left", style="bright_black")
            parts.append(Padding(rule, (1, 0, 0, 0)))
        parts += [Text(one_line(line)) for line in section.lines]
        if section.table is not None:
            parts.append(_table(section.table))
        parts += [Text(one_line(line)) for line in section.after]
    return Escaped(Group(*parts))


def _table(content: Table) -> RenderableType:
    pairs = zip(content.headings, content.is_left, strict=True)
    table = new_table(*content.headings, left=[heading for heading, is_left in pairs if is_left])
    for row in content.rows:
        table.add_row(*(name_text(str(cell)) for cell in row))
    return table
