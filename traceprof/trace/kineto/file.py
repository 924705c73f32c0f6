"""Compressed traces: gzip, xz, and zstd where a library for it is installed."""

from __future__ import annotations

import gzip
import lzma
import os
import weakref
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from importlib import import_module
from io import BytesIO, RawIOBase
from pathlib import Path
from typing import IO, Any, cast

from traceprof.errors import TraceFileError, TraceFormatError
from traceprof.progress import Progress

GZIP, XZ, ZSTD = b"\x1f\x8b", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"
NAMES = {GZIP: "gzip", XZ: "xz", ZSTD: "zstd"}
"""Compressions by the magic number with which a file begins."""

MAX_MAGIC = max(map(len, NAMES))
MAX_BLOCK_BYTES = (128 << 10) + 64
"""Within these zstd's first block ends, before which nothing can be unpacked."""

_MAX_WINDOW_LOG = 27  # of zstd, its own default limit
_ZSTD_MODULES = ("compression.zstd", "backports.zstd")  # of Python 3.14, and the same before


NO_ZSTD = "it is compressed with zstd, and the package backports.zstd is not installed"


class PackingError(Exception):
    """What is compressed is damaged, or cannot be unpacked."""


def packing(start: bytes) -> bytes | None:
    """Return the magic number of the compression of a file, given its beginning."""
    return next((magic for magic in NAMES if start.startswith(magic)), None)


def can_unpack(start: bytes) -> bool:
    """Return whether something is installed that unpacks a file with this beginning."""
    return packing(start) != ZSTD or _zstd_module() is not None


def unpacked_start(start: bytes, num_bytes: int) -> bytes | None:
    """Unpacked beginning of a compressed file; None if it cannot be unpacked.

    `start`: the file's own beginning. `num_bytes`: of the unpacked one, at most.
    """
    try:
        return next(unpacked(BytesIO(start), packing(start), num_bytes), None)
    except PackingError:
        return None


def unpacked(packed: IO[bytes], magic: bytes | None, max_bytes: int) -> Iterator[bytes]:
    """The content of a compressed file, until its end or a cut.

    `magic`: the magic number of its compression. `max_bytes`: of a piece of the content.

    Raises PackingError: it is damaged, or nothing is installed that unpacks it.
    """
    if magic == GZIP:
        pieces = iter(partial(gzip.GzipFile(fileobj=packed).read1, max_bytes), b"")
    elif magic == XZ:
        pieces = _members_of_xz(packed, max_bytes)
    elif (zstd := _zstd_module()) is not None:
        options = {zstd.DecompressionParameter.window_log_max: _MAX_WINDOW_LOG}
        pieces = iter(partial(zstd.ZstdFile(packed, options=options).read1, max_bytes), b"")
    else:
        raise PackingError(NO_ZSTD)
    try:
        yield from pieces
    except EOFError:  # cut
        return
    except Exception as error:
        is_zstd = type(error).__name__ == "ZstdError"
        if is_zstd or isinstance(error, (zlib.error, lzma.LZMAError, gzip.BadGzipFile)):
            raise PackingError(str(error)) from error
        raise


def _members_of_xz(packed: IO[bytes], max_bytes: int) -> Iterator[bytes]:
    """All members of an xz file; `LZMAFile` stops at zeros between them."""
    member, data = lzma.LZMADecompressor(lzma.FORMAT_XZ), b""
    while data := data or packed.read(_PIECE_BYTES):
        if member.eof and (data := data.lstrip(b"\0")):
            member = lzma.LZMADecompressor(lzma.FORMAT_XZ)
        while not member.eof and (data or not member.needs_input):
            if piece := member.decompress(data, max_bytes):
                yield piece
            data = member.unused_data


def _zstd_module() -> Any:  # noqa: ANN401  (it may not be installed)
    for name in _ZSTD_MODULES:
        with suppress(ImportError):
            return import_module(name)
    return None


COPY_AGAIN = "copy it again, or record again with torch.profiler"

_PIECE_BYTES = 1 << 18


class TraceFile:
    """An open trace file: the opened file is read, even if another one takes its name."""

    def __init__(self, path: Path) -> None:
        """Open the file. Raises TraceFileError: it cannot be opened."""
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
        """The file's content, unpacked; of a truncated file, the available part.

        Raises:
            TraceFileError: it cannot be read.
            TraceFormatError: it cannot be unpacked, or it changed meanwhile.
        """
        if progress is not None:
            progress.expect(self.num_bytes)
        packed = cast("IO[bytes]", _Packed(self, progress))
        magic = packing(self.read(MAX_MAGIC, 0))
        try:
            yield from (
                iter(partial(packed.read, _PIECE_BYTES), b"")
                if magic is None
                else unpacked(packed, magic, _PIECE_BYTES)
            )
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

    def read(self, length: int, offset: int) -> bytes:
        """Return bytes at an offset: forked processes share the descriptor.

        Raises TraceFileError: it cannot be read.
        """
        try:
            return os.pread(self._descriptor, length, offset)
        except OSError as error:
            why = error.strerror or str(error)
            raise TraceFileError(
                f"cannot read {self.path}", why, "check the disk that it is on"
            ) from error


class _Packed(RawIOBase):
    """A trace file as it was when it was opened, read from its beginning."""

    def __init__(self, file: TraceFile, progress: Progress | None) -> None:
        self._file, self._progress, self._offset = file, progress, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401
        most = min(len(buffer), self._file.num_bytes - self._offset)
        piece = self._file.read(most, self._offset)
        buffer[: len(piece)] = piece
        self._offset += len(piece)
        if self._progress is not None and piece:
            self._progress.advance(len(piece))
        return len(piece)
