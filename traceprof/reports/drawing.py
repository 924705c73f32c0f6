"""What the text report is made of: texts, tables and groups of them, drawn as plain text.

On a terminal rich draws the same (`traceprof.reports.terminal`): its import takes a tenth of the
time of a small report, and its layout another tenth.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING

from traceprof.errors import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

PLAIN_WIDTH = 110
"""Columns of output that goes to no terminal."""
MAX_NAME = 80  # characters of a name that stands in a table
_WORD = re.compile(r"\s*\S+\s*")
# Characters that take one column, which are nearly all that there are; rich knows of the others.
_ONE_COLUMN = frozenset(
    map(
        chr,
        chain(
            range(0x20, 0x7F), range(0xAE, 0x300), range(0x2010, 0x2028),
            range(0x2190, 0x231A), range(0x2500, 0x25FD),
        ),
    )
)  # fmt: skip


class Drawing:
    """Something that can be drawn."""

    def lines(self, width: int) -> Iterator[str]:
        """Yield the lines of plain text; spaces may stand at their ends.

        Args:
            width: columns, which prose keeps; tables and evidence are as wide as they are.
        """
        raise NotImplementedError


class Text(Drawing):
    """Characters with styles.

    Attributes:
        style: of all of it, in words of rich.
        parts: characters, each with a style of their own.
        no_wrap: whether a terminal breaks no lines.
        is_cut: whether a terminal cuts lines that are too long; else it folds them.
    """

    def __init__(
        self, text: str = "", style: str = "", *, no_wrap: bool = False, is_cut: bool = False
    ) -> None:
        self.style, self.no_wrap, self.is_cut = style, no_wrap, is_cut
        self.parts = [(text, "")]

    @classmethod
    def assemble(cls, *parts: str | tuple[str, str]) -> Text:
        """Return a text of parts, each with or without a style."""
        text = cls()
        text.parts = [(part, "") if isinstance(part, str) else part for part in parts]
        return text

    @property
    def plain(self) -> str:
        """The characters."""
        return "".join(part for part, _ in self.parts)

    def append(self, text: str, style: str = "") -> None:
        """Add characters at the end."""
        self.parts.append((text, style))

    def lines(self, width: int) -> Iterator[str]:
        """Yield lines that are broken between words, as rich breaks them."""
        return _wrapped(self.plain, width)


class Strip(Drawing):
    """A line of marks, for which a terminal without Unicode needs others.

    Attributes:
        LEAST: the columns that a terminal leaves it in a table, at least.
        MOST: the columns that it fills.
    """

    LEAST, MOST = 1, PLAIN_WIDTH

    def text(self, width: int, *, is_ascii: bool) -> Text:
        """Return the marks for a width in columns."""
        raise NotImplementedError

    def lines(self, width: int) -> Iterator[str]:
        """Yield the marks."""
        return iter([self.text(width, is_ascii=False).plain])


class Group(Drawing):
    """Drawings one below the other.

    Args:
        drawings: from the top.
    """

    def __init__(self, *drawings: Drawing) -> None:
        self.drawings = drawings

    def lines(self, width: int) -> Iterator[str]:
        """Yield the lines of all."""
        for drawing in self.drawings:
            yield from drawing.lines(width)


class Indented(Group):
    """Drawings that stand to the right."""

    SPACES = 3

    def lines(self, width: int) -> Iterator[str]:
        """Yield the lines of all after spaces."""
        return (" " * self.SPACES + line for line in super().lines(width - self.SPACES))


class Heading(Drawing):
    """A title of a section, with a rule beside it and space above.

    Args:
        title: in some words.
    """

    def __init__(self, title: str) -> None:
        self.title = title

    def lines(self, width: int) -> Iterator[str]:
        """Yield an empty line, and the title."""
        return iter(("", f"{self.title} ".ljust(width, "─")))


class OneLine(Drawing):
    """A line that a terminal cuts, and that is as long as it is where there is none.

    Args:
        line: the text.
    """

    def __init__(self, line: Text) -> None:
        self.line = line

    def lines(self, width: int) -> Iterator[str]:
        """Yield the line."""
        del width
        return iter([self.line.plain])


class Escaped(Group):
    """Drawings with all that could drive a terminal escaped, whatever they were made of."""

    def lines(self, width: int) -> Iterator[str]:
        """Yield the lines of all, with no character that cannot be printed."""
        return map(one_line, super().lines(width))


class Table(Drawing):
    """Rows under headings; left-aligned columns give way where a terminal is narrow.

    Args:
        headings: of the columns, which may have several lines.
        left: those of text, which stand at the left; else numbers.

    Attributes:
        is_left: of each column, whether it stands at the left.
        rows: a cell for each column.
        caption: what stands below; empty where nothing does.
    """

    def __init__(self, *headings: str, left: Sequence[str] = ()) -> None:
        self.headings = headings
        self.is_left = [heading in left for heading in headings]
        self.rows: list[tuple[str | Drawing, ...]] = []
        self.caption = ""

    def add_row(self, *cells: str | Drawing) -> None:
        """Add a row below; cells that are not given are empty."""
        self.rows.append((*cells, *[""] * (len(self.headings) - len(cells))))

    def lines(self, width: int) -> Iterator[str]:
        """Yield the headings, a rule, the rows and the caption."""
        rows = [[_of_cell(cell, width) for cell in row] for row in (self.headings, *self.rows)]
        widths = [max(map(columns, chain(*cells))) for cells in zip(*rows, strict=True)]
        whole = max(sum(widths) + 2 * len(widths) - 2, 1)
        for index, row in enumerate(rows):
            height = max(map(len, row))
            cells = [[""] * (height - len(cell)) + cell for cell in row]
            for parts in zip(*cells, strict=True):
                yield "  ".join(map(_aligned, parts, widths, self.is_left))
            if not index:
                yield "─" * whole
        if self.caption:
            for line in _wrapped(self.caption, whole):
                yield " " * ((whole - columns(line.rstrip())) // 2) + line


def name_text(name: str) -> Text:
    """Return a name from a report as a cell."""
    return Text(one_line(name, MAX_NAME))


def plain(drawing: Drawing, width: int = PLAIN_WIDTH) -> str:
    """Return a drawing as text without colours and without spaces at the ends of lines."""
    return "".join(f"{line.rstrip()}\n" for line in drawing.lines(width))


def columns(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if _ONE_COLUMN.issuperset(text):
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415  (few texts need it)

    return cell_len(text)


def _of_cell(cell: str | Drawing, width: int) -> list[str]:
    text = cell if isinstance(cell, str) else "\n".join(_unbroken(cell, width))
    return text.split("\n")


def _unbroken(cell: Drawing, width: int) -> Iterable[str]:
    return [cell.plain] if isinstance(cell, Text) else cell.lines(width)


def _aligned(text: str, width: int, is_left: bool) -> str:
    spaces = " " * (width - columns(text))
    return text + spaces if is_left else spaces + text


def _wrapped(text: str, width: int) -> Iterator[str]:
    """Yield lines of at most so many columns, broken between words; longer words are folded."""
    for line in text.split("\n"):
        limits, used = [0], 0
        for word in _WORD.finditer(line) if columns(line) > width else ():
            length, start = columns(word[0].rstrip()), word.start()
            if length <= width - used:
                used += columns(word[0])
            elif length > width:
                from rich.cells import chop_cells  # noqa: PLC0415  (few words are so long)

                for piece in chop_cells(word[0], width):
                    limits += [start] if start else []
                    start, used = start + len(piece), columns(piece)
            elif used:
                limits.append(start)
                used = columns(word[0])
        for begin, end in zip(limits, [*limits[1:], None], strict=True):
            yield line[begin:end]
