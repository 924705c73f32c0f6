"""The pages of a table in an SQLite file, found and read without SQLite.

Only known structures are read: for others `Unsupported` has the reason, and SQLite has to read the
table. The format: https://www.sqlite.org/fileformat2.html
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from traceprof.intervals import Int64
from traceprof.structs import Record

Bytes = np.ndarray[tuple[Any, ...], np.dtype[np.uint8]]
Words = np.ndarray[tuple[Any, ...], np.dtype[np.uint64]]

PADDING = 256
"""Bytes behind the last page, so that reads slightly past a page stay inside the array."""

_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
_FRACTIONS = bytes((64, 32, 32))  # of a page that a payload may fill; always these
_UTF8 = 1

_INTERIOR = 5
_LEAF = 13
_PAGE_HEADER_BYTES = {_INTERIOR: 12, _LEAF: 8}
_MIN_CELL_BYTES = 4
_LAST_OF_ONE_BYTE = 0x7F
_TOPS = 0x8080808080808080
_OFTEN = (3, 2, 4)  # bytes that the rowids of neighbours take
_MAX_LEVELS = 20  # SQLite goes no deeper
# Size of one read of pages that are read once; larger reads cost fewer calls.
_BYTES_AT_ONCE = 1 << 20


class Unsupported(Exception):  # noqa: N818 - it is not an error: SQLite reads the table
    """A damaged structure, or one that only SQLite can read."""


class Leaves(Record, frozen=True):
    """The pages that hold a table's rows."""

    numbers: Int64  # int64[n], from 1 on, in the order of the rows
    # int64[n], the greatest possible rowid on each; they ascend unless the file is damaged
    highest: Int64


