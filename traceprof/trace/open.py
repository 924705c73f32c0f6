"""Which reports paths name, each once, and opening them: recognised by content, not by name."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from traceprof.errors import MissingExtraError, TraceFileError, TraceFormatError, UsageError
from traceprof.progress import Progress
from traceprof.trace.model.trace import Trace
from traceprof.trace.nsight import NSYS_REP

AnyPath = str | os.PathLike[str]

_SQLITE = b"SQLite format 3\x00"
CAPTURE_SUFFIXES = (".nsys-rep", ".qdrep")
_ZIP = b"PK\x03\x04"
_UNPACK = {"gzip": "gunzip", "xz": "unxz", "zstd": "unzstd"}
START_BYTES = 4096
"""The number of bytes by which a file is recognised."""
_PROFILE_MARKS, _EVENT_MARK = (b'"schemaVersion"', b'"traceEvents"'), b'"ph"'
_BLANK = b"\xef\xbb\xbf \t\r\n"  # and the byte order mark
_GIVE_EXPORT = "give a .sqlite file that `nsys export --type=sqlite REPORT.nsys-rep` writes"


def open_trace(path: str | os.PathLike[str], progress: Progress | None = None) -> Trace:
    """Open a report for reading; neither it nor its folder is ever written to.

    Args:
        path: an Nsight Systems SQLite export, a .nsys-rep (which `nsys`, found on PATH, then
            exports to a temporary folder), or a trace of torch.profiler, plain or packed by gzip,
            xz or zstd.
        progress: called with the rows or bytes that are read.

    Raises:
        UsageError: it is not a path.
        TraceFileError: missing, a folder, empty, or not readable.
        TraceFormatError: damaged, or nothing that traceprof reads.
        MissingToolError: a .nsys-rep without `nsys`.
        MissingExtraError: packed by zstd, and nothing is installed that unpacks it.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise UsageError(f"cannot read {path!r}", "it is not a path", "give the path of a report")
    report = Path(path)
    start = _first_bytes(report)
    if start.startswith(_SQLITE) or _SQLITE.startswith(start):
        from traceprof.trace.nsight.export import NsightTrace

        return NsightTrace(report, progress)
    if start.startswith(NSYS_REP):
        from traceprof.trace.nsight.conversion import ConvertedTrace

        return ConvertedTrace(report, progress)
    unpacked = unpacked_start(start)
    if unpacked is not None and unpacked.lstrip(_BLANK).startswith((b"{", b"[")):
        from traceprof.trace.kineto.trace import KinetoTrace

        return KinetoTrace(report, progress)
    from traceprof.trace.kineto.file import NO_ZSTD, can_unpack

    if not can_unpack(start):
        remedy = "unpack it with unzstd, or pip install backports.zstd"
        raise MissingExtraError(f"cannot read {report}", NO_ZSTD, remedy)
    raise TraceFormatError(f"cannot read {report}", *_unreadable(start, unpacked))


def check_openable(path: Path) -> None:
    """Check that a file exists, is readable and is not empty.

    Raises:
        TraceFileError: missing, unreadable or empty.
    """
    _first_bytes(path)


def is_database(start: bytes) -> bool:
    """Return whether a file with this beginning is an SQLite database."""
    return start.startswith(_SQLITE)


def is_capture(start: bytes) -> bool:
    """Return whether a file with this beginning is a report that must be exported first."""
    return start.startswith(NSYS_REP)


def is_profile(start: bytes) -> bool:
    """Return whether a file with this beginning is a trace of torch.profiler, packed or not."""
    unpacked = unpacked_start(start) or b""
    begin = unpacked.lstrip(_BLANK)[:1]
    return (begin == b"{" and any(mark in unpacked for mark in _PROFILE_MARKS)) or (
        begin == b"[" and _EVENT_MARK in unpacked
    )


def unpacked_start(start: bytes) -> bytes | None:
    """Unpacked beginning of a file; None if it is compressed and cannot be unpacked."""
    from traceprof.trace.kineto import file as packing

    return packing.unpacked_start(start, START_BYTES) if packing.packing(start) else start


def read_start(file: BinaryIO) -> bytes:
    """Return the bytes at the beginning of a file by which it is recognised."""
    start = file.read(START_BYTES)
    if start.startswith((_SQLITE, NSYS_REP)):
        return start
    from traceprof.trace.kineto.file import MAX_BLOCK_BYTES, ZSTD

    return start + file.read(MAX_BLOCK_BYTES) if start.startswith(ZSTD) else start


def _first_bytes(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise TraceFileError(
                f"cannot read {path}", "it is a folder", f"name its reports: {path}/*.sqlite"
            )
        if not stat.S_ISREG(mode):  # opening a pipe would wait for its writer
            raise TraceFileError(
                f"cannot read {path}", "it is a pipe or a device", "save it as a file first"
            )
        with path.open("rb") as file:
            start = read_start(file)
    except FileNotFoundError as error:
        why = "it is a link to nothing" if path.is_symlink() else "there is no such file"
        shown, remedy = str(path), "check the path"
        if re.match(r"[a-z][a-z0-9+.-]+:/", shown):
            shown = shown.replace(":/", "://", 1)  # a path has no two slashes
            why = "it is an address, and only files are read"
            remedy = "copy it to this machine"
        raise TraceFileError(f"cannot read {shown}", why, remedy) from error
    except PermissionError as error:
        raise TraceFileError(
            f"cannot read {path}", "permission denied", "ask its owner, or copy it with sudo"
        ) from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise TraceFileError(f"cannot read {path}", why, "check the path") from error
    if not start:
        from traceprof.trace.kineto.file import COPY_AGAIN
        from traceprof.trace.nsight.metadata import RE_EXPORT

        is_json = ".json" in path.name
        remedy = COPY_AGAIN if is_json else RE_EXPORT
        what = "a recording" if is_json else "an export"
        why = f"the file is empty; {what} that was interrupted leaves such a file"
        raise TraceFileError(f"cannot read {path}", why, remedy)
    return start


def _unreadable(start: bytes, unpacked: bytes | None) -> tuple[str, str]:
    from traceprof.trace.kineto.file import NAMES, packing

    name = NAMES.get(packing(start) or b"")
    if start.startswith(_ZIP):
        return "a zip archive", "unpack it with unzip, and give what is in it"
    if unpacked is not None and _is_perfetto(unpacked):
        return (
            "a Perfetto trace (protobuf), which is made to be looked at",
            "give what it was made from: an export of Nsight Systems, or torch.profiler's JSON",
        )
    if unpacked is None:
        return f"a damaged {name} file", f"copy it again, or {_GIVE_EXPORT}"
    if name is not None and unpacked.startswith((_SQLITE, NSYS_REP)):
        return f"a report that is compressed with {name}", f"unpack it with {_UNPACK[name]}"
    return (
        "neither an SQLite database nor a .nsys-rep nor JSON",
        f"{_GIVE_EXPORT}, or a trace of torch.profiler",
    )


def _is_perfetto(start: bytes) -> bool:
    """Whether a file begins with a packet of a Perfetto trace: field 1, its length, the next."""
    head = re.match(rb"\n([\x80-\xff]{0,3}[\0-\x7f])", start)
    if head is None:
        return False
    after = head.end() + sum((byte & 127) << 7 * place for place, byte in enumerate(head[1]))
    return start[after : after + 1] == b"\n" or after >= START_BYTES


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
    from glob import glob

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
