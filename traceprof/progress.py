"""Who is told how far the reading is, and what is known before all is read."""

from __future__ import annotations

from typing import Protocol, TypeVar

Result_contra = TypeVar("Result_contra", contravariant=True)


class Progress(Protocol):
    """Somebody who wants to know how far the reading is."""

    def expect(self, number: int, /) -> None:
        """Learn that so many rows more, or fewer, will be read."""

    def advance(self, number: int, /) -> None:
        """Learn that so many rows were read."""


class Listener(Progress, Protocol[Result_contra]):
    """Somebody who also wants the results that are known while the rest is still being read."""

    def partial(self, result: Result_contra, /) -> None:
        """Learn what is known so far; a later result holds all that an earlier one did."""