class PageFile:
    """The pages of an SQLite file that is open for reading.

    Attributes:
        page_size: bytes of each page.
        usable: bytes of each page that hold data; the rest, at its end, is reserved.
    """

    def __init__(self, descriptor: int) -> None:
        """Check the header of an open file, which stays open.

        Raises Unsupported: it cannot be read, or has an unusual header.
        """
        self._file = descriptor
        try:
            header = os.pread(self._file, _HEADER_BYTES, 0)
        except OSError as error:
            raise Unsupported(str(error)) from error
        if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
            raise Unsupported("no SQLite file")
        size = int.from_bytes(header[16:18], "big")
        self.page_size = 65536 if size == 1 else size
        self.usable = self.page_size - header[20]
        if self.page_size & (self.page_size - 1) or self.page_size < 512 or self.usable < 480:
            raise Unsupported("a page size that does not exist")
        is_usual = header[21:24] == _FRACTIONS and {*header[18:20]} <= {1, 2}
        if not is_usual or int.from_bytes(header[56:60], "big") != _UTF8:
            raise Unsupported("an unusual header")
        self._pages = os.fstat(self._file).st_size // self.page_size
        num_pages = int.from_bytes(header[28:32], "big")
        # SQLite before 3.7 does not update this number.
        if num_pages and header[24:28] == header[92:96]:
            if num_pages > self._pages:
                raise Unsupported("the file is cut short")
            self._pages = num_pages

    def empty(self, pages: int) -> Bytes:
        """Return space for a number of pages, and `PADDING` behind it."""
        return np.zeros(pages * self.page_size + PADDING, np.uint8)

    def read(self, numbers: Int64, into: Bytes) -> None:
        """Read existing pages, one behind the other.

        Raises Unsupported: the file cannot be read, or ends before.
        """
        # Read, not mapped: a file that is truncated meanwhile would kill the process.
        size = self.page_size
        firsts = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 2) != 1)
        for first, end in zip(firsts, (*firsts[1:], len(numbers)), strict=True):
            run = into.data[first * size : end * size]
            try:
                length = os.preadv(self._file, [run], (int(numbers[first]) - 1) * size)
            except OSError as error:
                raise Unsupported(str(error)) from error
            if length != len(run):
                raise Unsupported("the file is cut short")

    def leaves(self, root: int) -> Leaves:
        """Return the leaves of the table with this root page.

        Raises Unsupported: the tree is damaged, or is not one of a table with rowids.
        """
        numbers = np.array([root], np.int64)
        highest = np.array([np.iinfo(np.int64).max])
        seen, num_seen = np.zeros(self._pages + 1, bool), 0
        for _ in range(_MAX_LEVELS):
            if numbers.min() < 2 or numbers.max() > self._pages:  # the first one is the schema's
                raise Unsupported("a page that is not there")
            seen[numbers] = True
            num_seen += len(numbers)
            if np.count_nonzero(seen) < num_seen:
                raise Unsupported("a page that is there twice")
            if self._kind(int(numbers[0])) == _LEAF:  # then all are, as reading cells checks
                return Leaves(numbers, highest)
            numbers, highest = self._children(numbers, highest)
        raise Unsupported("pages too deep")

    def leaf_cells(self, data: Bytes, pages: int) -> tuple[Int64, Int64]:
        """Return the beginnings of the cells of leaves in `data`, and the number on each page."""
        return self._cells(data, pages, _LEAF)

    def _children(self, numbers: Int64, highest: Int64) -> tuple[Int64, Int64]:
        """Return the pages below interior ones, and the greatest possible rowid on each."""
        parts = []
        at_once = max(_BYTES_AT_ONCE // self.page_size, 1)
        data = self.empty(min(at_once, len(numbers)))
        for window in _windows(len(numbers), at_once):
            self.read(numbers[window], data)
            parts.append(self._children_of(data, highest[window]))
        children, below = zip(*parts, strict=True)
        return np.concatenate(children), np.concatenate(below)

    def _children_of(self, data: Bytes, highest: Int64) -> tuple[Int64, Int64]:
        cells, counts = self._cells(data, len(highest), _INTERIOR)
        if not counts.all():
            raise Unsupported("a page without cells")
        keys, lengths = varints(data, cells + 4)
        if (self.left_on_page(cells) < 4 + lengths).any():
            raise Unsupported("a cell that leaves its page")
        # The last child of each page is in its header; its greatest rowid is that of the page.
        starts = np.arange(len(counts)) * self.page_size
        ends = counts.cumsum()
        links = np.insert(cells, ends, starts + 8)
        children = gathered(data, links, 8).view(">u4")[::2].astype(np.int64)
        return children, np.insert(keys, ends, highest)

    def left_on_page(self, at: Int64) -> Int64:
        """Return the number of usable bytes from each place to the end of its page."""
        return self.usable - (at & (self.page_size - 1))

    def _cells(self, data: Bytes, pages: int, kind: int) -> tuple[Int64, Int64]:
        counts = self._counts(data, pages, kind)
        halves = data[: pages * self.page_size].view(">u2").reshape(pages, -1)
        header, most = _PAGE_HEADER_BYTES[kind], int(counts.max())
        is_there = np.arange(most) < counts[:, None]
        pointers = halves[:, header // 2 : header // 2 + most][is_there].astype(np.int64)
        lowest, highest = int(pointers.min(initial=self.usable)), int(pointers.max(initial=0))
        ends_of_pointers = header + 2 * counts
        if highest > self.usable - _MIN_CELL_BYTES or (
            lowest < header + 2 * most and (pointers < np.repeat(ends_of_pointers, counts)).any()
        ):
            raise Unsupported("a cell that is not on its page")
        pointers += np.repeat(np.arange(pages) * self.page_size, counts)
        return pointers, counts

    def _counts(self, data: Bytes, pages: int, kind: int) -> Int64:
        """Return the number of cells on each page, int64[pages]."""
        rows = data[: pages * self.page_size].reshape(pages, self.page_size)
        if (rows[:, 0] != kind).any():
            raise Unsupported("a page of another kind")
        counts: Int64 = rows[:, 3].astype(np.int64) << 8 | rows[:, 4]
        if _PAGE_HEADER_BYTES[kind] + int(counts.max()) * (2 + _MIN_CELL_BYTES) > self.usable:
            raise Unsupported("a page with too many cells")
        return counts

    def _kind(self, number: int) -> int:
        data = self.empty(1)
        self.read(np.array([number]), data)
        return int(data[0])


def gathered(data: Bytes, at: Int64, length: int) -> Bytes:
    """Return uint8[n * length]: `length` bytes from each place on, one behind the other."""
    # As one element of `length` bytes: numpy then copies it at once.
    everywhere = np.ndarray((len(data) - length + 1,), f"V{length}", data, strides=(1,))
    return everywhere[at].view(np.uint8)


def varints(data: Bytes, at: Int64) -> tuple[Int64, Int64]:
    """Return int64[n] values of variable-length integers, and their sizes, 1 to 9 bytes."""
    first = data.take(at)
    if len(at) and int(first.max()) <= _LAST_OF_ONE_BYTE:
        return first.astype(np.int64), np.ones(len(at), np.int64)
    stored, lengths = stored_varints(data, at)
    values = _sevens(stored)
    if len(lengths) and lengths.max() == 9:
        ninth = lengths == 9
        values[ninth] = values[ninth] << np.uint64(8) | data[at[ninth] + 8]
    return values.view(np.int64), np.broadcast_to(lengths, at.shape)


def stored_varints(data: Bytes, at: Int64) -> tuple[Words, Int64]:
    """Return variable-length integers as they are stored, and their sizes in bytes.

    Returns:
        uint64[n], the first eight bytes of each, in the order of the values if all have the same
        size; int64[n], or [1] if all have the same size.
    """
    word = gathered(data, at, 8).view(">u8").astype(np.uint64)
    lengths = _lengths(word)
    word >>= (64 - 8 * np.minimum(lengths, 8)).astype(np.uint64)
    return word, lengths


def _lengths(word: Words) -> Int64:
    """Return the sizes of variable-length integers in bytes, int64[n]; [1] if all are equal."""
    # The last byte has no top bit; all eight bits count only in a ninth byte.
    tops = word & np.uint64(_TOPS)
    for length in _OFTEN if len(word) else ():
        expected = _TOPS >> 8 * (9 - length) << 8 * (9 - length)
        mask = _TOPS >> 8 * (8 - length) << 8 * (8 - length)
        if ((tops & np.uint64(mask)) == np.uint64(expected)).all():
            return np.array([length])
    last = tops ^ np.uint64(_TOPS)
    exponent = np.frexp(last.astype(np.float64))[1]
    return 8 - ((exponent.astype(np.int64) - 1) >> 3)


def _sevens(word: Words) -> Words:
    """Return the lower seven bits of each byte, joined."""
    word &= np.uint64(0x7F7F7F7F7F7F7F7F)
    for shift, low in ((1, 0x007F007F007F007F), (2, 0x00003FFF00003FFF), (4, 0x000000000FFFFFFF)):
        high = word >> np.uint64(shift)
        word &= np.uint64(low)
        high &= np.uint64(low << (8 * shift - shift))
        word |= high
    return word


@lru_cache
def factors(count: int) -> Words:
    """Return odd numbers, uint64[count], to hash words.

    The outputs of SplitMix64 (Steele, Lea, Flood 2014), made odd.
    """
    mixed = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return (mixed ^ (mixed >> np.uint64(31))) | np.uint64(1)


def _windows(length: int, at_once: int) -> Iterator[slice]:
    for first in range(0, length, at_once):
        yield slice(first, min(first + at_once, length))
