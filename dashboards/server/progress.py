"""The progress of the analysis: one thread reports it, others read it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traceprof.analysis import Analysis
    from traceprof.progress import Progress


PROGRESS = "/progress"
"""The path at which the server reports the progress of the analysis."""


class AnalysisProgress:
    """Rows read and expected, the results so far, and whether the analysis has ended.

    Attributes:
        also: another listener that receives the number of rows.
        preview: the results so far; None if there are none.
        num_previews: the number of changes of `preview`.
    """

    def __init__(self, also: Progress | None = None) -> None:
        self.also = also
        self.preview: Analysis | None = None
        self.num_previews = 0
        self._changed = threading.Condition()
        self._is_over = False
        self._done = self._expected = 0

    def expect(self, rows: int) -> None:
        """Add to the number of rows that will be read; negative if there are fewer."""
        with self._changed:
            self._expected += rows
        if self.also is not None:
            self.also.expect(rows)

    def advance(self, rows: int) -> None:
        """Add to the number of rows that were read."""
        with self._changed:
            self._done += rows
        if self.also is not None:
            self.also.advance(rows)

    def end(self) -> None:
        """Note that the analysis has ended."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def wait(self, seconds: float, num_previews: int | None = None) -> bool:
        """Wait for the end of the analysis, but at most this time; return whether it has ended.

        Args:
            seconds: the longest wait.
            num_previews: `num_previews` as the caller last saw it; a later change ends the wait.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_over or num_previews not in {None, self.num_previews}, seconds
            )
            return self._is_over

    def partial(self, result: Analysis) -> None:
        """Learn what is known so far."""
        with self._changed:
            self.preview = result
            self.num_previews += 1
            self._changed.notify_all()

    def so_far(self) -> tuple[int, int]:
        """Return the rows read, and the rows expected."""
        with self._changed:
            return self._done, self._expected
