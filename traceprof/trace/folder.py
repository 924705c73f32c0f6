"""The reports that paths name, each once; in folders by content, damaged ones by name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from traceprof.errors import TraceFileError, UsageError
from traceprof.trace.open import CAPTURE_SUFFIXES, is_capture, is_database, is_profile, read_start

if TYPE_CHECKING:
    from collections.abc import Iterator

    AnyPath = str | os.PathLike[str]

_TRACES = (".pt.trace.json", *(f".pt.trace.json.{ending}" for ending in ("gz", "xz", "zst")))
_SUFFIXES = (".sqlite", *CAPTURE_SUFFIXES, *_TRACES)


def report_paths(reports: Iterable[AnyPath | Iterable[AnyPath]]) -> list[Path]:
    """Return the named reports, each once, with folders and patterns that match no name resolved.

    Args:
        reports: paths, or lists of them.

    Raises:
        UsageError: there is none, or something else than a path.
        TraceFileError: a pattern matches no file, or a folder contains no report.
    """
    paths = [path for report in _texts(reports) for path in _named(report)]
    if not paths:
        raise UsageError(
            "cannot read a run", "no report was given", "give the paths of its reports"
        )
    once: dict[str, Path] = {}
    for path in paths:
        once.setdefault(os.path.realpath(path), path)
    return [*once.values()]


def _texts(reports: object, *, is_list: bool = False) -> Iterator[str]:
    for report in reports if isinstance(reports, Iterable) else ():
        if isinstance(report, (str, bytes, os.PathLike)):
            yield os.fsdecode(report)
        elif isinstance(report, Iterable) and not is_list:
            yield from _texts(report, is_list=True)
        else:
            raise UsageError(
                f"cannot read {report!r}", "it is not a path", "give paths of reports or of folders"
            )


def _named(report: str) -> list[Path]:
    try:
        is_name = b"\0" not in os.fsencode(report)
    except UnicodeEncodeError:
        is_name = False
    if not is_name:
        raise TraceFileError(f"cannot read {report}", "no file has such a name", "check the path")
    if os.path.isdir(report):  # noqa: PTH112  (Path raises where it may not look)
        return reports_in(Path(report))
    if os.path.lexists(report) or not any(mark in report for mark in "*?["):
        return [Path(report)]
    return _matching(report)


def reports_in(folder: Path) -> list[Path]:
    """Return the reports directly in a folder, in order of name and number (rank 2 before 10).

    A capture beside its own export is left out. Damaged or empty files that are named like reports
    are included, so that their failure is reported; hidden files are not.

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
    from glob import glob  # noqa: PLC0415  (few ask for one)

    names = sorted(glob(pattern))  # noqa: PTH207  (Path.glob takes no absolute pattern)
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
    parts = re.split(r"(\d+)", path.name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
