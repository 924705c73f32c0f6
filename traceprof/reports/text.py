"""Text, in a terminal or plain: sections of any report, and the analysis."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from rich import box
from rich.console import Console, Group
from rich.measure import Measurement
from rich.padding import Padding
from rich.rule import Rule
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from traceprof.analyses.verdict.run_result import RunResult
from traceprof.errors import one_line
from traceprof.reports.analysis_sections import analysis_sections, kernel_sections, short_sections
from traceprof.reports.blocks import Bar, Block, Claim, Gap, Paragraph, Section, TableBlock

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType, RenderResult


PLAIN_WIDTH = 110
"""Columns of output that goes to no terminal."""
_UNLIMITED = 10_000  # columns
_INDENT = 3
_BAR, _MIN_BAR = 20, 6  # characters
_MARKS = {
    # part: name, colour, and a character of its own for those who see no colour
    "compute_ns": ("compute", "green", "█", "#"),
    "exposed_communication_ns": ("exposed comm", "red", "▒", "="),
    "exposed_copy_ns": ("exposed copy", "yellow", "░", "-"),
    "idle_ns": ("idle", "bright_black", "·", "."),
    "lost_ns": ("lost", "magenta", "?", "?"),
}
_SEVERITY_STYLE = {
    "high": "bold white on red",
    "medium": "bold black on yellow",
    "low": "bold cyan",
    "info": "bold bright_black",
}
_STYLE = {"": "", "title": "bold", "advice": "italic"}


def plain(content: RenderableType, width: int = PLAIN_WIDTH) -> str:
    """Return what rich draws as text without colours and without spaces at the ends of lines."""
    buffer = io.StringIO()
    console = Console(file=buffer, width=width, color_system=None, highlight=False, emoji=False)
    console.print(content, crop=False)
    return "".join(f"{line.rstrip()}\n" for line in buffer.getvalue().splitlines())


def renderable(sections: Iterable[Section], max_cell: int | None = None) -> RenderableType:
    """Return sections for a rich console.

    `max_cell`: the characters of a table's cell that are shown; all where not given.
    """
    drawn: list[RenderableType] = []
    for section in sections:
        if section.title:
            rule = Rule(Text(section.title, "bold"), align="left", style="bright_black")
            drawn.append(Padding(rule, (1, 0, 0, 0)))
        for line in _lines(section.blocks):
            if isinstance(line, TableBlock):
                drawn.append(_drawn_table(line, max_cell))
            elif line.is_cut:
                drawn.append(OneLine(Text(" " * line.indent).append_text(line.text)))
            else:
                text, indent = line.text, line.indent
                drawn.append(Padding(text, (0, 0, 0, indent)) if indent else text)
    return _Escaped(Group(*drawn))


class _Line(NamedTuple):
    text: Text
    indent: int = 0
    is_cut: bool = False  # at the width of a terminal; else it is wrapped


def _lines(blocks: Sequence[Block]) -> Iterator[_Line | TableBlock]:
    before = [None, *blocks]
    for previous, block in pairwise(before):
        is_apart = isinstance(block, (Paragraph, TableBlock)) and block.is_apart
        if is_apart or (isinstance(block, Claim) and previous is not None):
            yield _Line(Text(""))
        if isinstance(block, Paragraph):
            yield _Line(Text(block.text, _STYLE[block.style]))
        elif isinstance(block, Claim):
            yield from _claim(block)
        elif isinstance(block, Gap):
            yield _Line(Text.assemble((block.findings, "bold"), block.reason))
            yield _Line(Text(f"→ {block.remedy}", "italic"), _INDENT)
        elif block is not None:
            yield block


def _claim(claim: Claim) -> Iterator[_Line]:
    head = Text.assemble(
        (f" {claim.severity} ", _SEVERITY_STYLE[claim.severity]),
        (f" {claim.id} ", "bold"),
        f"  {claim.ranks}",
    )
    yield _Line(head)
    title, *more = claim.sentences
    for text in [title, *(["; ".join(more)] if more else [])]:
        yield _Line(Text(text), _INDENT)
    for item in claim.evidence:
        if item.is_shown:
            yield _Line(Text(item.text, "bright_black"), _INDENT, is_cut=True)
    for advice in claim.advice[: claim.num_advice]:
        yield _Line(Text(f"→ {advice}", "italic"), _INDENT)
    if claim.more:
        yield _Line(Text(claim.more, "bright_black"), _INDENT)


def _drawn_table(table: TableBlock, max_cell: int | None) -> RenderableType:
    """Return a table whose columns of text give way where the terminal is narrow."""
    drawn = _Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for column in table.columns:
        drawn.add_column(
            Text(column.heading),
            justify="left" if column.is_text else "right",
            vertical="bottom",
            no_wrap=not column.is_text,
        )
    for row in table.rows:
        drawn.add_row(
            *(
                _DrawnBar(cell)
                if isinstance(cell, Bar)
                else Text(
                    one_line(cell, max_cell),
                    no_wrap=column.is_cut or None,
                    overflow="ellipsis" if column.is_cut else None,
                )
                for cell, column in zip(row, table.columns, strict=True)
            )
        )
    bars = [cell for row in table.rows for cell in row if isinstance(cell, Bar)]
    return Group(drawn, _Legend(bars)) if bars else drawn


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


class _DrawnBar:
    """A window as a bar of characters."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        del console
        return Measurement(min(_MIN_BAR, options.max_width), min(_BAR, options.max_width))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Text]:
        del console
        width, window = min(_BAR, options.max_width), self._bar.window_ns
        bar = Text(no_wrap=True)
        drawn, seen = 0, 0
        for part, part_ns in self._bar.parts:
            _, colour, mark, plain_mark = _MARKS[part]
            seen += part_ns
            until = round(width * seen / window) if window else 0
            bar.append((plain_mark if options.ascii_only else mark) * (until - drawn), colour)
            drawn = until
        yield bar


class _Legend:
    """What the marks of the bars stand for."""

    def __init__(self, bars: Sequence[Bar]) -> None:
        drawn = {part for bar in bars for part, _ in bar.parts}
        self._marks = [mark for part, mark in _MARKS.items() if part in drawn]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Text]:
        del console
        yield Text("  ").join(
            Text.assemble((plain_mark if options.ascii_only else mark, colour), f" {name}")
            for name, colour, mark, plain_mark in self._marks
        )


class _Escaped:
    """Draws something with all that could drive a terminal escaped, whatever it was made of."""

    def __init__(self, content: RenderableType) -> None:
        self._content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Segment]:
        for segment in console.render(self._content, options):
            if segment.control or segment.text.isprintable() or segment.text == "\n":
                yield segment
            else:
                lines = segment.text.split("\n")
                yield Segment("\n".join(one_line(line) for line in lines), segment.style)


def render(analysis: RunResult, *, shows_kernels: bool = False, is_verbose: bool = False) -> str:
    """Return the report as plain text, 110 columns wide."""
    return plain(report(analysis, shows_kernels=shows_kernels, is_verbose=is_verbose))


def report(
    analysis: RunResult, *, shows_kernels: bool = False, is_verbose: bool = False
) -> RenderableType:
    """Return the report for a rich console.

    Without `is_verbose` it is the verdict, and what it is based on: what is read in a minute.
    """
    sections = short_sections(analysis)
    if is_verbose:
        sections = analysis_sections(analysis, shows_kernels=shows_kernels).in_order
    elif shows_kernels:
        sections[-1:] = [*kernel_sections(analysis), sections[-1]]
    return renderable(sections)
