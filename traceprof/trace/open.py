"""Opening reports of any format, recognised by content, not by name."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from traceprof.errors import MissingExtraError, TraceFileError, TraceFormatError, UsageError
from traceprof.trace.nsight import NSYS_REP

if TYPE_CHECKING:
    from traceprof.progress import Progress
    from traceprof.trace.model.trace import Trace

_SQLITE = b"SQLite format 3\x00"
CAPTURE_SUFFIXES = (".nsys-rep", ".qdrep")
_UNPACK = {"gzip": "gunzip", "xz": "unxz", "zstd": "unzstd"}
START_BYTES = 4096
"""The number of bytes by which a file is recognised."""
_PROFILE_MARKS, _EVENT_MARK = (b'"schemaVersion"', b'"traceEvents"'), b'"ph"'
_BLANK = b"\xef\xbb\xbf \t\r\n"  # and the byte order mark
_GIVE_EXPORT = "give a .sqlite file that `nsys export --type=sqlite REPORT.nsys-rep` writes"


def open_trace(
    path: str | os.PathLike[str],
    progress: Progress | None = None,
    *,
    kernels_on_demand: bool = False,
) -> Trace:
    """Open a report for reading; neither it nor its folder is ever written to.

    Args:
        path: an Nsight Systems SQLite export, a .nsys-rep (which `nsys`, found on PATH, then
            exports to a temporary folder), or a trace of torch.profiler, plain or packed by gzip,
            xz or zstd.
        progress: called with the rows or bytes that are read.
        kernels_on_demand: whether the kernels of an export are read only on first use; their ranks,
            time spans and names are read at once.

    Raises:
        UsageError: it is not a path.
        TraceFileError: missing, a folder, empty, or not readable.
        TraceFormatError: damaged, or nothing that traceprof reads.
        MissingToolError: a .nsys-rep without `nsys`.
        MissingExtraError: packed by zstd, and nothing is installed that unpacks it.
    """
    report = _path(path)
    start = _first_bytes(report)
    if start.startswith(_SQLITE) or _SQLITE.startswith(start):
        from traceprof.trace.nsight.export import NsightTrace

        return NsightTrace(report, progress, kernels_on_demand=kernels_on_demand)
    if start.startswith(NSYS_REP):
        from traceprof.trace.nsight.conversion import ConvertedTrace

        return ConvertedTrace(report, progress, kernels_on_demand=kernels_on_demand)
    unpacked = unpacked_start(start)
    if unpacked is not None and unpacked.lstrip(_BLANK).startswith((b"{", b"[")):
        from traceprof.trace.kineto.trace import KinetoTrace

        return KinetoTrace(report, progress)
    from traceprof.trace.kineto.file import NO_ZSTD, can_unpack

    if not can_unpack(start):
        remedy = "unpack it with unzstd, or pip install backports.zstd"
        raise MissingExtraError(f"cannot read {report}", NO_ZSTD, remedy)
    raise TraceFormatError(f"cannot read {report}", *_unreadable(start, unpacked))


def _path(path: object) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise UsageError(f"cannot read {path!r}", "it is not a path", "give the path of a report")
    return Path(path)


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
        from traceprof.trace.nsight.parts import RE_EXPORT

        is_json = ".json" in path.name
        remedy = COPY_AGAIN if is_json else RE_EXPORT
        what = "a recording" if is_json else "an export"
        why = f"the file is empty; {what} that was interrupted leaves such a file"
        raise TraceFileError(f"cannot read {path}", why, remedy)
    return start


def _unreadable(start: bytes, unpacked: bytes | None) -> tuple[str, str]:
    from traceprof.trace.kineto.file import NAMES, packing

    name = NAMES.get(packing(start) or b"")
    if unpacked is None:
        return f"a damaged {name} file", f"copy it again, or {_GIVE_EXPORT}"
    if name is not None and unpacked.startswith((_SQLITE, NSYS_REP)):
        return f"a report that is compressed with {name}", f"unpack it with {_UNPACK[name]}"
    return (
        "neither an SQLite database nor a .nsys-rep nor JSON",
        f"{_GIVE_EXPORT}, or a trace of torch.profiler",
    )
