"""The bytes of a trace's file, piece by piece, unpacked if compressed."""

from __future__ import annotations

import os
import weakref
import zlib
from typing import TYPE_CHECKING

from traceprof.errors import TraceFileError, TraceFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from traceprof.progress import Progress

GZIP = b"\x1f\x8b"
RE_RECORD = "copy it again, or record again with torch.profiler"
"""What to do about a damaged trace."""

_PIECE_BYTES = 1 << 18
_GZIP_FORMAT = 31  # of zlib: gzip's header and checksum, the largest window


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
        is_packed = self._read(len(GZIP), 0) == GZIP
        yield from self._unpacked(packed) if is_packed else packed
        status = os.fstat(self._descriptor)
        if (status.st_size, status.st_mtime_ns) != (self.num_bytes, self._written_ns):
            raise TraceFormatError(
                f"cannot read {self.path}",
                "the file changed while it was read: another process wrote to it",
                "wait until its writer has finished, and try again",
            )

    def damaged(self, why: str) -> TraceFormatError:
        """Return an error with the reason why the file cannot be read."""
        return TraceFormatError(f"cannot read {self.path}", why, RE_RECORD)

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

    def _unpacked(self, packed: Iterator[bytes]) -> Iterator[bytes]:
        unpacker = zlib.decompressobj(_GZIP_FORMAT)
        try:
            for piece in packed:
                rest = piece
                while rest:
                    if unpacker.eof:  # another member follows, or padding
                        if not rest.strip(b"\0"):
                            break
                        unpacker = zlib.decompressobj(_GZIP_FORMAT)
                    yield unpacker.decompress(rest, _PIECE_BYTES)
                    rest = unpacker.unused_data or unpacker.unconsumed_tail
        except zlib.error as error:
            raise self.damaged(f"a damaged gzip file ({error})") from error
        yield unpacker.flush()
