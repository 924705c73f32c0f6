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
_ALIGNMENT = 64


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
    """Return the next object; as long as one of its large arrays lives, a file stays open.

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
        begin, length = place
        # As if it were this process's own: arrays may be written to.
        memory = mmap.mmap(files[0] if files else -1, begin + length, access=mmap.ACCESS_COPY)
    finally:
        for file in files:
            os.close(file)
    view = memoryview(memory)
    data, spans = pickle.loads(view[begin:])  # noqa: S301  (our own child's)
    return pickle.loads(data, buffers=[view[at : at + size] for at, size in spans])  # noqa: S301


def _append(file: BinaryIO, data: bytes | memoryview) -> tuple[int, int]:
    """Write bytes to the end of a file; return where they begin, and how many they are."""
    begin = file.seek(-file.tell() % _ALIGNMENT, os.SEEK_CUR)
    file.write(data)
    return begin, len(data)
