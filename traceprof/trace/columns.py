"""Integer columns in as few bytes as their values need: a capture holds many millions of rows.

Only this module knows the layout of a column: numbers of one, two or four bytes above a base, for
the whole column or for each block of rows with values near each other, such as sorted times; else
int64.
"""

from __future__ import annotations

import math
import pickle
import zlib
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt
from msgspec.structs import astuple, replace

from traceprof.intervals import NO_NUMBERS, Int64, Mask
from traceprof.structs import Record
from traceprof.trace.grouping import is_in

if TYPE_CHECKING:
    from typing_extensions import Self

Narrow = npt.NDArray[Any]
Index = Int64 | Mask | slice

_TYPES = (np.dtype(np.uint8), np.dtype(np.uint16), np.dtype(np.uint32))
_WIDEST = _TYPES[-1]
_RANGE = int(np.iinfo(_WIDEST).max)
_RANGE_OF_TWO_BYTES = int(np.iinfo(np.uint16).max)
_COUNTED_BYTES = 2  # of numbers so small that counting each is quicker than sorting them
_MAX_COMPRESSED_BYTES = 1 << 15
_MIN_COMPRESSED_BYTES = 64  # less is not worth the time
_ALL = slice(None)
_BLOCK_ROWS = 1 << 12
_MAX_PARTS = 256  # each is small, and takes more than its numbers


def _indices(index: Index) -> Int64 | slice:
    """Rows by their numbers, which take several times as fast as a mask."""
    is_mask = isinstance(index, np.ndarray) and index.dtype == np.bool_
    return np.flatnonzero(cast("Mask", index)) if is_mask else cast("Int64 | slice", index)


class Rows(Record, frozen=True):
    """Columns of n rows, as many as the first array has.

    `chosen` takes them from all arrays, which must be as long; other fields are of all rows.
    """

    def __len__(self) -> int:
        return len(next(one for one in astuple(self) if isinstance(one, np.ndarray)))

    def chosen(self, rows: Index) -> Self:
        """Return the rows at these indices, int64[m], or where this mask is true, bool[n]."""
        columns, rows = astuple(self), _indices(rows)
        return type(self)(*(one[rows] if isinstance(one, np.ndarray) else one for one in columns))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of all parts, one part after the other; other fields are the first's."""
        columns = zip(*map(astuple, parts), strict=True)
        return cls(
            *(np.concatenate(one) if isinstance(one[0], np.ndarray) else one[0] for one in columns)
        )


