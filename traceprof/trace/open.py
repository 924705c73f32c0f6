"""Opening reports of any format, recognised by content, not by name."""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import shlex
import shutil
import signal
import sqlite3
import stat
import sys
import tempfile
import time
import zlib
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from traceprof.errors import MissingToolError, TraceFileError, TraceFormatError
from traceprof.trace.kineto.trace import KinetoTrace
from traceprof.trace.nsight.export import NsightTrace
from traceprof.trace.nsight.nccl.json_payloads import add_payloads, lacks_payloads
from traceprof.trace.nsight.parts import RE_EXPORT
from traceprof.trace.nsight.programs import captured

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from traceprof.progress import Progress
    from traceprof.trace.model.trace import Trace

_SQLITE = b"SQLite format 3\x00"
_NSYS_REP = b"NVIDIA Tegra Profiler Report"
CAPTURE_SUFFIXES = (".nsys-rep", ".qdrep")
_GZIP = b"\x1f\x8b"
_GZIP_FORMAT = 31  # of zlib: gzip's header, the largest window
START_BYTES = 4096
"""The number of bytes by which a file is recognised."""
_PROFILE_MARKS, _EVENT_MARK = (b'"schemaVersion"', b'"traceEvents"'), b'"ph"'
_BLANK = b"\xef\xbb\xbf \t\r\n"  # and the byte order mark
_PR_SET_PDEATHSIG = 1  # of prctl(2)
_TRIES, _PAUSE_S = 20, 0.05
_PREFIX, _LOCK = "traceprof-", "in-use"  # of folders of exports, and the locked file in them
# The year, the number in it and that of the correction: 2023@4@4 in a .nsys-rep, 2023.4.4 by nsys.
_VERSION = re.compile(r"\b(20\d\d)[.@](\d+)[.@](\d+)")
_FIRST_WITH_BLOBS = (2024, 5)
_PAYLOAD_OPTIONS = ("--include-blobs", "--include-json")
FORMATS = (NsightTrace.format, KinetoTrace.format)
"""The values of `Trace.format`."""
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
            exports to a temporary folder), or a trace of torch.profiler, plain or packed by gzip.
        progress: called with the rows or bytes that are read.
        kernels_on_demand: whether the kernels of an export are read only on first use; their ranks,
            time spans and names are read at once.

    Raises:
        TraceFileError: missing, a folder, empty, or not readable.
        TraceFormatError: damaged, or nothing that traceprof reads.
        MissingToolError: a .nsys-rep without `nsys`.
    """
    report = Path(path)
    start = _first_bytes(report)
    if start.startswith(_SQLITE) or _SQLITE.startswith(start):
        return NsightTrace(report, progress, kernels_on_demand=kernels_on_demand)
    if start.startswith(_NSYS_REP):
        return _ExportedTrace(report, progress, kernels_on_demand)
    unpacked = unpacked_start(start)
    if unpacked is not None and unpacked.lstrip(_BLANK).startswith((b"{", b"[")):
        return KinetoTrace(report, progress)
    raise TraceFormatError(f"cannot read {report}", *_unreadable(start, unpacked))


def export_capture(report: Path, folder: Path) -> Path:
    """Export a .nsys-rep with all data that the `nsys` on PATH can export.

    Args:
        report: the capture.
        folder: of the export.

    Raises:
        MissingToolError: there is no `nsys`, or it does not start.
        TraceFormatError: the capture cannot be exported.
    """
    return _export(_find_nsys(report), report, folder)


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
    return start.startswith(_NSYS_REP)


def is_profile(start: bytes) -> bool:
    """Return whether a file with this beginning is a trace of torch.profiler, packed or not."""
    unpacked = unpacked_start(start) or b""
    begin = unpacked.lstrip(_BLANK)[:1]
    return (begin == b"{" and any(mark in unpacked for mark in _PROFILE_MARKS)) or (
        begin == b"[" and _EVENT_MARK in unpacked
    )


def unpacked_start(start: bytes) -> bytes | None:
    """Return the unpacked beginning of a file, given its own beginning.

    Returns:
        None if it is compressed and cannot be unpacked.
    """
    if not start.startswith(_GZIP):
        return start
    try:
        unpacked = zlib.decompressobj(_GZIP_FORMAT).decompress(start, START_BYTES)
    except zlib.error:
        return None
    return unpacked or None


class _ExportedTrace(NsightTrace):
    """A .nsys-rep with its export in a temporary folder, which exists until it is closed."""

    def __init__(self, report: Path, progress: Progress | None, kernels_on_demand: bool) -> None:
        nsys = _find_nsys(report)
        _remove_abandoned()
        try:
            self._folder = tempfile.TemporaryDirectory(prefix=_folder_prefix(os.getpid()))
            self._lock = _locked(Path(self._folder.name))
        except OSError as error:
            raise TraceFileError(
                f"cannot export {report}",
                f"there is no folder for temporary files ({error.strerror})",
                "name one in the environment variable TMPDIR",
            ) from error
        try:
            file = _export(nsys, report, Path(self._folder.name))
            super().__init__(report, progress, file=file, kernels_on_demand=kernels_on_demand)
        except BaseException:
            self._clean_up()
            raise

    def close(self) -> None:
        super().close()
        self._clean_up()

    def _clean_up(self) -> None:
        self._folder.cleanup()
        self._lock.close()


def remove_exports(pid: int) -> None:
    """Remove the exports of a process that was killed before it could do so itself.

    Args:
        pid: the process, which has ended; its children end with it.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{_folder_prefix(pid)}*"):
        for _ in range(_TRIES):
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break
            time.sleep(_PAUSE_S)  # nsys is about to end, and may have written once more


