"""Work in child processes, which start with everything that this process has read.

A child is a fork. It sends the items that it makes one by one, large arrays in shared memory. It
ends with the block of its `Child`, or with this process, whatever ended that. Children exist on
Linux only, and only while this process has no other threads: the child would wait for their locks
for ever. Where there are no children, or one of them fails, the caller does the work itself, so
that errors are those of one process.
"""

from __future__ import annotations

import copyreg
import gc
import mmap
import os
import pickle
import select
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from io import BytesIO
from socket import socket
from typing import TYPE_CHECKING, Any, BinaryIO, Generic, NoReturn, TypeVar

import numpy as np

from traceprof.intervals import Int64
from traceprof.progress import UNHEARD, Progress
from traceprof.structs import Record
from traceprof.trace.programs import ending_with_parent

if TYPE_CHECKING:
    from typing_extensions import Self


Item = TypeVar("Item")
Result = TypeVar("Result")

# A child process costs some 20 ms, the analyses of this many operations 25 ms.
MIN_OPERATIONS_OF_A_PROCESS = 75_000
_MIN_SHARED_BYTES = 1 << 16  # of an array; smaller ones are sent faster with the rest
_MAX_SENT_BYTES = 1 << 15  # through a socket; larger objects go into shared memory
_MIN_MAPPED_BYTES = 1 << 20  # of an array with a mapping of its own; smaller ones share one
_ALIGNMENT = mmap.ALLOCATIONGRANULARITY
_POLL_S = 0.05  # the maximum age of the progress while waiting for a child
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Places in a channel's state.
_SO_FAR, _SENT = slice(0, 2), slice(2, 4)  # rows expected and read: now, and at the last item
_ENDED, _WHOLE, _FAILED = 4, 1, 2


class ChildError(Exception):
    """A child that was killed, or failed, before it had sent all items."""

    def __init__(self, *, was_killed: bool) -> None:
        super().__init__(was_killed)
        self.was_killed = was_killed


class _Channel(Record, frozen=True):
    """A child's connection to its parent: a socket, and counters in shared memory."""

    socket: socket
    state: Int64
    shares_texts: bool

    def send(self, item: object) -> None:
        _send(item, self.socket, _SharingPickler if self.shares_texts else pickle.Pickler)
        self.state[_SENT] = self.state[_SO_FAR]

    def expect(self, number: int) -> None:
        self.state[0] += number

    def advance(self, number: int) -> None:
        self.state[1] += number


_children: list[Child[Any]] = []
_parent: _Channel | None = None  # of this process, if it is a child


def can_fork() -> bool:
    """Return whether children can be made."""
    return sys.platform == "linux" and threading.active_count() == 1


def send(item: object) -> None:
    """Send the parent an extra item at once; does nothing if this process is no child."""
    if _parent is not None:
        _parent.send(item)


def questions() -> Iterator[Any]:
    """Yield the parent's questions until it ends; nothing if this process is no child."""
    with suppress(EOFError, OSError):
        while _parent is not None:
            yield _receive(_parent.socket)


