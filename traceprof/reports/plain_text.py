"""Drawings of rich as plain text: for files, pipes and blocks in documents."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from rich.console import RenderableType

PLAIN_WIDTH = 110
"""Columns of output that goes to no terminal."""


def plain(renderable: RenderableType, width: int = PLAIN_WIDTH) -> str:
    """Return what rich draws as text without colours and without spaces at the ends of lines."""
    buffer = io.StringIO()
    console = Console(file=buffer, width=width, color_system=None, highlight=False, emoji=False)
    console.print(renderable, crop=False)
    return "".join(f"{line.rstrip()}\n" for line in buffer.getvalue().splitlines())
