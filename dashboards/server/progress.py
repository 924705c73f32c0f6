"""How far the analysis is, told by one thread and asked by others."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traceprof.analysis import Analysis
    from traceprof.progress import Progress


PROGRESS = "/progress"
"""The path at which the server tells how far the analysis is."""


class AnalysisProgress:
    """Rows read and expected, and whether it is over; passes on what it learns to another listener.

    Attributes:
        also: who else wants to know.
        first_look: what is known so far, None where that is nothing.
        num_previews: how often it changed.
    """

    def __init__(self, also: Progress | None = None) -> None:
        self.also = also
        self.first_look: Analysis | None = None
        self.num_previews = 0
        self._changed = threading.Condition()
        self._begun = threading.Event()
        self._is_over = False
        self._done = self._expected = 0

    def expect(self, rows: int) -> None:
        """Learn that so many rows more, or fewer, will be read."""
        with self._changed:
            self._expected += rows
        self._begun.set()
        if self.also is not None:
            self.also.expect(rows)

    def advance(self, rows: int) -> None:
        """Learn that so many rows were read."""
        with self._changed:
            self._done += rows
        if self.also is not None:
            self.also.advance(rows)

    def end(self) -> None:
        """Learn that there is nothing more to wait for."""
        self._begun.set()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def wait_for_rows(self, seconds: float) -> None:
        """Return when rows are being read, or none will be, and after this time at the latest."""
        self._begun.wait(seconds)

    def wait(self, seconds: float, num_previews: int | None = None) -> bool:
        """Return whether it is over, as soon as it is, and after this time at the latest.

        Args:
            seconds: this time.
            num_previews: how often `first_look` had changed when the caller saw it; where it
                changed since then, there is nothing to wait for.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_over or num_previews not in {None, self.num_previews}, seconds
            )
            return self._is_over

    def look(self, analysis: Analysis) -> None:
        """Learn what is known so far."""
        with self._changed:
            self.first_look = analysis
            self.num_previews += 1
            self._changed.notify_all()

    def so_far(self) -> tuple[int, int]:
        """Return the rows read, and the rows expected."""
        with self._changed:
            return self._done, self._expected
