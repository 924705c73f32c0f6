"""Captures of Nsight Systems of only some steps, the same ones on all ranks of a node.

`nsys profile --capture-range=nvtx --nvtx-capture=steps@traceprof-capture` records while that range
is open in any process that it follows: from the step before the first one, in the earliest rank,
until the last rank has finished the last one. At the end no rank waits for another: each holds a
lock on a file until it is done, and the rank that opened the range closes it when no lock is left.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from instrument.core import nvtx_ranges
from instrument.core.completion import wait_for_gpu
from traceprof import labels

MAX_WAIT_S = 60.0
"""For ranks that are still in the last step; a rank without a partner would wait forever."""

MAX_START_S = 5.0
"""For Nsight to start, which takes a tenth of a second."""

_PAUSE_S = 2e-3
_log = logging.getLogger("traceprof.instrument")


class NsightCapture:
    """Opens the range for which `nsys profile` waits, and closes it."""

    def __init__(self) -> None:
        self._functions: nvtx_ranges.Functions | None = None
        self._lock: int | None = None
        self._handle: int | None = None
        self._file = file = _session_file()
        self._opener = file.with_name(f"{file.name}-opens")
        self._opened = file.with_name(f"{file.name}-open")  # is there once Nsight records

    def prepare(self) -> None:
        """Take a lock, and open the range if no other rank of the node has done so."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        self._lock = os.open(self._file, flags, 0o600)
        if _is_alone(self._lock):  # left behind by killed processes
            for file in (self._opener, self._opened):
                file.unlink(missing_ok=True)
        # A lock of the process: its forked data loader workers do not hold it.
        fcntl.lockf(self._lock, fcntl.LOCK_SH)
        with suppress(FileExistsError):
            os.close(os.open(self._opener, flags | os.O_EXCL, 0o600))
            self._functions = nvtx_ranges.connect(labels.CAPTURE_DOMAIN)
        if self._functions is not None:
            self._handle = self._functions.start(self._functions.attributes(labels.CAPTURE, None))
            os.close(os.open(self._opened, flags, 0o600))
        last = time.monotonic() + MAX_START_S
        while not self._opened.exists() and time.monotonic() < last:
            time.sleep(_PAUSE_S)  # work before Nsight records would be missing

    def begin(self) -> None:
        """Do nothing: the capture runs already."""

    def end(self) -> None:
        """Release the lock; the opener closes the range once all are released."""
        wait_for_gpu()
        if self._lock is None:
            return
        if self._handle is None:
            os.close(self._lock)
        else:
            with suppress(RuntimeError):  # Python is ending, which ends the capture as well
                threading.Thread(target=self._close, name="traceprof capture").start()

    def _close(self) -> None:
        assert self._functions is not None  # noqa: S101  (there is a handle)
        assert self._handle is not None  # noqa: S101
        assert self._lock is not None  # noqa: S101
        last = time.monotonic() + MAX_WAIT_S
        while not _is_alone(self._lock):
            if time.monotonic() > last:
                _log.warning("not all ranks were done with the last recorded step")
                break
            time.sleep(_PAUSE_S)
        self._functions.end(self._handle)
        os.close(self._lock)
        for file in (self._file, self._opener, self._opened):
            file.unlink(missing_ok=True)


def _session_file() -> Path:
    environment = os.environ
    session = (
        environment.get("NSYS_PROFILING_SESSION_ID")
        or Path(environment.get("QUADD_INJECTION_CONFIG") or str(os.getpid())).name
    )
    return _runtime_folder() / f"traceprof-capture-{session}"


def _runtime_folder() -> Path:
    """Return a folder in which nobody else can write: sessions have names that can be guessed."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    if given and _is_private(Path(given)):
        return Path(given)
    folder = Path(tempfile.gettempdir()) / f"traceprof-capture-{os.geteuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if _is_private(folder):
        return folder
    raise PermissionError(errno.EPERM, "another user can write to it", str(folder))


def _is_private(folder: Path) -> bool:
    try:
        state = folder.lstat()
    except OSError:
        return False
    is_ours = stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid()
    return is_ours and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _is_alone(lock: int) -> bool:
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
