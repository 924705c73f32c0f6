"""The reports that paths name, each once; in folders by content, damaged ones by name."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from traceprof.errors import TraceFileError
from traceprof.trace.open import CAPTURE_SUFFIXES, is_capture, is_database, is_profile, read_start

if TYPE_CHECKING:
    from collections.abc import Iterable

_TRACES = (".pt.trace.json", *(f".pt.trace.json.{ending}" for ending in ("gz", "xz", "zst")))
_SUFFIXES = (".sqlite", *CAPTURE_SUFFIXES, *_TRACES)


def report_paths(reports: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Return the named reports, each once, with folders and patterns that match no name resolved.

    Raises:
        TraceFileError: a pattern matches no file, or a folder contains no report.
    """
    paths: list[Path] = []
    for named in reports:
        report = os.fspath(named)
        if "\0" in report:
            raise TraceFileError(f"cannot read {report}", "embedded null byte", "check the path")
        if os.path.isdir(report):  # noqa: PTH112  (Path raises where it may not look)
            paths += reports_in(Path(report))
        elif os.path.lexists(report) or not glob.has_magic(report):
            paths.append(Path(report))
        else:
            paths += _matching(report)
    once: dict[str, Path] = {}
    for path in paths:
        once.setdefault(os.path.realpath(path), path)
    return [*once.values()]


def reports_in(folder: Path) -> list[Path]:
    """Return the reports directly in a folder, in order of name and number (rank 2 before 10).

    A capture beside its own export is left out. Damaged or empty files that are named like reports
    are included, so that their failure is reported; hidden files are not.

    Args:
        folder: a folder.

    Raises:
        TraceFileError: it cannot be read, or holds no report.
    """
    try:
        files = [path for path in folder.iterdir() if not path.name.startswith(".")]
        starts = {path: _start(path) for path in files if not path.is_dir()}
    except OSError as error:
        why = error.strerror or str(error)
        raise TraceFileError(f"cannot read {folder}", why, "check the path") from error
    exports = {path.stem for path, start in starts.items() if is_database(start)}
    captures = {path.stem for path, start in starts.items() if is_capture(start)}
    reports = [
        path
        for path, start in starts.items()
        if is_database(start)
        or is_profile(start)
        or (is_capture(start) and path.stem not in exports)
        or (path.name.endswith(_SUFFIXES) and path.stem not in exports | captures)  # damaged
    ]
    if not reports:
        raise TraceFileError(
            f"cannot read {folder}",
            "no report lies directly in this folder",
            "name a folder with .sqlite files or traces of torch.profiler, or name the files",
        )
    return sorted(reports, key=_by_number)


def _matching(pattern: str) -> list[Path]:
    names = sorted(glob.glob(pattern))  # noqa: PTH207  (Path.glob takes no absolute pattern)
    if not names:
        raise TraceFileError(
            f"cannot read {pattern}", "no file fits this pattern", "check the path"
        )
    return [Path(name) for name in names]


def _start(path: Path) -> bytes:
    """Return the beginning of a file; empty if unreadable, which opening it will report."""
    if not path.is_file():  # a pipe would wait for its writer
        return b""
    try:
        with path.open("rb") as file:
            return read_start(file)
    except OSError:
        return b""


def _by_number(path: Path) -> list[tuple[int, str]]:
    """Return a sort key that orders numbers in names by value."""
    parts = re.split(r"(\d+)", path.name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
