"""Who is told how far the reading is."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Somebody who wants to know how far the reading is."""

    def expect(self, number: int, /) -> None:
        """Learn that so many rows more, or fewer, will be read."""

    def advance(self, number: int, /) -> None:
        """Learn that so many rows were read."""
