"""Temporary folders for exports, in which nobody else can write.

Exports are as large as recordings: they lie where TMPDIR says, since XDG_RUNTIME_DIR is memory.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
import weakref
from contextlib import suppress
from pathlib import Path

_NAME = "traceprof-"
_LOCK = "in-use"  # the locked file in a folder of an export
_TRIES, _PAUSE_S = 20, 0.05


class TemporaryFolder:
    """A folder that exists until it is closed, or the process ends, also by an interrupt.

    Of a process that was killed it remains until a later one finds it abandoned.

    Attributes:
        path: of the folder.

    Raises:
        OSError: there is no place for temporary files.
    """

    def __init__(self) -> None:
        with suppress(OSError):
            _remove_abandoned()
        name = f"{_NAME}{os.getpid()}-{os.urandom(8).hex()}"
        self.path = Path(tempfile.gettempdir(), name)
        # What removes it is there before the folder is, so that no interrupt comes between.
        self._remove = weakref.finalize(self, _remove_of, os.getpid(), self.path)
        self.path.mkdir(mode=0o700)
        unlocked = self.path / f"{_LOCK}.new"
        self._lock = unlocked.open("xb")
        with suppress(OSError):  # a file system without locks
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            unlocked.rename(self.path / _LOCK)  # so that it is never visible without its lock

    def close(self) -> None:
        """Remove the folder; a second call does nothing."""
        if self._remove.alive:
            _remove_of(os.getpid(), self.path)
            self._remove.detach()  # not before: after an interrupt, it runs at the process's end
        self._lock.close()


def remove_exports(pid: int) -> None:
    """Remove the exports of a process that was killed before it could do so itself.

    The process has ended; its children end with it.
    """
    with suppress(OSError):
        for folder in Path(tempfile.gettempdir()).glob(f"{_NAME}{pid}-*"):
            for _ in range(_TRIES):
                shutil.rmtree(folder, ignore_errors=True)
                if not folder.exists():
                    break
                time.sleep(_PAUSE_S)  # nsys is about to end, and may have written once more


def _remove_abandoned() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{_NAME}*/{_LOCK}"):
        with suppress(OSError):
            state = path.parent.lstat()
            if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid():
                continue
            lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # waits for no writer
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails where it is in use
                shutil.rmtree(path.parent, ignore_errors=True)
            finally:
                os.close(lock)


def _remove_of(pid: int, folder: Path) -> None:
    if os.getpid() == pid:  # else a child ends, whose parent still reads
        shutil.rmtree(folder, ignore_errors=True)
