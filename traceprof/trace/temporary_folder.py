"""Temporary folders for exports, in a folder that only this user can write to.

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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        self.path, self._remove = self._new_folder()
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

    def _new_folder(self) -> tuple[Path, weakref.finalize[..., TemporaryFolder]]:
        """Create an empty folder, in the folder of the user if that is safe.

        What removes it is there before the folder is, so that no interrupt comes between.
        """
        for _ in range(_TRIES):
            try:
                users = _users_folder()
                name = f"{os.getpid()}-{os.urandom(4).hex()}"
                remove = weakref.finalize(self, _remove_of, os.getpid(), users / name)
                users.mkdir(mode=0o700, exist_ok=True)
                if not _is_private(users):
                    break
                (users / name).mkdir(mode=0o700)
            except FileNotFoundError:  # another process has removed it, as it was empty
                remove.detach()
            except FileExistsError:  # a file, or a link to nothing, of somebody else
                break
            else:
                return users / name, remove
        remove.detach()
        path = Path(tempfile.gettempdir()) / f"traceprof-{name}"
        remove = weakref.finalize(self, _remove_of, os.getpid(), path)
        path.mkdir(mode=0o700)
        return path, remove


def remove_exports(pid: int) -> None:
    """Remove the exports of a process that was killed before it could do so itself.

    The process has ended; its children end with it.
    """
    with suppress(OSError):
        for folder in _users_folder().glob(f"{pid}-*"):
            for _ in range(_TRIES):
                _remove(folder)
                if not folder.exists():
                    break
                time.sleep(_PAUSE_S)  # nsys is about to end, and may have written once more


def _remove_abandoned() -> None:
    users = _users_folder()
    if not _is_private(users):
        return
    for path in users.glob(f"*/{_LOCK}"):
        with suppress(OSError), _opened(path) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails where it is in use
            _remove(path.parent)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # others are in use
        if folder.parent == _users_folder():
            folder.parent.rmdir()


def _remove_of(pid: int, folder: Path) -> None:
    if os.getpid() == pid:  # else a child ends, whose parent still reads
        _remove(folder)


def _users_folder() -> Path:
    return Path(tempfile.gettempdir()) / f"traceprof-{os.geteuid()}"


def _is_private(folder: Path) -> bool:
    """Return whether this is a folder, no link, in which nobody else can write.

    Raises:
        OSError: it does not exist.
    """
    state = folder.lstat()
    is_ours = stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid()
    return is_ours and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open a file for reading, which neither follows a link nor waits for a writer."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        yield file
    finally:
        os.close(file)