class Child(Generic[Item]):
    """A child process that makes items, which can be pickled, while the block runs.

    Its `socket` is readable when items have arrived, or the child has ended. With `forwards` items
    are also sent to the parent of this process, itself a child. With `shares_texts` the same texts
    of several items are one in the parent.
    """

    def __init__(
        self,
        make: Callable[[], Iterable[Item]],
        progress: ProgressOfAll | None = None,
        *,
        forwards: bool = False,
        shares_texts: bool = False,
    ) -> None:
        self._make, self._progress = make, progress
        self._shares_texts = shares_texts
        self._forward_to = _parent.socket if _parent is not None and forwards else None
        self._items: deque[Item] = deque()
        self._counted = np.zeros(2, np.int64)  # rows expected and read
        self.has_ended = self._is_broken = False

    def __enter__(self) -> Self:
        state = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.int64)
        from socket import AF_UNIX, SOCK_SEQPACKET, socketpair  # noqa: PLC0415  (children only)

        ours, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
        self.socket, self._state = ours, state
        parent = os.getpid()
        old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # until the child is ready
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of numpy's threads, which wait
            self._pid = os.fork()
        if self._pid == 0:
            self._run(_Channel(theirs, state, self._shares_texts), parent, old_mask)
        theirs.close()
        _children.append(self)
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
        except BaseException:  # raised by the handler of a blocked signal
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        _children.remove(self)
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        from traceprof.trace.temporary_folder import remove_exports  # noqa: PLC0415  (children only)

        remove_exports(self._pid)
        self.socket.close()

    def items(self) -> Iterator[Item]:
        """Yield the items as they arrive. Raises ChildError: some did not arrive."""
        while self._items or not self.has_ended:
            if self._items:
                yield self._items.popleft()
            else:
                self.receive(_POLL_S)
        if self._state[_ENDED] != _WHOLE or self._is_broken:
            raise ChildError(was_killed=self._state[_ENDED] != _FAILED)

    def ask(self, question: object, progress: ProgressOfAll | None = None) -> None:
        """Send a question to a child that reads `questions`; the answer is its next item.

        Raises ChildError: the child has ended.
        """
        self._progress = progress
        try:
            _send(question, self.socket)
        except OSError as error:
            raise ChildError(was_killed=True) from error

    def receive(self, seconds: float = 0) -> None:
        """Take the items that have arrived; wait for the first one at most this long."""
        while not self.has_ended and select.select([self.socket], [], [], seconds)[0]:
            seconds = 0
            try:
                self._items.append(_receive(self.socket, self._forward_to))
            except EOFError:
                self.has_ended = True
            except OSError:  # there is no memory, or no file can be opened
                self.has_ended = self._is_broken = True
        # Items that did not arrive will be read again, and counted then.
        has_failed = self.has_ended and self._state[_ENDED] != _WHOLE
        expected, read = (self._state[_SENT if has_failed else _SO_FAR] - self._counted).tolist()
        self._counted += expected, read
        if self._progress is not None and (expected or read):
            self._progress.report(expected, read)
        if _parent is not None and self._forward_to is not None and self._items:
            _parent.state[_SENT] = _parent.state[_SO_FAR]

    def _run(
        self, parent: _Channel, parent_pid: int, old_mask: set[int | signal.Signals]
    ) -> NoReturn:
        global _parent  # noqa: PLW0603  (it is what makes this process a child)
        try:
            if end_with_parent := ending_with_parent():
                end_with_parent()
            if os.getppid() != parent_pid:  # it ended before that
                os._exit(1)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process answers Ctrl-C
            for number in (signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
            gc.freeze()  # the parent's garbage may be of libraries whose threads do not exist here
            _parent = parent
            _children.clear()
            try:
                for item in self._make():
                    send(item)
                parent.state[_ENDED] = _WHOLE
            except Exception:  # noqa: BLE001  (the parent gets it, too, when it does the work itself)
                parent.state[_ENDED] = _FAILED
        finally:
            os._exit(0)


class ProgressOfAll:
    """Progress of this process and its children, reported to a listener in the first process."""

    def __init__(self, progress: Progress = UNHEARD) -> None:
        self._progress = progress

    def report(self, expected: int, read: int) -> None:
        """Report further rows to be read, and rows that were read."""
        progress = _parent or self._progress
        progress.expect(expected)
        progress.advance(read)

    def expect(self, number: int) -> None:
        """Report that this many rows more, or fewer, will be read."""
        self.report(number, 0)

    def advance(self, number: int) -> None:
        """Report that this many rows were read, and the progress of children."""
        self.report(0, number)
        for child in _children:
            child.receive()


def run_in_children(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    prepare: Callable[[], None],
    num_operations: int | None = None,
    *,
    num_processes: int,
) -> list[Result]:
    """Result of `work` for each item; this process and children share the items.

    Where a child cannot be made, or is killed, this process does its part. `work` gives the same
    result in every process, and can be pickled. `prepare` is called in a child before its work. Few
    GPU operations (`num_operations`) are not worth a child. `num_processes` is the maximum number
    of processes, this one included.
    """
    if num_operations is not None:
        num_processes = min(num_processes, max(num_operations // MIN_OPERATIONS_OF_A_PROCESS, 1))
    step = num_processes if can_fork() else 1

    def part(first: int) -> Iterator[Result]:
        prepare()
        yield from map(work, items[first::step])

    results: dict[int, Result] = {}
    with ExitStack() as stack:
        children = [
            (first, stack.enter_context(Child(partial(part, first))))
            for first in range(1, min(step, len(items)))
        ]
        for index in range(0, len(items), step):
            results[index] = work(items[index])
        for first, child in children:
            with suppress(ChildError):
                for number, result in enumerate(child.items()):
                    results[first + number * step] = result
    return [results[index] if index in results else work(item) for index, item in enumerate(items)]


class _SharingPickler(pickle.Pickler):
    def persistent_id(self, obj: object) -> str | None:
        return obj if type(obj) is str else None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: str) -> str:
        """A text, of which there is one object: reports of one program have the same texts."""
        return sys.intern(pid)


def _send(
    item: object, through: socket, pickler_type: type[pickle.Pickler] = pickle.Pickler
) -> None:
    """Send an object.

    Raises Exception: it cannot be pickled, memory is short, or the other side has ended.
    """
    from socket import send_fds  # noqa: PLC0415  (children only)

    large: list[pickle.PickleBuffer] = []
    content = BytesIO()
    pickler = pickler_type(content, 5, buffer_callback=large.append)
    pickler.dispatch_table = {**copyreg.dispatch_table, np.ndarray: _reduced}
    pickler.dump(item)
    data = content.getvalue()
    if not large and len(data) <= _MAX_SENT_BYTES:
        send_fds(through, [pickle.dumps(data)], [])
        return
    with os.fdopen(os.memfd_create("traceprof"), "wb") as file:
        spans = [_append(file, buffer.raw()) for buffer in large]
        place = _append(file, pickle.dumps((data, spans)))
        file.flush()
        send_fds(through, [pickle.dumps(place)], [file.fileno()])


def _reduced(array: np.ndarray[Any, Any]) -> str | tuple[Any, ...]:
    """Reduce an array: a small one arrives as one object, without a view of another one."""
    return array.__reduce_ex__(5 if array.nbytes >= _MIN_SHARED_BYTES else 2)


def _receive(through: socket, forward_to: socket | None = None) -> Any:  # noqa: ANN401
    """Return the next object; each large array is in memory that is freed with the array.

    `forward_to` gets the same object, its arrays in the same memory. Raises EOFError or OSError: no
    more objects can arrive.
    """
    from socket import MSG_CMSG_CLOEXEC, recv_fds, send_fds  # noqa: PLC0415  (children only)

    sent, files, *_ = recv_fds(through, 2 * _MAX_SENT_BYTES, 1, MSG_CMSG_CLOEXEC)
    try:
        if forward_to is not None and sent:
            send_fds(forward_to, [sent], files)
        place = pickle.loads(sent)  # noqa: S301  (our own child's)
        if isinstance(place, bytes):
            return _Unpickler(BytesIO(place)).load()
        if not files:
            raise OSError("no file can be opened")
        file, (begin, length) = files[0], place
        whole = _mapped(file, 0, begin + length)
        data, spans = pickle.loads(whole[begin:])  # noqa: S301  (our own child's)
        buffers = [
            _mapped(file, at, size) if size >= _MIN_MAPPED_BYTES else whole[at : at + size]
            for at, size in spans
        ]
    finally:
        for file in files:
            os.close(file)
    return _Unpickler(BytesIO(data), buffers=buffers).load()


def _mapped(file: int, begin: int, length: int) -> memoryview:
    return memoryview(mmap.mmap(file, length, access=mmap.ACCESS_COPY, offset=begin))


def _append(file: BinaryIO, data: bytes | memoryview) -> tuple[int, int]:
    begin = file.seek(-file.tell() % _ALIGNMENT, os.SEEK_CUR)
    file.write(data)
    return begin, len(data)
