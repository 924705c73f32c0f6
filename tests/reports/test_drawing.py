"""Plain text is what rich would draw, which draws the same on terminals."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from tests.support.traces import SAMPLES
from traceprof.analysis import analyze_reports
from traceprof.reports.drawing import (
    Drawing,
    Escaped,
    Group,
    Heading,
    Indented,
    OneLine,
    Table,
    Text,
    plain,
)
from traceprof.reports.terminal import rich_drawing
from traceprof.reports.text import report


def by_rich(drawing: Drawing, width: int) -> str:
    buffer = io.StringIO()
    console = Console(file=buffer, width=width, color_system=None, highlight=False, emoji=False)
    console.print(rich_drawing(drawing), crop=False)
    return "".join(f"{line.rstrip()}\n" for line in buffer.getvalue().splitlines())


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_reports_are_drawn_as_rich_draws_them(path: Path) -> None:
    drawing = report(analyze_reports([path]))
    for width in (60, 110):
        assert plain(drawing, width) == by_rich(drawing, width)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a few words that need more than one line",
        "  indented, with   spaces   between   words and at the end   ",
        "a_word_that_is_longer_than_any_line_is_wide and one that is not",
        "first line\nsecond line, which is too long\n",
        "東京の訓練 は 遅い とても 遅い", "µs → ≥ … naïve ‰ e\u0301tude",
    ],
)  # fmt: skip
def test_lines_break_as_in_rich(text: str) -> None:
    for width in range(6, 45):
        group = Group(Text(text), Indented(Text(text, "bold"), Text("x")), OneLine(Text("y" * 99)))
        assert plain(group, width) == by_rich(group, width)


def test_tables_are_aligned_as_in_rich() -> None:
    table = Table("name", "two\nlines", "", "empty", left=("name",))
    table.add_row("東京", "[red]1", Text.assemble(("bold", "bold"), " text"))
    table.add_row(Text("a long name  "), "22\n333", "1.5 ms")
    table.caption = "… and more rows, said in more words than the table is wide"
    shown = Escaped(Heading("A title"), table, Text("\x1b[31m"), Indented(table))
    assert plain(shown) == by_rich(shown, 110)
    assert "\x1b" not in plain(shown)