class Column:
    """An int64[n] column, made by `pack` or a `ColumnBuilder`."""

    __slots__ = ("_base", "_bases", "_kept", "_whole")

    def __init__(self, kept: Narrow, base: int, bases: Int64 | None = None) -> None:
        """Wrap a column in its packed layout.

        `kept`: uint8, uint16, uint32 or int64[n], the last with a base of 0. `base` is added to
        each number, or one of `bases` to each of a block of `_BLOCK_ROWS`.
        """
        self._kept, self._base, self._bases = kept, base, bases
        self._whole: Int64 | None = None

    def __len__(self) -> int:
        return len(self._kept)

    def __reduce__(self) -> tuple[Any, ...]:
        """Send a constant as one number: else its array would be sent, and kept, as a whole."""
        if self._is_constant:
            return _constant, (self._kept[:1].copy(), len(self), self._base)
        return Column, (self._kept, self._base, self._bases)

    @property
    def nbytes(self) -> int:
        """The number of bytes that it takes, without the bases of blocks."""
        kept = self._kept[:1] if self._is_constant else self._kept
        return kept.nbytes + (0 if self._whole is None else self._whole.nbytes)

    @property
    def values(self) -> Int64:
        """The column as int64[n], unpacked at each use unless it is kept as int64."""
        values: Int64 = self._kept.astype(np.int64, copy=False)
        if self._bases is not None:
            values += np.repeat(self._bases, _BLOCK_ROWS)[: len(values)]
        if self._base:
            values += self._base
        return values

    @property
    def whole(self) -> Int64:
        """The column as int64[n]: the same array until `release`."""
        if self._whole is None:
            self._whole = self.values
        return self._whole

    def release(self) -> None:
        """Release the unpacked column."""
        self._whole = None

    @property
    def kept(self) -> Narrow:
        """The values in the narrowest available type, to be used as indices."""
        return self.values if self._base or self._bases is not None else self._kept

    def at(self, index: Index) -> Int64:
        """Return the values at these indices, without unpacking the others."""
        index = _indices(index)
        values = self._kept[index].astype(np.int64, copy=False)
        if self._bases is not None:
            rows = np.arange(len(self))[index] if isinstance(index, slice) else index
            values += self._bases.take(rows // _BLOCK_ROWS)
        if self._base:
            values += self._base
        return values

    @property
    def first(self) -> int:
        """The first value; the column must not be empty."""
        return int(self.at(slice(0, 1))[0])

    @property
    def distinct(self) -> Int64:
        """The distinct values, ascending int64[m]."""
        return self.counted()[0]

    def counted(self, chosen: Index = _ALL) -> tuple[Int64, Int64]:
        """Distinct values of all or some rows, ascending, and their counts, int64[m] each."""
        if not self._is_small:
            return np.unique(self.at(chosen), return_counts=True)
        every = np.bincount(self._kept[chosen])
        distinct = np.flatnonzero(every)
        return distinct + self._base, every[distinct]

    def isin(self, ids: Iterable[int]) -> npt.NDArray[np.bool_]:
        """Return which values are among these, bool[n]."""
        wanted = np.array(sorted(ids), np.int64)
        if not self._is_small:
            return is_in(self.values, wanted)
        return is_in(self._every, wanted).take(self._kept)

    def places_in(self, numbers: Int64) -> Int64:
        """Return the index of each value in ascending numbers that contain all, int64[n]."""
        if not self._is_small:
            return np.searchsorted(numbers, self.values)
        return np.searchsorted(numbers, self._every).take(self._kept)

    def add_to(self, values: Int64) -> Int64:
        """Return the sum of a column, int64[n], and this one, without unpacking it."""
        values = values + (self._kept if self._bases is None else self.values)
        if self._base:
            values += self._base
        return values

    def taken(self, order: Int64) -> Column:
        """Return the rows in another order, or some of them."""
        if self._bases is not None:
            return pack(self.at(order))
        return Column(self._kept.take(order), self._base)

    @property
    def _is_constant(self) -> bool:
        return self._kept.strides == (0,)

    @property
    def _is_small(self) -> bool:
        """Whether counting each possible number is quicker than sorting them."""
        return self._bases is None and self._kept.dtype.itemsize <= _COUNTED_BYTES

    @property
    def _every(self) -> Int64:
        return np.arange(int(self._kept.max()) + 1 if len(self) else 0) + self._base


def pack(values: Int64) -> Column:
    """Pack a column, int64[n]."""
    if len(values) == 0:
        return Column(np.empty(0, np.uint8), 0)
    low, high = int(values.min()), int(values.max())
    # An addition at each use costs more than a byte or two.
    base = 0 if low >= 0 and high <= _RANGE else low
    kind = next((kind for kind in _TYPES if high - base <= np.iinfo(kind).max), None)
    if kind is None:
        return _in_blocks(values, _WIDEST) or Column(values.copy(), 0)
    if low == high:
        return _constant(np.array([low - base], kind), len(values), base)
    kept = np.empty(len(values), kind)
    return Column(np.subtract(values, base, out=kept, casting="unsafe"), base)


def pack_ahead(ids: Int64) -> Column:
    """Pack ids that mostly follow each other, int64[n], less 0, 1, 2, …: the rest is small."""
    ahead = ids - np.arange(len(ids))
    is_far = len(ids) > _BLOCK_ROWS and int(ahead.max()) - int(ahead.min()) > _RANGE_OF_TWO_BYTES
    return (_in_blocks(ahead, np.dtype(np.uint16)) if is_far else None) or pack(ahead)


def _in_blocks(values: Int64, kind: np.dtype[Any]) -> Column | None:
    """Pack a column whose blocks each have numbers near each other; None if one has not."""
    firsts = np.arange(0, len(values), _BLOCK_ROWS)
    low, high = np.minimum.reduceat(values, firsts), np.maximum.reduceat(values, firsts)
    if int((high - low).view(np.uint64).max()) > np.iinfo(kind).max:  # exact, whatever the values
        return None
    above = values - np.repeat(low, _BLOCK_ROWS)[: len(values)]
    return Column(above.astype(kind), 0, low)


T = TypeVar("T", bound=Record)


class Packed(Record, Generic[T], frozen=True):
    """A record in a fraction of the bytes, to keep and to send: its arrays of integers are packed.

    Small ones are compressed: there may be thousands of reports.
    """

    others: T  # the other fields, and arrays of the same types and shapes without rows
    data: tuple[Column, ...] | bytes

    @classmethod
    def of(cls, record: T) -> Packed[T]:
        """Pack a record."""
        fields = {name: getattr(record, name) for name in record.__struct_fields__}
        arrays = {name: of for name, of in fields.items() if isinstance(of, np.ndarray)}
        columns = [column for array in arrays.values() for column in np.atleast_2d(array.T)]
        packed = tuple(pack(column.astype(np.int64)) for column in columns)
        num_bytes = sum(column.nbytes for column in packed)
        is_small = _MIN_COMPRESSED_BYTES <= num_bytes <= _MAX_COMPRESSED_BYTES
        nothing = {name: array[:0].copy() for name, array in arrays.items()}
        return cls(
            replace(record, **nothing),
            zlib.compress(pickle.dumps(packed, 5), 1) if is_small else packed,
        )

    @property
    def unpacked(self) -> T:
        """The record, unpacked anew at each use."""
        data = self.data
        if isinstance(data, bytes):
            data = pickle.loads(zlib.decompress(data))  # noqa: S301  (our own)
        columns = (column.values for column in data)
        arrays = {}
        for name in self.others.__struct_fields__:
            array = getattr(self.others, name)
            if isinstance(array, np.ndarray):
                shape = array.shape[1:]
                rows = np.stack([*islice(columns, math.prod(shape))], axis=-1)
                arrays[name] = rows.reshape(-1, *shape).astype(array.dtype)
        return replace(self.others, **arrays)


class ColumnBuilder:
    """A column that is filled part by part."""

    def __init__(self) -> None:
        self._parts: list[Column] = []

    def append(self, values: Int64) -> None:
        """Add int64[n]."""
        if len(values):
            self._parts.append(pack(values))
        if len(self._parts) == _MAX_PARTS:
            self._parts = [self.finish()]

    def finish(self) -> Column:
        """Return the column so far."""
        return pack(np.concatenate([NO_NUMBERS, *(part.values for part in self._parts)]))


def _constant(kept: Narrow, length: int, base: int) -> Column:
    repeated = np.ndarray((length,), kept.dtype, kept, strides=(0,))  # `broadcast_to` takes long
    repeated.flags.writeable = False
    return Column(repeated, base)


class PackedSpans(Record, frozen=True):
    """Spans of time.

    Properties are unpacked at each use: keep the result if speed matters.
    """

    starts: Column  # n times in ns
    packed_length: Column  # n durations in ns, not negative

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def start_ns(self) -> Int64:
        """The start of each, int64[n]; the same array until `starts.release`."""
        return self.starts.whole

    @property
    def length_ns(self) -> Int64:
        """The duration of each, int64[n]."""
        return self.packed_length.values

    @property
    def end_ns(self) -> Int64:
        """The end of each, int64[n]."""
        return self.packed_length.add_to(self.start_ns)

    def ends(self, index: Int64 | Mask | slice) -> Int64:
        """Return the ends of some spans, without unpacking the others."""
        return self.start_ns[index] + self.packed_length.at(index)
