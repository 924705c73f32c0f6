"""How far the analysis is, told by one thread and asked by others."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traceprof.trace.model import Progress


PROGRESS = "/progress"
"""The path at which the server tells how far the analysis is."""


class Waiting:
    """Rows read and expected, and whether it is over; passes on what it learns to another listener.

    Attributes:
        also: who else wants to know.
    """

    def __init__(self, also: Progress | None = None) -> None:
        self.also = also
        self._lock = threading.Lock()
        self._begun, self._over = threading.Event(), threading.Event()
        self._done = self._expected = 0

    def expect(self, rows: int) -> None:
        """Learn that so many rows more, or fewer, will be read."""
        with self._lock:
            self._expected += rows
        self._begun.set()
        if self.also is not None:
            self.also.expect(rows)

    def advance(self, rows: int) -> None:
        """Learn that so many rows were read."""
        with self._lock:
            self._done += rows
        if self.also is not None:
            self.also.advance(rows)

    def end(self) -> None:
        """Learn that there is nothing more to wait for."""
        self._begun.set()
        self._over.set()

    def wait_for_rows(self, seconds: float) -> None:
        """Return when rows are being read, or none will be, and after this time at the latest."""
        self._begun.wait(seconds)

    def wait(self, seconds: float) -> bool:
        """Return whether it is over, as soon as it is, and after this time at the latest."""
        return self._over.wait(seconds)

    def so_far(self) -> tuple[int, int]:
        """Return the rows read, and the rows expected."""
        with self._lock:
            return self._done, self._expected
