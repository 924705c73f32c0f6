"""Objects handed from a copy of this process to this one, their arrays in memory that both see.

Through a pipe an array would be copied five times, by two processes, in pieces of a few pages.
"""

from __future__ import annotations

import mmap
import os
import pickle
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.reduction import recv_handle, send_handle
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_MIN_SHARED = 1 << 16  # bytes; less is quicker sent
_ALIGNED = 64


class Handover:
    """One way from a copy of this process to this one; made before the copy is."""

    def __init__(self) -> None:
        # Both ways, because a file can only be sent through a socket.
        self._ours, self._theirs = Pipe()

    def begin(self) -> None:
        """Have the copy send, who calls this: it learns when the other process is gone."""
        self._ours.close()

    def send(self, piece: object) -> None:
        """Send an object from the copy.

        Of each that is large a file stays open as long as one of its arrays lives: so better few.

        Raises:
            Exception: it cannot be pickled, or there is nobody any more to take it.
        """
        large: list[pickle.PickleBuffer] = []

        def is_small(buffer: pickle.PickleBuffer) -> bool:
            if buffer.raw().nbytes >= _MIN_SHARED:
                large.append(buffer)
                return False
            return True

        data = pickle.dumps(piece, 5, buffer_callback=is_small)
        if not large:
            self._theirs.send((data, []))
            return
        file = _shared_memory()
        if file is None:
            self._theirs.send((pickle.dumps(piece, 5), []))
            return
        try:
            spans = [_append(file, each.raw()) for each in large]
            self._theirs.send((data, spans))
            send_handle(self._theirs, file, os.getppid())
        finally:
            os.close(file)

    def end(self) -> None:
        """Tell that this was all."""
        self._theirs.send(None)

    def receive(self) -> None:
        """Have this process receive, who calls this: it learns when the copy is gone."""
        self._theirs.close()

    def pieces(self) -> Iterator[Any]:
        """Yield the objects as they come, until the last one.

        Raises:
            EOFError, OSError: the copy ended before.
        """
        while (sent := self._ours.recv()) is not None:
            data, spans = sent
            mapped = self._mapped(spans) if spans else []
            yield pickle.loads(data, buffers=mapped)  # noqa: S301  (our own copy's)

    def close(self) -> None:
        """Let go of the channel; what came through it stays."""
        with suppress(OSError):
            self._ours.close()

    def _mapped(self, spans: list[tuple[int, int]]) -> list[memoryview]:
        file = recv_handle(self._ours)
        try:
            begin, length = spans[-1]
            # As if it were this process's own: arrays may be written to.
            view = memoryview(mmap.mmap(file, begin + length, access=mmap.ACCESS_COPY))
        finally:
            os.close(file)
        return [view[begin : begin + length] for begin, length in spans]


def _shared_memory() -> int | None:
    """Return a file that is nowhere but in memory, None where the system has no such thing."""
    try:
        return os.memfd_create("traceprof")
    except (AttributeError, OSError):
        return None


def _append(file: int, raw: memoryview) -> tuple[int, int]:
    """Write bytes to the end of a file; return where they begin, and how many they are."""
    begin = at = -(-os.lseek(file, 0, os.SEEK_END) // _ALIGNED) * _ALIGNED
    rest = raw
    while rest:
        written = os.pwrite(file, rest, at)
        at, rest = at + written, rest[written:]
    return begin, raw.nbytes
