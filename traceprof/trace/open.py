"""Open a report, whatever it is: recognised by its content, not by its name."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from traceprof.errors import MissingToolError, TraceFileError, TraceFormatError
from traceprof.trace.nsight import NsightTrace

if TYPE_CHECKING:
    import os

    from traceprof.trace.model import Progress, Trace

_SQLITE = b"SQLite format 3\x00"
_NSYS_REP = b"NVIDIA Tegra Profiler Report"
_GZIP = b"\x1f\x8b"
_GIVE_EXPORT = "give a .sqlite file that `nsys export --type=sqlite REPORT.nsys-rep` writes"


def open_trace(path: str | os.PathLike[str], progress: Progress | None = None) -> Trace:
    """Open a report for reading; neither it nor its folder is ever written to.

    Args:
        path: an Nsight Systems SQLite export, or a .nsys-rep (which `nsys`, found on PATH, then
            exports to a temporary folder).
        progress: told of the rows that are read, if somebody wants to know.

    Raises:
        TraceFileError: missing, a folder, empty, or not readable.
        TraceFormatError: damaged, or nothing that traceprof reads.
        MissingToolError: a .nsys-rep without `nsys`.
    """
    report = Path(path)
    start = _first_bytes(report)
    if start.startswith(_SQLITE):
        return NsightTrace(report, progress)
    if start.startswith(_NSYS_REP):
        return _ExportedTrace(report, progress)
    raise TraceFormatError(f"cannot read {report}", _what_it_is(report, start), _GIVE_EXPORT)


class _ExportedTrace(NsightTrace):
    """A .nsys-rep through its export, which lives in a temporary folder until it is closed."""

    def __init__(self, report: Path, progress: Progress | None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="traceprof-")
        try:
            super().__init__(_export(report, Path(self._folder.name)), progress)
        except BaseException:
            self._folder.cleanup()
            raise
        self.path = report

    def close(self) -> None:
        super().close()
        self._folder.cleanup()


def _first_bytes(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise TraceFileError(
                f"cannot read {path}", "it is a folder", f"name its reports: {path}/*.sqlite"
            )
        with path.open("rb") as file:
            start = file.read(64)
    except FileNotFoundError as error:
        raise TraceFileError(
            f"cannot read {path}", "there is no such file", "check the path"
        ) from error
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
            "export it again: nsys export --type=sqlite --force-overwrite=true REPORT.nsys-rep",
        )
    return start


def _what_it_is(path: Path, start: bytes) -> str:
    if start.startswith(_GZIP):
        try:
            with gzip.open(path) as file:
                start = file.read(64)
        except (OSError, EOFError):
            return "a damaged gzip file"
    if start.lstrip().startswith((b"{", b"[")):
        return "JSON, perhaps a torch.profiler (Kineto) trace, which traceprof does not read yet"
    return "neither an SQLite database nor a .nsys-rep"


def _export(report: Path, folder: Path) -> Path:
    nsys = shutil.which("nsys")
    target = folder / "report.sqlite"
    if nsys is None:
        raise MissingToolError(
            f"cannot read {report}",
            "a .nsys-rep must be exported first, and `nsys` is not on PATH",
            f"where Nsight Systems is installed, run: nsys export --type=sqlite {report}",
        )
    done = subprocess.run(
        [nsys, "export", "--type=sqlite", f"--output={target}", str(report.absolute())],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0 or not target.exists():
        said = (done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()
        raise TraceFormatError(
            f"cannot export {report}",
            f"nsys says: {said[-1]}",
            "use an nsys at least as new as the one that recorded it",
        )
    return target
