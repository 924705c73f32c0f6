"""Compressed traces: gzip, xz, and zstd where a library for it is installed."""

from __future__ import annotations

import lzma
import os
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from traceprof.errors import TraceFileError, TraceFormatError
from traceprof.progress import Progress

GZIP, XZ, ZSTD = b"\x1f\x8b", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"
NAMES = {GZIP: "gzip", XZ: "xz", ZSTD: "zstd"}
"""Compressions by the magic number with which a file begins."""

MAX_MAGIC = max(map(len, NAMES))
MAX_BLOCK_BYTES = (128 << 10) + 64
"""Within these zstd's first block ends, before which nothing can be unpacked."""

_GZIP_FORMAT = 31  # of zlib: gzip's header and checksum, the largest window
_MAX_MEMORY = 1 << 28  # of a decompressor: the highest presets take 64 MiB
_MAX_WINDOW_LOG = 27  # of zstd, its own default limit
_ZSTD_MODULES = ("compression.zstd", "backports.zstd")  # of Python 3.14, and the same before


NO_ZSTD = "it is compressed with zstd, and the package backports.zstd is not installed"


class PackingError(Exception):
    """What is compressed is damaged, or cannot be unpacked."""


class _Unpacker(Protocol):
    """A decompressor as `lzma` and `compression.zstd` have it."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = ...) -> bytes: ...


class _Gzip:
    """A decompressor of gzip with the methods of the others."""

    def __init__(self) -> None:
        self._unpacker, self._rest = zlib.decompressobj(_GZIP_FORMAT), b""

    @property
    def eof(self) -> bool:
        return self._unpacker.eof

    @property
    def needs_input(self) -> bool:
        return not self._rest

    @property
    def unused_data(self) -> bytes:
        return self._unpacker.unused_data

    def decompress(self, data: bytes, max_length: int = 0) -> bytes:
        unpacked_data = self._unpacker.decompress(self._rest + data, max_length)
        self._rest = self._unpacker.unconsumed_tail
        return unpacked_data


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
        return next(filter(None, unpacked(iter([start]), num_bytes)), None)
    except PackingError:
        return None


def unpacked(packed: Iterator[bytes], max_bytes: int) -> Iterator[bytes]:
    """The content of a compressed file, until its end or a cut.

    `packed`: pieces of the file; the first begins with the magic number. `max_bytes`: of a piece of
    the content.

    Raises PackingError: it is damaged, or nothing is installed that unpacks it.
    """
    make: Callable[[], _Unpacker] | None = None
    unpacker: _Unpacker | None = None
    for piece in packed:
        rest = piece
        make = make or _maker(piece)
        while True:
            if unpacker is None or unpacker.eof:
                rest = rest.lstrip(b"\0")  # padding
                if not rest:
                    break
                unpacker = make()
            try:
                yield unpacker.decompress(rest, max_bytes)
            except Exception as error:
                is_zstd = type(error).__name__ == "ZstdError"
                if is_zstd or isinstance(error, (zlib.error, lzma.LZMAError, EOFError)):
                    raise PackingError(str(error)) from error
                raise
            rest = unpacker.unused_data if unpacker.eof else b""
            if not unpacker.eof and unpacker.needs_input:
                break


def _maker(start: bytes) -> Callable[[], _Unpacker]:
    magic = packing(start)
    if magic == XZ:
        return partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, _MAX_MEMORY)
    if magic == GZIP:
        return _Gzip
    zstd = _zstd_module()
    if zstd is None:
        raise PackingError(NO_ZSTD)
    options = {zstd.DecompressionParameter.window_log_max: _MAX_WINDOW_LOG}
    return lambda: cast("_Unpacker", zstd.ZstdDecompressor(options=options))


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
