"""A .nsys-rep: converted by the `nsys` on PATH into an export in a temporary folder."""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from traceprof.errors import MissingToolError, TraceFileError, TraceFormatError, TraceprofError
from traceprof.progress import Progress
from traceprof.trace.nsight import NSYS_REP
from traceprof.trace.nsight.export import NsightTrace
from traceprof.trace.nsight.nccl import add_payloads, lacks_payloads
from traceprof.trace.programs import captured, conversion_limit_s
from traceprof.trace.temporary_folder import TemporaryFolder

# The year, the number in it and that of the correction: 2023@4@4 in a .nsys-rep, 2023.4.4 by nsys.
_VERSION = re.compile(r"\b(20\d\d)[.@](\d+)[.@](\d+)")
FIRST_WITH_BLOBS = (2024, 5)
_MIN_FREE_BYTES = 1 << 16
_DISK_IS_FULL = re.compile(rf"{re.escape(os.strerror(errno.ENOSPC))}|disk is full")
_PAYLOAD_OPTIONS = ("--include-blobs", "--include-json")


class ConvertedTrace(NsightTrace):
    """A .nsys-rep with its export in a temporary folder, which exists until it is closed."""

    def __init__(self, report: Path, progress: Progress | None) -> None:
        nsys = find_nsys(report)
        try:
            self._folder = TemporaryFolder()
        except OSError as error:
            raise TraceFileError(
                f"cannot export {report}",
                f"there is no folder for temporary files ({error.strerror})",
                "name one in the environment variable TMPDIR",
            ) from error
        try:
            file, self._lost = export(nsys, report, self._folder.path)
            super().__init__(report, progress, file=file)
        except TraceFormatError:
            with closing(self._folder):
                _check_space(report, self._folder.path)  # for an export that was cut short
                raise
        except BaseException:
            self._folder.close()
            raise

    @property
    def notes(self) -> Sequence[str]:
        """Notes for readers, also on what an optional step of the conversion lost."""
        return [*super().notes, *([] if self._lost is None else [self._lost])]

    def close(self) -> None:
        """Release the export and remove it."""
        super().close()
        self._folder.close()


def find_nsys(report: Path) -> str:
    """Return the path of `nsys`. Raises MissingToolError: it is not on PATH."""
    nsys = shutil.which("nsys")
    if nsys is None:
        raise MissingToolError(
            f"cannot read {report}",
            "a .nsys-rep must be exported first, and `nsys` is not on PATH",
            "where Nsight Systems is installed, run: nsys export --type=sqlite"
            f" {shlex.quote(str(report))}",
        )
    return nsys


def export(nsys: str, report: Path, folder: Path) -> tuple[Path, str | None]:
    """Export a .nsys-rep with all data that this nsys can export.

    Returns:
        The export, and a note on what is missing in it.

    Raises:
        MissingToolError: nsys does not start.
        TraceFileError: no space is left.
        TraceFormatError: the capture cannot be exported.
    """
    max_s = conversion_limit_s(report)
    # nsys gets a plain ASCII name, whatever characters are in the report's own.
    link, target = folder / "report.nsys-rep", folder / "report.sqlite"
    link.symlink_to(report.absolute())
    manual = _run(report, nsys, "export", "--help").stdout
    options = [f"{option}=true" for option in _PAYLOAD_OPTIONS if option in manual]
    command = (nsys, "export", "--type=sqlite", *options, f"--output={target}", str(link))
    done = _run(report, *command, max_s=max_s)
    said = done.stdout + done.stderr  # nsys may end with 0 where the disk is full
    if done.returncode != 0 or not target.exists() or _DISK_IS_FULL.search(said):
        _check_space(report, folder, said)
        raise _not_exported(nsys, report, done)
    return target, None if options else _add_payloads(nsys, report, link, target)


def _check_space(report: Path, folder: Path, said: str = "") -> None:
    """Check that a folder of temporary files is not full. Raises TraceFileError: it is."""
    if shutil.disk_usage(folder).free < _MIN_FREE_BYTES or _DISK_IS_FULL.search(said):
        raise TraceFileError(
            f"cannot export {report}",
            f"no space is left for its export in {folder.parent}",
            "name another folder in the environment variable TMPDIR",
        )


def _add_payloads(nsys: str, report: Path, link: Path, target: Path) -> str | None:
    """Add the sizes of NCCL's messages to an export of an nsys that writes them only to JSON.

    Without them only the sizes are unknown: the note that is returned says why.
    """
    document = target.with_suffix(".json")
    try:
        if lacks_payloads(target):
            command = (nsys, "export", "--type=json", f"--output={document}", str(link))
            done = _run(report, *command, max_s=conversion_limit_s(report))
            if done.returncode != 0:
                _check_space(report, target.parent, done.stderr)
                raise _not_exported(nsys, report, done)
            add_payloads(target, document)
    except (sqlite3.Error, OSError, TraceprofError) as error:
        why = error.why if isinstance(error, TraceprofError) else str(error)
        return f"sizes of NCCL's messages are unknown: they could not be exported ({why})"
    finally:
        document.unlink(missing_ok=True)
    return None


def _run(
    report: Path, *command: str, max_s: float | None = None
) -> subprocess.CompletedProcess[str]:
    try:
        return captured(*command, max_s=max_s)
    except OSError as error:
        raise MissingToolError(
            f"cannot export {report}",
            f"{command[0]} failed: {error.strerror}",
            "install Nsight Systems again",
        ) from error


def _not_exported(
    nsys: str, report: Path, done: subprocess.CompletedProcess[str]
) -> TraceFormatError:
    lines = (done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()
    recorded_by, installed = None, _version(_run(report, nsys, "--version").stdout)
    with suppress(OSError), report.open("rb") as file:
        start = file.read(128)
        recorded_by = _version(start.removeprefix(NSYS_REP).decode("ascii", "replace"))
    if recorded_by is not None and installed is not None and recorded_by > installed:
        needed = ".".join(map(str, recorded_by[:2]))
        with_blobs = "--include-blobs=true " if recorded_by >= FIRST_WITH_BLOBS else ""
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


def _version(text: str) -> tuple[int, ...] | None:
    version = _VERSION.search(text)
    return None if version is None else tuple(int(number) for number in version.groups())
