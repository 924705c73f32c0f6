"""Record formats of SQLite: the positions of columns in a record.

A record's header holds the serial types of its columns. Records with equal headers have the same
format: their columns have the same widths and positions. There are few formats, so that Python
handles each format and numpy each record.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from traceprof.trace.model.special_values import NULL
from traceprof.trace.sqlite.pages import gathered

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from traceprof.intervals import Int64, Mask
    from traceprof.trace.sqlite.layout import Layout
    from traceprof.trace.sqlite.pages import Bytes, Words


# Serial types: the stored form of a column.
_WIDTHS = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)  # bytes of the value
_NULL_TYPE = 0
_REAL_TYPE = 7
_LAST_INTEGER = 9
_RESERVED_TYPES = (10, 11)
_FIRST_TEXT = 12
_CONSTANTS = {_NULL_TYPE: NULL, 8: 0, 9: 1}  # values that the type implies, which are not stored

_MAX_HEADER = 127  # its length is one byte
_MAX_NUMBER_BYTES = 8  # of a type: 56 bits
_NO_TEXT = -1
_FAR = 1 << 40  # beyond any payload

_MAX_FORMATS = 4096
_FEW_FORMATS = 64  # most tables have fewer
_MAX_NEW_FORMATS = 1024  # at once
_SLOT_BITS = 16
_SLOT_SHIFT = np.uint64(64 - _SLOT_BITS)
_WIDEST_GATHER = 128

# What a row of each array holds for a format that is not known or cannot be decoded.
_EMPTY = {
    "_hash_of_number": 0, "end": _FAR, "payload": 0, "_starts": 0, "_shifts": 0, "_is_stored": 0,
    "_constants": 0, "_text_starts": 0, "_lengths": _NO_TEXT, "_is_blob": 0,
}  # fmt: skip

# For each length of a header, a mask of its own bytes among 128.
_INSIDE = np.where(np.arange(128) < np.arange(256)[:, None], 255, 0).astype(np.uint8)


class RecordFormats:
    """The formats of the records so far, with the positions of the wanted columns.

    Arrays have a row for each format and a column for each wanted one, in the order of the table.
    Format 0 is that of records that cannot be decoded because their headers are empty.

    Attributes:
        end: int64[formats], the end of the wanted columns in the payload in bytes; _FAR if they
            cannot be decoded.
        payload: int64[formats], the size of all columns in bytes, including unwanted ones.
    """

    def __init__(self, layout: Layout, places: list[int], text_places: list[int]) -> None:
        """Begin without formats.

        Args:
            layout: of the table.
            places: of the wanted integer columns in the table, ascending.
            text_places: of the wanted columns of texts in the table, ascending.
        """
        self._places, self._text_places = places, text_places
        self._most = max((*places, *text_places), default=-1) + 1
        self._defaults = layout.defaults & {*places, *text_places}
        self._words = 1  # the compared words of a header: all of them
        self._clear()

    def _clear(self) -> None:
        self._factors = factors(self._words)
        self._numbers: dict[bytes, int] = {}
        self._slots = np.zeros(1 << _SLOT_BITS, np.int64)
        size = (0, len(self._places))
        self._hash_of_number = np.zeros(0, np.uint64)
        self.end, self.payload = np.zeros((2, 0), np.int64)
        self._starts, self._shifts, self._constants = np.zeros((3, *size), np.int64)
        self._is_stored = np.zeros(size, bool)
        size = (0, len(self._text_places))
        self._text_starts, self._lengths = np.zeros((2, *size), np.int64)
        self._is_blob = np.zeros(size, bool)
        self._make_room(_FEW_FORMATS)

    def _make_room(self, more: int) -> None:
        for name, empty in _EMPTY.items():
            held = getattr(self, name)
            room = np.full((more, *held.shape[1:]), empty, held.dtype)
            setattr(self, name, np.concatenate((held, room)))

    def of(self, data: Bytes, headers: Int64) -> Int64 | None:
        """Return the number of each row's format; None if there are too many of them."""
        lengths = data.take(headers)
        longest = min(int(lengths.max()), _MAX_HEADER)
        if longest > 8 * self._words or len(self._numbers) > _MAX_FORMATS - _MAX_NEW_FORMATS - 1:
            self._words = max(self._words, -(-longest // 8))
            self._clear()
        words = gathered(data, headers, 8 * self._words).view(np.uint64)
        words = words.reshape(-1, self._words)
        inside = _INSIDE[:, : 8 * self._words].view(np.uint64)
        if lengths.min() == longest:
            words[:, longest // 8 :] &= inside[longest, longest // 8 :]
        else:
            words &= inside.take(lengths, axis=0)
        hashes: Words = words @ self._factors
        formats = self._slots.take((hashes >> _SLOT_SHIFT).view(np.int64))
        # Another format's number if this one is new, or two share a slot. Two headers with equal
        # hashes of 64 bits are not expected; those that differ in one word never have them.
        rows = np.flatnonzero(self._hash_of_number.take(formats) != hashes)
        if len(rows):
            numbers = self._learn(words.take(rows, axis=0), hashes[rows])
            if numbers is None:
                return None
            formats[rows] = numbers
        return formats

    def _learn(self, words: Words, hashes: Words) -> Int64 | None:
        distinct, firsts, inverse = np.unique(hashes, return_index=True, return_inverse=True)
        if len(distinct) > _MAX_NEW_FORMATS or (words != words.take(firsts[inverse], axis=0)).any():
            return None
        missing = len(self._numbers) + len(distinct) + 1 - len(self.end)
        if missing > 0:
            self._make_room(missing + len(self.end))
        numbers = np.array([self._number(words[first]) for first in firsts])
        self._hash_of_number[numbers] = distinct
        self._slots[(distinct >> _SLOT_SHIFT).view(np.int64)] = numbers
        of_records: Int64 = numbers[inverse]
        return of_records

    def _number(self, words: Words) -> int:
        header = words.tobytes()
        if header not in self._numbers:
            number = self._numbers[header] = len(self._numbers) + 1
            self._decode_header(number, header)
        return self._numbers[header]

    def _decode_header(self, number: int, header: bytes) -> None:
        fields = _fields(header)
        if fields is None or any(place >= len(fields) for place in self._defaults):
            return
        serial, start = fields[-1] if fields else (_NULL_TYPE, header[0])
        self.payload[number] = start + _width(serial)
        length = end = fields[: self._most][-1][1] if fields else header[0]
        for order, place in enumerate(self._places):
            serial, start = fields[place] if place < len(fields) else (_NULL_TYPE, end)
            if serial > _LAST_INTEGER or serial == _REAL_TYPE:
                return
            self._starts[number, order] = start
            self._shifts[number, order] = 64 - 8 * _WIDTHS[serial] if _WIDTHS[serial] else 0
            self._is_stored[number, order] = _WIDTHS[serial] > 0
            self._constants[number, order] = _CONSTANTS.get(serial, 0)
            end = start + _WIDTHS[serial]
        for order, place in enumerate(self._text_places):
            serial, start = fields[place] if place < len(fields) else (_NULL_TYPE, 0)
            if _NULL_TYPE < serial < _FIRST_TEXT:
                return
            if serial:
                size = (serial - _FIRST_TEXT) // 2
                self._text_starts[number, order] = start
                self._lengths[number, order] = size
                self._is_blob[number, order] = serial % 2 == 0
                end = max(end, start + size)
        self.end[number] = max(end, length)

    def texts(self, order: int, headers: Int64, formats: Int64) -> tuple[Int64, Int64, Mask]:
        """Return the beginnings of a column's texts, their sizes (-1: NULL), and which are blobs.

        Args:
            order: of the column among those of texts.
            headers: the beginnings of the rows.
            formats: of the rows.
        """
        begin = headers + self._text_starts[:, order].take(formats)
        return begin, self._lengths[:, order].take(formats), self._is_blob[:, order].take(formats)

    def values(self, data: Bytes, headers: Int64, formats: Int64) -> list[Int64]:
        """Return the wanted integer columns of records, int64[n] each.

        Args:
            data: the pages.
            headers: int64[n], the beginnings of the records.
            formats: int64[n], of the records.
        """
        if not self._places:
            return []
        used = np.flatnonzero(np.bincount(formats))
        is_stored = self._is_stored[used].any(axis=0)
        columns: dict[int, Int64] = {}
        for order in np.flatnonzero(~is_stored).tolist():
            constants = _property(self._constants[:, order], used, formats)
            columns[order] = np.broadcast_to(constants, len(headers)).copy()
        orders = np.flatnonzero(is_stored)
        starts = self._starts[np.ix_(used, orders)]
        for group in _groups(starts) if len(orders) else ():
            begins = headers + _property(self._starts[:, orders[group.start]], used, formats)
            offsets = starts[0, group] - starts[0, group.start]
            width = int(offsets[-1]) + 8
            block = gathered(data, begins, width)
            for order, offset in zip(orders[group].tolist(), offsets.tolist(), strict=True):
                words = np.ndarray((len(headers),), ">i8", block, offset, (width,))
                columns[order] = self._column(words.astype(np.int64), order, used, formats)
        return [columns[order] for order in range(len(self._places))]

    def _column(self, words: Int64, order: int, used: Int64, formats: Int64) -> Int64:
        """Return a column whose values are the first bytes of these words, if stored."""
        words >>= _property(self._shifts[:, order], used, formats)
        if not self._is_stored[used, order].all():
            is_stored = _property(self._is_stored[:, order], used, formats)
            constants = _property(self._constants[:, order], used, formats)
            np.copyto(words, constants, where=~is_stored)
        return words


def _width(serial: int) -> int:
    """Return the size in bytes of a column of this serial type."""
    return (serial - _FIRST_TEXT) // 2 if serial >= _FIRST_TEXT else _WIDTHS[serial]


@lru_cache
def factors(count: int) -> Words:
    """Return odd numbers, uint64[count], to hash words.

    The outputs of SplitMix64 (Steele, Lea, Flood 2014), made odd.
    """
    mixed = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return (mixed ^ (mixed >> np.uint64(31))) | np.uint64(1)


def _property(of_format: npt.NDArray[Any], used: Int64, formats: Int64) -> npt.NDArray[Any]:
    """Return a property of each record's format, as one number if it is equal for all."""
    values = of_format[used]
    return values[:1] if (values == values[0]).all() else of_format.take(formats)


def _groups(starts: Int64) -> Iterator[slice]:
    """Yield column runs: columns side by side, at the same distances in all formats.

    Args:
        starts: int64[formats, columns], the beginning of each.
    """
    distances = np.diff(starts, axis=1)
    is_same = (distances == distances[0]).all(axis=0)
    first = 0
    for order in range(1, starts.shape[1]):
        if not is_same[order - 1] or starts[0, order] - starts[0, first] > _WIDEST_GATHER:
            yield slice(first, order)
            first = order
    yield slice(first, starts.shape[1])


def _fields(header: bytes) -> list[tuple[int, int]] | None:
    """Return serial type and place in the payload of each column of a row.

    None if the header is incomplete, or not in SQLite's form.
    """
    length = header[0]
    if not 1 <= length <= _MAX_HEADER:
        return None
    fields: list[tuple[int, int]] = []
    at, start = 1, length
    while at < length:
        serial, first = 0, at
        while True:
            # SQLite's numbers end after nine bytes; none of a column's type is as long.
            if at >= min(length, len(header)) or at - first == _MAX_NUMBER_BYTES:
                return None
            serial = serial << 7 | header[at] & 0x7F
            at += 1
            if header[at - 1] < 0x80:
                break
        fields.append((serial, start))
        if serial in _RESERVED_TYPES or start > _FAR:
            return None
        start += _width(serial)
    return fields
