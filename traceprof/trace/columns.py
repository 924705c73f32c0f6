"""Integer columns in as few bytes as their values need: a capture holds many millions of rows."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from traceprof.intervals import Int64

    Narrow = npt.NDArray[Any]

_TYPES = (np.dtype(np.uint8), np.dtype(np.uint16), np.dtype(np.uint32))
_COUNTED_BYTES = 2  # of numbers so small that counting each is quicker than sorting them
_ALL = slice(None)
_MIN_ROOM = 4096
_MIN_MAPPED = 1 << 17
_GROWTH = 2


@dataclass(frozen=True, slots=True)
class Packed:
    """An int64[n] column in fewer bytes.

    Attributes:
        base: what is added to each number kept.
        kept: uint8, uint16, uint32 or int64[n], the last with a base of 0.
        table: ascending int64[m], of which `kept` are then the indices; there is no base.
    """

    base: int
    kept: Narrow
    table: Int64 | None = None

    def __len__(self) -> int:
        return len(self.kept)

    @property
    def values(self) -> Int64:
        """The column itself, int64[n], made anew each time unless it is kept as it is."""
        return self.at(_ALL)

    def at(self, index: Int64 | npt.NDArray[np.bool_] | slice) -> Int64:
        """Return the values at these indices, without unpacking the others."""
        kept = self.kept[index]
        values: Int64
        if self.table is not None:
            values = self.table[kept]
            return values
        values = kept.astype(np.int64, copy=False)
        if self.base:
            values += self.base
        return values

    @property
    def highest(self) -> int:
        """The largest value; there has to be one."""
        return int(self._meant(self.kept.max(keepdims=True))[0])

    @property
    def distinct(self) -> Int64:
        """The values that there are, ascending int64[m]."""
        return self.counted()[0]

    def counted(self, chosen: slice | Int64 | npt.NDArray[np.bool_] = _ALL) -> tuple[Int64, Int64]:
        """Return the values that there are in all rows or some, ascending, and how often each is.

        Returns:
            int64[m], int64[m].
        """
        kept = self.kept[chosen]
        if kept.dtype.itemsize <= _COUNTED_BYTES:
            number = np.bincount(kept)
            found: Int64 = np.flatnonzero(number)
            number = number[found]
        else:
            found, number = np.unique(kept, return_counts=True)
        return self._meant(found), number

    def isin(self, ids: Iterable[int]) -> npt.NDArray[np.bool_]:
        """Return which values are among these, bool[n]."""
        wanted = np.array(sorted(ids), np.int64)
        if self.kept.dtype.itemsize > _COUNTED_BYTES:
            return np.isin(self.values, wanted)
        mask: npt.NDArray[np.bool_] = np.isin(self._every, wanted)[self.kept]
        return mask

    def places_in(self, numbers: Int64) -> Int64:
        """Return where in ascending numbers each value is, int64[n]; all are there."""
        if self.kept.dtype.itemsize > _COUNTED_BYTES:
            return np.searchsorted(numbers, self.values)
        places: Int64 = np.searchsorted(numbers, self._every)[self.kept]
        return places

    def taken(self, order: Int64) -> Packed:
        """Return the rows in another order, or some of them."""
        return Packed(self.base, self.kept[order], self.table)

    @property
    def _every(self) -> Int64:
        """Return what each number up to the largest one kept stands for."""
        return self._meant(np.arange(int(self.kept.max()) + 1 if len(self) else 0))

    def _meant(self, kept: Narrow) -> Int64:
        """Return the values that such numbers stand for."""
        if self.table is not None:
            values: Int64 = self.table[kept]
            return values
        return kept.astype(np.int64, copy=False) + self.base


def pack(values: Int64) -> Packed:
    """Pack a column, int64[n]."""
    if len(values) == 0:
        return Packed(0, np.empty(0, np.uint8))
    low, high = int(values.min()), int(values.max())
    base, kind = _fit(low, high)
    if base:
        values = values - base
    return Packed(base, values.astype(kind, copy=False))


class Differences:
    """An int64[n] column kept as what each value adds to the one before; whole while it is used.

    Times in the order in which they are kept so in four bytes each.

    Attributes:
        first: the first value, 0 where there is none.
        last: the last one, likewise.
    """

    __slots__ = ("_added", "_is_whole", "_length", "_values", "first", "last")

    def __init__(self, values: Int64) -> None:
        """Keep a column, of which no two neighbours are 2**63 or more apart."""
        self._length = len(values)
        self.first, self.last = (int(values[0]), int(values[-1])) if len(values) else (0, 0)
        self._values: Int64 | None = values
        self._added = pack(np.diff(values, prepend=values[:1]))
        self._is_whole = self._added.kept.dtype == np.int64  # differences win nothing
        if self._is_whole:
            self._added = pack(np.empty(0, np.int64))
        self.release()

    def __len__(self) -> int:
        return self._length

    @property
    def values(self) -> Int64:
        """The column itself, int64[n]: the same one until `release`."""
        values = self._values
        if values is None:
            values = self._added.kept.astype(np.int64)
            values += self._added.base
            values[:1] += self.first
            np.cumsum(values, out=values)
            self._values = values
        return values

    def tail(self, count: int) -> Int64:
        """Return the last values, so many or all, without making the others."""
        if self._values is not None:
            return self._values[-count:]
        after = self._added.at(slice(max(len(self) - count, 0) + 1, None))
        return (self.last - np.append(after[::-1].cumsum()[::-1], 0))[: len(self)]

    def release(self) -> None:
        """Let go of the column as a whole, if that wins anything."""
        if not self._is_whole:
            self._values = None


class Codes:
    """Numbers the few different values of a column in the order in which they are met."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def of(self, values: Int64) -> Int64:
        """Return the number of each value, int64[n]."""
        distinct, which = np.unique(values, return_inverse=True)
        numbers = self._numbers
        found = [numbers.setdefault(value, len(numbers)) for value in distinct.tolist()]
        return np.array(found, np.int64)[which.reshape(-1)]

    def packed(self, numbers: Packed) -> Packed:
        """Return the column of which these are the numbers."""
        met = np.array([*self._numbers], np.int64)
        place = np.empty(len(met), np.min_scalar_type(max(len(met) - 1, 0)))
        order = np.argsort(met)
        place[order] = np.arange(len(met))
        return Packed(0, place[numbers.kept], met[order])


