"""Space for a recording: on the file systems that it is written to, and in shared memory."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

NO_SPACE = "no space left"
_BYTES = 1 << 17
_SHARED_MEMORY = "/dev/shm"  # noqa: S108


@dataclass(frozen=True)
class Space:
    """Free bytes where a recording, and a training, need them."""

    folder: str  # of the reports, as it was given
    folder_bytes: int | None  # free there; None if unknown
    may_write: bool  # whether this user may write there
    temporary: str  # the folder in which nsys collects what it records
    temporary_bytes: int | None  # free there; None if unknown
    # the size of the shared memory through which ranks and workers of data loaders exchange data;
    # None if unknown
    shared_memory_bytes: int | None


def look_for_space(folder: Path) -> Space:
    """Return the space for a recording into a folder, which need not exist."""
    existing = folder.absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    temporary = tempfile.gettempdir()
    shared = _usage(Path(_SHARED_MEMORY))
    of_folder, of_temporary = _usage(existing), _usage(Path(temporary))
    return Space(
        str(folder),
        of_folder and of_folder[1],
        os.access(existing, os.W_OK | os.X_OK) and existing.is_dir(),
        temporary,
        of_temporary and of_temporary[1],
        shared and shared[0],
    )


def is_full(folder: Path) -> bool:
    """Return whether a small file does not fit into a folder any more, also by a quota."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno in {errno.ENOSPC, errno.EDQUOT}
    return False


def _usage(folder: Path) -> tuple[int, int] | None:
    """Return size and free bytes of a folder's file system; None if unknown."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None
    return usage.total, usage.free
