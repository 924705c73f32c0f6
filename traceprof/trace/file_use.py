"""Files that are closed once no thread reads them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from traceprof.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class FileUse:
    """Keeps a file open as long as a block runs, in any thread.

    A thread must not close a file that SQLite reads in another one: the process would crash.

    Args:
        path: the report.
        close: closes the file; a second call does nothing.
    """

    def __init__(self, path: Path, close: Callable[[], None]) -> None:
        self._path, self._close = path, close
        self._lock = threading.Lock()
        self._num_blocks = 0
        self._is_closing = False

    def __enter__(self) -> None:
        with self._lock:
            if self._is_closing and not self._num_blocks:
                what = f"cannot read {self._path}"
                raise UsageError(what, "it has been closed", "open or analyse it again")
            self._num_blocks += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._num_blocks -= 1
            is_last = self._is_closing and not self._num_blocks
        if is_last:
            self._close()

    def unless_read(self, action: Callable[[], None]) -> None:
        """Act while no thread reads the file; do nothing if one does."""
        with self._lock:
            if not self._num_blocks:
                action()

    def close(self) -> None:
        """Close the file, at the end of the last block if one runs."""
        with self._lock:
            self._is_closing = True
            is_unused = not self._num_blocks
        if is_unused:
            self._close()
