"""Progress listeners."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives progress updates."""

    def expect(self, number: int, /) -> None:
        """Add to the number of rows that will be read; negative if there are fewer."""

    def advance(self, number: int, /) -> None:
        """Add to the number of rows that were read."""


class _Unheard:
    def expect(self, number: int, /) -> None:
        """Ignore the number."""

    def advance(self, number: int, /) -> None:
        """Ignore the number."""


UNHEARD: Progress = _Unheard()
"""Receives progress that nobody wants."""
