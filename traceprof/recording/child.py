"""Runs the command of a recording to its end; signals that this process gets go to the command."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from traceprof.errors import UsageError
from traceprof.trace.programs import ending_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

    from typing_extensions import Self

_STRENGTH = {signal.SIGINT: 1, signal.SIGTERM: 2, signal.SIGHUP: 2, signal.SIGQUIT: 3}
"""Of signals that end the command. Only a stronger one than the last is passed on: the same one
again (`timeout` sends each twice) would end nsys, or PyTorch, while it writes the recording."""

_SIGNALS = (*_STRENGTH, signal.SIGUSR1, signal.SIGUSR2)
_ENDS_ALREADY = (
    "it is ending, and what was recorded is being written"
    " (Ctrl-\\, SIGQUIT, kills the training at once)"
)
_NSYS, _LAUNCHER = "nsys", "nsys-launcher"  # the names of its processes begin with these
_PR_SET_CHILD_SUBREAPER = 36  # of prctl(2)
_MAX_END_S, _PAUSE_S = 10.0, 0.05
# A wait with a limit checks some 20 times a second whether the child has ended: Python handles a
# signal that comes right before an unlimited wait only after it.
_MAX_WAIT_S = 1e9


class RunningCommand:
    """A command, and the signals that this process gets until the `with` block ends.

    Args:
        under_nsys: whether nsys starts the training. nsys passes on the first signal that ends the
            training, and writes its report; further ones go to the training itself.
        say: called with a sentence about a signal that is not passed on.

    Attributes:
        ended_by: the number of the first signal that ends the command; None without any.
        has_started: whether the command itself runs or ran, not only nsys.
    """

    def __init__(self, *, under_nsys: bool, say: Callable[[str], None]) -> None:
        self.ended_by: int | None = None
        self.has_started = False
        self._under_nsys = under_nsys
        self._say = say
        self._strength = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # such as by `nohup`
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # (from `signal` itself)

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run the command to its end; return its exit status as a shell gives it.

        No process of a command that fails, or that a signal ends, is left running. If this process
        is killed, the command gets SIGTERM.

        Raises:
            UsageError: it does not start.
        """
        _adopt_orphans(True)
        try:
            # In a session of its own, so that Ctrl-C in a terminal arrives once: from here.
            self._process = subprocess.Popen(
                command,
                env=dict(environment),
                start_new_session=True,
                preexec_fn=ending_with_parent(signal.SIGTERM),  # noqa: PLW1509  (no threads here)
            )
        except OSError as error:
            why = error.strerror or str(error)
            raise UsageError(f"cannot run {command[0]}", why, "check the command") from error
        try:
            if self.ended_by is not None:  # while it started
                self._process.send_signal(_passed_on(self.ended_by))
            status = self._waited(self._process)
            if status or self.ended_by is not None:
                _end_all()
        finally:
            self._process = None
            _adopt_orphans(False)
        return status if status >= 0 else 128 - status

    def _waited(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for the end, and note whether nsys starts the command."""
        self.has_started = not self._under_nsys
        while not self.has_started:
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(_PAUSE_S)
                self.has_started = bool(_launchers(os.getpid(), _children()))  # an orphan
                return status
            # It stays, as a zombie at least, until nsys has written the report.
            self.has_started = bool(_launchers(process.pid, _children()))
        return process.wait(_MAX_WAIT_S)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        strength = _STRENGTH.get(signal.Signals(number))
        if strength is None:
            self._send(number)
            return
        is_first = self.ended_by is None
        self.ended_by = self.ended_by or number
        if strength <= self._strength or (self._process is None and not is_first):
            with suppress(RuntimeError):  # in the middle of another sentence
                self._say(_ENDS_ALREADY)
            return
        self._strength = strength
        if is_first and self._process is not None:
            self._process.send_signal(_passed_on(number))
        elif not is_first:
            self._send(signal.SIGKILL if number == signal.SIGQUIT else signal.SIGTERM)

    def _send(self, number: int) -> None:
        """Send the training a signal, not nsys."""
        if self._process is None:
            return
        if number == signal.SIGKILL:
            pids = _running(self._process.pid if self._under_nsys else os.getpid())
        elif self._under_nsys:
            pids = _started_by_nsys(self._process.pid)
        else:
            pids = [self._process.pid]
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, number)


def _passed_on(number: int) -> int:
    """Return the signal that the command gets: nsys, and launchers, know no SIGHUP."""
    return signal.SIGTERM if number == signal.SIGHUP else number


def _adopt_orphans(does: bool) -> None:
    """Have processes whose parent ends become children of this process, so that none escapes."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(does), 0, 0, 0)


def _end_all() -> None:
    """End the processes of a command that is over: by SIGTERM, later by SIGKILL."""
    for number, max_s in ((signal.SIGTERM, _MAX_END_S), (signal.SIGKILL, _MAX_END_S)):
        for pid in _running():
            with suppress(OSError):
                os.kill(pid, number)
        last = time.monotonic() + max_s
        while _running() and time.monotonic() < last:
            time.sleep(_PAUSE_S)
    for pid, _, is_over in _children().get(os.getpid(), []):
        if is_over:
            with suppress(OSError):
                os.waitpid(pid, os.WNOHANG)


def _running(parent: int | None = None) -> list[int]:
    """Return the descendants of a process, by default of this one, that are not of nsys."""
    children = _children()
    pids: list[int] = []
    waiting = [os.getpid() if parent is None else parent]
    while waiting:
        for pid, name, is_over in children.get(waiting.pop(), []):
            waiting.append(pid)
            if not is_over and not name.startswith(_NSYS):
                pids.append(pid)
    return pids


def _started_by_nsys(nsys: int) -> list[int]:
    """Return the outermost processes that nsys has started for the training."""
    children = _children()
    return [
        pid
        for launcher in _launchers(nsys, children)
        for pid, name, _ in children.get(launcher, [])
        if not name.startswith(_NSYS)
    ]


def _launchers(nsys: int, children: Mapping[int, list[tuple[int, str, bool]]]) -> list[int]:
    return [pid for pid, name, _ in children.get(nsys, []) if name.startswith(_LAUNCHER)]


def _children() -> dict[int, list[tuple[int, str, bool]]]:
    """Return all processes by their parent: number, name, and whether it is over."""
    children: dict[int, list[tuple[int, str, bool]]] = {}
    for pid, name, state, parent in _processes():
        children.setdefault(parent, []).append((pid, name, state in "ZX"))
    return children


def _processes() -> Iterator[tuple[int, str, str, int]]:
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            text = (folder / "stat").read_text()
            name, _, rest = text.partition("(")[2].rpartition(")")
            state, parent = rest.split()[:2]
            yield int(folder.name), name, state, int(parent)
