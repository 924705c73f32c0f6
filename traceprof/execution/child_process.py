"""Work in child processes, which begin with all that this process has read.

A child is a fork: it sends what it makes, item by item, and ends with the block of its `Child`, or
when this process does, however that was. It is made on Linux, and only while this process has no
other threads, whose locks it would never see released. Elsewhere the callers do the work, as they
do what a child was to make and did not: so errors are those of one process.
"""

from __future__ import annotations

import gc
import mmap
import os
import select
import signal
import sys
import threading
import warnings
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from socket import AF_UNIX, SOCK_SEQPACKET, socketpair
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

import numpy as np

from traceprof.execution import handover
from traceprof.trace.open import ending_with_parent, remove_exports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from socket import socket

    from typing_extensions import Self

    from traceprof.intervals import Int64
    from traceprof.progress import Progress

Item = TypeVar("Item")

_POLL_S = 0.05  # how old the progress is of a child that is waited for
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Places in a channel's state.
_SO_FAR, _SENT = slice(0, 2), slice(2, 4)  # rows expected and read: now, and at the last item
_ENDED, _WHOLE, _FAILED = 4, 1, 2


class ChildError(Exception):
    """A child did not make all items: it was killed, or there was an error."""

    def __init__(self, *, was_killed: bool) -> None:
        super().__init__(was_killed)
        self.was_killed = was_killed


@dataclass(frozen=True, slots=True)
class _Channel:
    """What a child and its parent have in common: a socket each, and memory that both see."""

    socket: socket
    state: Int64

    def send(self, item: object) -> None:
        handover.send(item, self.socket)
        self.state[_SENT] = self.state[_SO_FAR]

    def expect(self, number: int) -> None:
        self.state[0] += number

    def advance(self, number: int) -> None:
        self.state[1] += number


_children: list[Child[Any]] = []
_parent: _Channel | None = None  # of this process, if it is a child


def can_fork() -> bool:
    """Say whether children can be made."""
    return sys.platform == "linux" and threading.active_count() == 1


def send(item: object) -> None:
    """Send the parent an item before those that come anyway; nobody where this is no child."""
    if _parent is not None:
        _parent.send(item)


def questions() -> Iterator[Any]:
    """Yield what the parent asks, as long as it is there; nothing where this is no child."""
    with suppress(EOFError, OSError):
        while _parent is not None:
            yield handover.receive(_parent.socket)


class Child(Generic[Item]):
    """A child process that makes items, as long as a block runs.

    Args:
        make: makes the items, in the child; they can be pickled.
        progress: the object that counts rows in the child.
        niceness: how much other processes go before it.
        forwards: whether the parent of this process, itself a child, gets the items, too.

    Attributes:
        socket: what to wait for.
    """

    def __init__(
        self,
        make: Callable[[], Iterable[Item]],
        progress: ProgressOfAll | None = None,
        *,
        niceness: int = 0,
        forwards: bool = False,
    ) -> None:
        self._make, self._progress, self._niceness = make, progress, niceness
        self._forward_to = _parent.socket if _parent is not None and forwards else None
        self._items: deque[Item] = deque()
        self._counted = np.zeros(2, np.int64)  # rows expected and read
        self.has_ended = self._is_broken = False

    def __enter__(self) -> Self:
        state = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.int64)
        ours, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
        self.socket, self._state = ours, state
        parent = os.getpid()
        held_up = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # until the child is ready
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of numpy's threads, which wait
            self._pid = os.fork()
        if self._pid == 0:
            self._run(_Channel(theirs, state), parent, held_up)
        theirs.close()
        _children.append(self)
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, held_up)
        except BaseException:  # of the handler of a signal that was held up
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        _children.remove(self)
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        remove_exports(self._pid)
        self.socket.close()

    def items(self) -> Iterator[Item]:
        """Yield what the child makes, as it comes.

        Raises:
            ChildError: not all came.
        """
        while self._items or not self.has_ended:
            if self._items:
                yield self._items.popleft()
            else:
                self.receive(_POLL_S)
        if self._state[_ENDED] != _WHOLE or self._is_broken:
            raise ChildError(was_killed=self._state[_ENDED] != _FAILED)

    def ask(self, question: object) -> None:
        """Ask something of a child that looks at `questions`; the answer is its next item.

        Raises:
            ChildError: there is nobody any more.
        """
        try:
            handover.send(question, self.socket)
        except OSError as error:
            raise ChildError(was_killed=True) from error

    def receive(self, seconds: float = 0) -> None:
        """Take all that has come; wait for something at most so long."""
        while not self.has_ended and select.select([self.socket], [], [], seconds)[0]:
            seconds = 0
            try:
                self._items.append(handover.receive(self.socket, self._forward_to))
            except EOFError:
                self.has_ended = True
            except OSError:  # there is no memory, or no file can be opened
                self.has_ended = self._is_broken = True
        # What did not come others will read again.
        is_lost = self.has_ended and self._state[_ENDED] != _WHOLE
        expected, read = (self._state[_SENT if is_lost else _SO_FAR] - self._counted).tolist()
        self._counted += expected, read
        if self._progress is not None and (expected or read):
            self._progress.tell(expected, read)
        if _parent is not None and self._forward_to is not None and self._items:
            _parent.state[_SENT] = _parent.state[_SO_FAR]

    def _run(
        self, parent: _Channel, parent_pid: int, held_up: set[int | signal.Signals]
    ) -> NoReturn:
        """Be the child."""
        global _parent  # noqa: PLW0603  (it is what makes this process a child)
        try:
            if end_with_parent := ending_with_parent():
                end_with_parent()
            if os.getppid() != parent_pid:  # it was gone before
                os._exit(1)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process answers Ctrl-C
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, held_up)
            os.nice(self._niceness)
            gc.freeze()  # garbage of the parent may be of libraries whose threads are not here
            _parent = parent
            _children.clear()
            try:
                for item in self._make():
                    send(item)
                parent.state[_ENDED] = _WHOLE
            except Exception:  # noqa: BLE001  (the parent sees what it is when it does this itself)
                parent.state[_ENDED] = _FAILED
        finally:
            os._exit(0)


class ProgressOfAll:
    """Tells somebody of progress, from whichever process it is called in."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def tell(self, expected: int, read: int) -> None:
        """Tell that so many rows more will be read, and so many were."""
        progress = _parent or self._progress
        progress.expect(expected)
        progress.advance(read)

    def expect(self, number: int) -> None:
        """Tell that so many rows more, or fewer, will be read."""
        self.tell(number, 0)

    def advance(self, number: int) -> None:
        """Tell that so many rows were read, and what children say."""
        self.tell(0, number)
        for child in _children:
            child.receive()
