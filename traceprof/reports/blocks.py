"""What reports consist of: sections of neutral blocks, which each format writes in its own way.

A text in a block is one line, with control characters escaped. Writers escape what is special in
their own format.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from traceprof.analyses.breakdown import Measures
from traceprof.errors import one_line
from traceprof.structs import Record
from traceprof.units import counted

MAX_RANKS = 32  # in a table: more than that nobody reads; the JSON has them all
MAX_NAME = 80  # characters of a name that stands in a table
PARTS = {
    "compute_ns": "compute",
    "exposed_communication_ns": "exposed communication",
    "exposed_copy_ns": "exposed copy",
    "idle_ns": "idle",
}
"""Parts of a window: field of `Measures`, name."""
LOST = "lost_ns"
"""One more part, of windows in which operations were lost."""


class Paragraph(Record, frozen=True):
    """A sentence or more."""

    text: str
    style: Literal["", "title", "advice"] = ""
    is_apart: bool = False  # whether a blank line stands before it, in a terminal


class Bar(Record, frozen=True):
    """A window as a bar: its parts, each as wide as its share."""

    parts: tuple[tuple[str, int], ...]  # of `PARTS`, and perhaps the lost one, in ns
    window_ns: int

    @property
    def shares(self) -> list[tuple[str, float]]:
        """The share of each part, 0 to 1."""
        return [(part, ns / self.window_ns if self.window_ns else 0.0) for part, ns in self.parts]


def bar_of(measures: Measures) -> Bar:
    """Return the parts of a window as a bar."""
    parts = (*PARTS, LOST) if measures.lost_ns else PARTS
    return Bar(tuple((part, getattr(measures, part)) for part in parts), measures.window_ns)


Cell: TypeAlias = "str | Bar"


class TableColumn(Record, frozen=True):
    """A column of a table. A heading may have several lines."""

    heading: str
    is_text: bool = False  # it stands at the left, and may be wrapped; numbers are neither
    is_cut: bool = False  # where there is no room it is cut, not wrapped


class TableBlock(Record, frozen=True):
    """Rows under headings, with a cell for each column."""

    columns: tuple[TableColumn, ...]
    rows: tuple[tuple[Cell, ...], ...]
    is_apart: bool = False  # whether a blank line stands before it, in a terminal


class SeenEvidence(Record, frozen=True):
    """A piece of evidence of a claim."""

    text: str
    start_ns: int
    end_ns: int
    is_shown: bool  # whether it matters enough for short formats, and was not shown before


class Claim(Record, frozen=True):
    """What a finding claims of the ranks that have it, by the rank where it costs most."""

    id: str
    severity: str
    ranks: str  # such as `ranks 0-7`
    rank: int  # where it costs most, and the evidence is from
    sentences: tuple[str, ...]  # the title, then what it costs in a step and would gain
    evidence: tuple[SeenEvidence, ...]
    advice: tuple[str, ...]  # the most promising first
    num_advice: int  # shown in short formats
    more: str  # says where the other advice is


class Gap(Record, frozen=True):
    """What could not be analysed: the findings, what is missing on which ranks, the remedy."""

    findings: str
    reason: str
    remedy: str


Block: TypeAlias = "Paragraph | TableBlock | Claim | Gap"


class Section(Record, frozen=True):
    """A part of a report under a heading, which is empty where there is none."""

    title: str
    blocks: tuple[Block, ...]


def section(title: str, *blocks: Block | str | None) -> Section:
    """Return a section of blocks, and of sentences as paragraphs; None is left out."""
    return Section(
        title,
        tuple(
            paragraph(block) if isinstance(block, str) else block
            for block in blocks
            if block is not None
        ),
    )


def others(num: int, what: str) -> str | None:
    """Say that so many more are left out; None if none is."""
    return f"… and {counted(num, f'more {what}')}: --format json has them all" if num > 0 else None


def paragraph(text: str, *, is_apart: bool = False) -> Paragraph:
    """Return a paragraph of a sentence that may have names from a report in it."""
    return Paragraph(one_line(text), is_apart=is_apart)


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    text: Sequence[str] = (),
    cut: Sequence[str] = (),
    is_apart: bool = False,
) -> TableBlock:
    """Return a table.

    `rows`: the cells of each row; rows that are too short are filled up. `cut`: those of columns of
    text that are cut where there is no room.
    """
    columns = tuple(
        TableColumn(heading, heading in text or heading in cut, heading in cut)
        for heading in headings
    )
    cells = [
        tuple(one_line(cell) if isinstance(cell, str) else cell for cell in row) for row in rows
    ]
    filled = tuple(row + ("",) * (len(columns) - len(row)) for row in cells)
    return TableBlock(columns, filled, is_apart)
