"""Combinations of several columns as numbers: names, grids and blocks have few of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceprof.intervals import Int64
    from traceprof.trace.sqlite.pages import Words

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
        """Prepare for columns of these names."""
        self.names = tuple(names)
        self._parts: list[Int64] = []
        self._hash_of_number = np.empty(0, np.uint64)
        self._sorted_hashes = self._hash_of_number
        self._number_of_sorted = np.empty(0, np.int64)
        self._slots = np.zeros(1 << _SLOT_BITS, np.int64)  # numbers by the first bits of a hash

    def __len__(self) -> int:
        """Return the number of distinct combinations so far."""
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
        """Return the numbers of some rows, and give them their slots; new ones are added.

        Args:
            hashes: uint64[m], of these rows.
            columns: int64[n] each, of all rows.
            rows: int64[m], indices of these rows.
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
