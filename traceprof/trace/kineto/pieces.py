"""The bytes of a trace's file, piece by piece, unpacked if compressed."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING

from traceprof.errors import TraceFileError, TraceFormatError
from traceprof.trace.kineto.packing import GZIP, MAX_MAGIC, NAMES, PackingError, packing, unpacked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from traceprof.progress import Progress

COPY_AGAIN = "copy it again, or record again with torch.profiler"

_PIECE_BYTES = 1 << 18


class TraceFile:
    """An open trace file: the opened file is read, even if another one takes its name."""

    def __init__(self, path: Path) -> None:
        """Open the file.

        Raises:
            TraceFileError: it cannot be opened.
        """
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            why = error.strerror or str(error)
            raise TraceFileError(
                f"cannot open {path}", why, "check that the file can be read"
            ) from error
        # An unclosed descriptor lives as long as this object, not as long as the process.
        self._close = weakref.finalize(self, os.close, self._descriptor)
        self._close.atexit = False  # a thread may still read when the process ends
        status = os.fstat(self._descriptor)
        self.num_bytes = status.st_size
        self._written_ns = status.st_mtime_ns

    def close(self) -> None:
        """Close the file."""
        self._close()

    def pieces(self, progress: Progress | None = None) -> Iterator[bytes]:
        """Yield the file's content, unpacked.

        The available part of a truncated file is yielded.

        Args:
            progress: called with the bytes of the file that are read.

        Raises:
            TraceFileError: it cannot be read.
            TraceFormatError: it cannot be unpacked, or it changed meanwhile.
        """
        if progress is not None:
            progress.expect(self.num_bytes)
        packed = self._packed_pieces(progress)
        magic = packing(self._read(MAX_MAGIC, 0))
        try:
            yield from packed if magic is None else unpacked(packed, _PIECE_BYTES)
        except PackingError as error:
            why = f"a damaged {NAMES[magic or GZIP]} file ({error})"
            raise self.damaged(why, COPY_AGAIN) from error
        status = os.fstat(self._descriptor)
        if (status.st_size, status.st_mtime_ns) != (self.num_bytes, self._written_ns):
            raise TraceFormatError(
                f"cannot read {self.path}",
                "the file changed while it was read: another process wrote to it",
                "wait until its writer has finished, and try again",
            )

    def damaged(self, why: str, remedy: str) -> TraceFormatError:
        """Return an error with the reason why the file cannot be read, and what to do."""
        return TraceFormatError(f"cannot read {self.path}", why, remedy)

    def _read(self, length: int, offset: int) -> bytes:
        # At an explicit offset: forked processes share the descriptor.
        try:
            return os.pread(self._descriptor, length, offset)
        except OSError as error:
            why = error.strerror or str(error)
            raise TraceFileError(
                f"cannot read {self.path}", why, "check the disk that it is on"
            ) from error

    def _packed_pieces(self, progress: Progress | None) -> Iterator[bytes]:
        offset = 0
        while piece := self._read(min(_PIECE_BYTES, self.num_bytes - offset), offset):
            offset += len(piece)
            if progress is not None:
                progress.advance(len(piece))
            yield piece