class Growing:
    """A column that is filled part by part."""

    def __init__(self) -> None:
        self._length = 0
        self._base = 0
        self._lowest, self._highest = 0, -1  # that fit
        self._room: Narrow = np.empty(0, np.uint8)
        self._mapping: mmap.mmap | None = None  # that the room is of

    def append(self, values: Int64, low: int, high: int) -> None:
        """Add a part, int64[n], none of it below `low` or above `high`, which may be far off."""
        if len(values) == 0:
            return
        if low < self._lowest or high > self._highest:
            low, high = int(values.min()), int(values.max())
            if low < self._lowest or high > self._highest:
                self._make_fit(low, high)
        stop = self._length + len(values)
        if stop > len(self._room):
            self._grow(max(stop * _GROWTH, _MIN_ROOM))
        part = self._room[self._length : stop]
        part[:] = values - self._base if self._base else values
        self._length = stop

    def finish(self) -> Packed:
        """Return all that was added; nothing can be added any more."""
        return Packed(self._base, self._room[: self._length])

    def _make_fit(self, low: int, high: int) -> None:
        """Choose a type for the values so far and others from `low` to `high`."""
        so_far = Packed(self._base, self._room[: self._length]).values
        if self._length:
            low, high = min(low, int(so_far.min())), max(high, int(so_far.max()))
        self._base, kind = _fit(low, high)
        limits = np.iinfo(kind)
        self._lowest, self._highest = self._base + int(limits.min), self._base + int(limits.max)
        self._room = (so_far - self._base).astype(kind, copy=False)
        self._mapping = None

    def _grow(self, length: int) -> None:
        """Make room for so many numbers; where there are many, in a mapping of its own.

        In the heap, what columns leave as they grow would lie between them, of use to nobody. A
        mapping grows without being copied, and what of it was never written to takes no memory.
        """
        kind = self._room.dtype
        size = length * kind.itemsize
        if self._mapping is not None:
            self._room = np.empty(0, kind)  # what looks at a mapping keeps it as it is
            try:
                self._mapping.resize(size)
            except (OSError, SystemError, ValueError):  # not every system can
                self._room = np.frombuffer(self._mapping, kind, self._length)
            else:
                self._room = np.frombuffer(self._mapping, kind, length)
                return
        so_far = self._room[: self._length]
        if size < _MIN_MAPPED:
            self._room = np.empty(length, kind)
        else:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            self._mapping = mmap.mmap(-1, size, flags=flags)
            self._room = np.frombuffer(self._mapping, kind, length)
        self._room[: self._length] = so_far


@dataclass(frozen=True, slots=True)
class Times:
    """An int64[n] column whose neighbours are near each other, by parts.

    Attributes:
        base: int64[m], what is added in each part.
        end: int64[m], where each part ends.
        added: n numbers.
    """

    base: Int64
    end: Int64
    added: Packed

    @property
    def values(self) -> Int64:
        """The column itself, int64[n]."""
        return self.added.values + np.repeat(self.base, np.diff(self.end, prepend=0))

    def at(self, index: Int64) -> Int64:
        """Return the values at these indices, which ascend."""
        number = np.diff(np.searchsorted(index, self.end), prepend=0)
        return self.added.at(index) + np.repeat(self.base, number)


class GrowingTimes:
    """The same, filled part by part."""

    def __init__(self) -> None:
        self._base: list[int] = []
        self._number: list[int] = []
        self._added = Growing()

    def append(self, values: Int64) -> None:
        """Add a part, int64[n], not empty."""
        base, highest = int(values.min()), int(values.max())
        self._base.append(base)
        self._number.append(len(values))
        self._added.append(values - base, 0, highest - base)

    def finish(self) -> Times:
        """Return all that was added; nothing can be added any more."""
        end = np.array(self._number, np.int64).cumsum()
        return Times(np.array(self._base, np.int64), end, self._added.finish())


def _fit(low: int, high: int) -> tuple[int, np.dtype[Any]]:
    """Return what to subtract from values in [low, high], and the type that the rest fits."""
    # An addition at each use costs more than a byte or two.
    base = 0 if low >= 0 and high <= np.iinfo(_TYPES[-1]).max else low
    for kind in _TYPES:
        if high - base <= np.iinfo(kind).max:
            return base, kind
    return 0, np.dtype(np.int64)