def _locked(folder: Path) -> IO[bytes]:
    """Lock a folder as long as this process lives; return the locked file."""
    unlocked = folder / f"{_LOCK}.new"
    lock = unlocked.open("wb")
    with suppress(OSError):  # a file system without locks
        fcntl.flock(lock, fcntl.LOCK_EX)
        unlocked.rename(folder / _LOCK)  # so that it is never visible without its lock
    return lock


def _remove_abandoned() -> None:
    """Remove exports of processes that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        with suppress(OSError), path.open("rb") as lock:  # of another user, or in use
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, ignore_errors=True)


def _folder_prefix(pid: int) -> str:
    return f"{_PREFIX}{pid}-"


def ending_with_parent() -> Callable[[], object] | None:
    """Return a function that has its process killed at its parent's end; None off Linux."""
    if sys.platform != "linux":
        return None
    # Looked up here: at the start of nsys, other threads may hold the loader's lock.
    return partial(ctypes.CDLL(None).prctl, _PR_SET_PDEATHSIG, signal.SIGKILL)


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
            start = file.read(START_BYTES)
    except FileNotFoundError as error:
        why = "it is a link to nothing" if path.is_symlink() else "there is no such file"
        raise TraceFileError(f"cannot read {path}", why, "check the path") from error
    except PermissionError as error:
        raise TraceFileError(
            f"cannot read {path}", "permission denied", "ask its owner, or copy it with sudo"
        ) from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise TraceFileError(f"cannot read {path}", why, "check the path") from error
    if not start:
        raise TraceFileError(
            f"cannot read {path}",
            "the file is empty; an export that was interrupted leaves such a file",
            RE_EXPORT,
        )
    return start


def _unreadable(start: bytes, unpacked: bytes | None) -> tuple[str, str]:
    """Return the kind of an unreadable file, and a remedy.

    Args:
        start: its beginning.
        unpacked: its unpacked beginning; None if it cannot be unpacked.
    """
    if unpacked is None:
        return "a damaged gzip file", f"copy it again, or {_GIVE_EXPORT}"
    if unpacked is not start and unpacked.startswith((_SQLITE, _NSYS_REP)):
        return "a report that is compressed with gzip", "unpack it with gunzip"
    return (
        "neither an SQLite database nor a .nsys-rep nor JSON",
        f"{_GIVE_EXPORT}, or a trace of torch.profiler",
    )


