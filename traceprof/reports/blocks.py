"""Paragraphs and tables of the text report for formats that are no terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from traceprof.errors import one_line
from traceprof.reports.time_text import Bar
from traceprof.structs import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import RenderableType

Cell = str | Bar


class Paragraph(Record, frozen=True):
    """A sentence or more."""

    text: str  # in one line, with control characters escaped


class Table(Record, frozen=True):
    """Rows under headings."""

    headings: tuple[str, ...]  # of the columns
    # of each column, whether it is text, which stands at the left; else numbers
    is_left: tuple[bool, ...]
    rows: tuple[tuple[Cell, ...], ...]  # a cell for each column, with control characters escaped
    caption: str  # what stands below; empty if nothing does


def blocks(renderables: Iterable[RenderableType]) -> Iterator[Paragraph | Table]:
    """Yield what the text report would draw, one after the other.

    Args:
        renderables: texts, tables, and groups of them.

    Raises:
        TypeError: there is something else among them.
    """
    for renderable in renderables:
        if isinstance(renderable, Text):
            yield Paragraph(one_line(renderable.plain))
        elif isinstance(renderable, RichTable):
            yield table(renderable)
        elif isinstance(renderable, Group):
            yield from blocks(renderable.renderables)
        elif isinstance(renderable, Padding):
            yield from blocks([renderable.renderable])
        else:
            raise TypeError(f"neither a text nor a table: {type(renderable).__name__}")


def table(rich: RichTable) -> Table:
    """Return a table of the text report as its cells."""
    columns = rich.columns
    return Table(
        tuple(_plain(column.header) for column in columns),
        tuple(column.justify == "left" for column in columns),
        tuple(
            tuple(cell if isinstance(cell, Bar) else _plain(cell) for cell in row)
            for row in zip(*(column.cells for column in columns), strict=True)
        ),
        _plain(rich.caption or ""),
    )


def _plain(cell: RenderableType) -> str:
    text = cell.plain if isinstance(cell, Text) else str(cell)
    return one_line(text.replace("\n", " "))
