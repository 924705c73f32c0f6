"""Protobuf messages as columns of bytes: many of one kind at a time, without an object for each.

A column of fields is encoded by numpy; every message takes the bytes that are its own, so that a
number is as short as Protobuf has it. Tags come from Perfetto's classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from traceprof.structs import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from google.protobuf.message import Message

    from traceprof.intervals import Int64, Mask

    Bytes = npt.NDArray[np.uint8]
    Words = npt.NDArray[Any]

_BITS = 7  # of a number in each byte; the eighth says that another byte follows
_LOW = 56  # bits that the first eight bytes of a number hold
_ONES = 0x0101010101010101
# By the number of bytes: which of eight are kept, and which of them say that another follows.
_KEPT = np.array([_ONES & ((1 << 8 * num) - 1) for num in range(9)], np.uint64)
_MORE = np.append(0, 0x80 * _KEPT[:-1]).astype(np.uint64)
# Where groups of bits go, halved again and again: 56 = 2 × 28, 28 = 2 × 14, 14 = 2 × 7.
_HALVES = (
    (0x000000000FFFFFFF, 0x00FFFFFFF0000000, 4),
    (0x00003FFF00003FFF, 0x0FFFC0000FFFC000, 2),
    (0x007F007F007F007F, 0x3F803F803F803F80, 1),
)


class ByteColumn(Record, frozen=True):
    """Bytes of n messages that follow each other.

    Attributes:
        words: of 1, 2 or 8 bytes, little-endian: one for each message, or one for all.
        kept: which bytes are written: words of the same size with a 1 in each of these.
    """

    words: Words
    kept: Words


class RowFields(Record, frozen=True):
    """Fields of n messages.

    Attributes:
        columns: in the order of their bytes.
        length: int64[n] or int64[1], how many bytes are written of each.
    """

    columns: tuple[ByteColumn, ...]
    length: Int64

    def __add__(self, other: RowFields) -> RowFields:
        return RowFields((*self.columns, *other.columns), self.length + other.length)

    def where(self, is_present: Mask) -> RowFields:
        """Return the same fields, of some messages only: bool[n]."""
        columns = [
            ByteColumn(column.words, np.where(is_present, column.kept, column.kept.dtype.type(0)))
            for column in self.columns
        ]
        return RowFields(tuple(columns), np.where(is_present, self.length, 0))


class EncodedMessages(NamedTuple):
    """Messages, one after the other.

    Attributes:
        content: their bytes.
        length: int64[n], how many are of each.
    """

    content: Bytes
    length: Int64


def tag_of(message: Message, num_bytes: int = 1) -> bytes:
    """Return the tag of the only field of a message, whose value takes so many bytes."""
    content: bytes = message.SerializeToString()
    return content[:-num_bytes]


def numbers(tag: bytes, values: Int64) -> RowFields:
    """Return a field of numbers, int64[n] or int64[1]: 10 bytes of negative ones."""
    value = np.asarray(values).astype(np.uint64)
    top = int(value.max()) if len(value) else 0
    length = np.ones(len(value), np.int64)
    for bits in range(_BITS, min(top.bit_length(), 64), _BITS):
        length += value >= np.uint64(1 << bits)
    if top < 1 << _BITS:
        columns = [ByteColumn(value.astype(np.uint8), np.ones(1, np.uint8))]
    else:
        spread = value & np.uint64((1 << _LOW) - 1)
        for low, high, shift in _HALVES:
            spread = (spread & np.uint64(low)) | ((spread & np.uint64(high)) << np.uint64(shift))
        first = np.minimum(length, 8)
        more = np.where(length > 8, np.uint64(0x80 * _ONES & ((1 << 64) - 1)), _MORE[first])
        columns = [ByteColumn(spread | more, _KEPT[first])]
        if top >> _LOW:
            rest = value >> np.uint64(_LOW)
            high_word = (rest & np.uint64(0x7F)) | (rest >> np.uint64(_BITS) << np.uint64(8))
            high_word |= np.where(length > 9, np.uint64(0x80), np.uint64(0))
            kept = _KEPT[np.maximum(length - 8, 0)]
            columns.append(ByteColumn(high_word.astype(np.uint16), kept.astype(np.uint16)))
        elif top < 1 << 2 * _BITS:
            columns = [
                ByteColumn(column.words.astype(np.uint16), column.kept.astype(np.uint16))
                for column in columns
            ]
    return _after(tag, RowFields(tuple(columns), length))


def fixed_numbers(tag: bytes, values: Int64) -> RowFields:
    """Return a field of numbers of eight bytes each, int64[n]."""
    column = ByteColumn(np.asarray(values).astype(np.uint64), _KEPT[8:])
    return _after(tag, RowFields((column,), np.full(1, 8, np.int64)))


def messages(tag: bytes, fields: RowFields) -> RowFields:
    """Return a field that is a message of fields."""
    return numbers(tag, fields.length) + fields


def texts(tag: bytes, text: str) -> RowFields:
    """Return a field that is the same text in all messages."""
    content = text.encode()
    padded = np.frombuffer(content.ljust(-(-len(content) // 8) * 8, b"\0"), np.uint64)
    sizes = np.minimum(len(content) - 8 * np.arange(len(padded)), 8)
    columns = [ByteColumn(padded[[at]], _KEPT[[size]]) for at, size in enumerate(sizes.tolist())]
    fields = RowFields(tuple(columns), np.full(1, len(content), np.int64))
    return numbers(tag, fields.length) + fields


def written(fields: RowFields, num: int) -> EncodedMessages:
    """Put n messages together.

    Args:
        fields: of n messages.
        num: n.
    """
    row = np.dtype([(f"f{number}", part.words.dtype) for number, part in enumerate(fields.columns)])
    words, kept = (np.empty(num, row) for _ in range(2))
    for rows, columns in (
        (words, [part.words for part in fields.columns]),
        (kept, [part.kept for part in fields.columns]),
    ):
        named = dict(zip(row.names or (), columns, strict=True))
        same = np.zeros(1, row)  # what all messages share is copied row by row
        for name, column in named.items():
            if len(column) == 1:
                same[name] = column
        rows.view(np.uint8).reshape(num, row.itemsize)[:] = same.view(np.uint8)
        for name, column in named.items():
            if len(column) != 1:
                rows[name] = column
    content: Bytes = words.view(np.uint8)[kept.view(np.bool_)]
    return EncodedMessages(content, np.broadcast_to(fields.length, num))


def merged(kind: npt.NDArray[np.int8], parts: Sequence[EncodedMessages]) -> Bytes:
    """Return the bytes of messages of several kinds in one order.

    Args:
        kind: int8[n], which part each is of.
        parts: the messages of each kind, in order.
    """
    if len(kind) == len(parts[0].length):
        return parts[0].content
    length = np.empty(len(kind), np.int64)
    for number, part in enumerate(parts):
        length[kind == number] = part.length
    owner = np.repeat(kind, length)
    content = np.empty(len(owner), np.uint8)
    for number, part in enumerate(parts):
        content[owner == number] = part.content
    return content


def _after(tag: bytes, fields: RowFields) -> RowFields:
    """Return fields with a tag before each."""
    columns = tuple(ByteColumn(np.full(1, byte, np.uint8), np.ones(1, np.uint8)) for byte in tag)
    return RowFields((*columns, *fields.columns), fields.length + len(tag))
