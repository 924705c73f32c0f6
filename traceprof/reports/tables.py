"""Tables of the text report: what they look like, and what of the reports' text is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from traceprof.errors import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

_UNLIMITED = 10_000  # columns
MAX_NAME = 80  # characters of a name that stands in a table


class _Table(Table):
    """Without a terminal, a table is as wide as its content, and nothing is cut."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not console.is_terminal:
            options = options.update(max_width=_UNLIMITED)
        yield from super().__rich_console__(console, options)


class OneLine:
    """A line that is cut to the width of the terminal, and left whole in a file."""

    def __init__(self, line: Text) -> None:
        self._line = line

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self._line.no_wrap = True
        self._line.overflow = "ellipsis" if console.is_terminal else "ignore"
        limit = options.max_width if console.is_terminal else _UNLIMITED
        yield from console.render(self._line, options.update(max_width=limit))


def new_table(*headings: str, left: Sequence[str] = ()) -> Table:
    """Return a table whose left-aligned columns give way where the terminal is narrow."""
    table = _Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for heading in headings:
        gives_way = heading in left
        table.add_column(
            heading,
            justify="left" if gives_way else "right",
            vertical="bottom",
            no_wrap=not gives_way,
        )
    return table


def name_text(name: str) -> Text:
    """Return a name from a report as a cell: rich must not read marks such as `[red]` in it."""
    return Text(one_line(name, MAX_NAME))


class Escaped:
    """Draws something with all that could drive a terminal escaped, whatever it was made of.

    Args:
        content: what is drawn.
    """

    def __init__(self, content: RenderableType) -> None:
        self._content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Segment]:
        for segment in console.render(self._content, options):
            if segment.control or segment.text.isprintable() or segment.text == "\n":
                yield segment
            else:
                lines = segment.text.split("\n")
                yield Segment("\n".join(one_line(line) for line in lines), segment.style)
