"""The reading of the reports: its progress, and whether the files have changed since."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from traceprof.errors import one_line
from traceprof.progress import Progress

PROGRESS = "/progress"
"""The path at which the server reports the progress of the analysis."""


class AnalysisProgress:
    """Rows read and expected, and whether the analysis has ended.

    Attributes:
        also: another listener that receives the number of rows.
    """

    def __init__(self, also: Progress | None = None) -> None:
        self.also = also
        self._changing = threading.Lock()
        self._is_over = threading.Event()
        self._done = self._expected = 0

    def expect(self, rows: int) -> None:
        """Add to the number of rows that will be read; negative if there are fewer."""
        with self._changing:
            self._expected += rows
        if self.also is not None:
            self.also.expect(rows)

    def advance(self, rows: int) -> None:
        """Add to the number of rows that were read."""
        with self._changing:
            self._done += rows
        if self.also is not None:
            self.also.advance(rows)

    def end(self) -> None:
        """Note that the analysis has ended."""
        self._is_over.set()

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the analysis, but at most this time; return whether it has ended."""
        return self._is_over.wait(seconds)

    def so_far(self) -> tuple[int, int]:
        """Return the numbers of rows read and expected."""
        with self._changing:
            return self._done, self._expected


FILES, ANEW = "/files", "/anew"
"""The paths at which changes of files are asked for, and a new reading of the reports."""


class Change(NamedTuple):
    """A change of a file since it was read."""

    name: str  # of the file
    what: str  # `replaced` (by another file), `changed` (in place) or `no longer there`


class ReportFiles:
    """The state of files when they were read."""

    def __init__(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        self._then = {path: _state(path) for path in map(Path, paths)}

    def changes(self) -> list[Change]:
        """Return the changes of all files that have changed."""
        now = {path: _state(path) for path in self._then}
        changes = []
        for path, then in self._then.items():
            current = now[path]
            if current is None:
                what = "no longer there"
            else:
                what = "changed" if then is not None and then[0] == current[0] else "replaced"
            if current != then:
                changes.append(Change(one_line(path.name), what))
        return changes


def _state(path: Path) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Return which file has a path, and its size and time; None for no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino), (status.st_size, status.st_mtime_ns)
