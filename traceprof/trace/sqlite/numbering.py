"""Numbers for texts, blobs and combinations of integers of many rows: few of them are distinct."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from traceprof.intervals import Int64
from traceprof.trace.model.special_values import clipped
from traceprof.trace.sqlite.pages import Bytes, Words, factors, gathered

Text: TypeAlias = "str | bytes"

NONE = -1
"""The number of NULL."""

UNKEPT = -2
"""The number of texts beyond those that are kept."""


class NumberedTexts:
    """Numbers for texts in order of first occurrence.

    With `digits_alike` each digit counts as 0, so that texts that differ in numbers are equal. At
    most `most` distinct texts are kept.

    Attributes:
        known: the texts by number; bytes where the export has a blob.
    """

    def __init__(self, *, digits_alike: bool = False, most: int | None = None) -> None:
        self._digits_alike, self._most = digits_alike, most
        self.known: list[Text] = []
        self._numbers: dict[Text, int] = {}

    def of(self, values: Iterable[object]) -> Int64:
        """Return the number of each text, int64[n], `NONE` for None; integers become texts."""
        numbers = [
            NONE
            if value is None
            else self._number(value if isinstance(value, str | bytes) else str(value))
            for value in values
        ]
        return np.array(numbers, np.int64)

    def of_stored(
        self, data: Bytes, begin: Int64, length: Int64, is_blob: npt.NDArray[np.bool_]
    ) -> Int64 | None:
        """Numbers of texts in pages, `NONE` for NULL; None if two texts cannot be distinguished.

        `begin`: of each text. `length`: its bytes in UTF-8, `NONE` for NULL.
        """
        numbers = np.full(len(begin), NONE, np.int64)
        words = -(-length // 8)
        for width in np.flatnonzero(np.bincount(words[length >= 0])).tolist():
            rows = np.flatnonzero((words == width) & (length >= 0))
            of_width = self._of_width(data, begin[rows], length[rows], is_blob[rows], width)
            if of_width is None:
                return None
            numbers[rows] = of_width
        return numbers

    def _of_width(
        self, data: Bytes, begin: Int64, length: Int64, is_blob: npt.NDArray[np.bool_], width: int
    ) -> Int64 | None:
        """Numbers of texts that take `width` words of eight bytes."""
        kind = (length << 1 | is_blob).view(np.uint64)
        stored = gathered(data, begin, 8 * width).view(np.uint64).reshape(len(begin), width)
        if width:
            stored[:, -1] &= _TAILS[length & 7]
        if self._digits_alike:
            characters = stored.view(np.uint8)
            np.copyto(characters, _ZERO, where=characters - _ZERO < 10)
        hashes: Words = stored @ factors(width) + kind * _KIND_FACTOR
        _, first, which = np.unique(hashes, return_index=True, return_inverse=True)
        which = which.reshape(-1)
        same = first[which]
        if (stored != stored.take(same, axis=0)).any() or (kind != kind[same]).any():
            return None
        texts = (stored[row].tobytes()[: int(length[row])] for row in first.tolist())
        numbers = [
            self._number(text if blob else text.decode("utf-8", "replace"))
            for text, blob in zip(texts, is_blob[first].tolist(), strict=True)
        ]
        return np.array(numbers, np.int64)[which]

    def _number(self, text: Text) -> int:
        if isinstance(text, str):
            text = clipped(text.translate(_DIGITS) if self._digits_alike else text)
        if text not in self._numbers:
            if self._most is not None and len(self.known) >= self._most:
                return UNKEPT
            self._numbers[text] = len(self.known)
            self.known.append(text)
        return self._numbers[text]


_ZERO = np.uint8(ord("0"))
_DIGITS = str.maketrans("123456789", "0" * 9)
_KIND_FACTOR = np.uint64(0x9E3779B97F4A7C15)
# The bytes of a text's last word, by its length modulo 8.
_TAILS = (
    np.where(np.arange(8) < np.array([8, 1, 2, 3, 4, 5, 6, 7])[:, None], 255, 0)
    .astype(np.uint8)
    .view(np.uint64)
    .reshape(-1)
)


_SLOT_BITS = 16
_SLOT_SHIFT = np.uint64(64 - _SLOT_BITS)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_MIX_SHIFT = np.uint64(29)


class NumberedRows:
    """Numbers for combinations of columns in order of first occurrence.

    Attributes:
        names: of the columns.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._parts: list[Int64] = []
        self._hash_of_number = np.empty(0, np.uint64)
        self._sorted_hashes = self._hash_of_number
        self._number_of_sorted = np.empty(0, np.int64)
        self._slots = np.zeros(1 << _SLOT_BITS, np.int64)  # numbers by the first bits of a hash

    def __len__(self) -> int:
        return len(self._hash_of_number)

    @property
    def rows(self) -> Int64:
        """The distinct combinations so far, int64[m, columns]."""
        if len(self._parts) != 1:
            empty = np.empty((0, len(self.names)), np.int64)
            self._parts = [np.concatenate((empty, *self._parts))]
        return self._parts[0]

    def of(self, columns: Mapping[str, Int64]) -> Int64:
        """Return the number of each row, int64[n]; the columns are int64[n] each."""
        values = [columns[name] for name in self.names]
        hashes = _hashes(values)
        if len(self) == 0:
            return self._looked_up(hashes, values, np.arange(len(hashes)))
        # The slot of a hash has its number, unless it is new or another one took its slot.
        numbers = self._slots.take((hashes >> _SLOT_SHIFT).view(np.int64))
        others = np.flatnonzero(self._hash_of_number.take(numbers) != hashes)
        if len(others):
            numbers[others] = self._looked_up(hashes[others], values, others)
        return numbers

    def _looked_up(self, hashes: Words, columns: Sequence[Int64], rows: Int64) -> Int64:
        """Numbers of some rows, and give them their slots; new ones are added.

        `hashes`: uint64[m], of these `rows`; the columns have all rows.
        """
        distinct, first, which = np.unique(hashes, return_index=True, return_inverse=True)
        is_new = ~np.isin(distinct, self._sorted_hashes, assume_unique=True)
        if is_new.any():
            new = np.sort(first[is_new])  # in order of first occurrence
            self._parts.append(np.stack([column[rows[new]] for column in columns], axis=1))
            self._hash_of_number = np.append(self._hash_of_number, hashes[new])
            self._number_of_sorted = np.argsort(self._hash_of_number)
            self._sorted_hashes = self._hash_of_number[self._number_of_sorted]
        numbers = self._number_of_sorted[np.searchsorted(self._sorted_hashes, distinct)]
        self._slots[(distinct >> _SLOT_SHIFT).view(np.int64)] = numbers
        return numbers[which.reshape(-1)]


def _hashes(columns: Sequence[Int64]) -> Words:
    """Mix the columns of each row into 64 bits.

    With a hundred thousand combinations two share a hash in one of four billion exports.
    """
    mixed = np.zeros(len(columns[0]), np.uint64)
    shifted = np.empty_like(mixed)
    for column in columns:
        mixed ^= column.view(np.uint64)
        mixed *= _MIX
        mixed ^= np.right_shift(mixed, _MIX_SHIFT, out=shifted)
    return mixed
