"""The files of the reports: whether they have changed since they were read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from traceprof.errors import one_line

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

FILES, ANEW = "/files", "/anew"
"""The paths at which changes of files are asked for, and a new reading of the reports."""


class Change(NamedTuple):
    """A change of a file since it was read.

    Attributes:
        name: of the file.
        what: `replaced` (by another file), `changed` (in place) or `no longer there`.
    """

    name: str
    what: str


class ReportFiles:
    """The state of files when they were read."""

    def __init__(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        self._then = {path: _state(path) for path in map(Path, paths)}

    def changes(self) -> list[Change]:
        """Return the changes of all files that have changed."""
        now = {path: _state(path) for path in self._then}
        return [
            Change(one_line(path.name), _what(then, now[path]))
            for path, then in self._then.items()
            if now[path] != then
        ]


def _state(path: Path) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Return which file has a path, and its size and time; None for no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino), (status.st_size, status.st_mtime_ns)


def _what(
    then: tuple[tuple[int, int], tuple[int, int]] | None,
    now: tuple[tuple[int, int], tuple[int, int]] | None,
) -> str:
    if now is None:
        return "no longer there"
    return "changed" if then is not None and then[0] == now[0] else "replaced"
