"""Progress listeners and partial results."""

from __future__ import annotations

from typing import Protocol, TypeVar

Result_contra = TypeVar("Result_contra", contravariant=True)


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


class Listener(Progress, Protocol[Result_contra]):
    """Receives partial results as well, while the rest is still being read."""

    def partial(self, result: Result_contra, /) -> None:
        """Learn what is known so far; a later result holds all that an earlier one did."""
