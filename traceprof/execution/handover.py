"""Objects sent from a child process to its parent, their arrays in memory that both see."""

from __future__ import annotations

import mmap
import os
import pickle
from socket import MSG_CMSG_CLOEXEC, recv_fds, send_fds
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from socket import socket

_MIN_SHARED_BYTES = 1 << 16  # of an array; smaller ones are quicker sent with the rest
_MAX_SENT_BYTES = 1 << 15  # through a socket; more goes into shared memory
_MIN_MAPPED_BYTES = 1 << 20  # of an array that goes away by itself; smaller ones stay together
_ALIGNMENT = mmap.ALLOCATIONGRANULARITY


def send(item: object, through: socket) -> None:
    """Send an object.

    Raises:
        Exception: it cannot be pickled, there is not enough memory, or nobody takes it any more.
    """
    large: list[pickle.PickleBuffer] = []

    def is_small(buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes < _MIN_SHARED_BYTES:
            return True
        large.append(buffer)
        return False

    data = pickle.dumps(item, 5, buffer_callback=is_small)
    if not large and len(data) <= _MAX_SENT_BYTES:
        send_fds(through, [pickle.dumps(data)], [])
        return
    with os.fdopen(os.memfd_create("traceprof"), "wb") as file:
        spans = [_append(file, buffer.raw()) for buffer in large]
        place = _append(file, pickle.dumps((data, spans)))
        file.flush()
        send_fds(through, [pickle.dumps(place)], [file.fileno()])


def receive(through: socket, forward_to: socket | None = None) -> Any:  # noqa: ANN401
    """Return the next object; each of its large arrays is in memory that goes away with it.

    Args:
        through: where it comes from.
        forward_to: where it is sent on, its arrays in the same memory.

    Raises:
        EOFError, OSError: nothing comes any more.
    """
    sent, files, *_ = recv_fds(through, 2 * _MAX_SENT_BYTES, 1, MSG_CMSG_CLOEXEC)
    try:
        if forward_to is not None and sent:
            send_fds(forward_to, [sent], files)
        place = pickle.loads(sent)  # noqa: S301  (our own child's)
        if isinstance(place, bytes):
            return pickle.loads(place)  # noqa: S301  (our own child's)
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
    return pickle.loads(data, buffers=buffers)  # noqa: S301  (our own child's)


def _mapped(file: int, begin: int, length: int) -> memoryview:
    """Return a part of a file as if it were this process's own: arrays may be written to."""
    return memoryview(mmap.mmap(file, length, access=mmap.ACCESS_COPY, offset=begin))


def _append(file: BinaryIO, data: bytes | memoryview) -> tuple[int, int]:
    """Write bytes to the end of a file; return where they begin, and how many they are."""
    begin = file.seek(-file.tell() % _ALIGNMENT, os.SEEK_CUR)
    file.write(data)
    return begin, len(data)
