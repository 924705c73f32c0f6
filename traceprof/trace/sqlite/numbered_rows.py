"""Combinations of several columns as numbers: of names, grids and blocks there are few."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from traceprof.trace.sqlite.pages import gathered
from traceprof.trace.sqlite.record_formats import factors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traceprof.intervals import Int64
    from traceprof.trace.sqlite.pages import Bytes, Words

_ROOM = 1 << 10
_MAX_KNOWN = 1 << 15
_SLOT_BITS = 17
_SLOT_SHIFT = np.uint64(64 - _SLOT_BITS)
_MIX = np.uint64(0x9E3779B97F4A7C15)


class NumberedRows:
    """Numbers combinations of columns in the order in which they are met.

    Attributes:
        names: of the columns.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._hashes = np.empty(0, np.uint64)  # sorted
        self._numbers = np.empty(0, np.int64)  # of the sorted hashes
        self._met: list[Int64] = []
        self._count = 0
        self._stored = _Stored()

    def __len__(self) -> int:
        """How many were met so far."""
        return self._count

    @property
    def rows(self) -> Int64:
        """What was met so far, int64[m, columns]."""
        if len(self._met) != 1:
            empty = np.empty((0, len(self.names)), np.int64)
            self._met = [np.concatenate((empty, *self._met))]
        return self._met[0]

    def of(self, columns: Mapping[str, Int64]) -> Int64:
        """Return the number of each row, int64[n]; the columns are int64[n] each."""
        picked = [columns[name] for name in self.names]
        hashes = _hashes(picked)
        known = self._positions(hashes)
        new = np.flatnonzero(known < 0)
        if len(new):
            _, first = np.unique(hashes[new], return_index=True)
            self._learn(hashes, picked, np.sort(new[first]))
            known = self._positions(hashes)
        return self._numbers[known]

    def of_stored(
        self, data: Bytes, begin: Int64, kind: Int64, width: int, masks: Words
    ) -> tuple[Int64, Int64] | None:
        """Look up rows by the bytes that hold their columns, side by side in the pages.

        Args:
            data: the pages.
            begin: int64[n], where each row's columns do.
            kind: int64[n], equal where the columns are stored in the same way, in the same bytes.
            width: in words of eight bytes, of the longest.
            masks: uint64[n or 1, width], the bits of the words that are theirs.

        Returns:
            The number of each row, int64[n], and the rows whose number is not known, int64[m]:
            these are to be decoded, and told to `learn_stored`. None where it does not pay.
        """
        if self._stored.is_full:
            return None
        words = gathered(data, begin, 8 * width).view(np.uint64).reshape(-1, width)
        words &= masks
        return self._stored.numbers(words, kind)

    def learn_stored(self, rows: Int64, numbers: Int64) -> None:
        """Know from now on the numbers of these rows of those looked up last: int64[m] each."""
        self._stored.learn(rows, numbers)

    def _positions(self, hashes: Words) -> Int64:
        """Return where each hash is among the known ones, -1 for an unknown one."""
        if len(self._hashes) == 0:
            return np.full(len(hashes), -1, np.int64)
        at = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        return np.where(self._hashes[at] == hashes, at, -1)

    def _learn(self, hashes: Words, columns: Sequence[Int64], rows: Int64) -> None:
        self._met.append(np.stack([column[rows] for column in columns], axis=1))
        numbers = np.arange(len(rows)) + self._count
        self._count += len(rows)
        all_hashes = np.concatenate((self._hashes, hashes[rows]))
        order = np.argsort(all_hashes)
        self._hashes = all_hashes[order]
        self._numbers = np.concatenate((self._numbers, numbers))[order]


class _Stored:
    """The ways in which combinations that were met are stored, and their numbers.

    Attributes:
        is_full: whether there were so many that looking them up does not pay.
    """

    def __init__(self) -> None:
        self.is_full = False
        # What an empty slot leads to is like no row.
        self._slots = np.zeros(1 << _SLOT_BITS, np.int64)
        self._kinds = np.full(_ROOM, -1, np.int64)
        self._numbers = np.zeros(_ROOM, np.int64)
        self._words: list[Words] = []
        self._known: dict[int, int] = {}
        self._last: tuple[Words, Words, Int64]

    def numbers(self, words: Words, kind: Int64) -> tuple[Int64, Int64]:
        """Return what is known of rows: see `NumberedRows.of_stored`."""
        width = words.shape[1]
        while len(self._words) < width:
            self._words.append(np.zeros(len(self._kinds), np.uint64))
        hashes: Words = words @ factors(width) + kind.view(np.uint64) * _MIX
        at = self._slots.take((hashes >> _SLOT_SHIFT).view(np.int64))
        differ = self._kinds.take(at) != kind
        for number, known in enumerate(self._words[:width]):
            differ |= known.take(at) != words[:, number]
        self._last = hashes, words, kind
        return self._numbers.take(at), np.flatnonzero(differ)

    def learn(self, rows: Int64, numbers: Int64) -> None:
        """Know the numbers of rows: see `NumberedRows.learn_stored`."""
        hashes, words, kind = self._last
        distinct, first = np.unique(hashes[rows], return_index=True)
        for each, row, number in zip(
            distinct.tolist(), rows[first].tolist(), numbers[first].tolist(), strict=True
        ):
            place = self._known.setdefault(each, len(self._known) + 1)
            if place == len(self._kinds):
                self.is_full = place >= _MAX_KNOWN
                self._grow()
            self._slots[each >> int(_SLOT_SHIFT)] = place
            self._kinds[place] = kind[row]
            self._numbers[place] = number
            for known, word in zip(self._words, words[row], strict=False):
                known[place] = word

    def _grow(self) -> None:
        self._kinds, self._numbers = np.tile(self._kinds, 2), np.tile(self._numbers, 2)
        self._words = [np.tile(word, 2) for word in self._words]


def _hashes(columns: Sequence[Int64]) -> Words:
    """Mix the columns of each row into 64 bits.

    Of a hundred thousand combinations two would share a hash in one of four billion exports.
    """
    mixed = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        mixed ^= column.astype(np.uint64)
        mixed *= _MIX
        mixed ^= mixed >> np.uint64(29)
    return mixed
