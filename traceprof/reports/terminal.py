"""Drawings of the text report as rich draws them: on terminals, with colours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group
from rich.measure import Measurement
from rich.padding import Padding
from rich.rule import Rule
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from traceprof.errors import one_line
from traceprof.reports import drawing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import ConsoleOptions, RenderableType, RenderResult

_UNLIMITED = 10_000  # columns


class _Table(Table):
    """Without a terminal, a table is as wide as its content, and nothing is cut."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not console.is_terminal:
            options = options.update(max_width=_UNLIMITED)
        yield from super().__rich_console__(console, options)


class _OneLine:
    def __init__(self, line: Text) -> None:
        self._line = line

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self._line.no_wrap = True
        self._line.overflow = "ellipsis" if console.is_terminal else "ignore"
        limit = options.max_width if console.is_terminal else _UNLIMITED
        yield from console.render(self._line, options.update(max_width=limit))


class _Strip:
    def __init__(self, strip: drawing.Strip) -> None:
        self._strip = strip

    def __rich_measure__(self, _: Console, options: ConsoleOptions) -> Measurement:
        widths = self._strip.LEAST, self._strip.MOST
        return Measurement(*(min(width, options.max_width) for width in widths))

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterable[Text]:
        yield _text(self._strip.text(options.max_width, is_ascii=options.ascii_only))


class _Escaped:
    def __init__(self, content: RenderableType) -> None:
        self._content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Segment]:
        for segment in console.render(self._content, options):
            if segment.control or segment.text.isprintable() or segment.text == "\n":
                yield segment
            else:
                lines = segment.text.split("\n")
                yield Segment("\n".join(one_line(line) for line in lines), segment.style)


def show(drawn: drawing.Drawing) -> None:
    """Draw on this process's terminal."""
    Console().print(rich_drawing(drawn))


def rich_drawing(drawn: drawing.Drawing) -> RenderableType:  # noqa: PLR0911  (one for each kind)
    """Return a drawing for a console of rich.

    Raises:
        TypeError: there is no such kind.
    """
    match drawn:
        case drawing.Text():
            return _text(drawn)
        case drawing.Escaped():
            return _Escaped(Group(*map(rich_drawing, drawn.drawings)))
        case drawing.Indented():
            return Padding(Group(*map(rich_drawing, drawn.drawings)), (0, 0, 0, drawn.SPACES))
        case drawing.Group():
            return Group(*map(rich_drawing, drawn.drawings))
        case drawing.Heading():
            rule = Rule(Text(drawn.title, "bold"), align="left", style="bright_black")
            return Padding(rule, (1, 0, 0, 0))
        case drawing.OneLine():
            return _OneLine(_text(drawn.line))
        case drawing.Strip():
            return _Strip(drawn)
        case drawing.Table():
            return _table(drawn)
    raise TypeError(f"nothing that rich can draw: {type(drawn).__name__}")


def _text(drawn: drawing.Text) -> Text:
    return Text.assemble(
        *drawn.parts,
        style=drawn.style,
        no_wrap=drawn.no_wrap or None,
        overflow="ellipsis" if drawn.is_cut else None,
    )


def _table(drawn: drawing.Table) -> Table:
    table = _Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for heading, gives_way in zip(drawn.headings, drawn.is_left, strict=True):
        table.add_column(
            heading,
            justify="left" if gives_way else "right",
            vertical="bottom",
            no_wrap=not gives_way,
        )
    for row in drawn.rows:
        # rich must not read marks such as `[red]` in it.
        table.add_row(
            *(Text(cell) if isinstance(cell, str) else rich_drawing(cell) for cell in row)
        )
    table.caption = drawn.caption or None
    return table
