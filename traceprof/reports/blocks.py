"""Paragraphs and tables of the text report for formats that are no terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.errors import one_line
from traceprof.reports import drawing
from traceprof.reports.drawing import Text
from traceprof.reports.time_text import Bar
from traceprof.structs import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from traceprof.reports.drawing import Drawing


Cell = str | Bar


class Paragraph(Record, frozen=True):
    """A sentence or more.

    Attributes:
        text: in one line, with control characters escaped.
    """

    text: str


class Table(Record, frozen=True):
    """Rows under headings.

    Attributes:
        headings: of the columns.
        is_left: of each column, whether it is text, which stands at the left; else numbers.
        rows: a cell for each column, with control characters escaped.
        caption: what stands below; empty where nothing does.
    """

    headings: tuple[str, ...]
    is_left: tuple[bool, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str


def blocks(renderables: Iterable[Drawing]) -> Iterator[Paragraph | Table]:
    """Yield what the text report would draw, one after the other.

    Args:
        renderables: texts, tables, and groups of them.

    Raises:
        TypeError: there is something else among them.
    """
    for renderable in renderables:
        if isinstance(renderable, Text):
            yield Paragraph(one_line(renderable.plain))
        elif isinstance(renderable, drawing.Table):
            yield table(renderable)
        elif isinstance(renderable, drawing.Group):
            yield from blocks(renderable.drawings)
        else:
            raise TypeError(f"neither a text nor a table: {type(renderable).__name__}")


def table(drawn: drawing.Table) -> Table:
    """Return a table of the text report as its cells."""
    return Table(
        tuple(map(_plain, drawn.headings)),
        tuple(drawn.is_left),
        tuple(
            tuple(cell if isinstance(cell, Bar) else _plain(cell) for cell in row)
            for row in drawn.rows
        ),
        _plain(drawn.caption),
    )


def _plain(cell: str | Drawing) -> str:
    text = cell.plain if isinstance(cell, Text) else str(cell)
    return one_line(text.replace("\n", " "))
