"""Tables of the text report: what they look like."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence


def new_table(*headings: str, left: Sequence[str] = ()) -> Table:
    """Return a table whose left-aligned columns give way where the terminal is narrow."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for heading in headings:
        gives_way = heading in left
        table.add_column(
            heading,
            justify="left" if gives_way else "right",
            vertical="bottom",
            no_wrap=not gives_way,
        )
    return table