def _find_nsys(report: Path) -> str:
    nsys = shutil.which("nsys")
    if nsys is None:
        raise MissingToolError(
            f"cannot read {report}",
            "a .nsys-rep must be exported first, and `nsys` is not on PATH",
            "where Nsight Systems is installed, run: nsys export --type=sqlite"
            f" {shlex.quote(str(report))}",
        )
    return nsys


def _export(nsys: str, report: Path, folder: Path) -> Path:
    # nsys gets a plain ASCII name, whatever characters are in the report's own.
    link, target = folder / "report.nsys-rep", folder / "report.sqlite"
    link.symlink_to(report.absolute())
    options = _payload_options(_run(report, nsys, "export", "--help").stdout)
    done = _run(report, nsys, "export", "--type=sqlite", *options, f"--output={target}", str(link))
    if done.returncode != 0 or not target.exists():
        raise _not_exported(nsys, report, done)
    if not options:
        _add_payloads(nsys, report, link, target)
    return target


def _payload_options(manual: str) -> list[str]:
    """Return the options of this nsys that export payloads."""
    return [f"{option}=true" for option in _PAYLOAD_OPTIONS if option in manual]


def _add_payloads(nsys: str, report: Path, link: Path, target: Path) -> None:
    """Add the sizes of NCCL's messages to an export of an nsys that writes them only to JSON."""
    document = target.with_suffix(".json")
    with suppress(sqlite3.Error, OSError):  # without them only the sizes are unknown
        if lacks_payloads(target):
            done = _run(report, nsys, "export", "--type=json", f"--output={document}", str(link))
            if done.returncode == 0:
                add_payloads(target, document)
    document.unlink(missing_ok=True)


def _run(report: Path, *command: str) -> subprocess.CompletedProcess[str]:
    try:
        return captured(*command, preexec_fn=ending_with_parent())
    except OSError as error:
        raise MissingToolError(
            f"cannot export {report}",
            f"{command[0]} does not start ({error.strerror})",
            "install Nsight Systems again",
        ) from error


def _not_exported(
    nsys: str, report: Path, done: subprocess.CompletedProcess[str]
) -> TraceFormatError:
    lines = (done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()
    recorded_by, installed = _recorded_by(report), _version(_run(report, nsys, "--version").stdout)
    if recorded_by is not None and installed is not None and recorded_by > installed:
        needed = ".".join(map(str, recorded_by[:2]))
        with_blobs = "--include-blobs=true " if recorded_by >= _FIRST_WITH_BLOBS else ""
        return TraceFormatError(
            f"cannot export {report}",
            f"Nsight Systems {needed} recorded it, and the nsys on PATH is"
            f" {'.'.join(map(str, installed[:2]))}",
            f"install Nsight Systems {needed} or later, or where it is, run: nsys export"
            f" --type=sqlite {with_blobs}{shlex.quote(str(report))}",
        )
    return TraceFormatError(
        f"cannot export {report}",
        f"nsys says: {lines[-1].rstrip('.')}",
        "copy it again if it may be damaged, or use an nsys at least as new as the one that"
        " recorded it",
    )


def _recorded_by(report: Path) -> tuple[int, ...] | None:
    """Return the version of the Nsight Systems that wrote a .nsys-rep, None if unknown."""
    with suppress(OSError), report.open("rb") as file:
        start = file.read(128)
        return _version(start.removeprefix(_NSYS_REP).decode("ascii", "replace"))
    return None


def _version(text: str) -> tuple[int, ...] | None:
    version = _VERSION.search(text)
    return None if version is None else tuple(int(number) for number in version.groups())
